"""The GPU: facts, memory, tensor maps, launches with clusters, timing, and a record of its state during a run."""

from labkernels.device.gpu import Buffer, Gpu, GpuFacts, LoadedKernel, NoGpu, StalledWait, Statuses

__all__ = ["Buffer", "Gpu", "GpuFacts", "LoadedKernel", "NoGpu", "StalledWait", "Statuses"]
