import csv
import io
import json
import os
import struct
import zipfile

import ptx_samples as ptx
import pytest

from labkernels.cli import main
from labkernels.kernels import registry, sass
from labkernels.kernels.build import assemble
from labkernels.production import census, containers, flash_names
from labkernels.protocols import progress


def run(capsys, *arguments):
    status = main(["census", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def entry(image, name, kind=2):
    """One fatbin entry, as nvcc writes them: 64 bytes, the name of its source, the image."""
    source = name.encode() + b"\0"
    header_bytes = 64 + (len(source) + 7) // 8 * 8
    padding = -len(image) % 8
    header = struct.pack(
        "<HHIQIIHHIIIQQQ",
        kind,
        0x101,
        header_bytes,
        len(image) + padding,
        0,
        0,
        7,
        1,
        90,
        64,
        len(name),
        0x11,
        0,
        0,
    )
    return header + source.ljust(header_bytes - 64, b"\0") + image + b"\0" * padding


def fatbin(*entries):
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def host_library(fat):
    """The smallest x86-64 ELF file with a .nv_fatbin section; of nothing, with a section of another name."""
    names = b"\0.nv_fatbin\0.shstrtab\0" if fat else b"\0.something\0.shstrtab\0"
    at = 64 + len(fat)
    at += -at % 8
    sections = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (1, 1, 2, 0, 64, len(fat), 0, 0, 8, 0),
        (12, 3, 0, 0, at, len(names), 0, 0, 1, 0),
    ]
    table_at = at + len(names) + -(at + len(names)) % 8
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table_at, 0, 64, 0, 0, 64, len(sections), 2)
    body = (header + fat).ljust(at, b"\0") + names
    return body.ljust(table_at, b"\0") + b"".join(struct.pack("<IIQQQQIIQQ", *s) for s in sections)


def cubin(*names, kernel="k", arch="sm_90a"):
    return ptx.link(ptx.kernel([ptx.SAMPLES[name] for name in names], arch=arch, name=kernel), arch=arch)


@pytest.fixture(scope="module")
def images():
    return {"stg": cubin("stg", kernel="first"), "tma": cubin("tma_tile", "cp_async", kernel="second")}


def write(path, data):
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def container(tmp_path, images, form):
    if form == "cubin":
        return write(tmp_path / "x.cubin", images["tma"])
    if form == "ptx":
        return write(
            tmp_path / "x.ptx", ptx.kernel([ptx.SAMPLES["tma_tile"], ptx.SAMPLES["cp_async"]], name="second")
        )
    if form == "open ptx":
        module = ptx.kernel([ptx.SAMPLES["tma_tile"], ptx.SAMPLES["cp_async"]], ["elsewhere"], name="second")
        return write(tmp_path / "x.ptx", module)
    fat = fatbin(entry(images["tma"], "/src/x.cu"))
    if form == "fatbin":
        return write(tmp_path / "x.fatbin", fat)
    if form == "library":
        return write(tmp_path / "x.so", host_library(fat))
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("package/notes.txt", "none")
        wheel.writestr("package/lib.so", host_library(fat))
        wheel.writestr("package/host.so", host_library(b""))
    return path


FORMS = ["cubin", "ptx", "open ptx", "fatbin", "library", "wheel"]


@pytest.mark.parametrize("form", FORMS)
def test_every_container(capsys, tmp_path, images, form):
    path = container(tmp_path, images, form)
    status, out, err = run(capsys, "--json", path)
    assert (status, err) == (0, "")
    (kernel,) = json.loads(out)["kernels"]
    assert kernel["file"] == str(path)
    assert kernel["member"] == ("package/lib.so" if form == "wheel" else "")
    assert (kernel["arch"], kernel["kernel"]) == ("sm_90a", "second")
    assert kernel["mechanisms"] == {"cp_async": 1, "tma_tile": 1}
    assert kernel["registers"] > 0
    assert kernel["shared_bytes"] >= 1024 + 8
    assert kernel["reading"] == "loads by TMA (3D), cp.async (16 B); no multicast"


