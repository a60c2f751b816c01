"""What the chapter on model and advisor says in its text: values by the name under which the text asks for them."""

import pandas as pd

from labkernels.charts.text import kib, percent
from labkernels.model import project, validate
from labkernels.model.closed_form import constants
from labkernels.model.fit import FORWARDED_NAMES, NAMES
from labkernels.store import Store
from labkernels.store.provenance import kernels_unchanged
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
    scores = {name: validate.score(rows) for name, rows in cells.groupby("set", sort=False)}
    first, flash = scores["held out"], scores["FlashAttention-3"]
    return {
        "cells": first.cells,
        "agreement": percent(first.agreement),
        "regret_p95": f"{first.regret_p95:.3f}",
        "regret_worst": f"{first.regret_worst:.3f}",
        "broadcast_agreement": percent(scores["broadcast"].agreement),
        "fa3_cells": flash.cells,
        "fa3_tma": len(where(cells, set="FlashAttention-3", choice="tma_tile")),
        "fa3_agrees": percent(flash.agreement),
        "production": len(production),
        "production_agrees": percent(production["agrees"].mean()),
        "production_exact": percent(production["exact"].mean()),
    }


def times(
    held_out: pd.DataFrame, broadcast: pd.DataFrame, paged: pd.DataFrame, prefill: pd.DataFrame
) -> dict[str, str | float]:
    """How near predicted times are to measured ones, in each set of `validate`."""
    single = paged[validate.single_runs(paged)]
    made = validate.choices(where(broadcast, source="computed"))
    found = {
        "configurations": len(held_out),
        "within": percent(validate.within(held_out["ratio"])),
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
        "sharpness": f"{of['gpu', 'sharpness']:.1f}",
        "merged": f"{1 + 3 * of['tma in a cluster', 'merged_per_64_kib']:.1f}",  # 192 KiB in flight
        "handshake": of["tma", "handshake_cycles"],
    }
    for name in ("dsm_bulk", "dsm_load"):
        found |= {f"peer_{name}": of[name, "peer_cycles"]}
        found |= {f"crossing_{name}": of[name, "crossing_bytes_per_cycle"]}
    return found | {f"lookup_{name}": of[name, "lookup_cycles"] for name in ("tma_tile", "tma_bulk")}


def forecast(store: Store, gpu: str) -> dict[str, str | float]:
    """How an earlier model does on rows that came after it."""
    earlier = validate.forecast(store, gpu)
    score = validate.score(validate.choices(earlier))
    off = earlier[(earlier["ratio"] - 1).abs() > 0.15]
    return {
        "earlier_commit": earlier["commit"].iloc[0],
        "earlier_agreement": percent(score.agreement),
        "earlier_p95": f"{score.regret_p95:.3f}",
        "earlier_worst": f"{score.regret_worst:.3f}",
        "earlier_within": percent(validate.within(earlier["ratio"])),
        "earlier_off": len(off),
        "earlier_off_tma": int(off["mechanism"].isin(["tma_bulk", "tma_tile"]).sum()),
    }


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


def projection(b200: pd.DataFrame, h100: pd.DataFrame, gpu: str) -> dict[str, str]:
    """How near projections are to published curves.

    Args:
        b200: of `project.projected`.
        h100: the same.
        gpu: whose constants were projected.
    """
    late = h100[h100["bytes_in_flight_per_sm"].ge(23000)]
    return {
        "b200_error": _error(b200),
        "b200_tma_error": _error(where(b200, mechanism="tma_tile")),
        "b200_crossover": kib(project.crossover_bytes("B200", gpu)),
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
