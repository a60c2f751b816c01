"""Rules of thumb: what each has to say of itself, verdicts on stored rows, and rows bent until a rule must fall."""

import pytest

from labkernels.book import changes
from labkernels.errors import NotMeasured
from labkernels.model.advisor import Question, applies, gpus, quantities
from labkernels.store import RUNS, Store
from labkernels.studies import rules, select
from labkernels.studies.experiments import studies
from labkernels.studies.rule import Rules
from labkernels.studies.rules import RULES, judge
from labkernels.studies.stats import where

GPU = gpus()[0]
BY_ID = {rule.id: rule for rule in RULES}
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)


@pytest.fixture(scope="module")
def store():
    return Store()


@pytest.fixture(scope="module")
def rows(store):
    """Rows that judge a rule, of the newest GPU on which it holds."""
    verdicts = store.read("verdicts")
    holds = verdicts[verdicts["outcome"].eq("holds")].groupby("rule")["gpu"].last()

    def find(rule):
        if rule.id not in holds:
            pytest.skip("holds on no GPU that was fitted")
        return [select.require_rows(store, name, holds[rule.id]) for name in rule.experiments]

    return find


def test_ids_are_unique():
    assert len(BY_ID) == len(RULES)


@each_rule
def test_a_rule_says_what_it_is_of_whom_it_speaks_and_on_what_it_was_measured(rule):
    assert rule.statement.endswith(".") and rule.operands and rule.take
    assert rule.scope and not rule.scope.endswith(".")
    assert rule.experiments and set(rule.experiments) <= set(studies())


@each_rule
def test_conditions_name_quantities_of_an_operand(rule):
    assert applies(rule.applies_to, quantities(Question())) in (True, False)


@pytest.mark.parametrize(
    ("conditions", "outcome"),
    [
        ("", False),
        ("source == 'l2'", True),
        ("source != 'l2'", False),
        ("fan_out >= 4 and fan_out <= 8", True),
        ("fan_out > 4 and source == 'l2'", False),
    ],
)
def test_conditions_are_compared(conditions, outcome):
    assert applies(conditions, {"source": "l2", "fan_out": 4}) is outcome


def test_verdicts_name_the_runs_of_all_their_experiments(store):
    known = store.read(RUNS).set_index("run_id")
    for gpu in select.gpus(store):
        for verdict in judge(store, gpu):
            assert verdict.sentence
            if verdict.outcome == "not measured":
                assert not verdict.run_ids
                continue
            assert tuple(known.loc[list(verdict.run_ids), "experiment"]) == verdict.rule.experiments
            assert set(known.loc[list(verdict.run_ids), "gpu_name"]) == {gpu}


def test_one_chapter_or_some_rules_alone_can_be_judged(store):
    assert {v.rule.chapter for v in judge(store, GPU, "latency")} == {"latency"}
    assert [v.rule.id for v in judge(store, GPU, ids=["lag"])] == ["lag"]


def test_a_gpu_without_a_run_is_named_with_those_that_have_some(store):
    with pytest.raises(NotMeasured, match=f"'No such GPU'.*: give .*{GPU}"):
        judge(store, "No such GPU")


def test_runs_that_are_left_out_judge_nothing(store):
    runs = store.read(RUNS)
    (verdict,) = judge(store, GPU, ids=["lag"], without=set(runs["run_id"]))
    assert verdict.outcome == "not measured" and "measure cluster_counters" in verdict.sentence


def test_a_misspelled_column_is_no_missing_measurement(store, monkeypatch):
    chapter = Rules("latency", "latency")

    @chapter.rule("typo", operands="", take="", statement="", scope="")
    def misspelled(frame):
        return where(frame, sorce="hbm").empty, ""

    monkeypatch.setattr(rules, "RULES", tuple(chapter))
    with pytest.raises(KeyError, match="sorce"):
        judge(store, GPU)


@each_rule
@pytest.mark.parametrize("count", [0, 1, 12])
def test_rows_that_lack_what_a_rule_asks_for_are_never_anything_but_not_measured(rule, count, rows):
    try:
        rule.judge(*(frame.head(count) for frame in rows(rule)))
    except NotMeasured as missing:
        assert str(missing)
    else:
        assert count, "judged without any row"


