"""Figures, cells and rules on several cards of one name."""

import shutil
from itertools import combinations

import pytest

from labkernels.book.headline import OF_ROWS
from labkernels.paths import DATA
from labkernels.store import RUNS, Store
from labkernels.studies import cards, select

EXPERIMENT = "plain_loads"


@pytest.fixture(scope="module")
def store():
    return Store()


@pytest.fixture(scope="module")
def gpu(store):
    return select.gpus(store)[-1]


@pytest.fixture(scope="module")
def by_card(store, gpu):
    return cards.runs_by_card(store, gpu)


def test_every_run_belongs_to_one_card(store, gpu, by_card):
    runs = [run_id for group in by_card.values() for run_id in group]
    assert len(by_card) >= 3 and len(runs) == len(set(runs))
    assert set(runs) <= set(store.read(RUNS)["run_id"])


def test_shared_cells_are_the_same_in_both_runs(store, gpu, by_card):
    shown = select.latest_run(store, EXPERIMENT, gpu)
    others = [cards._newest(store, EXPERIMENT, gpu, runs) for runs in by_card.values() if shown not in runs]
    for other in filter(None, others):
        here, there = cards.shared(store, EXPERIMENT, shown, other)
        assert set(here["cell"]) == set(there["cell"]) and len(here)
        assert set(here["run_id"]) == {shown} and set(there["run_id"]) == {other}
        names = ["kernel", "tile_bytes", "ctas_per_sm", "threads", "source", "footprint_bytes"]
        one, two = (frame.groupby("cell")[names].first().sort_index() for frame in (here, there))
        assert one.equals(two)


def test_no_measured_number_tells_cells_apart(store, gpu, by_card):
    """Two runs of one preset whose grids have the same size are of the same cells, each of them."""
    runs = store.read(RUNS).set_index("run_id")
    unlike = []
    for name in cards.studies():
        newest = [cards._newest(store, name, gpu, group) for group in by_card.values()]
        for one, other in combinations(filter(None, newest), 2):
            if runs.loc[one, "preset"] != runs.loc[other, "preset"]:
                continue
            rows = [len(select.rows(store, name, [run_id])) for run_id in (one, other)]
            here, _ = cards.shared(store, name, one, other)
            if rows[0] == rows[1] != len(here):
                unlike.append((name, one, other, rows[0], len(here)))
    assert not unlike


@pytest.mark.slow
def test_a_card_without_the_cells_that_a_rule_needs_does_not_judge_it(store, gpu):
    judged = cards.rules(store, gpu).set_index("rule")
    assert judged.loc["four_warps_fill_memory", "cards"] == 1, "no other card measured 128 threads"
    assert judged["cards"].gt(1).sum() > 20 and judged["cards_hold"].ge(1).all()


def test_a_run_is_as_fast_as_itself(store, gpu):
    shown = select.latest_run(store, EXPERIMENT, gpu)
    here, there = cards.shared(store, EXPERIMENT, shown, shown)
    assert (cards.medians(here, "gbps") / cards.medians(there, "gbps")).eq(1).all()


def test_a_range_holds_the_figure_and_widens_with_another_card(store, gpu, by_card):
    _, _, find = OF_ROWS["ldg_hbm_read_gbps_at_32_kib"]
    shown = select.latest_run(store, EXPERIMENT, gpu)
    value = find(select.rows(store, EXPERIMENT, [shown]))[0]
    own = {card: runs for card, runs in by_card.items() if shown in runs}
    alone, all_cards = (
        cards.over_cards(store, EXPERIMENT, lambda rows: find(rows)[0], shown, value, some)
        for some in (own, by_card)
    )
    assert alone == (1, value, value)
    assert (
        all_cards.cards >= 3 and all_cards.low <= value <= all_cards.high and all_cards.low < all_cards.high
    )


def test_verdicts_say_on_how_many_cards_a_rule_was_judged(store, gpu):
    verdicts = store.read("verdicts")
    judged = verdicts[verdicts["gpu"].eq(gpu) & verdicts["cards"].notna()]
    assert judged["cards"].gt(1).sum() > 20 and judged["cards_hold"].le(judged["cards"]).all()


def test_of_a_store_with_one_card_nothing_is_said_of_others(tmp_path, gpu, by_card):
    root = tmp_path / "data"
    shutil.copytree(DATA, root)
    kept = max(by_card.values(), key=len)
    for path in (root / "runs").glob("*.csv"):
        if path.stem not in kept:
            path.unlink()
    store = Store(root)
    assert list(cards.runs_by_card(store, gpu).values()) == [kept]
    assert cards.cells(store, gpu).empty
