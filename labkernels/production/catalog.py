"""What production kernels chose, operand by operand, and the features that seem to decide it.

`python -m labkernels.production.catalog WHEEL` writes the census of FlashAttention-3 into the store.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import pandas as pd

from labkernels.errors import LabError, NotInstalled
from labkernels.mechanisms import GLOBAL, names
from labkernels.production import fa3, flash_names, sources
from labkernels.production.attention import AttentionCall
from labkernels.production.census import census, row
from labkernels.store import Store


def as_stored(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> list[dict[str, object]]:
    """The columns of table `fa3_census` of a census, which has one for each mechanism and feature.

    Raises:
        LabError: a mechanism or feature that the table has no column for occurs.
    """
    for one in rows:
        if unknown := [name for name, count in one.items() if name not in columns and count]:
            raise LabError(
                f"kernels use {', '.join(unknown)}, for which fa3_census has no column: add it to data/datapackage.json"
            )
    return [{name: one[name] for name in columns} for one in rows]


def flash_kernels(census: pd.DataFrame) -> pd.DataFrame:
    """The attention kernels of a census, with what their names say as further columns.

    Args:
        census: Table `fa3_census`, or the same columns from `labkernels census --csv`.
    """
    parsed = [flash_names.parse(name) for name in census["kernel"]]
    known = pd.DataFrame([{**asdict(kernel), "label": kernel.label} for kernel in parsed if kernel])
    rows = census[[kernel is not None for kernel in parsed]].reset_index(drop=True)
    rows["tma_loads"] = rows["tma_tile"] + rows["tma_multicast"]
    return rows.join(known)


@dataclass(frozen=True)
class Reading:
    """What one feature of an operand seems to decide, as two queries over `operands`.

    Attributes:
        feature: The feature.
        sentence: The tendency.
        scope: Operands the sentence applies to.
        expected: Those of them that follow it.
    """

    feature: str
    sentence: str
    scope: str
    expected: str


_TMA_LOAD = f"mechanism in {names(source=GLOBAL, by_threads=False)}"

READINGS = (
    Reading(
        "regular or indexed",
        "A box of a tensor that shared memory waits for comes by TMA.",
        "direction == 'load' and access == 'regular' and consumer == 'shared'",
        _TMA_LOAD,
    ),
    Reading(
        "regular or indexed",
        "One index for a whole tile is no obstacle: it becomes a coordinate of the tensor.",
        "direction == 'load' and index_granularity == 'tile' and consumer == 'shared'",
        _TMA_LOAD,
    ),
    Reading(
        "regular or indexed",
        "One index for a part of a tile, a page smaller than it, is no obstacle either: each part is a box.",
        "direction == 'load' and index_granularity == 'part' and consumer == 'shared'",
        _TMA_LOAD,
    ),
    Reading(
        "regular or indexed",
        "Rows that each have an index are left to threads.",
        "index_granularity == 'row'",
        f"mechanism in {names(touches_global=True, by_threads=True)}",
    ),
    Reading(
        "row bytes",
        "Long rows, of 64 bytes at least, come by TMA.",
        "direction == 'load' and row_bytes_min >= 64 and consumer == 'shared'",
        _TMA_LOAD,
    ),
    Reading(
        "alignment",
        "Aligned to 16 bytes, tiles come by TMA.",
        "direction == 'load' and alignment_bytes >= 16 and consumer == 'shared'",
        _TMA_LOAD,
    ),
    Reading(
        "alignment",
        "Alignment below 16 bytes rules TMA out.",
        "direction == 'load' and alignment_bytes < 16",
        f"mechanism in {names(source=GLOBAL, by_threads=True)}",
    ),
    Reading(
        "reuse across CTAs",
        "A tile that several CTAs read is multicast.",
        "direction == 'load' and reuse == 'across_ctas' and consumer == 'shared'",
        "mechanism == 'tma_multicast'",
    ),
    Reading(
        "who needs the registers",
        "What ends in registers, the inputs of an epilogue, is loaded there directly.",
        "direction == 'load' and phase == 'epilogue'",
        "mechanism == 'ldg'",
    ),
    Reading("direction", "Stores go by TMA as loads do.", "direction == 'store'", "mechanism == 'tma_store'"),
    Reading(
        "direction",
        "Sums in global memory are left to bulk reductions.",
        "direction == 'update'",
        "mechanism == 'bulk_reduce'",
    ),
    Reading(
        "clipping",
        "A load that has to stop at the end of a sequence or matrix comes by TMA all the same.",
        "direction == 'load' and needs_clipping == True and consumer == 'shared'",
        _TMA_LOAD,
    ),
    Reading(
        "clipping",
        "A store that has to stop there does not go by TMA.",
        "direction == 'store' and needs_clipping == True",
        "mechanism == 'stg'",
    ),
    Reading(
        "packed heads",
        "Query heads packed into one tile rule TMA out.",
        "packs_heads == True",
        "mechanism in ['cp_async', 'stg']",
    ),
    Reading(
        "phase",
        "What the main loop loads comes asynchronously.",
        "direction == 'load' and phase == 'mainloop'",
        f"mechanism == 'cp_async' or {_TMA_LOAD}",
    ),
)
"""Tendencies, not rules: each is shown with the operands that contradict it."""


def counter_examples(operands: pd.DataFrame) -> pd.DataFrame:
    """Each reading, how many operands follow it, and those that do not.

    Args:
        operands: Table `operands`.

    Returns:
        Columns `feature`, `sentence`, `follow`, `contradict` and `examples` (operands by system).
    """
    rows = []
    for reading in READINGS:
        spoken_of = operands.query(reading.scope)
        against = spoken_of.drop(spoken_of.query(reading.expected).index)
        names = against.groupby(["system", "mechanism"], sort=False).operand.unique()
        examples = [f"{system}: {', '.join(found)} by {by}" for (system, by), found in names.items()]
        rows.append(
            {
                "feature": reading.feature,
                "sentence": reading.sentence,
                "follow": len(spoken_of) - len(against),
                "contradict": len(against),
                "examples": "; ".join(examples),
            }
        )
    return pd.DataFrame(rows)


def by_feature(operands: pd.DataFrame) -> pd.DataFrame:
    """Loads into shared memory, counted by each value of each feature and by mechanism.

    Args:
        operands: rows of table `operands` with a mechanism.

    Returns:
        Columns `feature`, `value`, `mechanism`, `operands` (how many) and `which`.
    """
    loads = operands[operands["direction"].eq("load") & operands["consumer"].eq("shared")]
    indexed = "one index per " + loads["index_granularity"]
    readers = {"none": "one CTA", "within_cta": "one CTA, several times", "across_ctas": "several CTAs"}
    features = {
        "access": loads["access"].where(loads["index_granularity"].isna(), indexed),
        "shortest row": loads["row_bytes_min"].map("{} B".format, na_action="ignore"),
        "alignment": loads["alignment_bytes"].map("{} B".format, na_action="ignore"),
        "read by": loads["reuse"].map(readers),
        "phase": loads["phase"],
        "rows to clip": loads["needs_clipping"].map({True: "yes", False: "no"}),
        "packed heads": loads["packs_heads"].map({True: "yes", False: "no"}),
    }
    which = loads["system"] + ": " + loads["operand"]
    rows = pd.concat(
        loads[["mechanism"]].assign(
            feature=name, value=values.astype(object).fillna("not known"), operand=which
        )
        for name, values in features.items()
    )
    counts = rows.groupby(["feature", "value", "mechanism"], sort=False)["operand"]
    named = counts.agg(operands="size", which=lambda operand: ", ".join(dict.fromkeys(operand)))
    return named.reset_index()


def listing(operands: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Every choice for a reader, and the address of the lines of source it was read from.

    Args:
        operands: Table `operands`.
    """
    indexed = "indexed by " + operands["index_granularity"]
    read = operands["reason_inferred"].fillna(False)
    rows = operands.assign(
        mechanism=operands["mechanism"].fillna("none"),
        reason=operands["reason"].where(~read, "[" + operands["reason"] + "]"),
        access=operands["access"].where(operands["index_granularity"].isna(), indexed),
        source=operands["path"] + " " + operands["lines"],
    )
    first = operands["path"].str.split("; ").str[0]
    line = ("#L" + operands["lines"].str.extract(r"^(\d+)")[0]).fillna("")
    address = (
        operands["system"].map(sources.REPOSITORIES) + "/blob/" + operands["commit"] + "/" + first + line
    )
    columns = [
        "operand", "mechanism", "condition", "reason", "system", "kernel", "direction", "access", "phase", "variant",
        "source",
    ]  # fmt: skip
    return rows[columns], list(address)