#: A rule, what of its rows is bent, and by how much, until it must fall.
BENT = [
    ("enough_in_flight", "gbps", 0.5, "bytes_in_flight_per_sm == 65536"),
    ("cp_async_with_little_in_flight", "gbps", 0.5, "mechanism == 'cp_async'"),
    ("equal_shared_memory", "gbps", 0.9, "mechanism == 'cp_async'"),
    ("no_difference_beyond_64_kib", "gbps", 0.98, "mechanism == 'cp_async'"),
    ("plain_loads_keep_up", "gbps", 0.95, "mechanism == 'ldg'"),
    ("warps_for_small_tiles", "gbps", 0.5, "producer_warps == 4"),
    ("promote_short_rows", "gbps", 0.5, "l2_promotion_bytes == 128"),
    ("no_premium_into_shared_memory", "cycles_median", 1.1, "mechanism == 'tma_bulk'"),
    ("issue_pays_from_2_kib", "cycles_median", 4, "mechanism == 'tma_tile'"),
    ("descriptor_is_fetched_first", "cycles_median", 0.5, "protocol == 'first'"),
    ("prefetch_the_map", "arrived_cycles", 1.2, "use == 'prefetch'"),
    ("a_thousand_maps", "arrived_cycles", 0.8, "maps == 1"),
    ("rewrite_a_map_early", "arrived_cycles", 0.5, "use == 'replace'"),
    ("stores_keep_up", "gbps", 0.9, "mechanism == 'tma_store'"),
    ("fragments_through_shared_memory", "gbps", 2, "layout == 'fragments' and origin == 'registers'"),
    ("rows_by_tensor_map", "gbps", 2, "run == 'row'"),
    ("four_warps_fill_memory", "gbps", 0.9, "threads * ctas_per_sm <= 128"),
    ("prefetch_with_little_in_flight", "gbps", 0.8, "lead > 0"),
    ("no_prefetch_when_fed", "gbps", 1.2, "lead > 0"),
    ("not_too_far_ahead", "gbps", 2, "lead == 32"),
    ("say_what_streams_by", "gbps", 0.7, "streamed == 'evict_first'"),
    ("hints_do_nothing_for_small_regions", "gbps", 1.5, "streamed == 'evict_last'"),
    ("gains_from_l2", "gbps", 0.5, "mechanism == 'tma_multicast'"),
    ("nothing_at_two", "gbps", 1.2, "mechanism == 'tma_multicast'"),
    ("nothing_at_two", "gbps", 0.8, "mechanism == 'tma_multicast'"),
    ("small_rings", "gbps", 1.5, "mechanism == 'tma_multicast'"),
    ("nothing_from_hbm", "gbps", 1.5, "mechanism == 'tma_multicast'"),
    ("out_of_step", "gbps", 2, "share == 'alone' and lag_cycles == 1000"),
    ("one_over_fan_out", "l2_read_bytes", 1.2, "mechanism == 'tma_multicast'"),
    ("neighbours", "l2_read_bytes", 0.4, "share == 'scattered'"),
    ("neighbours", "l2_read_bytes", 2, "share == 'alone'"),
    ("lag", "l2_read_bytes", 0.5, "lag_cycles == 1000"),
    ("scope", "bytes_per_clock_per_sm", 3, "scope == 'arrive'"),
    ("one_arrives", "bytes_per_clock_per_sm", 3, "arrivers == 'thread'"),
    ("two_warps", "bytes_per_clock_per_sm", 0.5, "producers == 2"),
    ("short_slices", "bytes_per_clock_per_sm", 2, "share == 'slices'"),
    ("second_wave", "duration_us", 0.5, "ctas_per_sm == 1 and launched_clusters > resident_clusters"),
    ("up_to_twelve", "bytes_per_clock_per_sm", 1.5, "fan_out == 16"),
    ("up_to_twelve", "bytes_per_clock_per_sm", 0.9, "fan_out == 12"),
    ("multicast_latency", "cycles_median", 1.2, "mechanism == 'tma_multicast'"),
    ("async_store", "cycles_median", 0.5, "completion == 'release'"),
    ("few_streams", "bytes_per_clock_per_sm", 0.5, "fan_out == 8"),
    ("multicast_beats_dsm", "bytes_per_clock_per_sm", 4, "mechanism == 'dsm_bulk'"),
    ("slices_beat_one", "bytes_per_clock_per_sm", 5, "mechanism == 'dsm_bulk' and share == 'leader'"),
    ("push_beats_pull", "bytes_per_clock_per_sm", 5, "mechanism == 'dsm_load'"),
    ("computed_pair", "bytes_per_clock_per_sm", 3, "mechanism == 'tma_multicast'"),
    ("round_trip", "bytes_per_clock_per_sm", 0.2, "mechanism == 'tma_multicast'"),
    ("one_way_cap", "sent_bytes_per_clock", 0.8, "mechanism == 'dsm_load'"),
    ("two_ways", "sent_bytes_per_clock", 0.8, "mechanism == 'dsm_bulk' and pattern == 'pair_two_way'"),
    ("command_size", "sent_bytes_per_clock", 2, "command_bytes == 1024"),
    ("reuse", "bytes_per_clock_per_sm", 0.5, "mechanism == 'dsm_bulk' and hold_cycles == 4096"),
    ("paged_decode", "gbps", 0.5, "page_rows == 64"),
    ("paged_issue", "gbps", 0.2, "variant == 'row' and issuers == 4"),
    ("paged_prefill", "duration_us", 0.5, "phase == 'prefill' and variant == 'rows'"),
    ("paged_short", "duration_us", 0.1, "phase == 'prefill' and variant == 'box'"),
    ("paged_odd_rows", "gbps", 0.5, "variant == 'run' and row_bytes == 576"),
    ("fa3_prefill", "kernel_us", 1.5, "mechanism == 'tma_tile'"),
    ("fa3_decode", "kernel_us", 2, "route == 'rule' and mechanism == 'cp_async'"),
    ("mla_pages", "kernel_us", 1.5, "mechanism == 'tma_tile'"),
    ("gemm_no_gain", "duration_us", 0.9, "kernel.str.endswith('_handshake')"),
    ("gemm_order", "duration_us", 2, "kernel == 'bf16_128x128_1x1' and swizzle == 8"),
    ("gemm_four", "duration_us", 0.5, "kernel == 'bf16_128x256_4x1'"),
    ("gemm_padding", "duration_us", 0.3, "kernel == 'bf16_128x256_1x2' and swizzle == 8"),
    ("gemm_empty_side", "duration_us", 0.5, "kernel == 'bf16_128x256_2x1'"),
    ("gemm_decode", "duration_us", 2, "kernel == 'bf16_128x128_1x4'"),
    ("gemm_outside", "duration_us", 0.5, "m == 16"),
    ("tma_beside_tensor_cores", "cycles_per_step", 1.05, "mechanism == 'tma_tile'"),
    ("cp_async_beside_tensor_cores", "cycles_per_step", 0.9, "mechanism == 'cp_async'"),
    ("plain_loads_beside_tensor_cores", "cycles_per_step", 0.5, "mechanism == 'ldg'"),
    ("three_stages_for_tensor_cores", "cycles_per_step", 0.5, "stages == 2"),
    ("warps_of_cp_async", "cycles_per_step", 0.5, "mechanism == 'cp_async' and producer_warps == 2"),
    ("swizzle_of_128_bytes", "cycles_per_step", 0.2, "swizzle_bytes == 0"),
    ("arithmetic_left_over", "cycles_per_step", 1.2, "mechanism == 'tma_tile' and compute == 'fma'"),
    ("cp_async_past_l1", "tflops", 0.8, "loads == 'cp_async_bypass'"),
    ("tma_in_large_gemms", "tflops", 0.85, "loads == 'tma' and schedule == 'pingpong'"),
    ("half_empty_tiles", "duration_us", 0.7, "loads == 'tma' and m == 64"),
    ("triton_descriptors", "duration_us", 1.2, "loads == 'descriptors' and kernel == 'gemm'"),
]


