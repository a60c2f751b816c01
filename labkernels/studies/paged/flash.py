"""What the experiments on FlashAttention-3's own kernels share: problems, ways to load keys, rounds, profiles."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from labkernels.production import dispatch
from labkernels.production.flash_names import FlashKernel, parse
from labkernels.protocols.rounds import interleaved

BEFORE, AFTER = "prepare_varlen", "FlashAttnFwdCombine"


@dataclass(frozen=True)
class Problem:
    """Sequences of one length.

    Attributes:
        batch: sequences.
        seqlen_q: query rows of each.
        seqlen_k: keys of each.
        heads: query heads.
        kv_heads: KV heads.
        dtype: of queries, keys and values.
        head_dim: of queries, keys and values.
    """

    batch: int
    seqlen_q: int
    seqlen_k: int
    heads: int = 32
    kv_heads: int = 8
    dtype: str = "bf16"
    head_dim: int = 128

    @property
    def phase(self) -> str:
        """`decode` while the query rows of a head fill at most one tile."""
        return "decode" if self.seqlen_q * self.heads // self.kv_heads <= self.tile_m else "prefill"

    @property
    def tile_m(self) -> int:
        """Query rows of a tile; the same however the keys are loaded."""
        return self.rule(0).tile_m

    def rule(self, page_rows: int, seqlen_q: int | None = None, **options: Any) -> dispatch.Dispatch:
        """FlashAttention-3's choice for this problem."""
        return dispatch.fa3(
            dtype=self.dtype,
            head_dim=self.head_dim,
            causal=True,
            heads=self.heads,
            kv_heads=self.kv_heads,
            seqlen_q=seqlen_q or self.seqlen_q,
            page_size=page_rows or None,
            varlen=True,
            **options,
        )

    def num_splits(self, sm_count: int) -> int:
        """Parts of the keys that FlashAttention-3 plans for sequences of differing lengths."""
        return dispatch.fa3_num_splits(
            self.rule(128),
            batch=1,
            seqlen_k=self.seqlen_k,
            seqlen_q=self.seqlen_q,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_bytes=2 * self.head_dim * dispatch.ELEMENT_BYTES[self.dtype],
            masked=True,
            sm_count=sm_count,
        )


@dataclass(frozen=True)
class Way:
    """One way of loading the keys of a problem: a page size (0: contiguous) and how the mechanism is come by."""

    problem: Problem
    page_rows: int
    route: str

    @property
    def bound(self) -> int:
        """Bound on the query length that the kernel is told."""
        ratio = self.problem.heads // self.problem.kv_heads
        return self.problem.tile_m // ratio + 1 if self.route == "bound" else self.problem.seqlen_q

    def expected(self, num_splits: int) -> dispatch.Dispatch:
        """What the rules say of this way."""
        return self.problem.rule(
            self.page_rows, self.bound, leftpad=self.route == "leftpad", num_splits=num_splits
        )


def time_ways(
    chosen: Sequence[Way],
    differences: Sequence[float],
    *,
    tolerance: float,
    rounds: int,
    num_splits: int,
    call: Callable[[int], None],
    traced: Callable[[Callable[[], None]], list[tuple[str, float]]],
) -> list[dict[str, Any]]:
    """Time all ways of a problem in every round, in random order; one row per round and way.

    A way with another output is left out, with a warning.

    Args:
        chosen: the ways.
        differences: of each way's output from the contiguous cache's.
        tolerance: largest difference allowed.
        rounds: launches of each way.
        num_splits: parts of the keys.
        call: runs the way of that index to its end.
        traced: runs something under the profiler; demangled name and microseconds of each kernel, in order.

    Raises:
        AssertionError: a kernel is not the one that the rules say, or the profiler saw too few.
    """
    agree = [index for index, difference in enumerate(differences) if difference <= tolerance]
    for index in sorted(set(range(len(chosen))) - set(agree)):
        warnings.warn(
            f"{chosen[index]} is left out: its output differs from the contiguous cache's by {differences[index]}",
            stacklevel=2,
        )
    turns = interleaved(agree, rounds)

    def run() -> None:
        for turn in turns:
            for index in turn:
                call(index)

    launches = attribute(traced(run))
    made = [(number, index) for number, turn in enumerate(turns) for index in turn]
    if len(launches) != len(made):
        raise AssertionError(
            f"{chosen[0].problem}: {len(made)} calls, the profiler saw {len(launches)} kernels"
        )
    rows = []
    for (number, index), (kernel, kernel_us, beside_us) in zip(made, launches, strict=True):
        require_expected(chosen[index], kernel, num_splits)
        rows.append(
            {
                **describe(chosen[index], kernel, num_splits),
                "max_difference": differences[index],
                "round": number,
                "kernel_us": round(kernel_us, 3),
                "beside_us": round(beside_us, 3),
            }
        )
    return rows


def attribute(kernels: list[tuple[str, float]]) -> list[tuple[FlashKernel, float, float]]:
    """Group what the profiler saw by attention kernel: it, its microseconds, and those of the kernels around it.

    Args:
        kernels: demangled name and microseconds, in order.
    """
    launches: list[tuple[FlashKernel, float, float]] = []
    before_us = 0.0
    for name, duration_us in kernels:
        if kernel := parse(name):
            launches.append((kernel, duration_us, before_us))
            before_us = 0.0
        elif BEFORE in name:
            before_us += duration_us
        elif AFTER in name and launches:
            last, own_us, beside_us = launches[-1]
            launches[-1] = (last, own_us, beside_us + duration_us)
    return launches


def mechanism(kernel: FlashKernel) -> str:
    """What a kernel loads K and V with, by its name."""
    return "cp_async" if kernel.paged_cp_async else "tma_multicast" if kernel.cluster_m == 2 else "tma_tile"


def require_expected(way: Way, kernel: FlashKernel, num_splits: int) -> None:
    """Compare the kernel that ran with the rules.

    Raises:
        AssertionError: they differ.
    """
    rule = way.expected(num_splits)
    seen = (mechanism(kernel), kernel.tile_m, kernel.tile_n, kernel.cluster_m, kernel.pack_gqa)
    said = (rule.k, rule.tile_m, rule.tile_n, rule.cluster_m, rule.pack_gqa)
    if seen != said:
        raise AssertionError(f"{way}: the rules say {said}, {seen} ran: {kernel.label}")


def describe(way: Way, kernel: FlashKernel, num_splits: int) -> dict[str, Any]:
    """Columns of a way and of the kernel that ran."""
    problem = way.problem
    return {
        "phase": problem.phase,
        "route": way.route,
        "mechanism": mechanism(kernel),
        "rule_mechanism": replace(way, route="rule").expected(num_splits).k,
        "kernel": kernel.label,
        "page_rows": way.page_rows,
        "dtype": kernel.dtype,
        "head_dim": kernel.head_dim,
        "heads": problem.heads,
        "kv_heads": problem.kv_heads,
        "batch": problem.batch,
        "seqlen_q": problem.seqlen_q,
        "seqlen_k": problem.seqlen_k,
        "causal": kernel.causal,
        "num_splits": num_splits,
        "tile_m": kernel.tile_m,
        "tile_n": kernel.tile_n,
        "cluster_m": kernel.cluster_m,
        "pack_gqa": kernel.pack_gqa,
    }
