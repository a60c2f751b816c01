import subprocess
from types import SimpleNamespace

import pytest

from labkernels.errors import LabError
from labkernels.kernels import sass
from labkernels.mechanisms import MECHANISMS
from labkernels.paths import DATA
from labkernels.production import catalog, charts, library_kernels, source_rules, sources
from labkernels.store import Store
from labkernels.store.values import render


@pytest.fixture(scope="module")
def kernels():
    return catalog.flash_kernels(Store().read("fa3_census"))


@pytest.fixture(scope="module")
def operands():
    return Store().read("operands")


def test_census_holds_every_attention_kernel_once(kernels):
    assert (kernels.direction == "forward").sum() == 103
    assert (kernels.direction == "backward").sum() == 48
    assert not kernels.kernel.duplicated().any()
    assert set(kernels.arch) == {"sm_90a"}


@pytest.mark.parametrize("rule", source_rules.RULES, ids=lambda rule: rule.id)
def test_source_rule_holds_for_every_kernel(kernels, rule):
    spoken_of = kernels[rule.applies(kernels)]
    assert len(spoken_of)
    assert spoken_of[~rule.holds(spoken_of)].label.tolist() == []


# What makes each rule wrong: a column of the census, and what to put there.
REFUTATIONS = {
    "paged_gather": {"tma_loads": 1},
    "append_by_tma": {"tma_tile": 0},
    "kv_by_tma": {"tma_loads": 0},
    "packed_q": {"cp_async": 1, "pack_gqa": False},
    "output_by_tma": {"tma_store": 2, "varlen": True},
    "multicast_is_cluster": {"tma_multicast": 0, "cluster_m": 2},
    "cluster_conditions": {"causal": True},
    "no_multicast_in_serving": {"tma_multicast": 16},
    "gather_packs_heads": {"pack_gqa": False},
    "append_is_varlen": {"varlen": False},
    "tile_table": {"tile_n": 144},
    "no_power_of_two_page": {"tile_n": 128},
    "no_other_mechanism": {"dsm_load": 1},
    "load_rank": {"opcodes": "UTMALDG.4D=2 UTMALDG.3D=1"},
    "store_rank": {"opcodes": "UTMASTG.4D=2"},
    "gather_width": {"opcodes": "LDGSTS.E.64=4"},
    "backward_loads": {"cp_async": 1},
    "backward_reduces": {"bulk_reduce": 0},
    "backward_stores": {"tma_store": 4, "gqa": True},
}


@pytest.mark.parametrize("rule", source_rules.RULES, ids=lambda rule: rule.id)
def test_source_rule_can_be_refuted(kernels, rule):
    false = kernels[rule.applies(kernels)].assign(**REFUTATIONS[rule.id])
    assert not rule.holds(false).any()


# The same kernels counted in the output of cuobjdump -sass: bf16, head dim 128, sliding window.
COUNTED = [
    ({}, (18, 0, 2, 0, 5, 11, 0)),
    ({"varlen"}, (18, 0, 0, 0, 35, 19, 0)),
    ({"varlen", "pack_gqa"}, (16, 0, 0, 16, 36, 1, 18)),
    ({"varlen", "pack_gqa", "paged_cp_async"}, (0, 0, 0, 80, 32, 1, 18)),
    ({"varlen", "pack_gqa", "split"}, (16, 0, 0, 16, 41, 1, 50)),
    ({"varlen", "pack_gqa", "split", "paged_cp_async"}, (0, 0, 0, 80, 36, 1, 50)),
    ({"varlen", "pack_gqa", "append"}, (24, 0, 0, 16, 68, 33, 18)),
    ({"varlen", "pack_gqa", "append", "paged_cp_async"}, (8, 0, 0, 136, 66, 1, 50)),
]
FLAGS = ["varlen", "pack_gqa", "paged_cp_async", "split", "append", "softcap", "causal", "has_qv"]
COLUMNS = ["tma_loads", "tma_multicast", "tma_store", "cp_async", "ldg", "stg", "generic_store"]


@pytest.mark.parametrize(("flags", "counts"), COUNTED, ids=lambda value: "-".join(map(str, sorted(value))))
def test_counts_agree_with_another_disassembly(kernels, flags, counts):
    rows = kernels[(kernels.direction == "forward") & (kernels["dtype"] == "bf16") & kernels.local]
    for flag in FLAGS:
        rows = rows[rows[flag] == (flag in flags)]
    assert [tuple(row) for row in rows[COLUMNS].to_numpy()] == [counts]