def test_every_rule_is_bent():
    assert {id for id, *_ in BENT} == set(BY_ID)


@pytest.mark.parametrize(("id", "column", "factor", "chosen"), BENT)
def test_rows_that_say_otherwise_overturn_a_rule(id, column, factor, chosen, rows):
    rule = BY_ID[id]
    frame, *others = rows(rule)
    bent = frame.index.isin(frame.query(chosen).index)
    assert bent.any()
    values = frame[column].astype(float)
    holds, sentence = rule.judge(frame.assign(**{column: values.where(~bent, values * factor)}), *others)
    assert not holds and sentence


def test_all_rules_of_the_first_edition_are_accounted_for():
    counts = changes.counts()
    assert counts["first"] == "42" and len(changes.table()) == 42
    assert not changes.KEPT.keys() & {one.rule for one in changes.CHANGES}
    assert changes.table()["now"].value_counts().to_dict() == {
        "kept": int(counts["kept"]),
        "re-scoped": int(counts["rescoped"]),
        "withdrawn": int(counts["withdrawn"]),
    }


def test_what_is_said_to_have_changed_has_and_what_stands_in_its_place_exists():
    for one in changes.CHANGES:
        rule = BY_ID[one.instead or one.rule]
        assert rule.statement != one.said and rule.scope and one.why
        assert rule.id != one.rule or not one.instead
    for id, said in changes.KEPT.items():
        assert BY_ID[id].statement != said


def test_the_rules_that_matter_come_first():
    assert len(set(rules.FOREMOST)) == len(rules.FOREMOST) == 12
    assert set(rules.FOREMOST) <= set(BY_ID)
    shuffled = [rules.Verdict(rule, GPU, "holds", "") for rule in reversed(RULES)]
    ordered = [verdict.rule.id for verdict in rules.foremost_first(shuffled)]
    assert ordered[:12] == list(rules.FOREMOST)
    assert ordered[12:] == [rule.id for rule in reversed(RULES) if rule.id not in rules.FOREMOST]
