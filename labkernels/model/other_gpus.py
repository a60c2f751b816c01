"""Constants of GPUs that nobody measured: those of one that was, with memory, SMs and L2 of data sheets."""

from pathlib import Path

from labkernels.errors import NotMeasured
from labkernels.model.closed_form import Constants, constants
from labkernels.operand import MIB
from labkernels.paths import DATA
from labkernels.store import Store, datasheet

#: What published curves of HBM throughput differ by from the projection, from 24 KiB in flight on: H100 SXM5 and B200.
ERROR = 0.13
#: GPUs that lack what is compared here, by a part of their names.
WITHOUT = {
    "A100": "sm_80 has cp.async and plain loads alone: TMA, multicast and DSM came with sm_90",
    "L40": "sm_89 has cp.async and plain loads alone: TMA, multicast and DSM came with sm_90",
    "RTX 40": "sm_89 has cp.async and plain loads alone: TMA, multicast and DSM came with sm_90",
    "RTX 50": "sm_120 has TMA without wgmma and without clusters that a multicast could serve",
    "RTX PRO": "sm_120 has TMA without wgmma and without clusters that a multicast could serve",
    "GB10": "sm_121 has TMA without wgmma and without clusters that a multicast could serve",
}


def known(root: Path = DATA) -> tuple[str, ...]:
    """GPUs that can be projected: a source gives their SMs, and they have no constants of their own."""
    fitted = {row["gpu"] for row in Store(root).records("constants")}
    return tuple(
        row["name"] for row in Store().records("gpus") if row["sm_count"] and row["gpu"] not in fitted
    )


def projected(gpu: str, base: str, root: Path = DATA) -> Constants:
    """The constants of `base` with memory, SMs and L2 of another GPU; intervals widened by `ERROR`.

    L2's rate goes with the SMs, the clock is that of `base`.

    Raises:
        NotMeasured: nothing is known of that GPU, or it lacks the instructions; the message says which.
    """
    for part, why in WITHOUT.items():
        if part.lower() in gpu.lower():
            raise NotMeasured(f"{gpu}: {why}; the model is of sm_90 and sm_100")
    sheet, own = datasheet(gpu), datasheet(base)
    if sheet is None or own is None or not sheet.sm_count:
        raise NotMeasured(
            f"no model of {gpu!r}: choose {base}, by projection {', '.join(known(root))}, or measure it and run "
            "python -m labkernels fit"
        )
    of = dict(constants(base, root))
    memory, sms = sheet.memory_gbps / own.memory_gbps, sheet.sm_count / of["gpu", "sms_at_fan_out_1"]
    of["gpu", "hbm_bytes_per_cycle"] *= memory
    of["gpu", "l2_bytes_per_cycle"] *= sms
    l2_bytes = (sheet.l2_mb or 0) * MIB
    shrunk = l2_bytes / of["gpu", "l2_bytes"]
    of["gpu", "l2_bytes"] = float(l2_bytes)
    for (way, name), value in list(of.items()):
        if name.startswith("sms_at_fan_out_"):
            fan_out = int(name.rsplit("_", 1)[1])
            of[way, name] = float(int(value * sms) // fan_out * fan_out)
        elif name == "ratio_p05":
            of[way, name] = value / (1 + ERROR)
        elif name == "ratio_p95":
            of[way, name] = value * (1 + ERROR)
    shares = {name: of.pop((way, name)) for way, name in list(of) if way == "L2 footprint"}
    for name, value in shares.items():
        of["L2 footprint", f"share_at_{round(int(name.split('_')[2]) * shrunk)}_mib"] = value
    return of


def said(gpu: str, base: str) -> str:
    """What a reader of a projection has to know."""
    return (
        f"{gpu} was not measured: constants of the {base} with its memory, SMs and L2; published curves of H100 SXM5 "
        f"and B200 lie within {ERROR:.0%} of a projection from 24 KiB in flight on, up to a factor of two off below"
    )
