"""Hardware counters of a process's launches, read by Nsight Compute."""

import csv
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from cuda.bindings import driver

from labkernels.errors import LabError, NotInstalled

SECTOR_BYTES = 32
#: Bytes on the way from memory over L2 and its request coalescer into the SMs.
MEMORY_PATH = {
    "lts__t_sectors_srcunit_tex_op_read.sum": "l2_read_bytes",
    "lts__t_sectors_op_read.sum": "l2_all_read_bytes",
    "lrc__lts2lrc_sectors_op_read.sum": "l2_to_coalescer_bytes",
    "lrc__xbar2gpc_sectors_op_read.sum": "coalescer_to_sm_bytes",
    "lrc__xbar2gpc_sectors_op_read_coalescing_achieved_type_hardware.sum": "coalesced_hardware_bytes",
    "lrc__xbar2gpc_sectors_op_read_coalescing_achieved_type_programmatic.sum": "coalesced_programmatic_bytes",
    "l1tex__m_xbar2l1tex_read_bytes.sum": "sm_ingest_bytes",
    "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld_dest_multicast.sum": "sm_ingest_multicast_bytes",
    "dram__bytes_read.sum": "dram_read_bytes",
    "sm__cycles_elapsed.max": "cycles",
}

#: Counters of the SMs, with what they count.
OF_SM = {
    "smsp__inst_issued.sum": ("issued", "Warp instructions issued: issue slots taken."),
    "smsp__inst_executed.sum": ("executed", "Warp instructions executed."),
    "l1tex__data_pipe_lsu_wavefronts.sum": (
        "lsu_wavefronts",
        "Wavefronts of the LSU's data pipe: shared memory, and data of loads on their way to registers.",
    ),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum": (
        "wgmma_wavefronts",
        "Wavefronts in which wgmma reads shared memory.",
    ),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": (
        "store_wavefronts",
        "Wavefronts of stores to shared memory.",
    ),
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum": (
        "ldgsts_wavefronts",
        "Wavefronts in which cp.async writes shared memory, by the instruction.",
    ),
    "l1tex__data_bank_reads.sum": ("bank_reads", "Reads of banks of L1 and shared memory."),
    "l1tex__data_bank_writes.sum": ("bank_writes", "Writes of banks of L1 and shared memory."),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": (
        "bank_conflicts",
        "Conflicts of accesses to shared memory by the LSU.",
    ),
    "l1tex__data_bank_conflicts_type_arbitration.sum": (
        "arbitration_conflicts",
        "Conflicts between the clients of L1's data banks.",
    ),
}


class NoCounters(NotInstalled):
    """Nsight Compute is missing, may not read the counters, or the GPU has no such counter."""


class CountingFailed(LabError):
    """A command that was to be counted failed; the message carries what Nsight Compute said."""


def ncu() -> str:
    """Path of Nsight Compute.

    Raises:
        NoCounters: it is not on the PATH.
    """
    if (path := shutil.which("ncu")) is None:
        raise NoCounters("no ncu on the PATH: install Nsight Compute, or read the stored rows")
    return path


def begin() -> None:
    """Count the launches that follow in this process, if it runs under Nsight Compute."""
    driver.cuProfilerStart()


def end() -> None:
    """Count no more."""
    driver.cuProfilerStop()


def count(target: Sequence[str], metrics: Mapping[str, str], *, flush: bool = False) -> list[dict[str, int]]:
    """Run a command under Nsight Compute and read the counters of each launch between its `begin` and `end`.

    Clocks are left as they are.

    Args:
        target: the command.
        metrics: names of metrics, each with the name it is given here; sectors are turned into bytes.
        flush: empty the caches before every pass over a launch.

    Returns:
        One dictionary per launch, in order.

    Raises:
        NoCounters: no `ncu`, or it may not count.
        CountingFailed: the command failed.
    """
    options = ["--csv", "--print-units", "base", "--clock-control", "none"]
    options += ["--cache-control", "all" if flush else "none"]
    options += ["--profile-from-start", "off", "--metrics", ",".join(metrics)]
    done = subprocess.run([ncu(), *options, *target], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr:
        raise NoCounters(
            "ncu may not read the GPU's counters (ERR_NVGPUCTRPERM): run as root with CAP_SYS_ADMIN, or set "
            "NVreg_RestrictProfilingToAdminUsers=0"
        )
    if done.returncode or not lines:
        said = (done.stdout + done.stderr).strip()[-600:]
        raise CountingFailed(f"ncu failed ({done.returncode}): {said}")
    return parse(lines, metrics)


def parse(lines: Sequence[str], metrics: Mapping[str, str]) -> list[dict[str, int]]:
    """Counters of each launch from the lines of `ncu --csv`.

    Raises:
        NoCounters: a metric has no value; the message names it.
    """
    launches: dict[str, dict[str, int]] = {}
    for row in csv.DictReader(lines):
        name, text = row["Metric Name"], row["Metric Value"].replace(",", "")
        if name not in metrics:
            continue
        try:
            value = round(float(text))
        except ValueError:
            raise NoCounters(f"ncu gave {text!r} for {name}: this GPU has no such counter") from None
        launches.setdefault(row["ID"], {})[metrics[name]] = value * (SECTOR_BYTES if "sectors" in name else 1)
    return list(launches.values())
