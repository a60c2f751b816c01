"""What data sheets say that a GPU can do: bounds to draw, never measurements."""

from typing import NamedTuple

from labkernels.store.store import Store


class DataSheet(NamedTuple):
    """Peaks of one GPU.

    Attributes:
        name: as table `published` names the GPU.
        memory_gbps: peak rate of its memory, GB/s.
        sm_count: streaming multiprocessors; None where no source gives them.
        l2_mb: size of L2; None where no source gives it.
        bf16_tflops: peak of the tensor cores without sparsity; None where no source gives it.
    """

    name: str
    memory_gbps: float
    sm_count: int | None
    l2_mb: float | None = None
    bf16_tflops: float | None = None

    @property
    def memory(self) -> str:
        """The memory's peak in words: `4.8 TB/s`."""
        return f"{self.memory_gbps / 1e3:.3g} TB/s"


def datasheet(gpu: str) -> DataSheet | None:
    """What table `gpus` has of a GPU, by its driver's name or that of table `published`; None if nothing."""
    for row in Store().records("gpus"):
        if gpu in (row["gpu"], row["name"]):
            return DataSheet(
                row["name"], row["memory_gbps"], row["sm_count"], row["l2_mb"], row["bf16_tflops"]
            )
    return None
