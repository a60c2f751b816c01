"""Every kernel of the registry, for both architectures, from PTX to checked machine code. No GPU."""

from dataclasses import replace

import pytest

from labkernels.kernels import build, sass
from labkernels.kernels.build import SANITIZER, assemble, assemble_all
from labkernels.kernels.link import link
from labkernels.kernels.registry import AXES, kernel, kernels
from labkernels.kernels.render import PTX, AssemblyError, render
from labkernels.mechanisms import ARCHITECTURES, MECHANISMS

BY_NAME = {spec.name: spec for spec in kernels()}


@pytest.fixture(scope="session")
def built():
    return {(k.spec.name, k.arch): k for arch in ARCHITECTURES for k in assemble_all(kernels(), arch)}


@pytest.mark.parametrize(
    ("name", "arch"), [(s.name, arch) for s in BY_NAME.values() for arch in s.architectures]
)
def test_kernel_keeps_the_registrys_promise(built, name, arch):
    spec, made = BY_NAME[name], built[name, arch]
    assert not spec.broken_promise(made.mechanisms, made.mechanisms)
    assert not [opcode for opcode in made.loop_opcodes if opcode.startswith(("CALL", "LDL", "STL"))]
    assert 0 < made.registers <= spec.max_registers
    assert made.shared_bytes <= 4096


@pytest.mark.parametrize("name", {spec.function: spec.name for spec in kernels()}.values())
def test_what_the_cache_tells_of_a_kernel_is_what_its_machine_code_says(built, name):
    made = built[name, "sm_90a"]
    functions = sass.disassemble(made.cubin)
    timed = functions[made.timed]
    assert functions[made.entry].entry
    assert made.mechanisms == timed.mechanisms()
    assert made.loop_opcodes == sorted(timed.opcodes_in_loops())
    assert sum(made.opcodes.values()) == sum(sum(one.opcodes.values()) for one in functions.values())


def test_a_timed_loop_contains_its_copies(built):
    for (name, _), made in built.items():
        if made.spec.protocol in ("stream", "multistage", "pipeline"):
            assert any(sass.mechanism(opcode) == made.spec.mechanism for opcode in made.loop_opcodes), name


def test_multicast_and_rank_stand_in_the_opcode(built):
    for rank in (1, 2, 3, 4, 5):
        made = built[kernel("tma_tile", "stream", rank=rank).name, "sm_90a"]
        assert made.count(f"UTMALDG.{rank}D") == 1 and made.count("UTMALDG") == 1


def test_the_cache_returns_the_same_kernels_and_links_none(built, monkeypatch):
    monkeypatch.setattr("labkernels.kernels.link.link", None)
    for (name, arch), made in built.items():
        # Numba numbers symbols by process: of one kernel that two workers built, names in the cubin may differ
        assert replace(assemble(BY_NAME[name], arch), cubin=made.cubin) == made


def test_a_promise_that_was_changed_is_asked_of_kernels_in_the_cache(tmp_path, monkeypatch):
    spec = kernel("dsm_bulk", "ring", share="slices", origin="global")
    assemble(spec, cache_dir=tmp_path)
    monkeypatch.setitem(MECHANISMS, "dsm_bulk", replace(MECHANISMS["dsm_bulk"], carriers=()))
    with pytest.raises(AssemblyError, match="tma_tile in its code, beside dsm_bulk"):
        assemble(spec, cache_dir=tmp_path)


def test_another_reading_of_machine_code_makes_no_other(tmp_path, monkeypatch):
    spec = kernel("tma_bulk", "issue", per_copy="copy")
    first = assemble(spec, cache_dir=tmp_path)
    reader = tmp_path / "reader.py"
    reader.write_text("another")
    monkeypatch.setattr(build, "READER", reader)
    monkeypatch.setattr(build, "_machine_code", lambda *_: pytest.fail("made again"))
    assert assemble(spec, cache_dir=tmp_path) == first
    assert len(list(tmp_path.glob("*.cubin"))) == 1 and len(list(tmp_path.glob("*.json"))) == 3


def test_the_cache_is_keyed_by_the_ptx(tmp_path, monkeypatch):
    spec = kernel("tma_bulk", "issue", per_copy="copy")
    first = assemble(spec, cache_dir=tmp_path)
    assert len(list(tmp_path.glob("*.cubin"))) == 1
    monkeypatch.setattr(
        "labkernels.kernels.build.render", lambda s, a, sanitizer: render(s, a) + "\n// changed"
    )
    second = assemble(spec, cache_dir=tmp_path)
    assert len(list(tmp_path.glob("*.cubin"))) == 2 and first.ptx_sha256 != second.ptx_sha256