def page_sizes(queries: Mapping[str, int], pages: Sequence[int]) -> pd.DataFrame:
    """How FlashAttention-3 loads paged keys at head dim 128, 32 query and 8 KV heads.

    Args:
        queries: number of queries of a sequence, by what to call it.
        pages: rows of a page.

    Returns:
        Columns `kernel` (dtype, mask and tile), `tile` (keys), `page`, `queries`, `mechanism` and `why`.
    """
    rows = []
    for dtype, causal in product(("bf16", "fp8"), (False, True)):
        call = {"dtype": dtype, "head_dim": 128, "causal": causal, "heads": 32, "kv_heads": 8, "varlen": True}
        tile = fa3.choose(AttentionCall(**call, seqlen_q=max(queries.values()))).tile_n
        kernel = f"{dtype}, {'causal' if causal else 'no mask'} (tile of {tile} keys)"
        for page, (name, seqlen_q) in product(pages, queries.items()):
            choice = fa3.choose(AttentionCall(**call, seqlen_q=seqlen_q, page_size=page))
            shown = {"mechanism": choice.k, "why": choice.reasons["k"]}
            rows.append({"kernel": kernel, "tile": tile, "page": page, "queries": name} | shown)
    return pd.DataFrame(rows)


def compiled(path: str) -> pd.DataFrame:
    """The kernels of a compiled file of the reader's own, with the instructions of each mechanism.

    Raises:
        NotInstalled: no file is named.
        LabError: it cannot be read; the message says why.
    """
    if not path:
        raise NotInstalled(
            "compiled is empty: with measure=True give the path of a compiled file, -p compiled FILE"
        )
    kernels, errors = census([Path(path)])
    if errors:
        raise LabError(f"{path}: {'; '.join(errors[path])}")
    named = ("kernel", "arch", "registers", "reading")
    return pd.DataFrame({name: getattr(k, name) for name in named} | dict(k.mechanisms) for k in kernels)


def main(wheel: str) -> None:
    """Write the census of a wheel into the store; what could not be read ends it with a sentence."""
    kernels, errors = census([Path(wheel)])
    if errors:
        sys.exit(f"catalog: {errors}")
    store = Store()
    store.write(
        "fa3_census", as_stored([row(kernel) for kernel in kernels], store.tables["fa3_census"].columns)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
