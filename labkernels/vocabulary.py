"""The names that code, data, charts and command line share."""

#: Ways to move data to or from shared or global memory, in the order tables show them.
MECHANISMS = (
    "ldg",
    "cp_async",
    "tma_bulk",
    "tma_tile",
    "tma_multicast",
    "dsm_load",
    "dsm_store",
    "dsm_bulk",
    "tma_store",
    "bulk_store",
    "tma_reduce",
    "bulk_reduce",
    "stg",
)

#: Architectures that kernels are assembled for and operands are judged on.
ARCHITECTURES = ("sm_90a", "sm_100a")
