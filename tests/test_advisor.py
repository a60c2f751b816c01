"""Model, fit and advisor: formulas, stored constants, choices on configurations that were not fitted, errors."""

import random
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from labkernels import advise
from labkernels.cli import main
from labkernels.errors import BadArgument, NotMeasured
from labkernels.model.advisor import (
    Question,
    best_gain,
    choose,
    describe,
    gpus,
)
from labkernels.model.closed_form import (
    ALONE,
    SHARES,
    TERMS,
    UNICAST,
    Load,
    Prediction,
    constants,
    form_of,
    forms_of,
    instructions,
    predict,
    terms,
)
from labkernels.store import RUNS, Store, datasheet
from labkernels.studies.select import require_rows

GPU = gpus()[0]
OF = constants(GPU)
PLAIN = Load(tile_bytes=16384, row_bytes=128)


def test_stored_tables_name_runs_that_exist():
    known = set(Store().read(RUNS).run_id)
    for name, column in (("constants", "run_ids"), ("verdicts", "run_id")):
        cells = Store().read(name)[column].dropna()
        assert {run for cell in cells for run in cell.split(";")} <= known


def test_every_term_has_a_meaning_and_the_period_is_little_more_than_the_largest():
    plain = replace(PLAIN, compute_cycles=500.0)
    forms = [
        (name, one)
        for name in ("ldg", "cp_async", "tma_bulk", "tma_tile")
        for one in forms_of(name, plain, 4)
    ]
    for mechanism, load in forms:
        found = predict(mechanism, load, OF)
        assert found.terms.keys() <= TERMS.keys()
        largest = max(found.terms.values())
        bound = 3 ** (1 / OF["gpu", "hbm_queue_sharpness"]) * len(found.terms) ** (
            1 / OF["gpu", "hbm_sharpness"]
        )
        assert largest <= found.cycles_per_tile <= largest * bound
        assert found.terms[found.binding] == largest


@pytest.mark.parametrize(
    ("changes", "term", "way"),
    [
        ({"tiles_in_flight": 8}, "latency", "down"),
        ({"copies": 16}, "issue", "up"),
        ({"lookups": 16}, "issue", "up"),
        ({"ctas_per_sm": 2}, "bandwidth", "up"),
        ({"source": "l2"}, "bandwidth", "down"),
        ({"row_bytes": 16}, "box rows", "up"),
        ({"fan_out": 4}, "bandwidth", "down"),
        ({"warps": 2}, "issue", "down"),
    ],
)
def test_terms_move_as_they_should(changes, term, way):
    before, after = terms("tma_tile", PLAIN, OF)[term], terms("tma_tile", replace(PLAIN, **changes), OF)[term]
    assert after > before if way == "up" else after < before


def test_short_rows_far_apart_cost_cp_async_what_hbm_loses():
    near, far = (replace(PLAIN, row_bytes=32, is_dense=dense) for dense in (True, False))
    assert predict("cp_async", far, OF).gbps < 0.65 * predict("cp_async", near, OF).gbps


def test_copies_are_priced_by_bursts_and_no_row_of_the_gathers():
    assert 30 < OF["tma_tile", "lookup_cycles"] < OF["tma", "copy_cycles"] < 50
    assert (
        100 < OF["tma_bulk", "lookup_cycles"] < 112
    )  # an address of two 64-bit products, in one lane's branch
    one, four = (terms("tma_bulk", replace(PLAIN, copies=64, lookups=64, issuers=n), OF) for n in (1, 4))
    assert one["issue"] > 3 * four["issue"]


@pytest.mark.parametrize("mechanism", ["dsm_bulk", "dsm_load", "tma_multicast"])
def test_a_forwarded_tile_takes_the_better_share(mechanism):
    for tile, fan_out in ((2048, 2), (8192, 4), (32768, 16)):
        load = Load(tile_bytes=tile, row_bytes=128, source="computed", fan_out=fan_out)
        shares = [predict(mechanism, load, OF, share) for share in SHARES]
        best = predict(mechanism, load, OF)
        assert best in shares and best.cycles_per_tile == min(one.cycles_per_tile for one in shares)
        assert best.terms.keys() <= TERMS.keys()
    uneven = Load(tile_bytes=16 * 33, row_bytes=16, source="computed", fan_out=4)
    assert predict(mechanism, uneven, OF).share == "leader"  # no four slices of 16-byte pieces


