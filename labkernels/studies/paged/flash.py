"""What the experiments on FlashAttention-3's own kernels share: problems, variants of them, rounds, profiles."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np

from labkernels.errors import LabError
from labkernels.production import fa3
from labkernels.production.attention import AttentionCall, Dispatch
from labkernels.production.flash_names import FlashKernel, demangle, parse
from labkernels.protocols.rounds import interleaved

BEFORE, AFTER = "prepare_varlen", "FlashAttnFwdCombine"
Way = TypeVar("Way")


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

    def call(self, page_rows: int, seqlen_q: int | None = None, **options: Any) -> AttentionCall:
        """The forward pass: causal, through a cache whose sequences have lengths of their own."""
        return AttentionCall(
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

    def rule(self, page_rows: int, seqlen_q: int | None = None, **options: Any) -> Dispatch:
        """FlashAttention-3's choice for this problem."""
        return fa3.choose(self.call(page_rows, seqlen_q, **options))

    def num_splits(self, sm_count: int) -> int:
        """Parts of the keys that FlashAttention-3 plans for sequences of differing lengths."""
        asked = {"num_splits": 0, "batch": self.batch, "seqlen_k": self.seqlen_k, "sm_count": sm_count}
        return self.rule(128, **asked).num_splits


@dataclass(frozen=True)
class Variant:
    """One variant of a problem: how its keys lie (page size; 0: contiguous), and how the mechanism is come by."""

    problem: Problem
    page_rows: int
    route: str

    @property
    def bound(self) -> int:
        """Bound on the query length that the kernel is told."""
        ratio = self.problem.heads // self.problem.kv_heads
        return self.problem.tile_m // ratio + 1 if self.route == "bound" else self.problem.seqlen_q

    @property
    def paged_shape(self) -> tuple[int, ...]:
        """Of the keys, cut into pages."""
        problem = self.problem
        pages = problem.batch * problem.seqlen_k // self.page_rows
        return pages, self.page_rows, problem.kv_heads, problem.head_dim

    @property
    def page_table(self) -> np.ndarray:
        """Pages of each sequence, in random order in the pool: shape (sequences, pages of each)."""
        pages = np.random.default_rng(self.page_rows).permutation(self.paged_shape[0])
        return pages.astype(np.int32).reshape(self.problem.batch, -1)

    def expected(self, num_splits: int) -> Dispatch:
        """What the rules say of this variant."""
        return self.problem.rule(
            self.page_rows, self.bound, leftpad=self.route == "leftpad", num_splits=num_splits
        )


class WrongKernel(LabError, AssertionError):
    """Another kernel ran than the rules say, or the profiler saw too few."""


class Refused(LabError):
    """A wheel does not take a variant, or what it gives is not attention."""


class Wheel(ABC):
    """A compiled FlashAttention-3 under its framework, with queries, keys and values of one problem.

    Attributes:
        tolerance: largest difference between outputs of two variants.
        num_splits: parts of the keys.
    """

    tolerance: float
    num_splits: int

    @abstractmethod
    def forward(self, variant: Variant) -> Callable[[], Any]:
        """A call ready to be made: it runs to its end and returns the output, (sequences, query rows, heads, head_dim).

        Calling raises `Refused` where the wheel does not take the variant.
        """

    @abstractmethod
    def traced(self, calls: Callable[[], None]) -> list[tuple[float, str, float]]:
        """Run something under the profiler: start, name and microseconds of each kernel."""

    @abstractmethod
    def float32(self, output: Any) -> Any:
        """The output in float32."""

    def wrong(self, output: Any) -> str | None:
        """Why the contiguous cache's output cannot be attention, by a reference; by default there is none."""
        return None


def time_variants(wheel: Wheel, variants: Sequence[Variant], rounds: int) -> list[dict[str, Any]]:
    """Compare outputs with the contiguous cache's, then time all variants in every round; a row per round and variant.

    A variant that the wheel refuses, or whose output differs, is left out, with a warning; all of them if that is the
    first.

    Args:
        wheel: with the data of their problem.
        variants: the contiguous cache first.
        rounds: launches of each.

    Raises:
        WrongKernel: see there.
    """
    problem = variants[0].problem
    calls, differences, first = {}, {}, None
    for variant in variants:
        call = wheel.forward(variant)
        try:
            output = wheel.float32(call()[:, : problem.seqlen_q])
            if first is None and (wrong := wheel.wrong(output)):
                raise Refused(wrong)
        except Refused as refused:
            warnings.warn(f"{variant} is left out: {refused}", stacklevel=2)
            if first is None:
                return []
            continue
        first = output if first is None else first
        difference = float(abs(output - first).max())
        if difference <= wheel.tolerance:
            calls[variant], differences[variant] = call, difference
        else:
            warnings.warn(
                f"{variant} is left out: its output differs from the contiguous cache's by {difference}",
                stacklevel=2,
            )
    rows = []
    for number, variant, kernel, times in launches(wheel, calls, rounds):
        require_expected(variant, kernel, wheel.num_splits)
        described = describe(variant, kernel, wheel.num_splits)
        rows.append({**described, "max_difference": differences[variant], "round": number, **times})
    return rows


def launches(
    wheel: Wheel, calls: Mapping[Way, Callable[[], Any]], rounds: int
) -> Iterator[tuple[int, Way, FlashKernel, dict[str, float]]]:
    """Make every call in every round, in random order: round, way, the kernel that ran, the columns of its times.

    Raises:
        WrongKernel: the profiler saw another number of attention kernels.
    """
    turns = interleaved(list(calls), rounds)

    def run() -> None:
        for turn in turns:
            for way in turn:
                calls[way]()

    seen = attribute([(demangle(name), us) for _, name, us in sorted(wheel.traced(run))])
    made = [(number, way) for number, turn in enumerate(turns) for way in turn]
    if len(seen) != len(made):
        raise WrongKernel(f"{len(made)} calls, the profiler saw {len(seen)} attention kernels")
    for (number, way), (kernel, kernel_us, beside_us) in zip(made, seen, strict=True):
        yield number, way, kernel, {"kernel_us": round(kernel_us, 3), "beside_us": round(beside_us, 3)}


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


def require_expected(variant: Variant, kernel: FlashKernel, num_splits: int) -> None:
    """Compare the kernel that ran with the rules.

    Raises:
        WrongKernel: they differ.
    """
    rule = variant.expected(num_splits)
    seen = (mechanism(kernel), kernel.tile_m, kernel.tile_n, kernel.cluster_m, kernel.pack_gqa)
    said = (rule.k, rule.tile_m, rule.tile_n, rule.cluster_m, rule.pack_gqa)
    if seen != said:
        raise WrongKernel(f"{variant}: the rules say {said}, {seen} ran: {kernel.label}")


def describe(variant: Variant, kernel: FlashKernel, num_splits: int) -> dict[str, Any]:
    """Columns of a variant and of the kernel that ran."""
    ran = ("dtype", "head_dim", "causal", "tile_m", "tile_n", "cluster_m", "pack_gqa")
    return {
        "phase": variant.problem.phase,
        "route": variant.route,
        "mechanism": mechanism(kernel),
        "rule_mechanism": replace(variant, route="rule").expected(num_splits).k,
        "kernel": kernel.label,
        "page_rows": variant.page_rows,
        "num_splits": num_splits,
        **asdict(variant.problem),
        **{name: getattr(kernel, name) for name in ran},
    }