def test_unmasked_pair_differs_by_multicast_alone(kernels):
    rows = kernels[(kernels.direction == "forward") & (kernels["dtype"] == "bf16")]
    for flag in [*FLAGS, "local"]:
        rows = rows[~rows[flag]]
    counts = rows.set_index("cluster_m")[["tma_loads", "tma_multicast", "tma_store", "ldg", "stg"]]
    assert counts.loc[1].tolist() == [18, 0, 2, 5, 2]
    assert counts.loc[2].tolist() == [18, 16, 2, 5, 2]


def test_a_new_mechanism_changes_no_stored_table():
    table, stored = Store().tables["fa3_census"], Store().records("fa3_census")
    printed = [row | {"new_mechanism": 0} for row in stored]
    assert catalog.as_stored(printed, table.columns) == stored
    assert render(table, stored) == (DATA / table.path).read_bytes()
    printed[3]["new_mechanism"] = 2
    with pytest.raises(LabError, match="use new_mechanism, for which fa3_census has no column: add it"):
        catalog.as_stored(printed, table.columns)


COUNTED_COLUMNS = [
    f.name for f in Store().tables["fa3_census"].fields if f.name in {*MECHANISMS, *sass.FEATURES}
]


@pytest.mark.parametrize("name", COUNTED_COLUMNS)
def test_columns_are_sums_of_opcodes(name):
    census = Store().read("fa3_census")
    for row in census.itertuples():
        words = [word.split("=") for word in str(row.opcodes).split() if "=" in word]
        assert getattr(row, name) == sum(int(n) for op, n in words if sass.mechanism(op) == name)


def test_every_operand_says_where_it_was_read(operands):
    assert set(operands.system) == set(sources.REPOSITORIES) == set(charts.SYSTEMS)
    assert operands[operands.system != "vLLM"].groupby("system").commit.nunique().max() == 1
    assert {"sm_90", "sm_100"} == set(operands[operands.system == "CUTLASS"].arch)
    files, lines = operands.path.str.split("; "), operands.lines.str.split("; ")
    assert (files.str.len() <= lines.str.len()).all()
    assert (operands.quote.str.split(sources.BETWEEN).str.len() == files.str.len()).all()
    assert not operands.condition.str.contains("as FA3").any()
    assert (operands.reason.isna() == operands.reason_inferred.isna()).all()
    assert not operands.duplicated().any()


def test_operand_features_are_consistent(operands):
    tma = operands.mechanism.str.startswith(("tma", "bulk"), na=False)
    assert (operands[tma].alignment_bytes.dropna() == 16).all()
    indexed = operands.access == "indexed"
    assert operands[indexed].index_granularity.notna().all()
    assert operands[~indexed].index_granularity.isna().all()
    # One tensor load brings rows from different places on Blackwell alone; else each row is a copy of its own.
    scattered = operands[tma & (operands.index_granularity == "row")]
    assert scattered.variant.str.contains("one row|gather4").all()
    assert not scattered[scattered.arch == "sm_90"].variant.str.contains("gather4").any()
    assert (
        operands.row_bytes_min.dropna()
        <= operands.row_bytes_max[operands.row_bytes_min.notna()].fillna(10**9)
    ).all()
    assert (operands[operands.mechanism == "tma_multicast"].fan_out.dropna() > 1).all()
    assert (operands[operands.mechanism == "cp_async"].fan_out.dropna() == 1).all()


def test_source_catalog_and_compiled_code_name_the_same_mechanisms(kernels, operands):
    """FlashAttention-3's attention kernels use the mechanisms that its operands list, all and no others."""
    flash = operands[operands.system == "FlashAttention-3"]
    for direction, family in (("forward", ("fwd_sm90", "fwd_sm90_append")), ("backward", ("bwd_sm90",))):
        used = {
            m for m in COUNTED_COLUMNS if m in MECHANISMS and kernels[kernels.direction == direction][m].any()
        }
        listed = set(flash[flash.kernel.isin(family)].mechanism.dropna()) - {"atomic"}
        assert used == listed


@pytest.mark.parametrize("reading", catalog.READINGS, ids=lambda reading: reading.sentence)
def test_reading_is_a_tendency_with_its_counter_examples(operands, reading):
    row = catalog.counter_examples(operands).set_index("sentence").loc[reading.sentence]
    spoken_of = operands.query(reading.scope)
    assert row.follow + row.contradict == len(spoken_of)
    assert row.follow
    assert bool(row.examples) == bool(row.contradict)


def test_verdicts_count_exceptions(kernels):
    good = source_rules.verdicts(kernels)
    assert not good.exceptions.any()
    assert good.kernels.all()
    bad = source_rules.verdicts(kernels.assign(tma_multicast=1)).set_index("id")
    assert bad.exceptions["no_multicast_in_serving"] == bad.kernels["no_multicast_in_serving"]