def test_cubins_that_share_a_name_are_all_read(capsys, tmp_path, images):
    same = [entry(image, "/one/same.cu") for image in images.values()]
    for number, fat in enumerate([fatbin(*same), fatbin(same[0]) + fatbin(same[1])]):
        path = write(tmp_path / f"{number}.so", host_library(fat))
        status, out, _ = run(capsys, "--json", path)
        assert status == 0
        assert [k["kernel"] for k in json.loads(out)["kernels"]] == ["first", "second"]


def test_a_kernel_that_a_file_carries_twice_is_listed_once(capsys, tmp_path, images):
    path = write(tmp_path / "x.fatbin", fatbin(entry(images["stg"], "a.cu"), entry(images["stg"], "b.cu")))
    _, out, _ = run(capsys, "--json", path)
    assert len(json.loads(out)["kernels"]) == 1


def test_architectures_are_kept_apart(capsys, tmp_path):
    paths = [write(tmp_path / f"{arch}.cubin", cubin("stg", arch=arch)) for arch in ("sm_90a", "sm_100a")]
    _, out, _ = run(capsys, "--json", *paths)
    assert [k["arch"] for k in json.loads(out)["kernels"]] == ["sm_90a", "sm_100a"]


def test_csv_and_table_say_the_same(capsys, tmp_path, images):
    path = container(tmp_path, images, "fatbin")
    _, out, _ = run(capsys, "--csv", path)
    (row,) = csv.DictReader(io.StringIO(out))
    assert (row["tma_tile"], row["cp_async"], row["stg"]) == ("1", "1", "0")
    assert "UTMALDG.3D=1" in row["opcodes"]
    assert {*sass.MECHANISMS} <= set(row)
    _, table, _ = run(capsys, path)
    assert row["reading"] in table
    assert "second" in table


def test_reading_names_ranks_widths_and_other_ctas(tmp_path):
    names = ["tma_multicast", "cp_async", "tma_store", "dsm_store", "ldg"]
    path = write(tmp_path / "x.cubin", cubin(*names))
    (kernel,), errors = census.census([path])
    assert not errors
    assert kernel.reading == (
        "loads by TMA multicast (2D), cp.async (16 B), ld.global; stores by TMA store (2D); "
        "stores to other CTAs of the cluster"
    )


@pytest.mark.parametrize("mechanism", registry.AXES)
def test_kernels_of_the_project_read_as_the_registry_promises(tmp_path, mechanism):
    protocols = {spec.protocol: spec for spec in registry.kernels(mechanism)}
    for spec in protocols.values():
        path = write(tmp_path / f"{spec.protocol}.cubin", assemble(spec, "sm_90a").cubin)
        (kernel,), errors = census.census([path])
        assert not errors
        found = [*dict(kernel.mechanisms), *dict(kernel.features)]
        assert not spec.broken_promise(found, found)


def test_a_file_without_kernels_is_mentioned(capsys, tmp_path):
    path = write(tmp_path / "x.ptx", ptx.function("f", ptx.SAMPLES["ldg"]))
    status, _, err = run(capsys, path)
    assert status == 0
    assert f"{path}: device functions at most, no kernel" in err


