"""Rules of thumb whose first wording did not survive: what it was, what became of it, and why."""

from typing import NamedTuple

import pandas as pd

from labkernels.studies.rules import RULES


class Change(NamedTuple):
    """One rule: its id, its first words, why they went, and the rule that stands in its place if it is withdrawn.

    `RULES` has the words of today of one that still stands, in another scope.
    """

    rule: str
    said: str
    why: str
    instead: str = ""


CHANGES = (
    Change(
        "registers_stay_behind",
        "Do not load through registers what shared memory needs.",
        "ptxas put both register sets on one scoreboard, so that the plain loads never had two tiles in flight. With "
        "loads by occupancy they keep up.",
        "plain_loads_keep_up",
    ),
    Change(
        "cp_async_with_little_in_flight",
        "With little in flight, cp.async beats a TMA ring: its turn is shorter.",
        "It compared two pipelines, not two mechanisms. In the same pipeline TMA is level or ahead.",
        "equal_shared_memory",
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
        "fa3_decode",
        "FlashAttention-3 should take TMA in decode too, where a page is whole tiles.",
        "It left out what the choice causes beside the kernel, and part of the difference was our way of forcing the "
        "other choice. In one and the same call TMA is ahead by a few percent or level; the library's own gather has a "
        "tile of fewer query rows, and that outweighs it.",
    ),
    Change(
        "descriptor_is_fetched_first",
        "Prefetch the tensor map: the first copy waits for it.",
        "The remedy had not been measured. It has a rule of its own now.",
    ),
)

#: The other rules of the first edition, which say what they said, today each with its scope; of those in other words,
#: the first ones.
KEPT: dict[str, str] = dict.fromkeys(
    (
        "enough_in_flight",
        "no_difference_beyond_64_kib",
        "promote_short_rows",
        "no_premium_into_shared_memory",
        "one_over_fan_out",
        "second_wave",
        "few_streams",
        "push_beats_pull",
        "computed_pair",
        "round_trip",
        "one_way_cap",
        "two_ways",
        "paged_decode",
        "paged_issue",
        "paged_prefill",
        "paged_short",
        "paged_odd_rows",
        "gemm_no_gain",
        "gemm_order",
        "gemm_four",
        "gemm_padding",
        "gemm_decode",
        "gemm_outside",
    ),
    "",
) | {
    "neighbours": "The coalescer asks for neighbors on the GPU, not for a cluster.",
    "scope": "release.cluster on the arrive costs a ring of 32 KiB tiles 40% of its rate and more.",
    "one_arrives": "One lane for each CTA releases a slot; one thread for all of them is slower.",
    "slices_beat_one": "Passing on through DSM, every CTA pushes its slice: one that pushes all divides its one port.",
    "command_size": "Bulk pushes want 2 KiB or more in a command.",
    "reuse": "When a tile is kept for 4096 cycles (16 passes of 32 KiB over shared memory), the way no longer matters.",
    "gemm_empty_side": "A cluster along a side with fewer tiles than CTAs loads emptiness, and pays for it.",
}


def counts() -> dict[str, str]:
    """How many rules the first edition had, and what became of them."""
    withdrawn = sum(bool(one.instead) for one in CHANGES)
    return {
        "first": str(len(KEPT) + len(CHANGES)),
        "kept": str(len(KEPT)),
        "rescoped": str(len(CHANGES) - withdrawn),
        "withdrawn": str(withdrawn),
    }


def table() -> pd.DataFrame:
    """All rules of the first edition: what became of each, its first words, those of today with their scope, and why.

    Of a rule that is withdrawn the words of today are those of the one in its place.
    """
    today = {rule.id: rule for rule in RULES}
    rows = [
        (
            "withdrawn" if one.instead else "re-scoped",
            one.rule,
            one.said,
            today[one.instead or one.rule],
            one.why,
        )
        for one in CHANGES
    ]
    rows += [("kept", id, said or today[id].statement, today[id], "") for id, said in KEPT.items()]
    return pd.DataFrame(
        {"now": outcome, "first said": said, "today": rule.statement, "on": rule.scope, "why": why, "id": id}
        for outcome, id, said, rule, why in sorted(rows, key=lambda row: row[0], reverse=True)
    )
