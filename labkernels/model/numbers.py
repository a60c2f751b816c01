"""What the chapter on model and advisor says in its text: values by the name under which the text asks for them."""

import pandas as pd

from labkernels.charts.text import percent
from labkernels.model import beside, beside_fit, validate
from labkernels.model import kernel_pairs as pairs
from labkernels.model.choosing import ADVISOR, score
from labkernels.model.closed_form import constants
from labkernels.model.fit import FORWARDED_NAMES, NAMES
from labkernels.operand import KIB, MIB
from labkernels.store import Store
from labkernels.store.provenance import kernels_unchanged
from labkernels.studies import select
from labkernels.studies.crossover.findings import launch_to_first_byte_us
from labkernels.studies.stats import where


def fitted(store: Store, gpu: str) -> pd.DataFrame:
    """The constants of a GPU as `fit` stored them, with unit, meaning and the runs behind them."""
    return where(store.read("constants"), gpu=gpu)


def advisor(cells: pd.DataFrame, production: pd.DataFrame) -> dict[str, str | float]:
    """How good the advisor's choices are.

    Args:
        cells: of `validate.all_choices`.
        production: of `validate.production`.
    """
    cells = where(cells, policy=ADVISOR)
    scores = {name: score(rows) for name, rows in cells.groupby("set", sort=False)}
    flash = scores["FlashAttention-3"]
    return {
        "card_agreement": percent(scores["another card"].agreement),
        "broadcast_agreement": percent(scores["broadcast"].agreement),
        "fa3_cells": flash.cells,
        "fa3_tma": len(where(cells, set="FlashAttention-3", choice="tma_tile")),
        "fa3_agrees": percent(flash.agreement),
        "production": len(production),
        "production_agrees": percent(production["agrees"].mean()),
        "production_exact": percent(production["exact"].mean()),
    }


def splits(scores: pd.DataFrame, within: float = 1.03) -> dict[str, str | float]:
    """In which splits the advisor loses little, and where something simpler is as good.

    Args:
        scores: rows of table `splits` of one GPU.
        within: what the 95th percentile of regret is to be.
    """
    own = where(scores, policy=ADVISOR).set_index("split")
    others = scores[scores["policy"].ne(ADVISOR)].set_index("split")
    mean, worst = own["regret_mean"], own["regret_p95"]
    rivals = others[
        others["regret_mean"].le(mean.reindex(others.index))
        | others["regret_p95"].le(worst.reindex(others.index))
    ]
    missed = worst[worst > within].sort_values(ascending=False)
    said = [f"{split} ({value:.3f})" for split, value in missed.items()]
    as_good = [f"{row.policy} without its {split}" for split, row in rivals.iterrows()]
    return {
        "splits": len(own),
        "splits_met": int((worst <= within).sum()),
        "splits_missed": ", ".join(said) or "none",
        "as_good": ", ".join(as_good) or "none",
        "worst_mean": f"{mean.max():.3f}",
        "time_error": percent(own["time_error_mean"].drop("source").max()),
        "time_error_source": percent(own.loc["source", "time_error_mean"]),
    }


def times(
    card: pd.DataFrame, broadcast: pd.DataFrame, paged: pd.DataFrame, prefill: pd.DataFrame
) -> dict[str, str | float]:
    """How near predicted times are to measured ones, in each set of `validate`."""
    single = paged[validate.single_runs(paged)]
    made = where(validate.choices(where(broadcast, source="computed")), policy=ADVISOR)
    found = {
        "card_configurations": len(card),
        "card_within": percent(validate.within(card["ratio"])),
        "broadcast_within": percent(validate.within(broadcast["ratio"])),
        "paged_within": percent(validate.within(paged["ratio"])),
        "prefill_within": percent(validate.within(prefill["ratio"])),
        "bulk_within": percent((single["ratio"] - 1).abs().max()),
        "made_cells": len(made),
        "made_agrees": int(made["agrees"].sum()),
    }
    passed = broadcast[validate.forwarded(broadcast)]
    for mechanism, rows in passed.groupby("mechanism"):
        name = "trip" if mechanism == "tma_multicast" else mechanism
        found |= {f"{name}_within": percent(validate.within(rows["ratio"])), f"{name}_cells": len(rows)}
    return found


def short(store: Store, gpu: str) -> dict[str, str]:
    """What short launches take, beside the model: start and bytes over the full rate.

    Raises:
        NotMeasured: no rows of short_kernels.
    """
    table = validate.short_launches(store, gpu)
    value, low, high, _ = launch_to_first_byte_us(select.require_rows(store, "short_kernels", gpu))
    two = where(table, footprint_bytes=2 * MIB, tile_bytes=16 * KIB)
    return {
        "short_within": percent(validate.within(table["ratio"])),
        "short_launches": len(table),
        "first_byte": f"{value:.1f} µs ({low:.1f} to {high:.1f})",
        "two_mib_least": f"{two['median'].min():.1f} µs",
        "two_mib_most": f"{two['median'].max():.1f} µs",
    }


