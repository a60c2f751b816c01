"""Production choices beside the rules of thumb."""

from labkernels.production import practice
from labkernels.store import Store
from labkernels.studies.rules import RULES

PRACTICES = {rule.id: rule.practice for rule in RULES if rule.practice}


def test_what_follows_and_what_does_not_are_told_apart():
    found = practice.followed(Store().read("operands"), PRACTICES)
    assert "K (paged), V (paged) by cp_async" in found["fa3_prefill"].against
    assert "by tma_tile" in found["fa3_prefill"].follow
    assert found["plain_loads_keep_up"].against_count < 3 < found["plain_loads_keep_up"].follow_count
    assert found["fragments_through_shared_memory"].against == "CUTLASS: D by stg"


def test_every_practice_finds_operands_in_the_catalog():
    found = practice.followed(Store().read("operands"), PRACTICES)
    assert found.keys() == PRACTICES.keys()
    assert all(one.follow_count + one.against_count > 0 for one in found.values())


def test_a_rule_that_applies_to_no_operand_is_left_out():
    nothing = practice.Practice("system == 'none'", "mechanism == 'ldg'")
    assert practice.followed(Store().read("operands"), {"lag": nothing}) == {}


def test_departures_stand_beside_what_was_measured():
    found = practice.followed(Store().read("operands"), PRACTICES)
    statements = {rule.id: rule.statement for rule in RULES}
    table = practice.beside_measured(found, statements, {id: ("holds", f"about {id}") for id in found})
    assert table["otherwise"].is_monotonic_decreasing and table["otherwise"].min() > 0
    assert len(table) == sum(bool(one.against_count) for one in found.values())
    shown = table.set_index("rule").loc[statements["fa3_prefill"]]
    assert shown["measured"] == "about fa3_prefill" and "by cp_async" in shown["who departs"]
