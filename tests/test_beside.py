"""What producers cost tensor cores: two rates and a price, and what they say of kernels they were not read off."""

import pandas as pd
import pytest

from labkernels.model import beside, kernel_pairs
from labkernels.model.advisor import gpus
from labkernels.model.beside import READ, Product, product_cycles, step_cycles, way
from labkernels.model.beside_fit import constants_beside, on_other_tiles, producers
from labkernels.model.closed_form import constants
from labkernels.store import Store
from labkernels.studies import select
from labkernels.studies.stats import having

SQUARE = Product(128, 128, 4096)
GPUS = [gpu for gpu in gpus() if select.latest_run(Store(), "mainloop_power", gpu)]
each_gpu = pytest.mark.parametrize("gpu", GPUS)


def test_a_step_is_that_of_tensor_cores_or_of_the_load_unit():
    of = {(way("cp_async"), "copy_bytes_per_cycle"): 64.0, (way("cp_async"), READ): 128.0}
    assert SQUARE.tensor_cycles == 512 and SQUARE.stage_bytes == 32768 and SQUARE.read_bytes == 49152
    assert step_cycles("cp_async", SQUARE, of) == 32768 / 64 + 49152 / 128
    assert step_cycles("cp_async", SQUARE, of | {(way("cp_async"), READ): 1e9}) == pytest.approx(
        512, rel=1e-3
    )
    assert (
        step_cycles("cp_async", Product(128, 256, 4096), {(way("cp_async"), "copy_bytes_per_cycle"): 1e9})
        == 1024
    )


def test_a_product_takes_its_steps_its_stores_or_its_memory():
    of = {("gpu", "hbm_bytes_per_cycle"): 2000.0, ("gpu", "sms_at_fan_out_1"): 100.0}
    of |= {(way("tma_tile"), "copy_bytes_per_cycle"): 1e9, (way("tma_tile"), beside.POWER): 0.0}
    assert product_cycles("tma_tile", SQUARE, of) == 32 * 512
    stored = product_cycles("tma_tile", Product(128, 128, 4096, stores=True), of)
    assert stored == 32 * 512 + 128 * 128 * 2 / 20
    assert product_cycles("tma_tile", Product(128, 128, 4096, memory_bytes=2e9), of) == 1e6
    drawn = of | {(way("tma_tile"), beside.POWER): 8.0}
    assert product_cycles("tma_tile", SQUARE, drawn) == pytest.approx(32 * 512 * (1 + 8 / 64))


@each_gpu
def test_stored_constants_are_what_the_rows_give(gpu):
    frames = [select.require_rows(Store(), name, gpu) for name in ("mainloop", "mainloop_power")]
    stored = {key: value for key, value in constants(gpu).items() if key[1] in beside.MEANINGS}
    assert constants_beside(*frames) == pytest.approx(stored, rel=1e-4)
    assert (way("tma_tile"), READ) not in stored and (way("cp_async"), READ) in stored


@each_gpu
def test_rates_of_one_tile_predict_the_others(gpu):
    loops = select.require_rows(Store(), "mainloop", gpu)
    table = on_other_tiles(loops, constants(gpu))
    assert list(table["mechanism"].unique()) == producers(loops) == ["cp_async", "ldg", "tma_tile"]
    assert (table["ratio"] - 1).abs().max() < 0.05


@each_gpu
def test_pairs_of_real_kernels_are_predicted(gpu):
    table = kernel_pairs.pairs(Store(), gpu)
    assert set(table["source"]) == {"CUTLASS", "Triton", "FlashAttention-3"} and len(table) > 100
    assert not table.isna().any().any() and not table.duplicated(["source", "kernel", "measured"]).any()
    assert table["error"].abs().le(kernel_pairs.NEAR).mean() >= 0.9
    p90 = kernel_pairs.error_p90(table)
    assert p90.low <= p90.value <= p90.high


def test_what_is_called_equal_and_is_not_is_missed():
    table = pd.DataFrame({"measured": [1.2, 1.2, 0.8, 1.04], "predicted": [1.0, 1.1, 1.01, 1.0]})
    assert list(kernel_pairs.missed(table)["measured"]) == [1.2, 0.8]


@each_gpu
def test_another_rate_of_the_load_unit_changes_the_predictions(gpu, monkeypatch):
    before = kernel_pairs.pairs(Store(), gpu)
    of = constants(gpu) | {(way("cp_async"), READ): 100.0}
    monkeypatch.setattr(kernel_pairs, "constants", lambda *_: of)
    after = kernel_pairs.pairs(Store(), gpu)
    large = having(before, source="CUTLASS")["kernel"].str.startswith("pingpong bf16 4096")
    assert (after["predicted"] > before["predicted"] + 0.1)[large[large].index].all()
