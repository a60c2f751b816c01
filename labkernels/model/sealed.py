"""Predictions for GPUs that nobody has measured here: frozen with date and hash, and scored when rows arrive."""

from datetime import date

import pandas as pd

from labkernels.errors import LabError, NotMeasured
from labkernels.model.closed_form import predict
from labkernels.model.configurations import LOAD, load_of
from labkernels.model.other_gpus import projected
from labkernels.model.validate import beside
from labkernels.store import Store
from labkernels.store.run import hexdigest
from labkernels.studies import select

TABLE = "sealed"
#: What tells predictions of one GPU apart.
KEY = ["mechanism", "variant", *LOAD, "slots"]
COLUMNS = ["gpu", "base", "sealed_on", *KEY, "predicted_gbps", "low_gbps", "high_gbps"]


def _quick_cells(store: Store, gpu: str, base: str) -> pd.DataFrame:
    """The pipelines of a quick run of `base`, with what the model says of another GPU."""
    runs = {
        name: select.latest_run(store, name, base, preset="quick") for name in ("pipelines", "multicast_fair")
    }
    if None in runs.values():
        raise NotMeasured(f"{base} has no quick run of {' or '.join(runs)} to take the pipelines from")
    return beside(store, runs, projected(gpu, base, store.root), gpu)


def seal(store: Store, gpu: str, base: str, on: date) -> int:
    """Freeze the best pipeline of each mechanism for each number of bytes in flight; how many predictions these are.

    Args:
        store: where; what is sealed there stays as it is.
        gpu: a GPU of table `gpus`, by either name.
        base: whose constants are projected.
        on: today.

    Raises:
        NotMeasured: nothing is known of the GPU.
        LabError: it was measured already, or sealed on that day.
    """
    sheet = next((row for row in store.records("gpus") if gpu in (row["gpu"], row["name"])), None)
    if sheet and sheet["gpu"] in select.gpus(store):
        raise LabError(f"{gpu} has rows here: what was measured cannot be predicted any more")
    of, cells = projected(gpu, base, store.root), _quick_cells(store, gpu, base)
    before = store.records(TABLE)
    if any(row["gpu"] == sheet["name"] and row["sealed_on"] == str(on) for row in before):
        raise LabError(f"{gpu} was sealed on {on}: a prediction is not made twice")
    cells["in_flight"] = cells["tile_bytes"] * cells["tiles_in_flight"] * cells["ctas_per_sm"]
    groups = cells.groupby(["mechanism", "variant", "source", "fan_out", "in_flight"])
    rows = []
    for row in cells.loc[groups["predicted_gbps"].idxmax()].itertuples(index=False):
        one = predict(row.mechanism, load_of(row), of, row.variant)
        rates = {
            "predicted_gbps": row.predicted_gbps,
            "low_gbps": row.predicted_gbps / one.high,
            "high_gbps": row.predicted_gbps / one.low,
        }
        key = {name: getattr(row, name) for name in KEY}
        rows.append(
            {"gpu": sheet["name"], "base": base, "sealed_on": str(on), **key}
            | {name: round(rate, 1) for name, rate in rates.items()}
        )
    store.write(TABLE, [*before, *rows])
    return len(rows)


def digest(rows: list[dict]) -> str:
    """Hash of predictions, in their order: the same for ever."""
    return hexdigest("\n".join(",".join(str(row[name]) for name in COLUMNS) for row in rows).encode())


def scores(store: Store) -> pd.DataFrame:
    """What became of every sealed GPU.

    Returns:
        A row for each GPU and day: `predictions`, `sha256` of them; how many were `measured`, and of these lie `inside`
        their interval; the median of `predicted over measured`.
    """
    found = []
    for (gpu, on, base), rows in pd.DataFrame(store.records(TABLE), columns=COLUMNS).groupby(
        ["gpu", "sealed_on", "base"], sort=False
    ):
        both = _measured(store, gpu, base, rows)
        inside = both["median"].between(both["low_gbps"], both["high_gbps"])
        found.append(
            {
                "GPU": gpu,
                "sealed on": on,
                "from": base,
                "predictions": len(rows),
                "sha256": digest(rows.to_dict("records"))[:16],
                "measured": len(both),
                "inside": int(inside.sum()),
                "predicted over measured": (both["predicted_gbps"] / both["median"]).median(),
            }
        )
    return pd.DataFrame(found)


def _measured(store: Store, gpu: str, base: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Sealed predictions whose pipelines were measured since, with the measured `median`."""
    name = next(row["gpu"] for row in store.records("gpus") if row["name"] == gpu)
    runs = {one: select.latest_run(store, one, name) for one in ("pipelines", "multicast_fair")}
    runs = {one: run for one, run in runs.items() if run}
    if not runs:
        return rows.iloc[:0].assign(median=pd.Series(dtype=float))
    cells = beside(store, runs, projected(gpu, base, store.root), gpu)[[*KEY, "median"]]
    return rows.fillna({"variant": ""}).merge(cells, on=KEY)
