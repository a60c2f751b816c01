import ptx_samples as ptx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkernels.kernels import sass


def mechanisms_of(*modules, arch="sm_90a"):
    (found,) = sass.mechanisms(ptx.link(*modules, arch=arch)).values()
    return found


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", ptx.SAMPLES)
def test_one_kernel_per_mechanism(name, arch):
    assert set(mechanisms_of(ptx.kernel([ptx.SAMPLES[name]], arch=arch), arch=arch)) == {name}


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("variant", ptx.VARIANTS)
def test_other_spellings(variant, arch):
    expected, body = ptx.VARIANTS[variant]
    assert set(mechanisms_of(ptx.kernel([body], arch=arch), arch=arch)) == {expected}


@pytest.mark.parametrize("variant", ptx.BLACKWELL)
def test_rows_by_index_are_no_tiles(variant):
    expected, body = ptx.BLACKWELL[variant]
    assert set(mechanisms_of(ptx.kernel([body], arch="sm_100a"), arch="sm_100a")) == {expected}


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_generic_pointers_are_not_distributed_shared_memory(tmp_path, arch):
    body = "ld.u32 %r, [%a]; st.u32 [%a + 64], %r; atom.add.u32 %r, [%a + 128], %n;"
    (tmp_path / "k.ptx").write_text(ptx.kernel([body], arch=arch))
    sass.run_tool("ptxas", "-arch", arch, "-o", str(tmp_path / "k.cubin"), str(tmp_path / "k.ptx"))
    function = sass.disassemble(tmp_path / "k.cubin")["k"]
    assert function.sm == int(arch.removeprefix("sm_"))
    assert set(function.mechanisms()) == {"generic_load", "generic_store", "atomic"}


@pytest.mark.parametrize("name", ptx.SAMPLES)
def test_mechanism_of_a_called_function(name):
    callee = ptx.function("callee", ptx.SAMPLES[name])
    assert mechanisms_of(ptx.kernel([], ["callee"]), callee)[name]


NAMES = st.lists(st.sampled_from(list(ptx.SAMPLES)), min_size=1, max_size=6, unique=True)


@settings(max_examples=10, deadline=None)
@given(names=NAMES, added=st.sampled_from(list(ptx.SAMPLES)), called=st.booleans())
def test_adding_a_mechanism_hides_no_other(names, added, called):
    names = [name for name in names if name != added]
    bodies = [ptx.SAMPLES[name] for name in names]
    before = mechanisms_of(ptx.kernel(bodies))
    if called:
        after = mechanisms_of(ptx.kernel(bodies, ["extra"]), ptx.function("extra", ptx.SAMPLES[added]))
    else:
        after = mechanisms_of(ptx.kernel([*bodies, ptx.SAMPLES[added]]))
    assert set(before) == set(names)
    assert set(after) == {*names, added}
    assert all(after[name] >= before[name] for name in names)


def test_own_shared_memory_through_a_generic_pointer_is_not_distributed():
    body = "cvt.u64.u32 %d, %sm; cvta.shared.u64 %d, %d; add.u64 %d, %d, %a; st.u32 [%d], %n;"
    assert set(mechanisms_of(ptx.kernel([body]))) == {"generic_store"}


def test_indirect_call_may_reach_every_function():
    signature = "(.reg .b64 %a, .reg .b64 %map, .reg .b32 %n, .reg .b32 %sm, .reg .b32 %bar)"
    module = ptx.kernel(
        [
            ".reg .b64 %t, %f; mul.wide.u32 %t, %n, 8; mov.u64 %f, table; add.u64 %t, %t, %f;"
            f"ld.const.u64 %f, [%t]; proto: .callprototype _ {signature};"
            "call %f, (%a, %map, %n, %sm, %bar), proto;"
        ]
    )
    functions = "".join(
        ptx.function(name, ptx.SAMPLES[name]).split(".address_size 64\n")[1] for name in ("cp_async", "stg")
    )
    head, body = module.split(".visible .entry")
    module = f"{head}{functions}.const .u64 table[2] = {{cp_async, stg}};\n.visible .entry{body}"
    assert {"cp_async", "stg"} <= set(mechanisms_of(module))


LOOP = """
{ .reg .pred %p; .reg .b32 %i; mov.u32 %i, 0;
AGAIN: ld.volatile.global.u32 %r, [%a]; st.volatile.shared.u32 [%sm], %r;
@%p_call@
add.u32 %i, %i, 1; setp.lt.u32 %p, %i, %n; @%p bra AGAIN; }
st.global.u32 [%a], %n;
"""


