"""Does FlashAttention-3 gain where it takes TMA for paged keys, and lose where it does not? Its own kernels, in pairs.

Runs the compiled kernels of the wheel flash-attn3-jax (sm_90a, head dim 128) over one cache in different pages, with
lengths of their own for every sequence (`seqused_q`, `seqused_k`). Two inputs that do not change the result change the
mechanism: a left padding of zero rows makes FlashAttention-3 gather, and a larger bound on the query length makes it
take TMA. What a run took is read from the name of the kernel that the profiler saw.
"""

import glob
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.device import Gpu
from labkernels.errors import NoGpu, NotInstalled
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.studies.paged.flash import Problem, Variant, Wheel, time_variants

HEAD_DIM = 128


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        page_rows: page sizes.
        problems: (batch, seqlen_q, seqlen_k, heads, kv_heads) of each problem.
        rounds: launches of each variant of each problem.
    """

    page_rows: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    problems: tuple[tuple[int, ...], ...] = (
        (8, 1, 4096, 32, 8),
        (32, 1, 4096, 32, 8),
        (32, 1, 16384, 32, 8),
        (128, 1, 4096, 32, 8),
        (32, 1, 8192, 8, 8),
        (32, 1, 8192, 64, 8),
        (32, 4, 8192, 32, 8),
        (32, 16, 8192, 32, 8),
        (32, 32, 8192, 32, 8),
        (32, 33, 8192, 32, 8),
        (32, 64, 8192, 32, 8),
        (1, 2048, 2048, 32, 8),
        (1, 2048, 8192, 32, 8),
        (4, 2048, 8192, 32, 8),
        (1, 8192, 8192, 32, 8),
        (1, 2048, 8192, 64, 8),
    )
    rounds: int = 15


PRESETS = {
    "quick": Parameters(
        page_rows=(16, 64, 128),
        problems=((32, 1, 8192, 32, 8), (32, 33, 8192, 32, 8), (1, 2048, 8192, 32, 8)),
        rounds=9,
    ),
    "full": Parameters(),
}


def variants(problem: Problem, page_rows: tuple[int, ...]) -> Iterator[Variant]:
    """The contiguous cache; each page size as the rule has it; and the other way round where there is one."""
    yield Variant(problem, 0, "contiguous")
    for rows in page_rows:
        yield Variant(problem, rows, "rule")
        if rows % 128 == 0:
            by_tma = problem.rule(rows).k == "tma_tile"
            yield Variant(problem, rows, "leftpad" if by_tma else "bound")


def require_jax() -> Any:
    """JAX with the wheel's forward function.

    Raises:
        NotInstalled: the wheel or JAX is missing.
        NoGpu: JAX sees no GPU.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import flash_attn3_jax  # noqa: F401 - registers flash_mha_fwd
        import jax
    except ImportError as missing:
        raise NotInstalled(f"{missing}: pip install flash-attn3-jax==0.2.3 'jax[cuda12]'") from None
    if jax.default_backend() != "gpu":
        raise NoGpu("JAX sees no GPU: install jax[cuda12], or jax[cuda13] with a driver for CUDA 13")
    return jax


