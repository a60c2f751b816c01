"""What every kernel bound to its arguments does after a launch."""

from labkernels.device import Buffer, Gpu


class Bound:
    """A kernel with its arguments on a GPU, one status word per block.

    Attributes:
        gpu: where.
        blocks: of one launch.
    """

    gpu: Gpu
    blocks: int
    _name: str
    _statuses: Buffer

    def require_arrived(self) -> None:
        """Wait for the launches.

        Raises:
            StalledWait: a barrier was never completed.
        """
        self.gpu.require_arrived(self._name, self._statuses, self.blocks)
