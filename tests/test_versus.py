"""Two GPUs, or a card and the others of its name, against each other."""

import json
import shutil
from datetime import UTC, datetime

import pandas as pd
import pytest

from labkernels.cli import main
from labkernels.errors import NotMeasured
from labkernels.model import versus
from labkernels.paths import DATA
from labkernels.store import RUNS, Store, new_run_id
from labkernels.studies import cards

GPU, CARD = "NVIDIA H200", "feedfacecafe"
EXPERIMENT, RATE = "throughput", "gbps"


def put(store, gpu, card, change, **recorded):
    """A quick run of one more card: that of another with its rates changed, and what else it recorded."""
    of = Store()
    runs = of.read(RUNS)
    run = runs[runs["experiment"].eq(EXPERIMENT) & runs["preset"].eq("quick")].iloc[-1:]
    rows = of.read(EXPERIMENT, run_ids=[run["run_id"].iloc[0]]).drop(columns="run_id")
    rows = rows.assign(**{RATE: (rows[RATE] * change(rows)).round(3)}).astype(object)
    described = run.astype(object).where(run.notna(), None).iloc[0].to_dict()
    began = datetime.now(UTC)
    described |= {"run_id": new_run_id(began), "started_utc": began, "gpu_name": gpu, "gpu_uuid_hash": card}
    return store.record(described | recorded, {EXPERIMENT: rows.where(rows.notna(), None).to_dict("records")})


@pytest.fixture
def store(tmp_path):
    """The stored runs of one experiment."""
    runs = Store().read(RUNS)
    for run_id in runs.loc[runs["experiment"].eq(EXPERIMENT), "run_id"]:
        for table in (RUNS, EXPERIMENT):
            (tmp_path / table).mkdir(exist_ok=True)
            for path in (DATA / table).glob(f"{run_id}*.csv"):
                shutil.copy(path, tmp_path / table)
    return Store(tmp_path)


def slower_from_hbm(rows):
    return 1 - 0.2 * rows["source"].eq("hbm")


def of_experiment(store, one, other):
    experiments, outside = versus.compare(store, one, other)
    return experiments.set_index("experiment").loc[EXPERIMENT], outside[outside["experiment"].eq(EXPERIMENT)]


def test_a_card_is_compared_with_the_others_of_its_name(store):
    put(store, GPU, CARD, slower_from_hbm, throttle_reasons="power_cap;applications_clocks")
    one, other = versus.sides(store, CARD[:6], GPU)
    assert set(one.by_card) == {CARD} and CARD not in other.by_card and len(other.by_card) > 1
    row, outside = of_experiment(store, one, other)
    rows = Store().read(EXPERIMENT, run_ids=[outside["runs"].iloc[0].split(", ")[1]])
    assert row["outside"] == len(outside) and outside["cell"].str.contains("source hbm").all()
    assert (
        len(outside)
        == rows[rows["source"].eq("hbm")].drop_duplicates(cards.tells(store, EXPERIMENT)).shape[0]
    )
    assert outside["speed"].between(0.75, 0.85).all()
    assert set(outside["likely causes"]) == {"throttled: applications_clocks, power_cap"}
    turned = of_experiment(store, other, one)[1]
    assert sorted(1 / turned["speed"]) == pytest.approx(sorted(outside["speed"]))


def test_a_card_like_the_others_is_inside(store):
    put(store, GPU, CARD, lambda rows: 1.0)
    row, outside = of_experiment(store, *versus.sides(store, CARD, GPU))
    assert row["low"] <= 1 <= row["high"] and outside.empty and row["outside"] == 0


def test_another_gpu_is_expected_as_its_data_sheet_says(store):
    put(store, "NVIDIA H100 80GB HBM3", CARD, slower_from_hbm)
    row, outside = of_experiment(store, *versus.sides(store, "NVIDIA H100 80GB HBM3", GPU))
    assert outside.empty and row["expected_low"] == pytest.approx(3350 / 4800 / 1.13)
    assert row["expected_high"] == pytest.approx(1.13)


def test_a_reading_that_differs_is_named_as_a_cause():
    ours = {
        "gpu_name": GPU,
        "throttle_reasons": None,
        "sm_clock_mhz_median": 1980.0,
        "memory_clock_mhz": 3201.0,
        "mig": False,
        "other_processes": 0,
        "power_limit_w": 700.0,
        "sm_count": 132,
        "ecc": True,
        "driver_version": "580",
        "toolkit_version": "13.0",
    }
    causes = {
        "throttle_reasons": ("software_thermal;sync_boost", "throttled: software_thermal"),
        "sm_clock_mhz_median": (1755.0, "SM clock 1,755 MHz, not 1,980"),
        "memory_clock_mhz": (2619.0, "memory clock 2,619 MHz, not 3,201"),
        "mig": (True, "MIG: an instance of a partitioned GPU"),
        "other_processes": (2, "other load: 2 other processes"),
        "gpu_name": ("NVIDIA H100 PCIe", "PCIe part: NVIDIA H100 PCIe"),
        "power_limit_w": (350.0, "power limit 350 W, not 700"),
        "sm_count": (114, "114 SMs, not 132"),
        "ecc": (False, "ECC off"),
        "driver_version": ("570", "driver 570"),
        "toolkit_version": ("12.9", "toolkit 12.9"),
    }
    assert causes.keys() == ours.keys()
    frame = pd.DataFrame([ours])
    assert list(versus.likely_causes(frame, frame)) == []
    for column, (value, said) in causes.items():
        assert list(versus.likely_causes(pd.DataFrame([ours | {column: value}]), frame)) == [said]
    everything = pd.DataFrame([ours | {column: value for column, (value, _) in causes.items()}])
    assert set(versus.likely_causes(everything, frame)) == {said for _, said in causes.values()}


def test_who_is_not_there_is_told_who_is(store):
    with pytest.raises(NotMeasured, match=f"no GPU or card that has rows: there are {GPU}, cards "):
        versus.sides(store, "H9999", GPU)
    with pytest.raises(NotMeasured, match="are the same cards"):
        versus.sides(store, GPU, GPU)
    with pytest.raises(NotMeasured, match="no rows of experiment pipelines"):
        versus.newest(store, GPU)


def test_a_verdict_that_differs_says_whether_the_cells_or_the_gpu_do(store):
    put(store, GPU, CARD, lambda rows: rows["bytes_in_flight_per_sm"] / 2**16)  # more brings more
    one, other = versus.sides(store, CARD, GPU)
    rules = versus.rules(store, one, other)
    judged = rules[rules[["first", "second"]].ne("not measured").all(axis=1)]
    assert len(judged) and set(rules["they differ"]) <= {"", "on the GPU", "in the cells measured"}
    assert "on the GPU" in set(judged["they differ"])


def test_the_newest_pipelines_are_yours_if_you_do_not_say():
    store = Store()
    newest = versus.newest(store, GPU)
    assert newest in cards.runs_by_card(store, GPU)
    one, _ = versus.sides(store, newest, GPU)
    table = versus.forecast(store, one, GPU)
    assert len(table) > 100 and table["ratio"].between(0.5, 2).all()


def test_the_command_says_speeds_outliers_and_verdicts(store, capsys):
    put(store, GPU, CARD, slower_from_hbm, mig=True)
    given = ["compare", CARD, GPU, "--data", str(store.root)]
    assert main(given) == 0
    said = capsys.readouterr().out
    assert f"{CARD} over other cards of {GPU}" in said and "MIG" in said and "judged on both" in said
    assert main([*given, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["first"]["cards"] == [CARD] and value["outside"] and value["rules"]
    assert main(["compare", "nobody", GPU]) == 2
