"""What is fitted, what is held out, and what the fit leaves out."""

import shutil

import pandas as pd
import pytest

from labkernels.book import headline
from labkernels.errors import NotMeasured
from labkernels.model import configurations as parts
from labkernels.model.advisor import gpus
from labkernels.model.beside import MEANINGS
from labkernels.model.closed_form import SHARES, constants
from labkernels.model.fit import FORWARDED_NAMES, NAMES, SHARED, fit, known_before, save, starts
from labkernels.paths import DATA
from labkernels.store import Store
from labkernels.studies import select

each_gpu = pytest.mark.parametrize("gpu", gpus())


@pytest.fixture(scope="module")
def rows():
    return parts.frames(Store(), gpus()[0])


def configurations(rows):
    return parts.configurations(rows, starts(known_before(rows)))


def renamed(frame, mechanism, new):
    """The rows of one mechanism once more, under a name that nobody knows."""
    again = frame[frame["mechanism"].eq(mechanism)]
    return pd.concat([frame, again.assign(mechanism=new, kernel=f"{new}.stream")], ignore_index=True)


@each_gpu
def test_stored_constants_are_what_the_rows_give(gpu):
    of, _ = fit(parts.frames(Store(), gpu))
    stored = {key: value for key, value in constants(gpu).items() if key[1] not in MEANINGS}
    assert of.keys() == stored.keys() and {*NAMES, *FORWARDED_NAMES, *SHARED} < {*stored}
    assert {key: pytest.approx(value, rel=5e-3) for key, value in of.items()} == stored


@each_gpu
@pytest.mark.slow
def test_saving_again_changes_nothing_and_leaves_other_gpus_where_they_are(gpu, tmp_path, monkeypatch):
    shutil.copytree(DATA, tmp_path / "data")
    store = Store(tmp_path / "data")
    for name in ("constants", "verdicts"):
        rows = store.records(name)
        others = [[row | {"gpu": other} for row in rows] for other in ("one before", "one after")]
        store.write(name, [*others[0], *(row for row in rows if row["gpu"] == gpu), *others[1]])
    before = {name: store.records(name) for name in ("constants", "verdicts")}
    monkeypatch.setattr("labkernels.model.fit.fit", lambda rows, progress: (constants(gpu), None))
    save(store, gpu)
    assert {name: store.records(name) for name in before} == before


@each_gpu
def test_forwarding_is_not_of_the_grid_it_is_tested_on(gpu):
    table = parts.pipelines(select.require_rows(Store(), "handover", gpu), "handover")
    assert set(table.mechanism) == {"dsm_bulk", "dsm_load", "tma_multicast"}
    assert set(table.variant) == {*SHARES}
    tested = parts.pipelines(select.require_rows(Store(), "broadcast", gpu), "broadcast")
    assert not set(table.tiles_in_flight) & set(tested.tiles_in_flight)
    ratio = parts.predicted(table, constants(gpu)).ratio
    assert (ratio - 1).abs().le(0.15).mean() >= 0.9


def test_every_configuration_is_there_once_with_its_slots(rows):
    table = configurations(rows)
    assert not table.duplicated(["mechanism", *parts.LOAD, "slots", "variant", "experiment"]).any()
    staged = table[
        table.pipeline.eq("multistage") & table.mechanism.eq("cp_async") & table.experiment.eq("pipelines")
    ]
    assert (staged.slots - staged.tiles_in_flight == 2 - staged.barriers).all()
    assert table[table.pipeline.eq("specialized")].eval("slots == tiles_in_flight").all()
    assert set(table.warps) == {1, 2, 4} and table[table.mechanism.eq("ldg")].tiles_in_flight.eq(1).all()


def test_mechanisms_that_the_model_is_not_of_are_named(rows):
    assert parts.left_out(rows) == []
    more = {
        "pipelines": renamed(rows["pipelines"], "tma_bulk", "bulk_prefetch"),
        "multicast_fair": renamed(rows["multicast_fair"], "tma_tile", "tma_relay"),
    }
    assert parts.left_out(rows | more) == ["bulk_prefetch", "tma_relay"]


def test_the_advisors_figures_say_what_they_leave_out(monkeypatch):
    monkeypatch.setattr(headline, "OF_ROWS", {})
    before = headline.headline(Store())[gpus()[0]]
    require = select.require_rows

    def with_another(store, name, *arguments):
        frame = require(store, name, *arguments)
        return renamed(frame, "tma_bulk", "bulk_prefetch") if name == "pipelines" else frame

    monkeypatch.setattr(select, "require_rows", with_another)
    after = headline.headline(Store())[gpus()[0]]
    assert before.keys() == after.keys() == {*headline.OF_ADVISOR, headline.PAIRS, "cards"}
    for name in headline.OF_ADVISOR:
        figure = after[name]
        assert figure.value == before[name].value is not None
        assert "bulk_prefetch" in figure.note and "bulk_prefetch" not in before[name].note


def test_a_typo_in_a_figure_is_no_missing_measurement(monkeypatch):
    monkeypatch.setattr(headline, "OF_ROWS", {"typo": ("GB/s", "latency", lambda frame: frame["gbsp"].max())})
    with pytest.raises(KeyError, match="gbsp"):
        headline.headline(Store())


def test_a_constant_that_no_row_gives_is_named(rows):
    trains = rows["issue"][rows["issue"]["variant"].ne("lookup")]
    with pytest.raises(NotMeasured, match="variant lookup"):
        fit(rows | {"issue": trains})