def test_neighbours_without_a_cluster_have_all_sms_and_merge_their_reads_only_in_step():
    load = Load(tile_bytes=32768, row_bytes=2048, tiles_in_flight=6, source="l2", fan_out=4)
    cluster, alone = (predict("tma_tile", load, OF, share) for share in UNICAST)
    assert predict("tma_tile", load, OF) == max(cluster, alone, key=lambda one: one.gbps)
    busy = [one.gbps * one.cycles_per_tile for one in (cluster, alone)]
    assert busy[1] / busy[0] == pytest.approx(132 / 120)
    apart = replace(load, pace="apart")
    assert predict("tma_tile", apart, OF, ALONE).gbps < 0.7 * alone.gbps
    assert predict("tma_multicast", apart, OF) == predict("tma_multicast", load, OF)
    hbm = replace(load, source="hbm", fan_out=8)
    slower = predict("tma_tile", replace(hbm, pace="apart"), OF).gbps / predict("tma_tile", hbm, OF).gbps
    assert slower < 0.6  # L2 reads for every CTA what HBM brought once


@pytest.mark.parametrize(
    ("changes", "choice", "in_cluster"),
    [
        ({"cluster": 1}, "tma_tile", None),
        ({"source": "hbm"}, "tma_tile", False),
        ({"source": "hbm", "pace": "apart"}, "tma_multicast", True),
        ({}, "tma_multicast", True),
        ({"pace": "apart"}, "tma_multicast", True),
        ({"rows": 8, "stages": 2}, "tma_tile", False),
    ],
)
def test_no_cluster_is_on_the_menu(changes, choice, in_cluster):
    asked = {
        "cluster": 4,
        "source": "l2",
        "tensor_mib": 32,
        "row_bytes": 512,
        "rows": 64,
        "stages": 6,
    } | changes
    advice = advise(Question(**asked), GPU)
    assert (advice.choice, advice.in_cluster) == (choice, in_cluster)
    told = {None: f"{choice}  (", True: "in a cluster", False: "without a cluster: neighboring CTAs"}[
        in_cluster
    ]
    assert told in describe(advice).splitlines()[0]


def test_what_one_sm_forwards_is_bound_by_its_egress():
    load = Load(tile_bytes=65536, row_bytes=2048, source="computed", fan_out=8, tiles_in_flight=3)
    rate = 65536 * 7 / predict("dsm_bulk", load, OF, "leader").cycles_per_tile
    assert rate == pytest.approx(OF["dsm", "outbox_bytes_per_cycle"], rel=0.03)
    slices = predict("dsm_bulk", load, OF)
    assert slices.share == "slices" and slices.binding == "DSM egress"


def test_instructions_of_the_busiest_thread():
    assert instructions("tma_tile", PLAIN) == 1 and instructions("cp_async", PLAIN) == 8
    assert instructions("tma_bulk", replace(PLAIN, copies=64, lookups=64, issuers=4)) == 32


def test_a_pipeline_has_what_its_slots_allow():
    small = replace(PLAIN, tile_bytes=2048)
    staged, refilled, *specialized = forms_of("cp_async", small, 4)
    assert [one.tiles_in_flight for one in (staged, refilled)] == [3, 4] and refilled.barriers == 2
    assert [(one.warps, one.tiles_in_flight, one.threads) for one in specialized] == [
        (n, 4, 32) for n in (1, 2, 4)
    ]
    assert [one.warps for one in forms_of("tma_tile", small, 6)] == [1, 2]  # six slots are no four turns
    assert [one.warps for one in forms_of("tma_tile", PLAIN, 4)] == [
        1
    ]  # a large tile takes longer than a turn
    assert [one.tiles_in_flight for one in forms_of("ldg", small, 4)] == [1]
    one_slot = list(forms_of("cp_async", small, 1))
    assert [form_of(one) for one in one_slot] == ["multistage, two barriers", "1 + 1 warps"]


