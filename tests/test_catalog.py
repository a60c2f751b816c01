import pytest

from labkernels.errors import LabError
from labkernels.kernels import sass
from labkernels.mechanisms import MECHANISMS
from labkernels.paths import DATA
from labkernels.production import catalog, source_rules
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
    assert set(operands.system) == {"FlashAttention-3", "FlashAttention-4", "CUTLASS"}
    assert operands.groupby("system").commit.nunique().max() == 1
    assert {"sm_90", "sm_100"} == set(operands[operands.system == "CUTLASS"].arch)
    files, lines = operands.path.str.split("; "), operands.lines.str.split("; ")
    assert (files.str.len() <= lines.str.len()).all()
    assert (operands.reason.isna() == operands.reason_inferred.isna()).all()
    assert not operands.duplicated().any()


def test_operand_features_are_consistent(operands):
    tma = operands.mechanism.str.startswith(("tma", "bulk"), na=False)
    assert (operands[tma].alignment_bytes.dropna() == 16).all()
    indexed = operands.access == "indexed"
    assert operands[indexed].index_granularity.notna().all()
    assert operands[~indexed].index_granularity.isna().all()
    # No system describes rows that come from different places by one tensor load.
    assert not (tma & (operands.index_granularity == "row")).any()
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
