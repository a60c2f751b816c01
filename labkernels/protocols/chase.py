"""One chain of dependent transfers on the GPU, and one burst of independent ones."""

import numpy as np

from labkernels.device import Buffer, Gpu, Statuses
from labkernels.device.tensor_map import place
from labkernels.errors import BadArgument
from labkernels.kernels.build import assemble
from labkernels.kernels.registry import KernelSpec
from labkernels.legality import require_legal
from labkernels.operand import KIB, LONGEST_ROW_BYTES, MIB, WARP, Operand, Pipeline
from labkernels.protocols.stream import POISON, WrongBytes

MAX_THREADS = 1024
LARGEST_EXPECTATION_BYTES = MIB - 1  # of an mbarrier's transaction count
SLOTS_BYTES = 128 * KIB  # a burst's slots start over after this many bytes
SEED = 1  # of the order in which a burst loads its table entries
BATCH = 32  # table entries that the lanes of a warp load at once, a batch ahead of the copies
LOOKUPS = 8192  # entries of a burst's table


def transfer_operand(
    transfer_bytes: int, slots: int, slot_stride_bytes: int, rank: int, pipeline: Pipeline
) -> Operand:
    """Memory seen as `slots` slots, each holding one dense transfer, as a tensor of the given rank.

    The box covers all dimensions but the last, along which slots follow each other.
    """
    row = min(transfer_bytes, LONGEST_ROW_BYTES)
    rows = transfer_bytes // row
    if rank == 1:
        return Operand(8, (slots * slot_stride_bytes // 8,), (row // 8,), pipeline=pipeline)
    middle = [1] * (rank - 2)
    if middle:
        middle[0] = rows
        rows = 1
    total = slots * slot_stride_bytes // (row * (middle[0] if middle else 1))
    return Operand(8, (row // 8, *middle, total), (row // 8, *middle, rows), pipeline=pipeline)


class Chain:
    """Slots of memory linked in random order.

    The first 16 bytes of a slot hold the next slot: its byte offset (8 B) and its coordinate (4 B).

    Args:
        memory: at least `slots` × `slot_stride_bytes`.
        slots: how many, each visited once per round.
        slot_stride_bytes: their distance.
        seed: of the order.
    """

    def __init__(self, memory: Buffer, slots: int, slot_stride_bytes: int, seed: int) -> None:
        if (needed := slots * slot_stride_bytes) > memory.nbytes:
            raise BadArgument(
                f"{slots} slots need {needed} bytes, the buffer has {memory.nbytes}: give fewer slots"
            )
        self.memory, self.slots, self.stride = memory, slots, slot_stride_bytes
        self.order = np.random.default_rng(seed).permutation(slots)

    def link(self, coordinate_bytes: int) -> None:
        """Write the links; one coordinate step is `coordinate_bytes` of memory."""
        following = np.empty(self.slots, np.int64)
        following[self.order] = np.roll(self.order, -1)
        links = np.zeros(self.slots, np.dtype([("offset", "<u8"), ("row", "<u4"), ("pad", "<u4")]))
        links["offset"] = following * self.stride
        links["row"] = following * self.stride // coordinate_bytes
        self.memory.write_strided(links, self.stride)

    @property
    def footprint_bytes(self) -> int:
        """Memory from the first slot to the last."""
        return self.slots * self.stride


class Chase:
    """A chase kernel bound to a chain.

    Args:
        gpu: where.
        spec: a kernel of protocol `chase`.
        chain: what to follow.
        transfer_bytes: bytes of each transfer.
    """

    def __init__(self, gpu: Gpu, spec: KernelSpec, chain: Chain, transfer_bytes: int) -> None:
        self.gpu, self.spec, self.chain, self.transfer_bytes = gpu, spec, chain, transfer_bytes
        constants = dict(spec.constants)
        is_tile = spec.traits.takes_tensor_map
        chunks = constants.get("chunks", 1)
        self._to_register = constants.get("destination") == "register"
        elected = not spec.traits.by_threads or self._to_register
        self.threads = WARP if elected else max(WARP, transfer_bytes // (16 * chunks))
        if self.threads > MAX_THREADS:
            raise BadArgument(
                f"{spec.name}: {transfer_bytes} bytes need {self.threads} threads of {16 * chunks} bytes, a block has "
                f"{MAX_THREADS}; give more chunks"
            )
        if not elected and chunks > 1 and (covered := self.threads * 16 * chunks) != transfer_bytes:
            raise BadArgument(
                f"{spec.name}: {self.threads} threads × 16 B × {chunks} chunks cover {covered} bytes, the transfer has "
                f"{transfer_bytes}; give fewer chunks or a multiple of {WARP * 16 * chunks} bytes"
            )
        pipeline = Pipeline(stages=2, threads=self.threads, shared_alignment_bytes=128 if is_tile else 16)
        operand = transfer_operand(
            transfer_bytes, chain.slots, chain.stride, constants.get("rank", 2), pipeline
        )
        require_legal(operand, spec.mechanism)
        coordinate_bytes = operand.strides_bytes[-1] if operand.strides_bytes else operand.element_bytes
        self._coordinate_bytes = coordinate_bytes
        self.kernel = assemble(spec, gpu.facts.arch)
        self._loaded = gpu.load(self.kernel)
        shared_bytes = 2 * max(transfer_bytes, 128) + 1024
        self._config = self._loaded.config(1, self.threads, shared_bytes)
        self._map = place(operand, chain.memory.address) if is_tile else None
        self._source = self._map or chain.memory
        self._step_bytes = coordinate_bytes if is_tile else 1
        self._log = Buffer(4 * chain.slots)
        self._statuses = Statuses(gpu, spec.name, 1)

    def link(self) -> None:
        """Write the chain's links, in the coordinates of this kernel; the first 16 bytes of each slot."""
        self.chain.link(self._coordinate_bytes)

    def check(self) -> None:
        """Follow the chain once and compare the bytes of the last transfer with the memory they came from.

        A chain that went astray once would not end in its last slot.

        Raises:
            WrongBytes: the last slot is not in shared memory as it is in global memory.
            StalledWait: a transfer never arrived.
        """
        nbytes = 8 if self._to_register else self.transfer_bytes
        self.link()
        with Buffer(self.transfer_bytes) as dump:
            dump.set_bytes(POISON)
            self.cycles(dump=dump.address)
            arrived = dump.read(np.uint8, nbytes)
        expected = self.chain.memory.read(np.uint8, nbytes, int(self.chain.order[-1]) * self.chain.stride)
        if not np.array_equal(arrived, expected):
            wrong = int(np.flatnonzero(arrived != expected)[0])
            raise WrongBytes(
                f"{self.spec.name}: byte {wrong} of the last of {self.chain.slots} transfers is wrong"
            )

    def cycles(self, steps: int | None = None, dump: int = 0, start: int = 0) -> np.ndarray:
        """Follow the chain from its slot number `start` on; SM cycles of each step, in the order of `chain.order`.

        Raises:
            StalledWait: a transfer never arrived.
        """
        steps = steps or self.chain.slots
        self._log.set_bytes(0xFF)
        self._loaded.launch(
            self._config,
            source=self._source,
            first=int(self.chain.order[start]) * self.chain.stride // self._step_bytes,
            steps=steps,
            transfer_bytes=self.transfer_bytes,
            log=self._log,
            dump=dump,
            statuses=self._statuses,
        )
        self._statuses.require_arrived()
        return self._log.read(np.uint32, steps)


class IssueBurst:
    """An issue kernel bound to memory: one warp issues bursts of transfers."""

    def __init__(self, gpu: Gpu, spec: KernelSpec, memory: Buffer, transfer_bytes: int) -> None:
        self.gpu, self.spec, self.transfer_bytes = gpu, spec, transfer_bytes
        self.memory = memory
        self.kernel = assemble(spec, gpu.facts.arch)
        self._loaded = gpu.load(self.kernel)
        self._map = None
        if spec.traits.takes_tensor_map:
            slots = memory.nbytes // transfer_bytes
            operand = transfer_operand(
                transfer_bytes, slots, transfer_bytes, 2, Pipeline(shared_alignment_bytes=128)
            )
            if operand.stage_bytes != transfer_bytes:
                raise BadArgument(
                    f"{spec.name}: slots are {operand.stage_bytes} bytes apart; transfer a multiple of 128"
                )
            self._map = place(operand, memory.address)
        self._statuses = Statuses(gpu, spec.name, 1)
        order = np.random.default_rng(SEED).permutation(memory.nbytes // transfer_bytes)
        self._table = Buffer(4 * LOOKUPS).write(np.resize(order, LOOKUPS).astype(np.uint32))

    def cycles(self, copies: int, repeats: int) -> np.ndarray:
        """Cycles until the burst was issued, and until it had arrived: shape (repeats, 2).

        Raises:
            BadArgument: the burst does not fit shared memory or the buffer.
            StalledWait: a transfer never arrived.
        """
        if (expected := copies * self.transfer_bytes) > LARGEST_EXPECTATION_BYTES:
            raise BadArgument(
                f"{copies} transfers of {self.transfer_bytes} bytes are {expected}, one barrier phase counts at most "
                f"{LARGEST_EXPECTATION_BYTES}; give a burst of {LARGEST_EXPECTATION_BYTES // self.transfer_bytes}"
            )
        shared_bytes = min(expected, SLOTS_BYTES) + self.transfer_bytes + 1024
        if (needed := copies * repeats * self.transfer_bytes) > self.memory.nbytes:
            raise BadArgument(
                f"{needed} bytes are read, the buffer has {self.memory.nbytes}; give fewer repeats"
            )
        if (lookups := copies * repeats + BATCH) > LOOKUPS:
            raise BadArgument(
                f"{lookups} table entries are loaded, the table has {LOOKUPS}; give fewer repeats"
            )
        with Buffer(8 * repeats) as log:
            log.set_bytes(0xFF)
            self._loaded.launch(
                self._loaded.config(1, WARP, shared_bytes),
                source=self._map or self.memory,
                train=copies,
                repeats=repeats,
                transfer_bytes=self.transfer_bytes,
                table=self._table,
                log=log,
                statuses=self._statuses,
            )
            self._statuses.require_arrived()
            return log.read(np.uint32).reshape(repeats, 2)
