"""Production choices beside the rules of thumb: queries that find something, about rules that exist."""

from labkernels.production import catalog, practice
from labkernels.studies.rules import RULES


def test_every_query_is_about_a_rule_and_finds_operands():
    found = practice.beside(catalog.read("operands"))
    assert found.keys() == practice.QUERIES.keys() <= {rule.id for rule in RULES}
    assert all(one.follow_count + one.against_count > 0 for one in found.values())


def test_what_follows_and_what_does_not_are_told_apart():
    found = practice.beside(catalog.read("operands"))
    assert "K (paged), V (paged) by cp_async" in found["fa3_decode"].against
    assert "by tma_tile" in found["fa3_decode"].follow
    assert found["registers_stay_behind"].against_count < 3 < found["registers_stay_behind"].follow_count


def test_rules_without_a_query_are_left_out():
    assert practice.beside(catalog.read("operands"), ["lag"]) == {}
