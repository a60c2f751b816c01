"""The GEMM study: compiled code against cluster shapes, the rule against products it was made without, bad input."""

import tomllib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkernels.errors import NotInstalled, NotMeasured
from labkernels.model.advisor import gpus
from labkernels.paths import ROOT
from labkernels.store import RUNS, Store
from labkernels.studies import select
from labkernels.studies.gemm import build, family, gemm_traffic, heuristic, library, operands
from labkernels.studies.gemm import findings as gemm_findings
from labkernels.studies.gemm.gemm import PRESETS, candidates
from labkernels.studies.gemm.pairs import PAIRS
from labkernels.studies.gemm.shapes import SHAPES

TILES = st.sampled_from(family.TILES)
EXTENTS = st.integers(1, 40_000)
GPU = gpus()[0]
RESIDENT = {1: 132, 2: 132, 4: 120}


@pytest.fixture(scope="module")
def store():
    return Store()


@pytest.fixture(scope="module")
def rounds(store):
    return gemm_findings.Rounds(gemm_findings.with_kernels(select.require_rows(store, "gemm", GPU)))


@pytest.fixture(scope="module")
def held_out(store):
    runs = store.read(RUNS)
    run_id = runs.loc[runs["experiment"].eq("gemm") & runs["preset"].eq("held_out"), "run_id"].max()
    return gemm_findings.medians(gemm_findings.with_kernels(select.rows(store, "gemm", [run_id])))


@pytest.fixture(scope="module")
def census(store):
    return store.read("gemm_census")


# --- compiled code ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", family.ARCHES)
def test_census_holds_every_kernel_once(census, arch):
    stored = list(census.loc[census["arch"].eq(arch), "kernel"])
    assert stored == [kernel.name for kernel in family.family(arch)]


def test_loads_are_what_the_cluster_shape_implies(census):
    for row in census.itertuples():
        kernel = family.find(row.arch, row.kernel)
        found = {"tma_tile": row.tma_tile, "tma_multicast": row.tma_multicast}
        assert found == kernel.expected_loads, row.kernel
        opcodes = {word.partition("=")[0] for word in row.opcodes.split()}
        assert all((".2CTA" in opcode) == (kernel.sms_per_tile == 2) for opcode in opcodes), row.kernel


def test_expected_loads_by_hand():
    loads = {k.name: tuple(k.expected_loads.values()) for k in family.family("sm_90a")}
    assert loads["bf16_128x256_1x1"] == (2, 0)
    assert loads["bf16_128x256_4x1"] == loads["e4m3_128x128_1x2"] == (1, 1)
    assert loads["bf16_256x128_2x2"] == (0, 2)
    assert loads["bf16_128x128_2x2_handshake"] == loads["bf16_128x128_2x2_independent"] == (2, 0)
    pairs = {k.name: tuple(k.expected_loads.values()) for k in family.family("sm_100a")}
    assert pairs["bf16_256x256_2x1_2sm"] == (4, 0), "a pair is one tile: nothing to share with a second one"
    assert pairs["bf16_256x256_4x2_2sm"] == (0, 4)


def test_controls_differ_in_their_loads_alone(census):
    rows = census[census["arch"].eq("sm_90a")].set_index("kernel")
    for kernel in family.family("sm_90a"):
        if kernel.transport != "multicast":
            usual = kernel.name.removesuffix(f"_{kernel.transport}")
            same = ["registers", "stages", "shared_bytes"]
            assert rows.loc[kernel.name, same].equals(rows.loc[usual, same]), kernel.name


def test_stages_do_not_depend_on_the_cluster(census):
    rows = census[census["arch"].eq("sm_90a")]
    tiles = rows["kernel"].str.extract(r"^(\w+?_\d+x\d+)_")[0]
    assert rows.groupby(tiles)["stages"].nunique().eq(1).all()


def test_a_symbol_names_its_kernel():
    name = (
        "void cutlass::device_kernel<Gemm<cutlass::float_e4m3_t, 128, 256, 128, 4, 1, (Transport)0, "
        "cutlass::gemm::KernelTmaWarpSpecializedCooperativeFP8FastAccum, cutlass::epilogue::X>::Kernel>(T1::Params)"
    )
    assert family.of_symbol("sm_90a", name) == family.find("sm_90a", "e4m3_128x256_4x1")
    assert (
        family.of_symbol("sm_90a", name.replace("128, 256, 128", "(int)128, (int)256, (int)128")) is not None
    )
    assert family.of_symbol("sm_90a", "stamp_clocks") is None