def test_a_quote_is_looked_for_where_it_is_said_to_stand(tmp_path):
    lines = ("first", "second", "third", "fourth")
    assert sources.within(lines, "1;3-4") == ["first", "third", "fourth"]
    assert sources.within(lines, "all") == list(lines)
    with pytest.raises(sources.SourceError, match="line 5 of 4"):
        sources.within(lines, "4-5")


def test_a_moved_line_and_a_missing_clone_are_named(tmp_path, operands):
    clone = tmp_path / "quack"
    (clone / "quack").mkdir(parents=True)
    row = operands[operands.system == "quack"].head(1)
    (clone / row.path.iloc[0]).write_text("nothing\n" * 999)
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    faults, missing = sources.wrong(row.assign(commit=head), tmp_path)
    assert len(faults) == 1 and "does not say" in faults[0] and not missing
    assert sources.wrong(operands[operands.system == "vLLM"], tmp_path)[1][0].startswith("vLLM (")


@pytest.fixture(scope="module")
def library():
    return Store().read("library_kernels")


def test_every_library_with_a_wheel_has_twenty_kernels_that_agree(library):
    judged = library_kernels.verdicts(library).set_index("id")
    assert judged.kernels.gt(0).all()
    for name, rows in library.groupby("library"):
        agree = sum(
            rows[one.applies(rows)][one.holds(rows[one.applies(rows)])].kernels.sum()
            for one in library_kernels.WITNESSES
            if one.applies(rows).any()
        )
        assert agree >= 20, name
    # vLLM's fork of FlashMLA has a prefill kernel of its own for few heads, by cp.async alone.
    against = judged[judged.exceptions > 0]
    assert list(against.index) == ["mla_sparse_prefill"] and "small_heads" in against.which.iloc[0]


@pytest.mark.parametrize("witness", library_kernels.WITNESSES, ids=lambda one: one.id)
def test_a_condition_can_be_refuted(library, witness):
    rows = library[witness.applies(library)]
    other = rows.uses.where(~rows.uses.str.contains("dsm_store|tma_multicast"), "ldg")
    other = other.where(other.ne(rows.uses), "ldg tma_multicast dsm_store")
    assert not witness.holds(rows.assign(uses=other)).any()


NAMES = {
    "cutlass::device_kernel<vllm::cutlass_3x_gemm<cute::tuple<cute::C<64>, cute::C<16>, cute::C<256> >, "
    "cute::tuple<cute::C<1>, cute::C<4>, cute::C<1> >, cutlass::gemm::KernelTmaWarpSpecializedFP8FastAccum, "
    "cutlass::epilogue::TmaWarpSpecialized>::GemmKernel>": (
        64,
        16,
        1,
        4,
        "KernelTmaWarpSpecializedFP8FastAccum",
    ),
    "cutlass::device_kernel<G<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<4, cute::tuple<cute::C<2>, cute::C<1>, "
    "cute::C<1> >, cutlass::gemm::KernelTmaWarpSpecializedPingpong>, cute::tuple<cute::C<128>, cute::C<256>, "
    "cute::C<64> >, cutlass::bfloat16_t> >": (128, 256, 2, 1, "KernelTmaWarpSpecializedPingpong"),
}


@pytest.mark.parametrize("name", NAMES)
def test_tile_and_cluster_are_read_from_a_name(name):
    said = library_kernels.described(name)
    assert (
        tuple(said[key] for key in ("tile_m", "tile_n", "cluster_m", "cluster_n", "variant")) == NAMES[name]
    )
    assert library_kernels.described(name.replace("Sm90", "Sm100")) is None or "Sm90" not in name


def test_kernels_that_are_alike_are_counted_together():
    def kernel(heads, **counts):
        name = (
            f"sm90::decode::sparse::flash_fwd_splitkv_mla<sm90::KernelTemplate<(ModelType)0, {heads}>, int>"
        )
        return SimpleNamespace(kernel=name, mechanisms=tuple(counts.items()))

    rows = library_kernels.grouped(
        "FlashMLA",
        "w",
        [kernel(64, ldg=2), kernel(64, ldg=9), kernel(128, ldg=1, dsm_store=3), kernel(128)],
    )
    assert [(row["variant"], row["uses"], row["kernels"]) for row in rows] == [
        ("128 heads", "ldg dsm_store", 1),
        ("64 heads", "ldg", 2),
    ]


def test_shares_of_cluster_shapes_add_up(library):
    shapes = library_kernels.clusters(library)
    assert shapes.groupby("library").share.sum().round(9).eq(1).all()
    assert {"vLLM", "SGLang", "FBGEMM"} <= set(shapes.library)
