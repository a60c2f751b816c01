"""Where a hurried reader starts: a dozen rules on one page, and a tree of questions that ends in rules."""

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labkernels.book.decide import address
from labkernels.book.headline import quoted
from labkernels.model.advisor import Question
from labkernels.store import Store
from labkernels.studies.rules import DOZEN, FOREMOST, Verdict, judge


@dataclass(frozen=True)
class Leaf:
    """An answer: what to take, the rule that says so, and an operand to start the decision page with."""

    take: str
    rule: str
    question: Question | None = None


@dataclass(frozen=True)
class Branch:
    """A question with its answers, each another question or the end."""

    asks: str
    answers: Mapping[str, "Branch | Leaf"]


_ONE = Branch(
    "Can one box of a tensor map describe the tile: address, pitch and rows multiples of 16 bytes, no index?",
    {
        "Yes, and the kernel mostly copies": Leaf(
            "TMA, because one thread does it; the rate is that of cp.async", "equal_shared_memory", Question()
        ),
        "Yes, and tensor cores work beside it": Leaf(
            "TMA", "cp_async_beside_tensor_cores", Question(row_bytes=128, rows=128, swizzle="128B")
        ),
        "Yes, but its rows are shorter than 128 bytes": Leaf(
            "TMA with L2 promotion to 128 bytes", "promote_short_rows", Question(row_bytes=64, rows=256)
        ),
        "Yes, but the data is needed in registers, not in shared memory": Leaf(
            "plain loads", "plain_loads_keep_up", Question(row_bytes=512, rows=8, consumer="registers")
        ),
        "No: a page table gives pages of 8 rows or more": Leaf(
            "TMA, a box for each page",
            "paged_prefill",
            Question(row_bytes=256, rows=128, pitch_bytes=2048, stages=2, index_rows=64),
        ),
        "No: every row, or every few rows, has its own index": Leaf(
            "cp.async",
            "paged_short",
            Question(row_bytes=256, rows=128, pitch_bytes=2048, stages=2, index_rows=1),
        ),
    },
)
_SEVERAL = Branch(
    "Where is it?",
    {
        "In L2, with 48 KiB or more for the pipeline": Leaf(
            "multicast, to 4 or 8 CTAs",
            "gains_from_l2",
            Question(cluster=4, row_bytes=512, rows=64, source="l2", tensor_mib=32),
        ),
        "In L2, with 16 KiB or less for the pipeline": Leaf(
            "no cluster: neighboring CTAs, each loads it",
            "small_rings",
            Question(cluster=4, row_bytes=128, rows=32, source="l2", tensor_mib=32),
        ),
        "In HBM, and the CTAs load in step": Leaf(
            "no cluster: neighboring CTAs, each loads it",
            "nothing_from_hbm",
            Question(cluster=4, row_bytes=512, rows=64),
        ),
        "In L2 or HBM, and the CTAs drift apart": Leaf(
            "multicast", "out_of_step", Question(cluster=4, row_bytes=512, rows=64, pace="apart")
        ),
        "In the inner loop of a compute-bound GEMM": Leaf(
            "either: choose the cluster for the tile order, not for multicast", "gemm_no_gain"
        ),
        "In a GEMM with fewer rows than a tile (decode)": Leaf(
            "a tile that fits the rows first; then a cluster along N with multicast", "gemm_decode"
        ),
    },
)
_COMPUTED = Branch(
    "How many CTAs need what one computes?",
    {
        "Two": Leaf(
            "DSM: push it", "computed_pair", Question(cluster=2, row_bytes=128, rows=64, source="computed")
        ),
        "Four or more, tiles of 32 KiB": Leaf(
            "a round trip through L2, multicast from there",
            "round_trip",
            Question(cluster=4, row_bytes=512, rows=64, source="computed"),
        ),
    },
)
_OUT = Branch(
    "What leaves?",
    {
        "An accumulator, as wgmma leaves it in registers": Leaf(
            "a trip through shared memory, then TMA or whole rows", "fragments_through_shared_memory"
        ),
        "A tile in whole rows": Leaf("either TMA stores or st.global", "stores_keep_up"),
    },
)
TREE = Branch(
    "Where does the tile come from, and who needs it?",
    {
        "Global memory; one CTA needs it": _ONE,
        "Global memory; several CTAs need the same tile": _SEVERAL,
        "A CTA of the cluster computes it": _COMPUTED,
        "It goes back to memory": _OUT,
    },
)