def test_every_kernel_has_a_line_and_a_name_of_its_own():
    for arch in family.ARCHES:
        kernels = family.family(arch)
        assert len({k.name for k in kernels}) == len({k.line for k in kernels}) == len(kernels)
        assert all(k.line.startswith(f"K({k.name}, ") for k in kernels)


# --- stored products ---------------------------------------------------------------------------------------------


def test_every_product_agreed_with_the_reference(rounds):
    for dtype, rows in rounds.frame.groupby("dtype"):
        assert rows["relative_error"].between(0, operands.TOLERANCE[dtype], inclusive="right").all()


def test_candidates_are_checked_and_timed_together(rounds):
    sizes = rounds.frame.groupby(gemm_findings.CANDIDATE, dropna=False)["round"].agg(["size", "nunique"])
    assert (sizes["size"] == sizes["nunique"]).all()
    assert sizes["nunique"].min() >= 9


def test_best_kernels_reach_the_library(rounds):
    large = gemm_findings.large(gemm_findings.over_library(rounds))
    assert len(large) >= 12
    assert (large["ratio"] >= 0.97).sum() >= 8


def test_parts_add_up(rounds):
    shares = gemm_findings.multicast_shares(rounds)
    assert len(shares) > 200
    assert shares["adds_up"].mean() >= 0.95
    assert (shares["low"] <= shares["ratio"]).all() and (shares["ratio"] <= shares["high"]).all()


def test_decomposition_telescopes(rounds):
    found = gemm_findings.decompose(rounds, (8192, 8192, 8192), (128, 128), (4, 1), 1)
    product = np.prod([part.ratio for part in found.parts])
    assert found.total.low <= product <= found.total.high, "within the spread of the rounds"
    assert found.parts[0].ratio == pytest.approx(132 / 120)


def test_decomposition_says_what_is_missing(rounds):
    with pytest.raises(NotMeasured, match=r"bf16_128x128_2x1_independent .* 1024 × 1024 × 512"):
        gemm_findings.decompose(rounds, (1024, 1024, 512), (128, 128), (2, 1), 1)


def test_headline_figures_are_of_the_rows(store):
    frame = select.require_rows(store, "gemm", GPU)
    best = gemm_findings.wgmma_bf16_tflops(frame)
    rows = frame[frame["dtype"].eq("bf16") & frame["kernel"].ne("library")]
    assert best.low <= best.value <= best.high
    assert rows["tflops"].median() < best.value <= rows["tflops"].max()
    over = gemm_findings.gemm_best_over_library(frame)
    assert over.low <= over.value <= over.high


# --- the rule ----------------------------------------------------------------------------------------------------


def test_held_out_shapes_are_not_among_those_the_rule_was_made_from():
    fitted = {shape.mnk for shape in SHAPES if not shape.held_out}
    assert not fitted & {shape.mnk for shape in SHAPES if shape.held_out}
    assert set(PRESETS["held_out"].shapes) == {shape.mnk for shape in SHAPES if shape.held_out}
    assert set(PRESETS["full"].shapes) == fitted


@pytest.mark.parametrize("by", ["duration_us", "cycles"])
def test_regret_on_held_out_shapes(held_out, rounds, by):
    regret = gemm_findings.regrets(held_out, heuristic.choose, rounds.resident, by=by)["regret"]
    assert len(regret) == 3 * sum(shape.held_out for shape in SHAPES)
    assert regret.median() <= 1.01
    assert regret.quantile(0.95) <= 1.05


def test_the_rule_beats_what_others_do(held_out, rounds):
    def p95(choose):
        return gemm_findings.regrets(held_out, choose, rounds.resident)["regret"].quantile(0.95)

    assert all(p95(heuristic.choose) < p95(other) for other in heuristic.OTHERS.values())


