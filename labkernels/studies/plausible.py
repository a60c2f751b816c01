"""Could rows have been measured on the GPU that they name? Bounds of physics and data sheets, not of taste."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pandas as pd

from labkernels.store import RUNS, Problem, Store, datasheet

#: 128 bytes, a line of L1, is the most that an SM takes in during a clock.
SM_BYTES_PER_CLOCK = 128
#: No GPU with TMA is sold with a higher boost clock.
HIGHEST_MHZ = 3000
#: Driver's average over the enforced limit: seen are 0.3%.
POWER_OVER_LIMIT = 1.05
#: A rate and its bytes over its time, both rounded: seen are 0.6%.
ROUNDING = 0.01
#: A data sheet's tensor peak is at a lower clock than the GPU's highest; types of one byte have twice that of bf16.
OVER_PEAK = {"bf16": 1.15, "fp16": 1.15}
OVER_PEAK_BYTES = 2.3
QUANTILES = (("p05", "median", "p95"), ("cycles_p05", "cycles_median", "cycles_p95"))
#: Tables whose rates from HBM are more than memory's: bytes that are used again, or arrive in several SMs.
_REUSED = {"fan_out", "reused_bytes"}
_FIX = "measure again, or say in the pull request how this can be"

Fault = tuple[Any, str]  # a row's label, and what is wrong


def problems(store: Store, run_ids: Iterable[str]) -> list[Problem]:
    """Every row of some runs that cannot be, with its value and the limit that it breaks."""
    runs = store.read(RUNS, run_ids=run_ids, marked=True).set_index("run_id")
    found = [
        Problem(f"{RUNS}/{run_id}.csv", 2, what, _FIX)
        for run_id, run in runs.iterrows()
        for what in _of_run(run)
    ]
    timed = pd.Series(0.0, index=runs.index)
    for table, schema in store.tables.items():
        if not schema.of_run:
            continue
        rows = store.read(table, run_ids=runs.index, marked=True)
        for run_id, frame in rows.groupby("run_id"):
            frame = frame.reset_index(drop=True)
            found += [
                Problem(f"{table} of run {run_id}", 0, f"row {row + 1}: {what}", _FIX)
                for row, what in _of_rows(frame, runs.loc[run_id])
            ]
            timed[run_id] += frame["duration_us"].sum() / 1e6 if "duration_us" in frame else 0.0
    for run_id, total in timed.items():
        if total > (wall_s := runs.loc[run_id, "wall_s"]) + 0.1:  # it is rounded
            what = f"wall_s is {wall_s}, less than the {total:.1f} s that its rows took"
            found.append(Problem(f"{RUNS}/{run_id}.csv", 2, what, _FIX))
    return found


def _of_run(run: pd.Series) -> Iterator[str]:
    """What is wrong with a row of the run table."""
    if float(run["compute_capability"]) < 9.0:
        yield f"compute_capability is {run['compute_capability']}, below the 9.0 that the kernels need"
    if (began := run["started_utc"].to_pydatetime()) > datetime.now(UTC) + timedelta(days=1):
        yield f"started_utc is {began:%Y-%m-%dT%H:%M:%SZ}, after today's {datetime.now(UTC):%Y-%m-%d}"
    clocks = [run[f"sm_clock_mhz_{name}"] for name in ("min", "median", "max")]
    if any(one > other for one, other in pairwise(clocks)):
        yield f"sm_clock_mhz_min, _median and _max are {clocks}: they have to rise"
    if clocks[2] > HIGHEST_MHZ:
        yield f"sm_clock_mhz_max is {clocks[2]:,.0f}, above {HIGHEST_MHZ:,}"
    if run["power_w_median"] > run["power_w_max"]:
        yield f"power_w_median is {run['power_w_median']}, above power_w_max {run['power_w_max']}"
    if run["power_w_max"] > run["power_limit_w"] * POWER_OVER_LIMIT:
        yield f"power_w_max is {run['power_w_max']}, above the limit of {run['power_limit_w']} W"
    if not 0 < (degrees := run["temperature_c_max"]) < 120 and pd.notna(degrees):
        yield f"temperature_c_max is {degrees}, not between 0 and 120"
    sheet = datasheet(run["gpu_name"])
    if sheet and sheet.sm_count:
        is_part = pd.notna(run["mig"]) and run["mig"]
        if run["sm_count"] > sheet.sm_count or (run["sm_count"] < sheet.sm_count and not is_part):
            yield f"sm_count is {run['sm_count']}, where the data sheet of {sheet.name} gives {sheet.sm_count}"


def _of_rows(frame: pd.DataFrame, run: pd.Series) -> Iterator[Fault]:
    """Rows of one run in one table that cannot be."""
    sheet, columns = datasheet(run["gpu_name"]), set(frame)

    def over(name: str, values: pd.Series, limit: float, whose: str) -> Iterator[Fault]:
        for row, value in values[values > limit].items():
            yield row, f"{name} is {value:,.6g}, above {limit:,.0f}, {whose}"

    if "gbps" in columns:
        if pd.notna(clock := run["sm_clock_mhz_max"]):
            most = run["sm_count"] * clock * SM_BYTES_PER_CLOCK / 1e3
            yield from over("gbps", frame["gbps"], most, f"{SM_BYTES_PER_CLOCK} bytes a clock in each SM")
        if sheet and {"source", "footprint_bytes"} <= columns and not columns & _REUSED:
            streamed = frame["source"].eq("hbm") & frame["footprint_bytes"].gt(2 * run["l2_bytes"])
            yield from over(
                "gbps",
                frame.loc[streamed, "gbps"],
                sheet.memory_gbps,
                f"memory's peak by the data sheet of {sheet.name}",
            )
        if {"bytes_moved", "duration_us"} <= columns:
            ratio = frame["gbps"] * frame["duration_us"] * 1e3 / frame["bytes_moved"]
            for row in ratio[(ratio - 1).abs() > ROUNDING].index:
                moved, took = frame.loc[row, ["bytes_moved", "duration_us"]]
                rate = f"{moved:,.0f} bytes in {took} us are {moved / took / 1e3:,.2f}"
                yield row, f"gbps is {frame.loc[row, 'gbps']}, but {rate}"
    if "bytes_per_clock_per_sm" in columns:
        most, whose = SM_BYTES_PER_CLOCK, "what an SM takes in"
        yield from over("bytes_per_clock_per_sm", frame["bytes_per_clock_per_sm"], most, whose)
    if "tflops" in columns and sheet and sheet.bf16_tflops:
        kinds = frame["dtype"] if "dtype" in columns else pd.Series("bf16", frame.index)
        for kind, values in frame["tflops"].groupby(kinds):
            most = sheet.bf16_tflops * OVER_PEAK.get(kind, OVER_PEAK_BYTES)
            yield from over(
                "tflops",
                values,
                most,
                f"the tensor peak by the data sheet of {sheet.name}, at the highest clock",
            )
    for low, middle, high in QUANTILES:
        if {low, middle, high} <= columns:
            turned = frame[low].gt(frame[middle]) | frame[middle].gt(frame[high])
            for row in frame.index[turned]:
                yield (
                    row,
                    f"{low}, {middle} and {high} are {[*frame.loc[row, [low, middle, high]]]}: they have to rise",
                )
    for name in columns & {"duration_us", "gbps", "cycles_median"}:
        for row, value in frame.loc[frame[name].lt(0), name].items():
            yield row, f"{name} is {value}, below 0"