_STYLE = """
.lab-tree details { border-left: 2px solid var(--pst-color-border, #ccc); margin: 0.3rem 0 0.3rem 0.2rem;
  padding: 0 0 0 0.8rem; }
.lab-tree summary { cursor: pointer; padding: 0.2rem 0; }
.lab-tree p { margin: 0.3rem 0; }
.lab-tree .lab-asks { font-weight: bold; }
.lab-sheet section { break-inside: avoid; }
.lab-sheet h2 { margin: 0.8rem 0 0.2rem; font-size: 1.1em; }
.lab-sheet li { margin: 0.4rem 0; }
.lab-sheet small { display: block; font-size: 0.9em; line-height: 1.3; }
html[data-theme="dark"] .bd-content div.cell_output .text_html:has(:is(div.lab-tree, div.lab-sheet)) {
  background: transparent; color: inherit; padding: 0;
}
@media print {
  .lab-sheet { columns: 2; font-size: 0.66em; line-height: 1.3; }
  .lab-sheet ul { padding-left: 1rem; margin: 0; }
  .lab-sheet li { margin: 0.25rem 0; }
  .lab-sheet h2 { font-size: 1.1em !important; }
}
"""


def rules_of(tree: Branch) -> Iterator[str]:
    """The rules at the ends of a tree."""
    for end in tree.answers.values():
        yield from rules_of(end) if isinstance(end, Branch) else (end.rule,)


def _chapter(verdict: Verdict) -> str:
    return f'<a href="{verdict.rule.chapter}.html">chapter</a>'


#: The figures of the landing page's three sentences, and how each reads there.
_ANSWERS = {
    "equal": "tma_over_cp_async_equal_shared_bytes",
    "beside": "wgmma_beside_cp_async",
    "beside_tma": "wgmma_beside_tma",
    "shared": "multicast_over_unclustered_whole_gpu",
}


def answer(store: Store, gpu: str) -> dict[str, str]:
    """Numbers of the short answer, each with its interval: `1.32 (1.28 to 1.37)`."""
    found = {key: quoted(store, gpu, name) for key, name in _ANSWERS.items()}
    return {
        key: "not measured" if one.value is None else f"{one.value:.2f} ({one.low:.2f} to {one.high:.2f})"
        for key, one in found.items()
    }


class Tree:
    """The tree as nested `details`, which open without JavaScript; its rules are judged on a GPU's newest rows."""

    def __init__(self, store: Store, gpu: str) -> None:
        self.verdicts = {one.rule.id: one for one in judge(store, gpu, ids=set(rules_of(TREE)))}

    def __repr__(self) -> str:
        return f"decision tree of {len(self.verdicts)} rules"

    def _repr_html_(self) -> str:
        return f'<div class="lab-tree"><style>{_STYLE}</style>{self._branch(TREE)}</div>'

    def _branch(self, one: Branch) -> str:
        answers = "".join(
            f'<details class="lab-print"><summary>{html.escape(answer)}</summary>'
            f"{self._branch(end) if isinstance(end, Branch) else self._leaf(end)}</details>"
            for answer, end in one.answers.items()
        )
        return f'<p class="lab-asks">{html.escape(one.asks)}</p>{answers}'

    def _leaf(self, one: Leaf) -> str:
        verdict = self.verdicts[one.rule]
        tried = (
            f' · <a href="decide.html{html.escape(address(one.question))}">ask for such an operand</a>'
            if one.question
            else ""
        )
        return (
            f"<p><strong>Take {html.escape(one.take)}.</strong></p><p>{html.escape(verdict.rule.statement)} "
            f"<em>{verdict.outcome.capitalize()}:</em> {html.escape(verdict.sentence)} {_chapter(verdict)}{tried}</p>"
        )


class Sheet:
    """The dozen rules to know first, each with its number, its scope and its chapter, on one page."""

    def __init__(self, store: Store, gpu: str) -> None:
        self.verdicts = {one.rule.id: one for one in judge(store, gpu, ids=FOREMOST)}

    def __repr__(self) -> str:
        return f"{len(self.verdicts)} rules of thumb"

    def _repr_html_(self) -> str:
        groups = "".join(
            f"<section><h2>{html.escape(group)}</h2><ul>{''.join(map(self._rule, names))}</ul></section>"
            for group, names in DOZEN.items()
        )
        return f'<div class="lab-sheet"><style>{_STYLE}</style>{groups}</div>'

    def _rule(self, name: str) -> str:
        one = self.verdicts[name]
        return (
            f"<li><strong>{html.escape(one.rule.statement)}</strong> {html.escape(one.sentence)}"
            f"<small>{one.outcome}; on {html.escape(one.rule.scope)} {_chapter(one)}</small></li>"
        )