@given(st.tuples(EXTENTS, EXTENTS, EXTENTS), TILES)
def test_a_choice_adds_no_tile_and_no_wave(shape, tile):
    choice = heuristic.choose(shape, tile, RESIDENT)
    tiles = int(np.prod([-(-extent // t) for extent, t in zip(shape, tile, strict=False)]))
    assert heuristic.scheduled_tiles(shape, tile, choice.cluster, choice.swizzle) == tiles
    least = heuristic.waves(shape, tile, heuristic.Choice((1, 1), 1), RESIDENT)
    assert heuristic.waves(shape, tile, choice, RESIDENT) <= least


@given(st.tuples(EXTENTS, EXTENTS, EXTENTS), TILES, st.sampled_from(family.CLUSTERS), st.sampled_from([1, 8]))
def test_scheduled_tiles_hold_the_grid_in_whole_clusters(shape, tile, cluster, swizzle):
    scheduled = heuristic.scheduled_tiles(shape, tile, cluster, swizzle)
    assert scheduled >= np.prod([-(-extent // t) for extent, t in zip(shape, tile, strict=False)])
    assert scheduled % (cluster[0] * cluster[1]) == 0


@pytest.mark.parametrize(
    ("shape", "tile", "cluster", "swizzle", "tiles"),
    [
        ((2048, 2048, 64), (128, 256), (1, 2), 8, 16 * 16),  # 8 columns become two bands of 8
        ((2048, 2048, 64), (128, 256), (1, 2), 1, 16 * 8),
        ((64, 28672, 64), (128, 256), (2, 1), 1, 2 * 112),  # a row of tiles outside A
        (
            (128 * 5, 128 * 9, 64),
            (128, 128),
            (1, 1),
            8,
            8 * 12,
        ),  # the shorter side of 5 allows a swizzle of 4
    ],
)
def test_scheduled_tiles_by_hand(shape, tile, cluster, swizzle, tiles):
    assert heuristic.scheduled_tiles(shape, tile, cluster, swizzle) == tiles


def test_choices_by_hand():
    def choice(*shape, tile=(128, 256)):
        return heuristic.choose(shape, tile, RESIDENT)

    assert choice(64, 28672, 8192) == heuristic.Choice((1, 4), 8), "one row of tiles"
    assert choice(8192, 8192, 8192) == heuristic.Choice((1, 1), 8), "many waves, nothing padded"
    assert choice(1280, 3072, 4096).cluster == (2, 2), "120 tiles fit 30 clusters of four"
    assert choice(1408, 3072, 4096).cluster != (2, 2), "132 tiles do not"


def test_rule_refuses_bad_input():
    with pytest.raises(ValueError, match=r"shape \(0, 128, 128\)"):
        heuristic.choose((0, 128, 128), (128, 128), RESIDENT)
    with pytest.raises(ValueError, match="clusters of 4 CTAs"):
        heuristic.choose((128, 128, 128), (128, 128), {1: 132, 2: 132})


def test_deepgemm_as_published():
    assert heuristic.deepgemm((1280, 3072, 4096), (128, 256), RESIDENT).cluster == (1, 1), "one wave"
    assert heuristic.deepgemm((8192, 8192, 8192), (128, 128), RESIDENT).cluster == (1, 2)
    assert heuristic.deepgemm((8192, 8192, 8192), (128, 256), RESIDENT).cluster == (2, 1), (
        "B is the larger side"
    )


def test_predictions_are_judged_where_we_have_the_kernel(rounds, store):
    table = gemm_findings.medians(rounds.frame)
    found = gemm_findings.predicted_regrets(table, store.read("gemm_predicted"))
    assert len(found) >= 12
    assert found["regret"].ge(1).all()


# --- bad input ---------------------------------------------------------------------------------------------------


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="'sm_80'; give one of sm_90a, sm_100a"):
        family.family("sm_80")
    with pytest.raises(ValueError, match="'bf16_64x64_1x1' for sm_90a; there are bf16_128x128_1x1"):
        family.find("sm_90a", "bf16_64x64_1x1")
    with pytest.raises(ValueError, match="nonsense"):
        gemm_findings.with_kernels(pd.DataFrame({"kernel": ["nonsense"], "m": [1], "n": [1], "k": [1]}))


@pytest.mark.parametrize("kernels", [None, PAIRS])
def test_a_missing_library_says_how_to_build_it(tmp_path, monkeypatch, kernels):
    monkeypatch.setattr(build, "LIBRARIES", tmp_path)
    with pytest.raises(NotInstalled, match=r"labkernels\.studies\.gemm\.build --arch sm_90a"):
        library.Library("sm_90a", kernels)


def test_kernels_of_a_pair_differ_in_one_place():
    lines = {kernel.name: kernel.line.split(", ") for kernel in PAIRS}
    for kernel in PAIRS:
        for field, changed in (("loads", 8), ("stores", 9)):
            value = "cp_async" if field == "loads" else "direct"
            if getattr(kernel, field) == "tma" and (other := replace(kernel, **{field: value})) in PAIRS:
                two = zip(lines[kernel.name][1:], lines[other.name][1:], strict=True)
                assert [at for at, (one, its) in enumerate(two, 1) if one != its] == [changed]


def test_build_says_what_it_lacks(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(build, "LIBRARIES", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match="no nvcc on the PATH"):
        build.build("sm_90a")
    (tmp_path / "nvcc").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "nvcc").chmod(0o755)
    monkeypatch.setattr(build, "CUTLASS_VERSION", "0.0")
    with pytest.raises(build.BuildError, match=r"CUTLASS 0\.0 is needed, installed is .*'\.\[gemm\]'"):
        build.build("sm_90a")
    parser = build.argparse.ArgumentParser()
    build.add_arguments(parser)
    assert build.main(parser.parse_args(["--arch", "sm_100a"])) == 1
    assert "gemm build: CUTLASS 0.0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parser.parse_args(["--arch", "sm_80"])


def test_a_long_build_says_how_far_it_is_and_keeps_what_is_done(tmp_path, monkeypatch, capsys):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ntouch "$2"\n')
    nvcc.chmod(0o755)
    monkeypatch.setattr(build, "_nvcc", lambda: str(nvcc))
    monkeypatch.setattr(build, "_cutlass", list)
    monkeypatch.setattr(build, "LIBRARIES", tmp_path)
    assert build.build("sm_90a").exists()
    said = capsys.readouterr().err.splitlines()
    units = len(said) - 1
    assert units > len(family.family("sm_90a")) / build.MOST_KERNELS
    assert said[-1] == f"gemm build: {units} of {units} units done"
    assert len(list((tmp_path / "sm_90a").glob("*.o"))) == units


def test_headers_of_cutlass_lie_beside_the_environment(tmp_path, monkeypatch):
    made = tmp_path / "nvidia_cutlass-4.2.0.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: nvidia-cutlass\nVersion: {build.CUTLASS_VERSION}\n"
    )
    monkeypatch.setattr(build, "CUTLASS", tmp_path)
    assert build._cutlass()[0] == tmp_path / "cutlass_library" / "source" / "include"
    assert ".cache/cutlass" in (ROOT / "gemm.mk").read_text() and build.CACHE == ROOT / ".cache"


def test_one_version_of_cutlass():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["gemm"] == [f"nvidia-cutlass=={build.CUTLASS_VERSION}"]


def test_the_cache_key_follows_every_source(monkeypatch, tmp_path):
    before = build.key("sm_90a")
    assert build.key("sm_100a") != before
    for source in build.HERE.glob("*.*"):
        if source.suffix in (".cu", ".h"):
            (tmp_path / source.name).write_text(source.read_text())
    monkeypatch.setattr(build, "HERE", tmp_path)
    assert build.key("sm_90a") == before
    (tmp_path / "kernels.cu").write_text("// changed")
    assert build.key("sm_90a") != before


def test_measuring_without_pytorch_says_so(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(NotInstalled, match="pip install torch"):
        operands.require_torch()


def test_counters_are_asked_of_one_process_with_caches_flushed(monkeypatch):
    asked = []
    monkeypatch.setattr(
        gemm_traffic.counters, "count", lambda target, metrics, flush: asked.append((target, flush)) or []
    )
    kernels = family.family("sm_90a")[:2]
    gemm_traffic.count(list(kernels), (64, 128, 256), 8, gemm_traffic.METRICS)
    ((target, flush),) = asked
    assert target[1:] == [
        "-m",
        "labkernels.studies.gemm.once",
        "64",
        "128",
        "256",
        *(k.name for k in kernels),
        "--swizzle",
        "8",
    ]
    assert flush


def test_controls_run_only_where_asked():
    class Fake:
        kernels = family.family("sm_90a")

        def resident_clusters(self, kernel):
            return {1: 132, 2: 66, 4: 30}[kernel.cluster_size]

    shape = (8192, 8192, 8192)
    plain = candidates(Fake(), "bf16", shape, PRESETS["held_out"], 132)
    full = candidates(Fake(), "bf16", shape, PRESETS["full"], 132)
    assert {c.kernel.transport for c in plain if c.kernel} == {"multicast"}
    assert {c.kernel.transport for c in full if c.kernel} == set(family.TRANSPORTS)
    assert {c.sms for c in full} == {132, 120}, "no cluster on as many SMs as clusters of four keep"
    assert sum(c.kernel is None for c in full) == 1