def test_ptx_of_other_architectures_differs_in_its_target_only():
    spec = kernel("tma_tile", "stream", rank=2)
    assert render(spec, "sm_90a").replace("sm_90a", "sm_100a") == render(spec, "sm_100a")


def test_unknown_architecture_is_named():
    with pytest.raises(ValueError, match=r"sm_80.*sm_90a, sm_100a"):
        assemble(kernel("tma_bulk", "issue", per_copy="copy"), "sm_80")


def test_a_prototype_that_does_not_match_is_an_error():
    caller = """
.version 8.6
.target sm_90a
.address_size 64
.extern .func (.param .b32 r) callee (.param .b64 a);
.visible .entry main_kernel(.param .u64 p)
{
    .param .b32 r;
    .param .b64 a;
    st.param.b64 [a], 0;
    call (r), callee, (a);
    ret;
}"""
    callee = """
.version 8.6
.target sm_90a
.address_size 64
.visible .func (.param .b64 r) callee (.param .b32 a) { st.param.b64 [r], 0; ret; }"""
    with pytest.raises(AssemblyError, match=r"not clean|rototype"):
        link([caller, callee], "sm_90a")


def test_ptx_that_does_not_assemble_is_an_error_with_the_log():
    with pytest.raises(AssemblyError, match=r"line 4: Not a name of any known instruction: .nonsense"):
        link([".version 8.6\n.target sm_90a\n.address_size 64\n.visible .entry k() { nonsense; }"], "sm_90a")


def test_a_kernel_without_its_opcode_is_refused(tmp_path, monkeypatch):
    other = render(kernel("tma_tile", "issue", rank=2, per_copy="copy"), "sm_90a").replace(
        "tma_tile_issue", "tma_bulk_issue"
    )
    monkeypatch.setattr("labkernels.kernels.build.render", lambda spec, arch, sanitizer: other)
    with pytest.raises(AssemblyError, match=r"no tma_bulk \(UBLKCP\.S\.G\)"):
        assemble(kernel("tma_bulk", "issue", per_copy="copy"), cache_dir=tmp_path)
    assert not list(tmp_path.iterdir()), "a refused kernel was cached"


@pytest.mark.parametrize(
    ("arguments", "constants", "message"),
    [
        (("tma", "stream"), {}, "'tma' is no mechanism.*tma_bulk"),
        (("tma_reduce", "stream"), {}, "'tma_reduce' has no kernel.*ldg.*give it axes"),
        (("ldg", "fly"), {}, "no protocol 'fly'.*stream"),
        (("tma_tile", "stream"), {"rank": 6}, r"no kernel tma_tile.stream\[rank=6\].*rank=5"),
    ],
)
def test_unknown_kernels_are_named_with_what_there_is(arguments, constants, message):
    with pytest.raises(ValueError, match=message):
        kernel(*arguments, **constants)


def test_names_are_unique_and_every_ptx_file_is_of_a_mechanism_with_axes():
    assert len(BY_NAME) == len(kernels())
    assert {path.stem for path in PTX.glob("*.ptx")} == set(AXES)


def test_for_sanitizers_every_reader_arrives():
    text = render(kernel("tma_bulk", "stream", excess_bytes=0), "sm_90a", sanitizer=True)
    assert "mbarrier.init.shared::cta.b64 [empty_at], 32;" in text and "@leader mbarrier.arrive" not in text
    spec = kernel("tma_tile", "gather", compute="wgmma", row_bytes=256, table="none", tile_rows=128)
    wide = render(spec, "sm_90a", sanitizer=True)
    assert "mbarrier.init.shared::cta.b64 [empty_at], 256;" in wide


def test_measured_kernels_arrive_once_for_a_warp():
    text = render(kernel("tma_bulk", "stream", excess_bytes=0), "sm_90a")
    assert "mbarrier.init.shared::cta.b64 [empty_at], 1;" in text and "@leader mbarrier.arrive" in text


@pytest.mark.parametrize("protocol", ["stream", "ring", "exchange", "pair", "gather"])
def test_kernels_for_sanitizers_assemble(monkeypatch, protocol, tmp_path):
    monkeypatch.setenv(SANITIZER, "1")
    for mechanism in {spec.mechanism for spec in kernels(protocol=protocol)}:
        spec = kernels(mechanism, protocol)[0]
        assert assemble(spec, cache_dir=tmp_path).ptx == render(spec, "sm_90a", sanitizer=True)
