"""Rules of thumb whose first wording did not survive: what it was, what became of it, and why."""

from typing import NamedTuple

import pandas as pd

from labkernels.studies.rules import RULES


class Change(NamedTuple):
    """One rule: its id, its first words, why they went. `RULES` has the words of today, if it still stands."""

    rule: str
    said: str
    why: str


CHANGES = (
    Change(
        "registers_stay_behind",
        "Do not load through registers what shared memory needs.",
        "ptxas put both register sets on one scoreboard, so that the plain loads never had two tiles in flight. With "
        "loads by occupancy they keep up.",
    ),
    Change(
        "cp_async_with_little_in_flight",
        "With little in flight, cp.async beats a TMA ring: its turn is shorter.",
        "It compared two pipelines, not two mechanisms. In the same pipeline TMA is level or ahead.",
    ),
    Change(
        "issue_pays_from_2_kib",
        "From 2 KiB a copy, TMA takes fewer issue cycles than cp.async.",
        "The cycles of cp.async were partly those of a call that no kernel makes. Written out, a lone copy is even "
        "between 2 and 4 KiB.",
    ),
    Change(
        "gains_from_l2",
        "From L2, with tiles of 32 KiB, multicast to 4 or 8 CTAs beats the same cluster's unicast.",
        "Nobody would launch that rival. The fair one is neighboring CTAs without a cluster, on the whole GPU.",
    ),
    Change(
        "nothing_at_two",
        "To two CTAs, multicast changes nothing: the coalescer does as much.",
        "True of long pipelines alone.",
    ),
    Change(
        "nothing_from_hbm",
        "From HBM, multicast gains nothing over a cluster whose CTAs load in step.",
        "The same, against CTAs without a cluster.",
    ),
    Change(
        "two_warps",
        "Small tiles want two producer and two consumer warps: half as much again, at least.",
        "It depends on tile and stages, and unicast gains as much.",
    ),
    Change(
        "short_slices",
        "Slices under 1 KiB lose to unicast; one CTA that multicasts whole tiles does not.",
        "At a fan-out of four they do not lose.",
    ),
    Change(
        "multicast_beats_dsm",
        "A tile in global memory, 4 CTAs or more: multicast delivers over 3 times what DSM can pass on.",
        "Three times held at one tile from L2; loading the tile in each CTA beats DSM as well.",
    ),
    Change(
        "lag",
        "The coalescer asks for step: 1000 cycles of lag from CTA to CTA, and L2 reads every byte again.",
        "Not every byte.",
    ),
    Change(
        "descriptor_is_fetched_first",
        "Prefetch the tensor map: the first copy waits for it.",
        "The remedy had not been measured. It has a rule of its own now.",
    ),
)

FIRST = 42  # rules of the first edition
#: Rules that no longer stand.
WITHDRAWN = ("registers_stay_behind",)


def table() -> pd.DataFrame:
    """Every change: the first words, those of today (empty where the rule is withdrawn), and why."""
    today = {rule.id: rule.statement for rule in RULES}
    return pd.DataFrame(
        {"first said": one.said, "now": today.get(one.rule, "withdrawn"), "why": one.why, "id": one.rule}
        for one in CHANGES
    )
