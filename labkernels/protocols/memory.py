"""The memory that streams, pipelines and chases read: random words, with more beside it to push it out of L2."""

from labkernels.device import Buffer, Gpu
from labkernels.device.random_fill import fill
from labkernels.kernels.registry import kernel
from labkernels.operand import KIB, MIB, TMA_THREADS, Pipeline, linear_operand, round_up
from labkernels.protocols.stream import Configuration, Stream


class Memory:
    """A buffer of random words, with more beside it to push it out of L2.

    Args:
        gpu: where.
        nbytes: size of the buffer.
        seed: of the words.
    """

    def __init__(self, gpu: Gpu, nbytes: int, seed: int = 1) -> None:
        self.gpu, self.seed = gpu, seed
        self.buffer = Buffer(nbytes)
        self._evictor: Stream | None = None
        self.refill()

    def refill(self) -> None:
        """Write the random words again, over links that a chain left."""
        fill(self.gpu, self.buffer, self.seed)

    def evict(self, by_writing: bool = False) -> None:
        """Push the buffer out of L2 by reading (or writing) at least four times its size of other memory; queued.

        Reading is the rule: lines that were written have to be written back while the next thing is timed.
        """
        if self._evictor is None:
            nbytes = round_up(4 * self.gpu.facts.l2_bytes, MIB)
            other = Buffer(nbytes)
            fill(self.gpu, other, self.seed)
            self._evictor = Stream(self.gpu, _plain_stream(nbytes, 8 * KIB, "hbm"), other, self.seed)
            self._other = other
        if by_writing:
            fill(self.gpu, self._other, self.seed)
        else:
            self._evictor.launch(self._evictor.tiles_for(self._other.nbytes))

    def warm(self, nbytes: int) -> None:
        """Read the first bytes of the buffer from all SMs, so that they lie in L2; queued."""
        tile = min(8 * KIB, max(128, nbytes // self.gpu.facts.sm_count // 128 * 128))
        stream = Stream(self.gpu, _plain_stream(nbytes, tile, "l2"), self.buffer, self.seed)
        stream.launch(2 * stream.tiles_for(nbytes))

    def close(self) -> None:
        """Free the memory."""
        if self._evictor:
            self._evictor.close()
            self._other.close()
        self.buffer.close()


def _plain_stream(nbytes: int, tile_bytes: int, source: str) -> Configuration:
    pipeline = Pipeline(stages=8, threads=TMA_THREADS, shared_alignment_bytes=128)
    operand = linear_operand(nbytes // tile_bytes * tile_bytes, tile_bytes, pipeline)
    return Configuration(kernel("tma_bulk", "stream", excess_bytes=0), operand, source)
