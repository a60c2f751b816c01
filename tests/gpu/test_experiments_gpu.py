"""Every experiment on a GPU, on a few small points: it fills the tables it names with rows that match their schema."""

import pytest

from labkernels.device import Gpu
from labkernels.operand import KIB, MIB
from labkernels.protocols.experiment import silent
from labkernels.store import Store
from labkernels.store.values import render
from labkernels.studies.experiments import experiment
from labkernels.studies.run import parameters_of

pytestmark = pytest.mark.gpu

PIPELINE = {"tile_bytes": (8 * KIB,), "bytes_per_cta": MIB, "rounds": 2}
#: What makes a quick preset a matter of seconds.
SMALL = {
    "throughput": {"tile_bytes": (8 * KIB,), "stages": (4,), "threads": (128,), "chunks": (4,),
                   "depths": (2,), "rounds": 2},
    "row_shape": {"inner_bytes": (64,), "l2_promotion_bytes": (0,), "rounds": 2},
    "l2_footprint": {"footprints_bytes": (8 * MIB,), "rounds": 2},
    "latency": {"transfer_bytes": (16,), "slots": 64, "rounds": 2, "launches": 2},
    "issue": {"transfer_bytes": (128,), "trains": (1, 8), "step_bytes": (128,), "step_trains": (1,), "rounds": 2},
    "multicast": PIPELINE | {"fan_outs": (1, 4), "stages": (4,), "lag_cycles": (1000,)},
    "handshake": PIPELINE,
    "crowding": PIPELINE | {"tile_bytes": 8 * KIB, "fan_outs": (4,), "ctas": (8,)},
    "broadcast": PIPELINE | {"fan_outs": (2,)},
    "handover": {"fan_outs": (2,), "rings": ((8 * KIB, 6),), "bytes_per_cta": MIB, "rounds": 2},
    "residency": {"clusters": (1, 2), "stages": (6,), "bytes_per_cta": MIB, "rounds": 2},
    "cluster_latency": {"clusters": (2,), "transfer_bytes": (256,), "steps": 16, "rounds": 2},
    "dsm": {"clusters": (2,), "command_bytes": (256,), "bytes_per_sender": MIB, "rounds": 2},
    "paged": {"page_rows": (16,), "row_bytes": (256,), "pool_bytes": 256 * MIB, "prefill_rows": 4096, "rounds": 2},
    "cluster_counters": {},
    "stream_counters": {},
}  # fmt: skip


@pytest.fixture(scope="module")
def gpu():
    return Gpu()


@pytest.mark.parametrize("name", SMALL)
def test_an_experiment_fills_its_tables(gpu, name):
    one = experiment(name)
    if missing := one.available():
        pytest.skip(missing)
    result = one.measure(gpu, parameters_of(name, "quick", SMALL[name]), silent)
    assert set(result.tables) == set(one.tables) and result.kernels
    for table, rows in result.tables.items():
        assert rows, f"{table} is empty"
        run_id = "20260101T000000Z-00000000"
        render(
            Store().tables[table], [{"run_id": run_id, **row} for row in rows]
        )  # refuses what does not fit
