"""What do multicasts to few and to many CTAs ask of the fabric? The pipelines of `wide_clusters`, counted."""

from labkernels.protocols.counted import counted_experiment
from labkernels.protocols.measure import pipelines_ready
from labkernels.studies.multicast.wide_clusters import PRESETS, configurations

METRICS = {
    "l1tex__m_l1tex2xbar_read_requests_mem_global_op_tma_ld_dest_multicast.sum": "requests",
    "l1tex__m_l1tex2xbar_read_requests_replayed_mem_global_op_tma_ld_dest_multicast.sum": "requests_replayed",
    "lrc__lrc2xbar_sectors_op_read.sum": "coalescer_out_bytes",
    "lrc__lrc2xbar_sectors_op_read_replayed.sum": "coalescer_replayed_bytes",
    "lrc__lrc2xbar_cycles_active.sum": "coalescer_active_cycles",
    "lrc__lrc2xbar_cycles_stalled.sum": "coalescer_stalled_cycles",
    "lrc__cycles_elapsed.sum": "coalescer_elapsed_cycles",
    "l1tex__m_xbar2l1tex_read_bytes.sum": "sm_ingest_bytes",
    "sm__cycles_elapsed.max": "cycles",
}


ready = pipelines_ready(configurations)

EXPERIMENT = counted_experiment(
    __name__,
    "multicast_requests",
    "What do multicasts to few and to many CTAs ask of the fabric?",
    PRESETS,
    METRICS,
    ready,
)