def zip_of(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


HOSTILE = {
    "empty": (b"", "empty file"),
    "text": (b"hello\n", "not a cubin"),
    "binary": (bytes(range(256)) * 40, "not a cubin"),
    "host elf": (host_library(b""), "no CUDA device code"),
    "elf of 5 bytes": (b"\x7fELF\x02", "cut off"),
    "elf with huge tables": (
        b"\x7fELF\x02\x01\x01"
        + bytes(33)
        + struct.pack("<Q", 1 << 62)
        + bytes(10)
        + b"\x40\x00\xff\xff"
        + bytes(40),
        "truncated",
    ),
    "32-bit elf": (b"\x7fELF\x01\x01\x01" + bytes(93), "64-bit"),
    "fatbin with huge size": (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 60) + bytes(100), "cuobjdump"),
    "ptx with an error": (".version 8.6\n.target sm_90a\n.address_size 64\nnonsense\n", "ptxas"),
    "ptx of the future": (".version 99.9\n.target sm_90a\n.address_size 64\n", "ptxas"),
    "ptx without a target": (".version 8.6\n", "not a cubin"),
    "zip without code": (zip_of(a="text"), "no file of the wheel"),
    "broken zip": (zip_of(a="text")[:-30], "damaged zip"),
    "wheel with a broken library": (zip_of(**{"lib.so": host_library(b"")[:-8]}), "lib.so: truncated"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_named_and_the_rest_still_done(capsys, tmp_path, images, name):
    data, message = HOSTILE[name]
    bad = write(tmp_path / "bad", data)
    good = write(tmp_path / "good.cubin", images["stg"])
    status, out, err = run(capsys, "--json", bad, good)
    found = json.loads(out)
    assert status == 1
    assert [k["kernel"] for k in found["kernels"]] == ["first"]
    assert {e["file"] for e in found["errors"]} == {str(bad)}
    assert message in found["errors"][0]["error"]
    assert str(bad) in err


def test_truncated_at_every_length(tmp_path, images):
    whole = host_library(fatbin(entry(images["stg"], "x.cu")))
    for length in range(0, len(whole), len(whole) // 12):
        path = write(tmp_path / "cut.so", whole[:length])
        kernels, errors = census.census([path])
        assert not kernels
        assert errors


def test_missing_file_and_empty_folder(capsys, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    status, _, err = run(capsys, tmp_path / "absent", empty)
    assert status == 1
    assert "No such file" in err
    assert f"{empty}: device functions at most, no kernel" in err


def test_a_folder_is_read_whole_and_what_has_no_code_in_it_is_no_fault(capsys, tmp_path, images):
    for name in ("a/k", "b/j"):
        (tmp_path / name).parent.mkdir()
        write(tmp_path / f"{name}.cubin", images["stg"])
        write(tmp_path / f"{name}.ptx", "not even PTX: the cubin beside it counts")
        write(tmp_path / f"{name}.json", "{}")
    write(tmp_path / "launcher.so", host_library(b""))
    write(tmp_path / "x.whl", zip_of(a="text"))
    write(tmp_path / "lone.ptx", ptx.kernel([ptx.SAMPLES["ldg"]]))
    status, out, err = run(capsys, "--csv", tmp_path)
    assert (status, err) == (0, "")
    assert [one["file"] for one in csv.DictReader(io.StringIO(out))] == ["lone.ptx", "k.cubin", "j.cubin"]


def test_only_what_is_asked_for_is_disassembled(capsys, tmp_path, images, monkeypatch):
    read = []
    disassemble = sass.disassemble
    monkeypatch.setattr(sass, "disassemble", lambda path: read.append(path) or disassemble(path))
    path = write(
        tmp_path / "x.so",
        host_library(
            fatbin(
                entry(images["stg"], "a.cu"),
                entry(images["tma"], "b.cu"),
                entry(cubin("stg", arch="sm_100a"), "c.cu"),
            )
        ),
    )
    for arguments, names in (
        (["--arch", "sm_90a", "--kernel", "sec"], ["second"]),
        (["--arch", "sm_100a"], ["k"]),
        (["--arch", "sm_100a", "--arch", "sm_90a"], ["first", "second", "k"]),
        (["--kernel", "absent"], []),
    ):
        read.clear()
        status, out, err = run(capsys, "--json", path, *arguments)
        assert [k["kernel"] for k in json.loads(out)["kernels"]] == names
        assert (status, len(read)) == (0, len(names))
        assert ("no kernel of those asked for" in err) == (not names)


def test_rows_come_while_others_are_still_read(capsys, tmp_path, images, monkeypatch):
    monkeypatch.setattr(census, "AHEAD", 0)
    paths = [write(tmp_path / f"{n}.cubin", images[n]) for n in ("stg", "tma")]
    results = census.stream([*paths, tmp_path / "absent"])
    assert next(results).kernels[0].kernel == "first"
    assert [bool(found.problem) for found in results] == [False, True]


def test_a_bad_cubin_loses_no_other_and_is_named(capsys, tmp_path, images):
    cut = images["tma"][: len(images["tma"]) // 2].ljust(len(images["tma"]), b"\0")
    fat = fatbin(
        entry(images["stg"], "a.cu"), entry(cut, "bad.cu"), entry(cubin("ldg", kernel="third"), "c.cu")
    )
    status, out, err = run(
        capsys, "--csv", write(tmp_path / "x.whl", zip_of(**{"lib.so": host_library(fat)}))
    )
    assert status == 1
    assert [one["kernel"] for one in csv.DictReader(io.StringIO(out))] == ["first", "third"]
    assert "lib.so" in err and "bad" in err and err.count("\n") == 1


def test_cubins_in_plain_data_are_found(capsys, tmp_path, images):
    data = b"\x7fELF no image" + images["stg"] + bytes(40) + images["tma"] + b"\x7fELF"
    for number, fat in enumerate((b"", fatbin(entry(cubin("ldg", kernel="third"), "c.cu")))):
        status, out, err = run(capsys, "--json", write(tmp_path / f"{number}.so", host_library(fat) + data))
        assert (status, err) == (0, "")
        assert [k["kernel"] for k in json.loads(out)["kernels"]] == ["third"] * number + ["first", "second"]


def test_a_fatbin_in_plain_data_is_found(capsys, tmp_path, images):
    """As CuTe DSL writes libraries ahead of time: NVIDIA's tool sees only fatbins in a section of their own."""
    fat = fatbin(entry(images["stg"], "a.cu"), entry(cubin("ldg", kernel="third"), "b.cu"))
    status, out, err = run(capsys, "--json", write(tmp_path / "x.so", host_library(b"") + bytes(64) + fat))
    assert (status, err) == (0, "")
    assert [k["kernel"] for k in json.loads(out)["kernels"]] == ["first", "third"]
    damaged = fatbin(entry(images["stg"][:80], "a.cu"))
    status, _, err = run(capsys, "--json", write(tmp_path / "y.so", host_library(b"") + damaged))
    assert status == 1 and "y.so" in err


@pytest.mark.parametrize("arch", ["sm_90a", "sm_90", "sm_100a", "sm_100f", "sm_100", "sm_103f", "sm_120a"])
def test_architectures_go_by_their_names(capsys, tmp_path, arch):
    module = ptx.kernel([ptx.SAMPLES["stg"]], arch=arch).replace(".version 8.6", ".version 8.8")
    source = write(tmp_path / "x.ptx", module)
    sass.run_tool("ptxas", "-arch", arch, "-o", str(tmp_path / "x.cubin"), str(source))
    _, out, _ = run(capsys, "--json", source, tmp_path / "x.cubin", "--arch", arch)
    assert [k["arch"] for k in json.loads(out)["kernels"]] == [arch, arch]


def test_tma_that_is_a_system_call_is_told_from_one_that_is_not(capsys, tmp_path):
    found = {}
    for state in ("cluster", "cta"):
        body = (
            f"cp.async.bulk.tensor.2d.shared::{state}.global.mbarrier::complete_tx::bytes "
            "[%sm], [%map, {%n, %n}], [%bar];"
        )
        path = write(tmp_path / f"{state}.ptx", ptx.kernel([body], arch="sm_120a").replace("8.6", "8.8"))
        (kernel,), _ = census.census([path])
        found[state] = kernel
    assert dict(found["cluster"].features)["tma_syscall"] == 1
    assert "system call" in found["cluster"].reading and "system call" not in found["cta"].reading
    assert "tma_syscall" not in dict(found["cta"].features)


def test_ptx_of_a_later_cuda_says_which(capsys, tmp_path):
    path = write(tmp_path / "x.ptx", ptx.kernel([]).replace(".version 8.6", ".version 9.7"))
    status, _, err = run(capsys, path)
    assert status == 1 and "PTX 9.7 needs the ptxas of CUDA 13.7 or newer" in err


def test_closed_libraries_are_refused_unless_leave_is_given(capsys, tmp_path, images):
    fat = fatbin(entry(images["stg"], "a.cu"))
    licence = "You may not reverse engineer, decompile or disassemble any portion of this."
    metadata = "Name: nvidia-something\nLicense: NVIDIA Proprietary Software\n"
    closed = [
        write(tmp_path / "libcublasLt.so.13", host_library(fat)),
        write(tmp_path / "libcudnn_engines_precompiled.a", host_library(fat)),
        write(
            tmp_path / "other.so",
            host_library(fatbin(entry(cubin("stg", kernel="sm90_xmma_gemm_x"), "a.cu"))),
        ),
        write(tmp_path / "dump.cubin", cubin("stg", kernel="_ZN8cublasLt4coreEv")),
        write(tmp_path / "x.whl", zip_of(**{"package/libcusolver.so.12": host_library(fat)})),
        write(
            tmp_path / "nvidia.whl",
            zip_of(
                **{
                    "lib.so": host_library(fat),
                    "n-1.dist-info/METADATA": metadata,
                    "n-1.dist-info/licenses/License.txt": licence,
                }
            ),
        ),
    ]
    for path in closed:
        status, out, err = run(capsys, "--json", path)
        assert (status, json.loads(out)["kernels"]) == (1, []), path
        assert "forbids to disassemble" in err and "--may-disassemble" in err
        status, out, err = run(capsys, "--json", "--may-disassemble", path)
        assert (status, len(json.loads(out)["kernels"]), err) == (0, 1, ""), path
    silent = zip_of(**{"a.libs/libcudart-1.so.12": host_library(b""), "lib.so": host_library(fat)})
    assert run(capsys, "--json", write(tmp_path / "open.whl", silent))[0] == 0
    for name in ("libnccl.so.2", "libcublas_free_gemm.txt", "libmycudnn.so"):
        assert run(capsys, "--json", write(tmp_path / name, host_library(fat)))[0] == 0


def test_a_busy_machine_costs_no_result_and_a_busy_tool_is_stopped(tmp_path, monkeypatch):
    tool = tmp_path / "tool"
    monkeypatch.setattr(sass, "tool", lambda name: str(tool))
    monkeypatch.setattr(sass, "TIME_LIMIT_S", 1)
    tool.write_text("#!/bin/sh\nsleep 3; echo done\n")
    tool.chmod(0o755)
    assert sass.run_tool("nvdisasm") == "done\n"
    tool.write_text("#!/bin/sh\nwhile :; do :; done\n")
    with pytest.raises(sass.DisassemblyError, match="more than 1 s of CPU time"):
        sass.run_tool("nvdisasm")


def test_zip_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(containers, "FREE_BYTES", 1 << 20)
    path = write(tmp_path / "bomb.whl", zip_of(**{"lib.so": b"\x7fELF" + bytes(8 << 20)}))
    kernels, errors = census.census([path])
    assert not kernels
    assert "more than" in errors[str(path)][0]


def test_many_members_that_are_each_small_enough_are_refused_together(tmp_path, monkeypatch):
    monkeypatch.setattr(containers, "FREE_BYTES", 1 << 20)
    member = b"\x7fELF" + bytes(900 << 10)
    path = write(tmp_path / "bomb.whl", zip_of(**{f"lib{number}.so": member for number in range(40)}))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    errors = list(containers.unpack(path, scratch))
    assert all(isinstance(error, str) for error in errors)
    assert "too much for a wheel of its size" in errors[-1] and len(errors) < 10
    assert [found for found in scratch.rglob("*") if found.is_file()] == []


def test_nothing_is_kept_longer_than_it_is_needed(tmp_path, images, monkeypatch):
    left = []
    resources = census._resources
    monkeypatch.setattr(census, "_resources", lambda path: left.append(path) or resources(path))
    path = container(tmp_path, images, "wheel")
    kernels, _ = census.census([path])
    assert kernels and path.exists() and not any(cubin.exists() for cubin in left)


def test_a_pipe_is_refused_at_once(capsys, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    status, _, err = run(capsys, pipe)
    assert status == 1 and "write it to a file first" in err


def test_ptxas_says_where(capsys, tmp_path):
    lines = [".version 8.6", ".target sm_90a", ".address_size 64", ".entry k() {", "nonsense;", "ret; }"]
    status, _, err = run(capsys, write(tmp_path / "x.ptx", "\n".join(lines)))
    assert status == 1 and "line 5: Not a name of any known instruction: 'nonsense'" in err


def test_control_characters_of_names_are_written_out(capsys, tmp_path, images):
    path = write(
        tmp_path / "x.whl", zip_of(**{"a\x1b[2J\nb.so": host_library(fatbin(entry(images["stg"], "x")))})
    )
    bad = write(tmp_path / "y.whl", zip_of(**{"c\x1b[2J\nd.so": host_library(b"")[:-8]}))
    for form in ([], ["--csv"], ["--json"]):
        _, out, err = run(capsys, *form, path, bad)
        assert "\x1b" not in out + err
        assert r"c\x1b[2J\x0ad.so" in err and err.count("\n") == 1
    _, out, _ = run(capsys, "--csv", path)
    assert r"a\x1b[2J\x0ab.so" in out and out.count("\n") == 2


def test_progress_is_a_plain_line_now_and_then_where_there_is_no_terminal(
    capsys, tmp_path, images, monkeypatch
):
    path = write(
        tmp_path / "x.fatbin", fatbin(entry(images["stg"], "a.cu")) + fatbin(entry(images["tma"], "b.cu"))
    )
    monkeypatch.setattr(progress, "INTERVAL_S", 0.0)
    status, out, err = run(capsys, "--json", path)
    assert (status, err) == (0, "census, cubins: 0\ncensus, cubins: 1\n") and json.loads(out)
    monkeypatch.undo()
    assert run(capsys, "--json", path)[2] == ""


def test_names_cannot_leave_the_scratch_directory(tmp_path, images):
    fat = fatbin(entry(images["stg"], "../../../escape"), entry(images["tma"], ".."))
    wheel = write(tmp_path / "x.whl", zip_of(**{"../../outside.so": host_library(fat)}))
    scratch = tmp_path / "a" / "b" / "scratch"
    scratch.mkdir(parents=True)
    before = {p for p in tmp_path.rglob("*") if scratch not in p.parents}
    cubins = list(containers.unpack(wheel, scratch))
    assert len(cubins) == 2
    assert all(scratch in c.path.resolve().parents for c in cubins)
    assert {p for p in tmp_path.rglob("*") if scratch not in p.parents} == before


FORWARD = (
    "cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
    "flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<2>, cute::C<1>, cute::C<1> >, "
    "cute::tuple<cute::C<128>, cute::C<176>, cute::C<64> >, 256, cutlass::half_t, float, cutlass::arch::Sm90,"
    " false, true, false, true, false, true, false, true, false, true, false, true>, "
    "flash::CollectiveEpilogueFwd<cute::tuple<cute::C<128> > > > >"
)


def test_flash_name_gives_its_template_arguments():
    kernel = flash_names.parse(FORWARD)
    assert kernel == flash_names.FlashKernel(
        direction="forward", dtype="fp16", head_dim=64, head_dim_v=256, tile_m=128, tile_n=176, cluster_m=2,
        causal=False, local=True, softcap=False, varlen=True, paged_cp_async=False, append=True, has_qv=False,
        p_in_registers=True, overlap=False, pack_gqa=True, split=False, v_colmajor=True,
    )  # fmt: skip
    assert (
        kernel.label == "forward fp16 head dim 64, tile 128 x 176, cluster 2, local, varlen, append, PackGQA"
    )


@pytest.mark.parametrize(
    "name", ["k", "", FORWARD.replace("half_t", "int4"), FORWARD[:200], FORWARD.replace("true", "maybe")]
)
def test_other_names_are_left_alone(name):
    assert flash_names.parse(name) is None


def test_demangling():
    assert flash_names.demangle("_ZN5flash6kernelILi3EEEvPi") == "flash::kernel<3>"
    assert flash_names.demangle("plain_c") == "plain_c"
    assert flash_names.demangle("_Zbroken") == "_Zbroken"
    assert (
        flash_names.demangle(f"_ZN5flash6kernelI{'Li3E' * 400}EEvPi")
        == f"flash::kernel<{', '.join('3' * 400)}>"
    )
