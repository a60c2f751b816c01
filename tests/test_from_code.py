"""Advice from machine code: what is read from it, and what follows."""

import json

import ptx_samples as ptx
import pytest

from labkernels.cli import main
from labkernels.kernels import registry, sass
from labkernels.kernels.build import assemble
from labkernels.model.from_code import from_code
from labkernels.production.mainloop import Mainloop, mainloop

RING = """
.reg .pred %p; .reg .b32 %i, %s; .reg .b64 %t;
mbarrier.init.shared.b64 [%bar], 1; mbarrier.init.shared.b64 [%bar + 8], 1; mbarrier.init.shared.b64 [%bar + 16], 1;
mov.u32 %i, 0;
AGAIN: and.b32 %s, %i, 1; shl.b32 %s, %s, 3; add.u32 %s, %s, %bar;
mbarrier.arrive.expect_tx.shared.b64 %t, [%s], 12288;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%sm], [%map, {%n, %i}], [%s];
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%sm + 512], [%map, {%i, %n}], [%s];
add.u32 %i, %i, 1; setp.lt.u32 %p, %i, %n; @%p bra AGAIN;
"""
GROUPS = """
.reg .pred %p; .reg .b32 %i; mov.u32 %i, 0;
cp.async.cg.shared.global [%sm], [%a], 16; cp.async.commit_group;
cp.async.cg.shared.global [%sm + 64], [%a + 64], 16; cp.async.commit_group;
AGAIN: cp.async.wait_group 1; bar.sync 0; ld.shared.u32 %q, [%sm]; st.shared.u32 [%sm + 512], %q;
add.s64 %a, %a, 256; cp.async.cg.shared.global [%sm], [%a], 16; cp.async.ca.shared.global [%sm + 128], [%a + 16], 8;
cp.async.commit_group; add.u32 %i, %i, 1; setp.lt.u32 %p, %i, %n; @%p bra AGAIN; cp.async.wait_all;
"""


def loop_of(body, threads=256):
    module = ptx.kernel([body]).replace("{\n.reg", f".maxntid {threads}, 1, 1\n{{\n.reg", 1)
    return mainloop(sass.disassemble(ptx.link(module))["k"], threads)


def test_a_ring_of_tma_shows_its_stages_bytes_and_boxes():
    loop = loop_of(RING)
    assert ([*dict(loop.loads)], loop.in_loop, loop.tensor_cores) == (["tma_tile"], True, False)
    assert (loop.stages, loop.stage_bytes, loop.copies) == (3, 12288, 2)


def test_groups_of_cp_async_show_their_stages_and_bytes():
    loop = loop_of(GROUPS)
    assert [*dict(loop.loads)] == ["cp_async"]
    assert (loop.stages, loop.stage_bytes, loop.copy_bytes) == (3, 256 * 24, (8, 16))


def test_what_the_code_does_not_show_is_none():
    computed = RING.replace("12288", "%i").replace("mbarrier.init.shared.b64 [%bar + 16], 1;", "")
    assert (loop_of(computed).stages, loop_of(computed).stage_bytes) == (2, None)
    plain = loop_of(ptx.SAMPLES["ldg"])
    assert (plain.in_loop, plain.stages, plain.stage_bytes) == (False, None, None)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_our_own_pipelines_load_in_loops(arch):
    for mechanism in ("ldg", "cp_async", "tma_bulk", "tma_tile"):
        built = assemble(registry.kernels(mechanism, "stream")[0], arch)
        function = sass.disassemble(built.cubin)[built.timed]
        found = mainloop(function)
        assert found.in_loop and mechanism in dict(found.loads) and not found.tensor_cores


def loop(**fields):
    given = {
        "loads": (("cp_async", 8),), "in_loop": True, "tensor_cores": False, "stages": 4, "stage_bytes": 16384,
        "copies": None, "copy_bytes": (16,), "threads": 128, "spills": 0,
    }  # fmt: skip
    return Mainloop(**given | fields)


@pytest.mark.parametrize(
    ("fields", "gains", "said", "rule"),
    [
        ({"tensor_cores": True}, 1, "TMA", "cp_async_beside_tensor_cores"),
        ({"tensor_cores": True, "loads": (("ldg", 8),)}, 1, "TMA", "plain_loads_beside_tensor_cores"),
        ({"tensor_cores": True, "loads": (("tma_tile", 2),)}, 0, "nothing", "tma_beside_tensor_cores"),
        (
            {"tensor_cores": True, "loads": (("tma_tile", 2),), "stages": 2},
            1,
            "3 stages",
            "three_stages_for_tensor",
        ),
        ({"stages": 1, "stage_bytes": 2048, "threads": 1024}, 1, "more in flight", "enough_in_flight"),
        ({"stage_bytes": 32768}, 0, "nothing", "no_difference_beyond_64_kib"),
        ({"stages": None}, 0, "64 KiB", "enough_in_flight"),
        ({"loads": ()}, 0, "no loads", None),
    ],
)
def test_what_is_tried_first_follows_a_rule_that_was_measured(fields, gains, said, rule):
    advice = from_code(loop(**fields), registers=64, given={})
    assert advice.gains == gains and said in advice.first
    assert [one.evidence for one in advice.rules if rule and one.id.startswith(rule)] or rule is None
    assert all(one.evidence and one.run_id for one in advice.rules)


def test_stages_that_fill_shared_memory_leave_room_for_one_cta():
    assert from_code(loop(stages=6, stage_bytes=32768), 32, {}).bytes_in_flight == 6 * 32768


def test_the_command_says_what_is_not_in_the_code_and_takes_it(capsys, tmp_path):
    path = tmp_path / "k.cubin"
    path.write_bytes(ptx.link(ptx.kernel([RING])))
    assert main(["census", "--advise", str(path)]) == 0
    out = capsys.readouterr().out
    assert (
        "3 stages, 12,288 B each, 2 copies for each" in out
        and "not in the code" in out
        and "--row-bytes" in out
    )
    assert (
        main(
            [
                "census",
                "--advise",
                "--json",
                "--row-bytes",
                "128",
                "--source",
                "l2",
                "--tensor-mib",
                "16",
                str(path),
            ]
        )
        == 0
    )
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    assert kernel["advice"]["operand"]["choice"] and len(kernel["advice"]["not_in_code"]) == 1
    for wrong, message in (
        (["--row-bytes", "128"], "give --advise"),
        (["--advise", "--csv"], "exclude each other"),
        (["--advise", "--source", "tape"], "--source is 'tape': give one of"),
    ):
        assert main(["census", *wrong, str(path)]) == 2
        assert message in capsys.readouterr().err
