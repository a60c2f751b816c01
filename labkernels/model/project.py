"""The model on other generations: one GPU's constants, and of the other only its SMs and best published HBM rate."""

from dataclasses import replace

import pandas as pd

from labkernels.model.closed_form import MULTISTAGE, Constants, Load, constants, predict
from labkernels.store import datasheet, published

STAGES = 4  # where a publication names no pipeline
PLAIN = Load(tile_bytes=4096, row_bytes=2048, tiles_in_flight=STAGES)
#: As published kernels are built: threads that copy and read, or a warp of each kind.
PIPELINES = {"cp_async": {"pipeline": MULTISTAGE}, "tma_tile": {}}


def _curve(target: str) -> pd.DataFrame:
    numbers = published()
    return numbers[
        numbers["quantity"].eq("hbm_read_bandwidth")
        & numbers["gpu"].eq(target)
        & numbers["bytes_in_flight_per_sm"].notna()
        & numbers["mechanism"].isin(["tma_tile", "cp_async"])
    ]


def _constants(target: str, base: str) -> Constants:
    of = dict(constants(base))
    of["gpu", "hbm_bytes_per_cycle"] = float(_curve(target)["value"].max()) * 1e3 / of["gpu", "sm_clock_mhz"]
    of["gpu", "sms_at_fan_out_1"] = float(datasheet(target).sm_count)
    return of


def projected(target: str, base: str) -> pd.DataFrame:
    """The published curves of HBM throughput over bytes in flight beside the model's.

    Args:
        target: a GPU whose number of SMs table `gpus` has.
        base: the GPU whose fitted constants are used, its clock included.

    Returns:
        Columns of the published numbers, `predicted_gbps` and `ratio` (predicted over published). The highest published
        number is in the model; the others are not.
    """
    of = _constants(target, base)

    def rate(row: object) -> float:
        bytes_in_flight = int(row.bytes_in_flight_per_sm)
        tile = int(row.transfer_bytes) if pd.notna(row.transfer_bytes) else bytes_in_flight // STAGES
        shape = {"tile_bytes": tile, "tiles_in_flight": bytes_in_flight // tile}
        return predict(row.mechanism, replace(PLAIN, **shape, **PIPELINES[row.mechanism]), of).gbps

    rows = _curve(target)
    found = rows.assign(predicted_gbps=[rate(row) for row in rows.itertuples(index=False)])
    return found.assign(ratio=found["predicted_gbps"] / found["value"])