class JaxWheel(Wheel):
    """The wheel under JAX."""

    tolerance = 4e-3  # of outputs around 1: half a unit in the last place of bf16

    def __init__(self, problem: Problem, num_splits: int, seed: int = 1) -> None:
        self.jax, self.problem, self.num_splits = require_jax(), problem, num_splits
        random, self.numpy = self.jax.random, self.jax.numpy
        q_key, k_key, v_key = random.split(random.key(seed), 3)
        cache = (problem.batch, problem.seqlen_k, problem.kv_heads, HEAD_DIM)
        bf16 = self.numpy.bfloat16
        self.q = random.normal(q_key, (problem.batch, problem.seqlen_q, problem.heads, HEAD_DIM), bf16)
        self.k, self.v = random.normal(k_key, cache, bf16), random.normal(v_key, cache, bf16)
        lengths = problem.seqlen_q, problem.seqlen_k
        self.used = tuple(self.numpy.full(problem.batch, length, "int32") for length in lengths)

    def forward(self, variant: Variant) -> Callable[[], Any]:
        """See `Wheel`."""
        call, arguments = self.function(variant), self.arguments(variant)
        return lambda: call(*arguments).block_until_ready()

    def float32(self, output: Any) -> Any:
        """See `Wheel`."""
        return output.astype("float32")

    def function(self, variant: Variant) -> Callable[..., Any]:
        """The compiled call, of (q, k, v, seqused_q, seqused_k, page_table, leftpad); the last two may be empty."""
        jax, problem, num_splits = self.jax, variant.problem, self.num_splits
        numpy = jax.numpy
        lse = (problem.batch, problem.heads, variant.bound)
        parts = (num_splits, *lse) if num_splits > 1 else (1, 1, 1)
        results = [
            jax.ShapeDtypeStruct((problem.batch, variant.bound, problem.heads, HEAD_DIM), numpy.bfloat16),
            jax.ShapeDtypeStruct(lse, numpy.float32),
            jax.ShapeDtypeStruct((*parts, HEAD_DIM if num_splits > 1 else 1), numpy.float32),
            jax.ShapeDtypeStruct(parts, numpy.float32),
        ]
        call = jax.ffi.ffi_call(
            "flash_mha_fwd", results, input_layouts=[None] * 21, output_layouts=[None] * 4
        )
        whole, real, like_q = (numpy.zeros(0, kind) for kind in (numpy.int32, numpy.float32, numpy.bfloat16))

        def forward(q: Any, k: Any, v: Any, used_q: Any, used_k: Any, table: Any, leftpad: Any) -> Any:
            return call(
                q,
                k,
                v,
                like_q,  # new keys
                like_q,  # new values
                like_q,  # q_v
                whole,  # cu_seqlens_q
                whole,  # cu_seqlens_k
                whole,  # cu_seqlens_k_new
                used_q,
                used_k,
                table,
                whole,  # kv_batch_idx
                leftpad,
                like_q,  # rotary cosines
                like_q,  # rotary sines
                whole,  # seqlens_rotary
                real,  # q_descale
                real,  # k_descale
                real,  # v_descale
                whole,  # scheduler_metadata
                max_seqlen_q=variant.bound,
                max_seqlen_q_has_value=True,
                max_seqlen_k=0 if variant.page_rows else problem.seqlen_k,
                max_seqlen_k_has_value=not variant.page_rows,
                softmax_scale_val=HEAD_DIM**-0.5,
                softmax_scale_has_value=True,
                pack_gqa_val=False,
                pack_gqa_has_value=False,
                is_causal=True,
                window_size_left=-1,
                window_size_right=-1,
                attention_chunk=0,
                softcap=0.0,
                is_rotary_interleaved=False,
                num_splits=num_splits,
                sm_margin=0,
            )[0]

        return jax.jit(forward)

    def arguments(self, variant: Variant) -> tuple[Any, ...]:
        """Arguments of the function of one variant."""
        problem, none = self.problem, self.numpy.zeros(0, "int32")
        leftpad = self.numpy.zeros(problem.batch, "int32") if variant.route == "leftpad" else none
        spare = variant.bound - problem.seqlen_q  # rows of q that no sequence uses
        q = self.numpy.pad(self.q, ((0, 0), (0, spare), (0, 0), (0, 0)))
        if not variant.page_rows:
            return q, self.k, self.v, *self.used, none, leftpad
        table = variant.page_table
        order = np.argsort(table.ravel())
        k, v = (part.reshape(variant.paged_shape)[order] for part in (self.k, self.v))
        return q, k, v, *self.used, self.numpy.asarray(table), leftpad

    def traced(self, calls: Callable[[], None]) -> list[tuple[float, str, float]]:
        """See `Wheel`."""
        options = self.jax.profiler.ProfileOptions()
        options.host_tracer_level = options.python_tracer_level = 0
        with tempfile.TemporaryDirectory() as directory:
            with self.jax.profiler.trace(directory, profiler_options=options):
                calls()
            (file,) = glob.glob(f"{directory}/**/*.xplane.pb", recursive=True)
            profile = self.jax.profiler.ProfileData.from_file(file)
        return [
            (event.start_ns, event.name, event.duration_ns / 1e3)
            for plane in profile.planes
            if plane.name.startswith("/device:GPU")
            for line in plane.lines
            if line.name.startswith("Stream")
            for event in line.events
        ]


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Compare each variant's output with the contiguous cache's, then time all of a problem in every round.

    A variant with another output is left out, with a warning. Seen so far: with 8 sequences, whose keys are really
    split, every call that followed one of route `bound` (query rows that no sequence uses) returned another output.

    Raises:
        NotInstalled, NoGpu: see `require_jax`.
        WrongKernel: a kernel is not the one that the rules say.
    """
    rows = []
    for problem in progress([Problem(*sizes) for sizes in parameters.problems], "problem"):
        wheel = JaxWheel(problem, problem.num_splits(gpu.facts.sm_count))
        rows += time_variants(wheel, list(variants(problem, parameters.page_rows)), parameters.rounds)
    return Result({"fa3": rows})


EXPERIMENT = Experiment(
    "fa3",
    "Does FlashAttention-3 gain where it takes TMA for paged keys, and lose where it does not?",
    ("fa3",),
    PRESETS,
    measure,
    needs(Gpu, require_jax),
)
