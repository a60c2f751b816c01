"""Bursts: each warp of one block issues a few copies back to back, as an unrolled kernel does."""

import numpy as np

from labkernels.device import Buffer, Gpu, Statuses
from labkernels.device.random_fill import random_words
from labkernels.device.tensor_map import place
from labkernels.errors import BadArgument
from labkernels.kernels.build import assemble
from labkernels.kernels.registry import KernelSpec
from labkernels.legality import SHARED_BYTES_PER_CTA
from labkernels.operand import WARP, Pipeline, boxed_operand
from labkernels.protocols.cell import WARP_COPY_BYTES
from labkernels.protocols.stream import POISON, STAGE_ALIGNMENT_BYTES, WrongBytes


class Burst:
    """A kernel of protocol `burst` bound to memory.

    Args:
        gpu: where.
        spec: the kernel.
        memory: filled with `random_words`.
        seed: of the words.
        warps: of the block, each with a burst of its own.

    Raises:
        BadArgument: the bursts do not fit shared memory.
    """

    def __init__(self, gpu: Gpu, spec: KernelSpec, memory: Buffer, seed: int, warps: int) -> None:
        self.gpu, self.spec, self.memory, self.seed, self.warps = gpu, spec, memory, seed, warps
        constants = dict(spec.constants)
        self.copies = constants["train"]
        self.transfer_bytes = constants.get("bytes", WARP_COPY_BYTES)
        self.bytes = warps * self.copies * self.transfer_bytes
        shared_bytes = self.bytes + STAGE_ALIGNMENT_BYTES
        if shared_bytes + STAGE_ALIGNMENT_BYTES > SHARED_BYTES_PER_CTA:
            raise BadArgument(
                f"{spec.name}: {warps} bursts take {shared_bytes} bytes of shared memory, above the limit of "
                f"{SHARED_BYTES_PER_CTA - STAGE_ALIGNMENT_BYTES}; give fewer warps or a shorter burst"
            )
        self.kernel = assemble(spec, gpu.facts.arch)
        self._loaded = gpu.load(self.kernel)
        self._config = self._loaded.config(1, warps * WARP, shared_bytes)
        self._map = None
        if spec.traits.takes_tensor_map:
            operand = boxed_operand(memory.nbytes, self.transfer_bytes, Pipeline(shared_alignment_bytes=128))
            self._map = place(operand, memory.address)
        self._statuses = Statuses(gpu, spec.name, 1)

    def cycles(self, repeats: int, dump: int = 0) -> np.ndarray:
        """Cycles until a warp's last copy was issued, and until all had arrived: shape (repeats, warps, 2).

        Raises:
            BadArgument: the memory is too small for so many.
            StalledWait: a copy never arrived.
        """
        if (needed := repeats * self.bytes) > self.memory.nbytes:
            raise BadArgument(
                f"{needed} bytes are read, the buffer has {self.memory.nbytes}; give fewer repeats"
            )
        with Buffer(8 * repeats * self.warps) as log:
            log.set_bytes(0xFF)
            self._loaded.launch(
                self._config,
                source=self._map or self.memory,
                repeats=repeats,
                log=log,
                dump=dump,
                statuses=self._statuses,
            )
            self._statuses.require_arrived()
            return log.read(np.uint32).reshape(repeats, self.warps, 2)

    def check(self, repeats: int = 3) -> None:
        """Compare the bytes that the last repeat brought with NumPy's.

        Raises:
            WrongBytes: something else arrived.
        """
        with Buffer(self.bytes) as dump:
            dump.set_bytes(POISON)
            self.cycles(repeats, dump.address)
            arrived = dump.read(np.uint32)
        words = np.arange(self.bytes // 4) + (repeats - 1) * self.bytes // 4
        if not np.array_equal(arrived, random_words(words, self.seed)):
            raise WrongBytes(f"{self.spec.name}: the last of {repeats} bursts is not what is in memory")

    def close(self) -> None:
        """Free what the kernel holds on the GPU."""
        for buffer in (self._map, self._statuses):
            if buffer:
                buffer.close()
