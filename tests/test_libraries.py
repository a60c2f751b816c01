"""What other libraries choose: their tables written down a second time, and their compiled kernels as witnesses."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkernels.cli import main
from labkernels.errors import BadArgument
from labkernels.mechanisms import MECHANISMS
from labkernels.production import flashinfer, flashmla, gemms, quack
from labkernels.production.dispatch import LIBRARIES
from labkernels.store import Store

EXAMPLES = {
    "fa3": "--heads 8 --kv-heads 8 --seqlen-q 1",
    "fa4": "--heads 8 --kv-heads 8 --seqlen-q 1",
    "flashinfer": "--cache ragged",
    "flashmla": "--work sparse-decode",
    "deepgemm": "--m 64 --n 4096 --k 4096",
    "vllm": "--m 64 --n 4096 --k 4096",
    "sglang": "--m 64 --n 4096 --k 4096",
    "quack": "--n 4096",
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_gives_each_field_and_its_reason(library, capsys):
    arguments = ["dispatch", library, *EXAMPLES[library].split()]
    assert main([*arguments, "--json"]) == 0
    choice = json.loads(capsys.readouterr().out)
    assert choice["reasons"].keys() == choice.keys() - {"reasons"} and all(choice["reasons"].values())
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert all(reason in text for reason in choice["reasons"].values())


def mechanisms(choice):
    """Names of mechanisms among the fields of a choice."""
    return {value for value in asdict(choice).values() if isinstance(value, str)} & MECHANISMS.keys()


def stored_mechanisms(system, *kernels):
    rows = Store().read("operands")
    rows = rows[rows["system"].eq(system) & rows["kernel"].isin(kernels)]
    return set(rows["mechanism"])


@pytest.mark.parametrize(
    ("work", "kernel"),
    [
        ("dense-decode", "dense_decode_sm90"),
        ("sparse-decode", "sparse_decode_fp8_sm90"),
        ("sparse-prefill", "sparse_prefill_sm90"),
    ],
)
def test_flashmla_chooses_what_the_catalog_lists(work, kernel):
    chosen = set()
    for heads, split in ((64, False), (128, True), (128, False)):
        chosen |= mechanisms(flashmla.choose(flashmla.MlaCall(work=work, heads=heads, split=split)))
    assert chosen <= stored_mechanisms("FlashMLA", kernel)


def test_flashmla_pairs_ctas_for_128_heads_alone():
    pair, one = (
        flashmla.choose(flashmla.MlaCall(work="sparse-decode", heads=heads, head_dim=512))
        for heads in (128, 64)
    )
    assert (pair.cluster, pair.between_ctas, one.cluster, one.between_ctas) == (2, "dsm_store", 1, "none")
    dense = flashmla.choose(flashmla.MlaCall(heads=128, seqlen_q=2))
    assert (dense.k, dense.ctas_m, dense.cluster) == ("tma_tile", 4, 1)


MLA_REFUSES = [
    ({"head_dim": 128}, "head_dim is 128, FlashMLA takes 512 and 576"),
    ({"head_dim": 512}, "compiled for 576"),
    ({"page_size": 128}, "page_size is 128, the dense kernel takes pages of 64 rows"),
    ({"heads": 30, "kv_heads": 8}, "heads is 30, not a multiple of kv_heads 8"),
    (
        {"work": "sparse-decode", "heads": 32},
        "heads is 32, the sparse-decode kernel for sm_90 takes 64 or 128",
    ),
    ({"work": "sparse-decode", "kv_heads": 2}, "kv_heads is 2, the sparse kernels take 1"),
    ({"work": "sparse-prefill", "topk": 100}, "topk is 100, not a multiple of 128"),
]


@pytest.mark.parametrize(("call", "said"), MLA_REFUSES, ids=lambda value: str(value))
def test_flashmla_refuses_what_it_refuses(call, said):
    with pytest.raises(BadArgument, match=said):
        flashmla.MlaCall(**call)


def infer(**call):
    return flashinfer.choose(flashinfer.FlashInferCall(**call))


def test_flashinfer_gathers_pages_of_every_size():
    assert {infer(page_size=size).k for size in (1, 16, 64, 128, 256)} == {"cp_async"}
    assert infer(cache="ragged").k == "tma_tile" and infer().q == "tma_tile" and infer().o == "stg"


@pytest.mark.parametrize(
    ("call", "backend"),
    [
        ({}, "fa3"),
        ({"head_dim": 192, "head_dim_v": 128}, "fa3"),
        ({"head_dim": 256}, "fa3"),
        ({"head_dim": 96}, "fa2"),
        ({"custom_mask": True}, "fa2"),
        ({"positions": True}, "fa2"),
        ({"fp16_reduction": True}, "fa2"),
        ({"kv_dtype": "fp8"}, "fa2"),
        ({"kv_dtype": "fp8", "dtype": "fp8"}, "fa3"),
        ({"work": "mla"}, "mla"),
        ({"work": "decode"}, "decode"),
    ],
    ids=str,
)
def test_flashinfer_takes_its_hopper_kernels_unless_something_is_asked_that_they_lack(call, backend):
    choice = infer(**call)
    assert choice.backend == backend
    assert backend == "fa3" or choice.k == choice.v == "cp_async"
    with pytest.raises(BadArgument, match="cache is 'ragged', mla reads a paged cache"):
        infer(work="mla", cache="ragged")


@given(m=st.integers(1, 20_000), n=st.integers(1, 20_000), k=st.integers(1, 20_000))
def test_vllm_and_sglang_agree_but_for_the_largest_products(m, n, k):
    one, other = (choose(gemms.ScaledProduct(m=m, n=n, k=k)) for choose in (gemms.vllm, gemms.sglang))
    largest = m >= 8192 and k >= 6144
    assert (one == other) != largest and (one.tile == (256, 128, 128)) == largest
    assert one.b == ("tma_tile" if m <= 64 and n > 1280 else "tma_multicast") and one.a == "tma_tile"


def test_vllm_s_configurations_are_those_of_its_wheel():
    """Tile and cluster as compiled, before operands are swapped: the kernels of the wheel have the same, no others."""
    rows = Store().read("library_kernels")
    rows = rows[rows["library"].eq("vLLM") & rows["variant"].str.endswith("FP8FastAccum", na=False)]
    rows = rows[~rows["variant"].str.contains("PtrArray")]
    compiled = set(rows[["tile_m", "tile_n", "cluster_m", "cluster_n"]].itertuples(index=False, name=None))
    assert compiled == {(*tile[:2], *cluster) for tile, cluster, _, _ in gemms.FP8.values()}


@pytest.mark.parametrize(
    ("m", "n", "tile", "cluster"),
    [
        (32, 4096, (64, 64, 256), (1, 8)),
        (32, 8192, (64, 128, 256), (1, 4)),
        (33, 8192, (64, 64, 256), (1, 1)),
        (65, 512, (64, 128, 128), (2, 1)),
        (129, 512, (128, 128, 128), (2, 1)),
    ],
)
def test_vllm_s_int8_products(m, n, tile, cluster):
    choice = gemms.vllm(gemms.ScaledProduct(m=m, n=n, k=64, dtype="int8"))
    assert (choice.tile, choice.cluster) == (tile, cluster)
    assert choice.a == ("tma_multicast" if cluster[1] > 1 else "tma_tile")
    with pytest.raises(BadArgument, match="only SGLang's choice for fp8"):
        gemms.sglang(gemms.ScaledProduct(m=m, n=n, k=64, dtype="int8"))


# Given by its own C++, compiled: M, N, K, type, SMs -> tile, cluster, stages.
DEEPGEMM = [
    ((4096, 4096, 4096, "bf16", 132), (256, 128, 64), (1, 2), 3),
    ((64, 7168, 2048, "bf16", 132), (64, 64, 64), (1, 1), 13),
    ((64, 7168, 2048, "fp8", 132), (64, 64, 128), (1, 1), 13),
    ((6093, 24448, 20736, "bf16", 132), (128, 256, 64), (2, 1), 3),
    ((16, 4096, 7168, "fp8", 132), (16, 32, 128), (1, 1), 16),
]


@pytest.mark.parametrize(("asked", "tile", "cluster", "stages"), DEEPGEMM, ids=str)
def test_deepgemm_chooses_as_its_source_does(asked, tile, cluster, stages):
    choice = gemms.deepgemm(
        gemms.DeepProduct(**dict(zip(("m", "n", "k", "dtype", "sm_count"), asked, strict=True)))
    )
    assert (choice.tile, choice.cluster, choice.stages) == (tile, cluster, stages)


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 20_000),
    n=st.integers(1, 30_000),
    k=st.integers(1, 128).map(lambda k: 128 * k),
    dtype=st.sampled_from(("bf16", "fp8")),
)
def test_deepgemm_keeps_its_own_limits(m, n, k, dtype):
    choice = gemms.deepgemm(gemms.DeepProduct(m=m, n=n, k=k, dtype=dtype))
    rows, columns, depth = choice.tile
    assert 3 <= choice.stages <= 16 and min(rows, columns) <= 128 and columns % 16 == 0
    assert (rows + columns) * depth * gemms.ELEMENT_BYTES[dtype] * choice.stages <= 232448
    tiles = -(-m // rows) * -(-n // columns)
    assert choice.cluster in ((1, 1), (1, 2), (2, 1)) and (choice.cluster == (1, 1) or tiles > 132)
    assert (choice.a == "tma_multicast", choice.b == "tma_multicast") == tuple(
        c > 1 for c in choice.cluster[::-1]
    )
    with pytest.raises(BadArgument, match="sm_count is 131, DeepGEMM takes an even number: give 130"):
        gemms.DeepProduct(m=m, n=n, k=k, sm_count=131)


CLUSTERS = {  # (work, type) -> most values of a row for 1, 2, 4 and 8 CTAs, in Ki
    ("rmsnorm", "bf16"): (16, 32, 64, 128),
    ("softmax", "fp16"): (16, 32, 64, 128),
    ("rmsnorm", "fp32"): (32, 64, 128, 256),
    ("softmax", "fp32"): (32, 64, 128, 256),
    ("layernorm", "bf16"): (16, 32, 64, 128),
    ("layernorm", "fp32"): (8, 64, 128, 256),
}


@pytest.mark.parametrize("asked", CLUSTERS, ids=str)
def test_quack_shares_long_rows_among_ctas(asked):
    work, dtype = asked
    for limit, cluster, beyond in zip(CLUSTERS[asked], (1, 2, 4, 8), (2, 4, 8, 16), strict=True):
        for n, expected in ((limit * 1024, cluster), (limit * 1024 + 8, beyond)):
            choice = quack.choose(quack.RowReduction(work=work, n=n, dtype=dtype))
            assert choice.cluster == expected
            assert choice.row_sums == ("dsm_store" if expected > 1 else "none")
    assert mechanisms(choice) <= stored_mechanisms("quack", "rmsnorm_fwd")


def test_quack_gives_each_cta_columns_of_its_own():
    """A row of odd length is read value by value: no fewer CTAs; a short one in vectors of eight would be."""
    assert quack.choose(quack.RowReduction(n=16 * 1024 + 1)).cluster == 2
    assert quack.choose(quack.RowReduction(n=64)).cluster == 1
