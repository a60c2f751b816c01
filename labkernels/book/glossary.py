"""The words of the glossary that have a number: constants of the model and headline figures, each with its chapter."""

import pandas as pd

from labkernels.book.headline import quoted
from labkernels.charts.tables import Table
from labkernels.model.closed_form import constants
from labkernels.store import Store

#: Word, constant of the model (way, name), unit, chapter.
_CONSTANTS = (
    ("round trip of a plain load's stage, from HBM", "gpu", "latency_hbm_cycles", "cycles", "crossover"),
    ("round trip of a plain load's stage, from L2", "gpu", "latency_l2_cycles", "cycles", "crossover"),
    ("what a TMA pipeline adds to it", "tma", "overhead_cycles", "cycles", "crossover"),
    ("what a multistage cp.async pipeline adds", "cp_async multistage", "overhead_cycles", "cycles", "crossover"),
    ("what a sliced multicast adds", "tma_multicast slices", "overhead_cycles", "cycles", "multicast"),
    ("synchronization: a tile of one warp of each kind", "tma", "handshake_cycles", "cycles", "crossover"),
    ("the same of a multistage pipeline", "cp_async multistage", "handshake_cycles", "cycles", "crossover"),
    ("issue: one more TMA copy of a burst", "tma", "copy_cycles", "cycles", "latency"),
    ("16-byte vector: one more of a thread", "threads", "vector_cycles", "cycles", "latency"),
    ("page-table load, a box", "tma_tile", "lookup_cycles", "cycles", "paged"),
    ("page-table load, a bulk copy", "tma_bulk", "lookup_cycles", "cycles", "paged"),
    ("box row", "tma", "row_cycles", "cycles", "crossover"),
    ("multicast: each CTA that a producer serves", "tma_multicast slices", "peer_cycles", "cycles", "multicast"),
    ("cluster occupancy: SMs that clusters of 4 keep busy", "gpu", "sms_at_fan_out_4", "SMs", "multicast"),
    ("cluster occupancy: clusters of 16", "gpu", "sms_at_fan_out_16", "SMs", "multicast"),
    ("bandwidth of HBM, all SMs", "gpu", "hbm_bytes_per_cycle", "bytes per cycle", "crossover"),
    ("bandwidth of L2, all SMs", "gpu", "l2_bytes_per_cycle", "bytes per cycle", "crossover"),
    ("SM ingress", "gpu", "ingest_bytes_per_cycle", "bytes per cycle", "multicast"),
    ("DSM egress of one SM", "dsm", "outbox_bytes_per_cycle", "bytes per cycle", "broadcast"),
    ("start of a launch with a tensor map, from HBM", "tma", "start_hbm_us", "µs", "validation"),
    ("start of a launch of plain loads, from HBM", "ldg", "start_hbm_us", "µs", "validation"),
)  # fmt: skip
#: Word, headline figure, chapter.
_FIGURES = (
    (
        "TMA over cp.async, the same shared memory, from HBM",
        "tma_over_cp_async_equal_shared_bytes",
        "crossover",
    ),
    (
        "multicast over neighboring CTAs, fan-out 4, from L2",
        "multicast_over_unclustered_whole_gpu",
        "multicast",
    ),
    ("multicast: what L2 reads of what it delivers, fan-out 4", "multicast_l2_read_ratio", "multicast"),
    ("DSM: a load from another CTA", "dsm_load_latency_cycles", "broadcast"),
    ("tensor map that comes from L2", "descriptor_cold_cycles", "latency"),
    ("tensor map that the kernel rewrites", "descriptor_replace_cycles", "latency"),
    ("L2 prefetch: best gain with little in flight", "l2_prefetch_gain_best", "l2"),
    ("TMA store over st.global, to HBM", "tma_store_over_st_global_hbm", "stores"),
    ("tensor cores beside cp.async, over their rate alone", "wgmma_beside_cp_async", "kernel"),
)


def numbers(store: Store, gpu: str) -> Table:
    """The words with their numbers on a GPU; an interval where the figure has one."""
    of, rows = constants(gpu, store.root), []
    for word, way, name, unit, chapter in _CONSTANTS:
        rows.append((word, f"{of[way, name]:,.4g}", unit, chapter))
    for word, name, chapter in _FIGURES:
        one = quoted(store, gpu, name)
        if one.value is not None:
            rows.append((word, f"{one.value:,.4g} ({one.low:,.4g} to {one.high:,.4g})", one.unit, chapter))
    frame = pd.DataFrame(rows, columns=["word", "measured", "unit", "chapter"])
    return Table(
        frame,
        description="Words with their measured number",
        links={"chapter": [f"{name}.html" for name in frame["chapter"]]},
    )