def terms(store: Store, gpu: str) -> dict[str, str | float]:
    """The model's constants that the text names."""
    of = constants(gpu, store.root)
    found = {
        "fitted_constants": len(NAMES),
        "forwarded_constants": len(FORWARDED_NAMES),
        "outbox": f"{of['dsm', 'outbox_bytes_per_cycle']:.1f}",
        "store": of["round trip", "store_bytes_per_cycle"],
        "copy": of["tma", "copy_cycles"],
        "port": of["gpu", "port_bytes_per_cycle"],
        "hbm_queue": f"{of['gpu', 'hbm_queue_sharpness']:.1f}",
        "l2_queue": f"{of['gpu', 'l2_queue_sharpness']:.1f}",
        "hbm_sharpness": f"{of['gpu', 'hbm_sharpness']:.0f}",
        "l2_sharpness": f"{of['gpu', 'l2_sharpness']:.0f}",
        "merged": f"{1 + 3 * of['tma in step', 'merged_per_64_kib']:.1f}",  # 192 KiB in flight
        "start_tma": f"{of['tma', 'start_hbm_us']:.1f} µs",
        "start_ldg": f"{of['ldg', 'start_hbm_us']:.1f} µs",
    }
    for name in ("dsm_bulk", "dsm_load"):
        found |= {f"peer_{name}": of[name, "peer_cycles"]}
        found |= {f"crossing_{name}": of[name, "crossing_bytes_per_cycle"]}
    return found | {f"lookup_{name}": of[name, "lookup_cycles"] for name in ("tma_tile", "tma_bulk")}


def page_table(store: Store, gpu: str) -> dict[str, str | float]:
    """What the model says of a page table, and FlashAttention-3's kernels measured."""
    table = validate.page_table(store, gpu)
    dearest = table.loc[table["ratio"].idxmax()]
    return {
        "table_cells": len(table),
        "table_predicted": percent(table["predicted"].max() - 1, 1),
        "table_low": f"{table['ratio'].min():.2f}",
        "table_high": f"{table['ratio'].max():.2f}",
        "table_within": int(((table["ratio"] / table["predicted"] - 1).abs() <= 0.02).sum()),
        "table_dearest": f"{dearest['dtype']} with head dim {dearest['head_dim']} in {dearest['phase']}",
    }


def projection(b200: pd.DataFrame, h100: pd.DataFrame) -> dict[str, str]:
    """How near projections are to published curves.

    Args:
        b200: of `project.projected`.
        h100: the same.
    """
    late = h100[h100["bytes_in_flight_per_sm"].ge(23000)]
    return {
        "b200_error": _error(b200),
        "b200_tma_error": _error(where(b200, mechanism="tma_tile")),
        "h100_low": f"{h100['ratio'].min():.2f}",
        "h100_high": f"{h100['ratio'].max():.2f}",
        "h100_late": _error(late),
    }


def _error(table: pd.DataFrame) -> str:
    return percent((table["ratio"] - 1).abs().max())


def stale(store: Store, gpu: str) -> str:
    """Runs behind the constants whose kernels have changed since."""
    runs = sorted(set(fitted(store, gpu)["run_ids"].str.split(";").explode()))
    unchanged = kernels_unchanged(store)
    return ", ".join(run for run in runs if unchanged.get(run) is False) or "none"


def kernel_pairs(store: Store, gpu: str, table: pd.DataFrame) -> dict[str, str]:
    """The producers' rates beside tensor cores, how they did on other tiles, and over pairs of real kernels.

    Args:
        store: the rows.
        gpu: whose.
        table: of `kernel_pairs.pairs`.
    """
    of = constants(gpu, store.root)
    tested = beside_fit.on_other_tiles(select.require_rows(store, "mainloop", gpu), of)
    rates = {
        f"beside_copy_{short}": f"{of[beside.way(name), beside.COPY]:.0f}"
        for short, name in (("tma", "tma_tile"), ("cp", "cp_async"), ("ldg", "ldg"))
    }
    return rates | {
        "beside_read_cp": f"{of[beside.way('cp_async'), beside.READ]:.0f}",
        "beside_tested": percent((tested["ratio"] - 1).abs().max(), 1),
        "pairs": f"{len(table)}",
        "pairs_near": percent(table["error"].abs().le(pairs.NEAR).mean()),
        "pairs_p90": percent(pairs.error_p90(table).value, 1),
    }