def test_small_tiles_get_more_warps_and_no_more_than_they_need():
    asked = {"row_bytes": 512, "rows": 4, "stages": 12}
    two_kib = {one.mechanism: one for one in advise(Question(**asked), GPU).ranked}
    assert two_kib["tma_tile"].form == "4 + 4 warps"
    large = {one.mechanism: one for one in advise(Question(row_bytes=512, rows=64), GPU).ranked}
    assert large["tma_tile"].form == "1 + 1 warps"
    kinds = [advise(Question(**asked, pipeline=kind), GPU) for kind in ("specialized", "multistage")]
    assert "has no multistage pipeline" in kinds[1].excluded["tma_tile"] and kinds[1].choice == "cp_async"
    assert all("warps" in one.form for one in kinds[0].ranked) and "ldg" in kinds[0].excluded


def test_nothing_leads_at_equal_cost_from_64_kib_on_but_for_a_cold_launch():
    for tile in (8192, 16384, 32768):
        advice = advise(Question(row_bytes=512, rows=tile // 512, stages=65536 // tile * 2), GPU)
        assert {"tma_tile", "cp_async"} <= set(advice.no_difference)


def test_a_small_tensor_takes_a_launch():
    for source in ("hbm", "l2"):
        advice = advise(Question(tensor_mib=2, source=source), GPU)
        assert all(3.4 < one.time_us < 5.5 for one in advice.ranked)
        assert not advice.choice.startswith("tma")  # barriers and a tensor map take longer than these bytes


def test_among_equals_the_fewest_instructions_win():
    def one(mechanism, gbps):
        return Prediction(mechanism, {"bandwidth": 1.0}, 1.0, gbps, 1.0, 1.0)

    assert choose([one("cp_async", 1000), one("tma_tile", 990), one("ldg", 700)]) == (
        "tma_tile",
        ("cp_async", "tma_tile"),
    )
    assert choose([one("cp_async", 1000), one("tma_tile", 980)])[0] == "cp_async"
    many = replace(one("tma_tile", 1000), instructions=32.0)
    assert choose([many, one("cp_async", 990)])[0] == "cp_async"


def test_advise_ranks_explains_and_cites():
    advice = advise(Question(rows=32, stages=2), GPU)
    assert advice.choice == "cp_async"  # 8 KiB in flight: the shorter turn wins
    times = [one.time_us for one in advice.ranked]
    assert times[1:] == sorted(times[1:]) and all(one.low_us < one.high_us for one in advice.ranked)
    assert (
        advice.ranked[0].binding == "latency" and "instead of" in advice.change and advice.change_gain > 1.5
    )
    assert "nobody to share" in advice.excluded["tma_multicast"][0]
    assert "cp_async_with_little_in_flight" in {rule.id for rule in advice.rules}
    assert set(advice.run_ids) <= set(Store().read(RUNS).run_id)
    assert advice.outside == ()


@pytest.mark.parametrize(
    ("question", "choice"),
    [
        (Question(), "tma_tile"),
        (Question(consumer="registers"), "ldg"),
        (Question(alignment_bytes=8), "cp_async"),
        (Question(cluster=4, source="l2", tensor_mib=16, row_bytes=512, rows=64), "tma_multicast"),
        (Question(cluster=4, row_bytes=512, rows=64), "tma_tile"),
        (Question(cluster=2, source="computed"), "dsm_bulk"),
        (Question(cluster=4, row_bytes=512, rows=64, source="computed"), "tma_multicast"),
        (Question(index_rows=1, row_bytes=256, rows=64, pitch_bytes=2048), "cp_async"),
        (Question(index_rows=1, row_bytes=256, rows=64, pitch_bytes=256, issuers=4), "cp_async"),
        (Question(index_rows=64, row_bytes=256, rows=64, pitch_bytes=2048), "tma_tile"),
    ],
)
def test_choices_on_typical_operands(question, choice):
    assert advise(question, GPU).choice == choice


def test_an_operand_outside_the_measured_range_says_so():
    assert any("stages is 16" in what for what in advise(Question(stages=16, rows=32), GPU).outside)


def test_suggestions_are_legal_and_bring_what_they_say():
    draw = random.Random(7)
    tried = 0
    for _ in range(400):
        row = draw.choice([16, 32, 64, 100, 128, 192, 512])
        asked = {
            "row_bytes": row, "rows": draw.choice([1, 8, 64, 65, 200]), "threads": draw.choice([64, 256]),
            "stages": draw.choice([1, 2, 4, 8]), "ctas_per_sm": draw.choice([1, 2, 16]),
            "pitch_bytes": draw.choice([0, 0, 2 * row, 96, 4096]),
            "cluster": draw.choice([1, 1, 4, 8]), "source": draw.choice(["hbm", "hbm", "l2"]), "tensor_mib": 32,
            "compute_cycles": draw.choice([0.0, 0.0, 900.0]),
        }  # fmt: skip
        try:
            question = Question(**asked)
            advice = advise(question, GPU)
        except BadArgument:
            continue
        now = {one.mechanism: one for one in advice.ranked}[advice.choice]
        assert now.binding != "compute" or advice.change_gain == 1
        number = [int(text) for text in re.findall(r"\d+", advice.change)]
        field = {"keep": "stages", "make tiles": "rows", "run": "ctas_per_sm", "pad": "rows"}
        named = next((name for start, name in field.items() if advice.change.startswith(start)), "")
        if not named:
            continue
        tried += 1
        work = asked["compute_cycles"] * (1 if named == "stages" or "pad" in advice.change else 2)
        then = advise(replace(question, **{named: number[0]}, compute_cycles=work), GPU)
        again = {one.mechanism: one for one in then.ranked}[advice.choice]
        useful = question.rows / number[0] if "pad" in advice.change else 1
        assert again.gbps * useful / now.gbps == pytest.approx(advice.change_gain)
    assert tried > 50


def test_no_change_of_the_load_helps_an_operand_that_computing_binds():
    for asked in (
        {"compute_cycles": 20000.0},
        {"compute_cycles": 2000.0, "row_bytes": 136, "rows": 2, "stages": 5},
    ):
        advice = advise(Question(**asked), GPU)
        assert advice.ranked[0].binding == "compute" and (advice.change, advice.change_gain) == ("", 1.0)


def test_one_row_more_than_slices_take_is_padded():
    asked = {"source": "computed", "cluster": 8, "row_bytes": 192, "pitch_bytes": 512, "stages": 2}
    even, odd = (advise(Question(**asked, rows=rows), GPU) for rows in (64, 65))
    assert odd.ranked[0].gbps > 0.85 * even.ranked[0].gbps  # through L2 a leader loses little
    pushed = Question(**asked, rows=65)
    now = predict("dsm_bulk", pushed.load("dsm_bulk", OF), OF)
    change, gain = best_gain(pushed, now, OF)
    assert now.share == "leader" and "rows" in change and gain > 4


@pytest.mark.parametrize("source", ["hbm", "l2"])
def test_narrow_copies_cost_what_they_cost(source):
    rates = {}
    for alignment in (16, 8, 4, 2, 1):
        asked = Question(alignment_bytes=alignment, element_bytes=1, source=source, tensor_mib=16)
        advice = advise(asked, GPU)
        rates |= {(one.mechanism, alignment): one.gbps for one in advice.ranked}
        assert any("bytes at a time; measured were 16" in said for said in advice.outside) == (alignment < 16)
        assert advice.rules == () or alignment == 16
    assert ("cp_async", 2) not in rates and ("tma_tile", 8) not in rates
    assert rates["ldg", 1] < 0.65 * rates["ldg", 16] and rates["ldg", 1] < rates["ldg", 2] < rates["ldg", 8]
    issue = {n: replace(PLAIN, threads=128, pipeline="multistage", copy_bytes=n) for n in (4, 16)}
    issue = {n: terms("cp_async", load, OF)["issue"] for n, load in issue.items()}
    assert rates["cp_async", 4] < rates["cp_async", 16] and issue[4] > 2 * issue[16]


def test_impossible_is_another_word_than_not_measured():
    told = describe(advise(Question(alignment_bytes=8), GPU))
    assert (
        "tma_tile       impossible: " in told and "outside the measured range: threads copy 8 bytes" in told
    )
    shared = describe(advise(Question(cluster=4, source="l2", tensor_mib=16), GPU))
    assert "cp_async       not measured: " in shared and "excluded" not in shared


def test_alignment_follows_from_the_pitch():
    assert Question(row_bytes=100, rows=32, element_bytes=4).copy_bytes == 4
    assert Question(row_bytes=128, rows=32, pitch_bytes=6932, element_bytes=4).copy_bytes == 4
    assert Question(row_bytes=128).copy_bytes == 16 and Question(alignment_bytes=8).copy_bytes == 8
    menu = []
    for alignment in (4, 16, 256):
        advice = advise(Question(row_bytes=100, element_bytes=4, alignment_bytes=alignment), GPU)
        menu.append({one.mechanism for one in advice.ranked})
    assert {"cp_async", "ldg"} <= menu[0] <= menu[1] == menu[2]  # better alignment excludes nothing


def test_l2_gives_less_to_a_tensor_that_nearly_fills_it():
    rate = {
        mib: advise(Question(source="l2", tensor_mib=mib), GPU).ranked[0].gbps for mib in (16, 32, 40, 48, 56)
    }
    assert rate[16] == rate[32] > 1.05 * rate[40] >= rate[48] > 1.05 * rate[56]
    rows = require_rows(Store(), "l2_footprint", GPU)
    for mib in (40, 48, 56):
        tiles = rows[rows.mechanism.eq("tma_tile") & rows.footprint_bytes.eq(mib << 20)]
        asked = Question(row_bytes=2048, rows=int(tiles.tile_bytes.iloc[0]) // 2048, element_bytes=8, stages=4,
                         source="l2", tensor_mib=mib)  # fmt: skip
        told = {one.mechanism: one for one in advise(asked, GPU).ranked}["tma_tile"]
        assert told.gbps == pytest.approx(tiles.groupby("kernel").gbps.median().max(), rel=0.1)


def test_rows_with_gaps_never_get_more_than_memory_has():
    peak = OF["gpu", "hbm_bytes_per_cycle"] * OF["gpu", "sm_clock_mhz"] / 1e3
    # rows begin at all offsets in a sector of 32 bytes that the pitch brings
    for row, pitch, read in ((32, 48, 48), (48, 80, 64), (64, 80, 80), (112, 128, 128)):
        advice = advise(Question(row_bytes=row, pitch_bytes=pitch, rows=110, element_bytes=1, stages=8), GPU)
        assert max(one.gbps for one in advice.ranked) * read / row <= 1.01 * peak
        assert any("gaps" in said for said in advice.outside)


def test_a_wide_row_is_several_boxes_and_strided_rows_are_several_bulk_copies():
    mla = Question(row_bytes=1152, rows=64, index_rows=64, stages=2)
    assert mla.boxes() == 3 and "tma_tile" not in advise(mla, GPU).excluded
    assert replace(mla, swizzle="128B").boxes() == 9 and Question(row_bytes=512, element_bytes=1).boxes() == 2
    assert Question(row_bytes=257, rows=8, element_bytes=1).boxes() == 0
    strided = Question(row_bytes=256, rows=128, pitch_bytes=2048, stages=2)
    for asked in (strided, replace(strided, index_rows=1)):
        assert asked.load("tma_bulk", OF).copies == 128 and "tma_bulk" not in advise(asked, GPU).excluded
    odd = replace(strided, row_bytes=264, pitch_bytes=2056)
    assert "pad rows to 272 bytes, the pitch to 2064" in " ".join(advise(odd, GPU).excluded["tma_bulk"])
    # a swizzle's boxes cost their issue
    few, many = (
        predict("tma_tile", replace(mla, swizzle=of).load("tma_tile", OF), OF) for of in ("none", "32B")
    )
    assert many.terms["issue"] > 2 * few.terms["issue"]


def test_registers_may_be_filled_through_shared_memory_and_hold_no_more_than_there_are():
    asked = {
        "consumer": "registers",
        "threads": 256,
        "ctas_per_sm": 2,
        "row_bytes": 4096,
        "rows": 4,
        "element_bytes": 8,
    }
    advice = advise(Question(**asked), GPU)
    assert {"ldg", "tma_tile", "cp_async"} <= {one.mechanism for one in advice.ranked}
    assert any("reading them from shared memory" in said for said in advice.outside)
    full = Question(consumer="registers", row_bytes=1024, rows=128, threads=1024, element_bytes=8)
    assert [one.mechanism for one in advise(full, GPU).ranked] == ["ldg"]  # needs no shared memory
    few = Question(consumer="registers", threads=32, row_bytes=2048, rows=32, stages=1, element_bytes=8)
    assert "a thread would hold 512 registers" in advise(few, GPU).excluded["ldg"][0]


def test_rules_of_whole_tiles_are_not_cited_for_single_rows():
    cited = {rule.id for rule in advise(Question(index_rows=1), GPU).rules}
    assert cited and not cited & {"enough_in_flight", "issue_pays_from_2_kib", "equal_shared_memory"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": "l3"}, "source is 'l3': give one of hbm, l2, computed"),
        ({"source": "l2"}, "source is l2, the tensor has 268435456 bytes and L2 62914560"),
        ({"cluster": 3}, "cluster is 3, measured were 1, 2, 4, 8, 16"),
        ({"row_bytes": 33}, "row_bytes is 33, no whole number of elements"),
        ({"pitch_bytes": 64}, "pitch_bytes is 64, rows have 128"),
        ({"index_rows": -1}, "index_rows is -1, below the limit of 0"),
        ({"rows": 4096}, "shared_bytes is"),
        ({"source": "computed"}, "source is computed and cluster 1"),
        ({"pitch_bytes": 1 << 30}, "one tile reaches over 136365211776 bytes: give 130049 or more"),
    ],
)
def test_what_cannot_be_is_named(given, message):
    with pytest.raises(BadArgument, match=message):
        advise(Question(**given), GPU)


def test_a_reason_stands_once_however_many_mechanisms_it_excludes():
    with pytest.raises(BadArgument) as refused:
        advise(Question(rows=4096), GPU)
    reasons = [line.partition(": ")[2] for line in str(refused.value).splitlines()[1:]]
    assert len(reasons) == len(set(reasons)) <= 3


def test_a_gpu_without_a_model_is_named():
    with pytest.raises(
        NotMeasured,
        match="choose NVIDIA H200, by projection H100 SXM5, H100 PCIe, B200, H20",
    ):
        advise(Question(), "No such GPU")


@pytest.mark.parametrize("gpu", ["H100 SXM5", "NVIDIA H100 PCIe", "NVIDIA H20", "B200"])
def test_another_gpu_is_projected_with_its_error(gpu):
    sheet, own = datasheet(gpu), advise(Question(), GPU)
    advice = advise(Question(), gpu)
    assert advice.gpu == gpu and "was not measured" in advice.outside[0] and advice.run_ids == own.run_ids
    first, measured = advice.ranked[0], own.ranked[0]
    assert (
        first.gbps <= sheet.memory_gbps and abs(first.gbps / measured.gbps - sheet.memory_gbps / 4800) < 0.15
    )
    assert first.high_us / first.time_us > measured.high_us / measured.time_us
    if sheet.l2_mb:
        assert advise(Question(source="l2", tensor_mib=16), gpu).ranked
    else:
        with pytest.raises(BadArgument, match="how large L2 is"):
            advise(Question(source="l2", tensor_mib=16), gpu)


@pytest.mark.parametrize(
    ("gpu", "why"), [("A100 SXM", "sm_80 has cp.async"), ("RTX 5090", "sm_120 has TMA without wgmma")]
)
def test_a_gpu_without_the_instructions_gets_a_sentence(gpu, why):
    with pytest.raises(NotMeasured, match=why):
        advise(Question(), gpu)


def test_advice_imports_nothing_that_could_touch_a_gpu():
    code = (
        "import sys, labkernels; from labkernels.model.advisor import Question; labkernels.advise(Question());"
        "sys.exit(bool({'numba', 'pandas', 'cuda.core', 'cuda.bindings'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_command_line_says_what_python_says(capsys):
    assert main(["advise", "--stages", "1", "--rows", "32"]) == 0
    assert capsys.readouterr().out.strip() == describe(advise(Question(stages=1, rows=32)))
    assert main(["advise", "--cluster", "3"]) == 2
    assert "--cluster is 3, measured were 1" in capsys.readouterr().err