def test_loops_hold_what_repeats_and_nothing_else():
    function = sass.disassemble(ptx.link(ptx.kernel([LOOP.replace("@%p_call@", "")])))["k"]
    inside = function.opcodes_in_loops()
    assert any(opcode.startswith("LDG") for opcode in inside)
    assert not any(opcode.startswith("STG") for opcode in inside)
    assert any(opcode.startswith("STG") for opcode in function.opcodes)


def test_a_call_in_a_loop_is_seen():
    body = LOOP.replace("@%p_call@", "call callee, (%a, %map, %n, %sm, %bar);")
    caller = ptx.kernel([body], ["callee"])
    functions = sass.disassemble(ptx.link(caller, ptx.function("callee", ptx.SAMPLES["cp_async"])))
    assert any(opcode.startswith("CALL") for opcode in functions["k"].opcodes_in_loops())
    assert not functions["callee"].opcodes_in_loops()
    assert functions["k"].entry
    assert not functions["callee"].entry
    assert functions["k"].callees == {"callee"}


def test_the_closing_trap_is_no_loop():
    function = sass.disassemble(ptx.link(ptx.kernel([ptx.SAMPLES["stg"]])))["k"]
    assert function.loops == ()


def test_count_gives_full_opcodes_of_every_function():
    cubin = ptx.link(ptx.kernel([], ["f"]), ptx.function("f", ptx.SAMPLES["tma_tile"]))
    assert sass.count(cubin)["f"]["UTMALDG.3D"] == 1
    assert set(sass.count(cubin)) == {"k", "f"}


@pytest.mark.parametrize("damaged", [b"", b"nonsense", b"\x7fELF" + b"\xff" * 200, None])
def test_damage_is_named(damaged):
    if damaged is None:
        damaged = ptx.link(ptx.kernel([ptx.SAMPLES["stg"]]))[:700]
    with pytest.raises(sass.DisassemblyError, match="nvdisasm"):
        sass.disassemble(damaged)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(sass.DisassemblyError, match="absent"):
        sass.disassemble(tmp_path / "absent.cubin")


def test_a_comment_behind_many_blanks_takes_no_longer_to_read_than_any_line():
    text = (
        "\t.type\tk,@function\nk:\n        /*0130*/                   STL [R1+0x250], R17"
        + " " * 20_000  # a pattern that tries every blank would not come back
        + '(*"SpillRefill"*);\n        /*0140*/              @!P0 BRA `(.L_x_1) ;\n'
    )
    first, second = sass._parse(text)["k"].instructions
    assert first.registers == ["R1", "R17"]
    assert (second.predicate, second.opcode, second.operands) == ("@!P0", "BRA", "`(.L_x_1)")


# As ptxas 13.0 writes atomicCAS on a pointer to any memory; the first line makes the pointer.
EXCHANGE = (
    "ATOM.E.CAS.64.STRONG.GPU P1, R16, [R10], R12, R14",
    "IMAD.MOV.U32 R18, RZ, RZ, R14",
    "LD.E.64 R16, [R10]",
    "ST.E.64 [R10], R18",
)


@pytest.mark.parametrize(
    ("pointer", "counts"),
    [
        ("LDC.64 R10, c[0x0][0x210]", {"atomic": 1, "generic_load": 1, "generic_store": 1}),
        ("PRMT R10, R3, 0x654, R2", {"dsm_atomic": 1, "dsm_load": 1, "dsm_store": 1}),
    ],
)
def test_an_exchange_without_a_descriptor_goes_where_its_pointer_comes_from(pointer, counts):
    """So do the load and the store that stand for it in local memory; any other bare access is a cluster's."""
    code = "".join(f"        /*{16 * n:04x}*/ {line} ;\n" for n, line in enumerate((pointer, *EXCHANGE)))
    assert sass._parse("\t.type\tk,@function\nk:\n" + code)["k"].mechanisms() == counts
    alone = code.replace("ATOM.E.CAS.64", "ATOM.E.ADD.64")
    assert "dsm_load" in sass._parse("\t.type\tk,@function\nk:\n" + alone)["k"].mechanisms()


@pytest.mark.parametrize(
    ("barrier", "name"), [("", "generic_store"), (ptx.SAMPLES["cluster_barrier"], "dsm_store")]
)
def test_rank_zero_is_another_cta_only_where_clusters_meet(barrier, name):
    first = "cvt.u64.u32 %d, %sm; cvta.shared.u64 %d, %d; mapa.u64 %d, %d, 0; st.u32 [%d], %n;"
    counts = sass.mechanisms(ptx.link(ptx.kernel([barrier, first])))["k"]
    assert counts[name] == 1 and not counts[{"generic_store": "dsm_store"}.get(name, "generic_store")]
