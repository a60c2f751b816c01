"""Every rule of thumb, and its verdict on the stored rows of one GPU."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache

import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.protocols.experiment import Progress, silent
from labkernels.store import Store
from labkernels.studies import select
from labkernels.studies.broadcast.rules import RULES as BROADCAST
from labkernels.studies.crossover.rules import RULES as CROSSOVER
from labkernels.studies.gemm.pair_rules import RULES as PAIRS
from labkernels.studies.gemm.rules import RULES as GEMM
from labkernels.studies.kernel.rules import RULES as KERNEL
from labkernels.studies.l2.rules import RULES as L2
from labkernels.studies.latency.rules import RULES as LATENCY
from labkernels.studies.multicast.rules import RULES as MULTICAST
from labkernels.studies.paged.rules import RULES as PAGED
from labkernels.studies.rule import Rule
from labkernels.studies.stores.rules import RULES as STORES

RULES: tuple[Rule, ...] = (
    *CROSSOVER,
    *LATENCY,
    *L2,
    *STORES,
    *MULTICAST,
    *BROADCAST,
    *PAGED,
    *GEMM,
    *KERNEL,
    *PAIRS,
)

#: The dozen to know first, by what one decides.
DOZEN: dict[str, tuple[str, ...]] = {
    "How much in flight": ("enough_in_flight", "equal_shared_memory", "promote_short_rows"),
    "Several CTAs, one tile": ("gains_from_l2", "nothing_from_hbm", "computed_pair"),
    "Pages and indices": ("paged_prefill", "paged_short"),
    "Beside tensor cores": ("cp_async_beside_tensor_cores", "gemm_no_gain", "gemm_decode"),
    "Back to memory": ("fragments_through_shared_memory",),
}
FOREMOST = tuple(name for names in DOZEN.values() for name in names)


@dataclass(frozen=True)
class Verdict:
    """A rule judged on one GPU.

    Attributes:
        rule: what was judged.
        gpu: on whose rows.
        outcome: `holds`, `does not hold` or `not measured`.
        sentence: what was measured; or which rows are missing.
        run_ids: runs of all the experiments that it read; none if it is not measured.
    """

    rule: Rule
    gpu: str
    outcome: str
    sentence: str
    run_ids: tuple[str, ...] = ()


def foremost_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Verdicts in their order, after those of the rules that matter most, GPU by GPU in the same rule."""
    rank = {id: place for place, id in enumerate(FOREMOST)}
    return sorted(verdicts, key=lambda verdict: rank.get(verdict.rule.id, len(rank)))


def judge(
    store: Store,
    gpu: str,
    chapter: str | None = None,
    ids: Collection[str] | None = None,
    without: Collection[str] = (),
    progress: Progress = silent,
) -> list[Verdict]:
    """Judge every rule, or those of one chapter or with the given ids, on a GPU's newest rows.

    Args:
        store: the rows.
        gpu: whose.
        chapter: whose rules.
        ids: of the rules.
        without: runs to leave out.
        progress: shows how many are judged.

    Raises:
        NotMeasured: the store has no run of this GPU at all; the message names those it has.
    """
    select.require_gpus(store, gpu)

    @cache
    def rows(experiment: str) -> pd.DataFrame:
        return select.require_rows(store, experiment, gpu, without)

    def verdict(rule: Rule) -> Verdict:
        try:
            frames = [rows(experiment) for experiment in rule.experiments]
            holds, sentence = rule.judge(*frames)
        except NotMeasured as missing:
            return Verdict(rule, gpu, "not measured", str(missing))
        runs = tuple(str(frame["run_id"].iloc[0]) for frame in frames)
        return Verdict(rule, gpu, "holds" if holds else "does not hold", sentence, runs)

    return [
        verdict(rule) for rule in RULES if chapter in (None, rule.chapter) and (ids is None or rule.id in ids)
    ]
