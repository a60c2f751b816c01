"""Blocks of a kernel that works as clusters: whether they fit, and how many are resident at once."""

from typing import Any

from labkernels.device import Gpu
from labkernels.errors import BadArgument
from labkernels.kernels.build import assemble
from labkernels.kernels.registry import KernelSpec
from labkernels.operand import KIB
from labkernels.protocols.stream import STAGE_ALIGNMENT_BYTES

LARGEST_CLUSTER = 16
WHOLE_SM_SHARED_BYTES = 115 * KIB  # of a block that shares its SM with no other


class ClusterLaunch:
    """A kernel whose blocks are launched as clusters.

    Args:
        gpu: where.
        spec: the kernel.
        threads: of a block.
        shared_bytes: dynamic shared memory of a block.
        cluster: blocks of a cluster.
        alone: give each block an SM of its own, by asking for more shared memory than half an SM has. Left to
            itself the GPU puts two blocks of a cluster on one SM where a graphics processing cluster is full.

    Raises:
        BadArgument: it does not fit this GPU; the message names the value, the limit and the fix.
    """

    def __init__(
        self, gpu: Gpu, spec: KernelSpec, threads: int, shared_bytes: int, cluster: int, alone: bool = True
    ) -> None:
        if cluster > LARGEST_CLUSTER:
            raise BadArgument(
                f"{spec.name}: cluster {cluster} is above the limit of {LARGEST_CLUSTER}; give 16 or fewer"
            )
        if shared_bytes > (limit := gpu.facts.shared_bytes_per_block - STAGE_ALIGNMENT_BYTES * 2):
            raise BadArgument(
                f"{spec.name}: {shared_bytes} bytes of shared memory, the limit is {limit}; "
                f"give fewer stages or smaller tiles"
            )
        self.shared_bytes = max(shared_bytes, WHOLE_SM_SHARED_BYTES) if alone else shared_bytes
        self.spec, self.threads, self.cluster = spec, threads, cluster
        self.kernel = assemble(spec, gpu.facts.arch)
        self._loaded = gpu.load(self.kernel)
        self.blocks_per_sm = self._loaded.blocks_per_sm(threads, self.shared_bytes)
        self.resident_clusters = (
            self._loaded.resident_clusters(threads, self.shared_bytes, cluster)
            if cluster > 1  # of clusters of one block the driver says 0
            else self.blocks_per_sm * gpu.facts.sm_count
        )
        if not self.resident_clusters:
            raise BadArgument(
                f"{spec.name}: this GPU holds no cluster of {cluster} blocks with {self.shared_bytes} bytes of "
                f"shared memory each; give a smaller cluster or less shared memory"
            )

    def config(self, blocks: int) -> Any:
        """Launch configuration of so many blocks."""
        return self._loaded.config(blocks, self.threads, self.shared_bytes, self.cluster)

    def launch(self, config: Any, **arguments: Any) -> None:
        """Queue one launch; see `LoadedKernel.launch`."""
        self._loaded.launch(config, **arguments)
