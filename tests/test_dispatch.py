"""The dispatch rules against the published tables, written down here a second time as tables."""

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from labkernels.cli import main
from labkernels.errors import BadArgument
from labkernels.forms import entries
from labkernels.mechanisms import MECHANISMS
from labkernels.production import fa3, fa4
from labkernels.production.attention import AttentionCall

# (bytes, head_dim, head_dim_v) -> tiles: unmasked, causal, local, gathered, gathered local
FA3_TILES = {
    (2, 64, 64): ((192, 192), (192, 128), (192, 128), (192, 128), (192, 128)),
    (2, 64, 256): ((128, 96),) * 5,
    (2, 64, 512): ((64, 64),) * 5,
    (2, 96, 96): ((192, 144), (192, 144), (192, 128), (192, 128), (192, 128)),
    (2, 128, 128): ((128, 176), (128, 128), (128, 128), (128, 128), (128, 128)),
    (2, 192, 128): ((128, 128), (128, 128), (128, 96), (128, 96), (128, 96)),
    (2, 192, 192): ((128, 112), (128, 112), (128, 96), (128, 96), (128, 96)),
    (2, 256, 256): ((128, 80), (128, 80), (128, 64), (128, 80), (128, 64)),
    (1, 64, 64): ((192, 160),) * 5,
    (1, 96, 96): ((192, 128),) * 5,
    (1, 128, 128): ((128, 224), (128, 224), (128, 224), (128, 160), (128, 160)),
    (1, 192, 192): ((128, 160), (128, 160), (128, 160), (128, 160), (128, 128)),
    (1, 192, 128): ((128, 160), (128, 160), (128, 160), (128, 160), (128, 128)),
    (1, 256, 256): ((128, 128), (128, 128), (128, 64), (128, 128), (128, 64)),
}
# with softcap and a local mask, the tile of keys where it differs: not gathered, gathered
FA3_SOFTCAP_LOCAL = {(1, 128, 128): (192, 160), (1, 192, 192): (128, 128), (1, 192, 128): (128, 128)}

FA4_TILES = {  # (head_dim, head_dim_v) -> unmasked, causal, local
    (64, 64): ((192, 128),) * 3,
    (96, 96): ((192, 144), (192, 128), (192, 128)),
    (128, 128): ((128, 128),) * 3,
    (192, 128): ((128, 128), (128, 128), (128, 96)),
    (192, 192): ((128, 112), (128, 112), (128, 96)),
    (256, 256): ((128, 80), (128, 80), (128, 64)),
}

PAGES = (None, 1, 8, 16, 32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256, 352, 512)
SWITCHES = ("causal", "local", "varlen", "cache_seqlens", "append", "leftpad", "softcap")


@st.composite
def problems(draw, shapes):
    element_bytes, head_dim, head_dim_v = draw(st.sampled_from(sorted(shapes)))
    kv_heads = draw(st.sampled_from((1, 2, 8)))
    return {
        "dtype": "fp8" if element_bytes == 1 else draw(st.sampled_from(("bf16", "fp16"))),
        "head_dim": head_dim,
        "head_dim_v": head_dim_v,
        "kv_heads": kv_heads,
        "heads": kv_heads * draw(st.sampled_from((1, 2, 3, 4, 8, 16, 128))),
        "seqlen_q": draw(st.one_of(st.integers(1, 400), st.sampled_from((1, 2, 1024, 2048, 4096)))),
        "page_size": draw(st.sampled_from(PAGES)),
        "num_splits": draw(st.sampled_from((1, 1, 2, 16))),
        "packing": draw(st.sampled_from(("auto", "auto", "yes", "no"))),
        **{name: draw(st.booleans()) for name in SWITCHES},
    }


def expected_tile(problem, gathered):
    key = (1 if problem["dtype"] == "fp8" else 2, problem["head_dim"], problem["head_dim_v"])
    causal, local = problem["causal"] and not problem["local"], problem["local"]
    keeps_mask = problem["page_size"] and 64 < problem["head_dim"] <= 128
    if problem["seqlen_q"] == 1 and not keeps_mask:
        causal = False
    column = (3 + local) if gathered else 2 if local else int(causal)
    tile_m, tile_n = FA3_TILES[key][column]
    if problem["softcap"] and local and key in FA3_SOFTCAP_LOCAL:
        tile_n = FA3_SOFTCAP_LOCAL[key][gathered]
    return tile_m, tile_n, causal, local


@settings(max_examples=3000, deadline=None)
@given(problems(FA3_TILES))
def test_fa3_agrees_with_its_rules(problem):
    choice = fa3.choose(AttentionCall(**problem))
    paged = problem["page_size"] is not None
    packed_rows = problem["seqlen_q"] * problem["heads"] // problem["kv_heads"]
    tile_m, tile_n, causal, local = expected_tile(problem, gathered=False)
    by_tma = not paged or (
        not problem["leftpad"]
        and not problem["append"]
        and problem["page_size"] % tile_n == 0
        and packed_rows > tile_m
    )
    tile_m, tile_n, causal, local = expected_tile(problem, gathered=not by_tma)
    assert (choice.tile_m, choice.tile_n) == (tile_m, tile_n)
    assert choice.k == choice.v
    assert (choice.k == "cp_async") == (not by_tma)

    if not by_tma or problem["num_splits"] > 1:
        assert choice.pack_gqa
    elif problem["packing"] != "auto":
        assert choice.pack_gqa == (problem["packing"] == "yes")
    elif problem["heads"] == problem["kv_heads"]:
        assert not choice.pack_gqa
    elif problem["varlen"]:
        assert choice.pack_gqa
    else:
        share = problem["seqlen_q"] / (-(-problem["seqlen_q"] // tile_m) * tile_m)
        packed_share = packed_rows / (-(-packed_rows // tile_m) * tile_m)
        assert choice.pack_gqa == (share < 0.9 * packed_share)

    varlen = any(problem[name] for name in ("varlen", "cache_seqlens", "append", "leftpad"))
    split = problem["num_splits"] > 1
    multicast_size = problem["head_dim"] == 192 if problem["dtype"] == "fp8" else problem["head_dim"] >= 128
    rows = packed_rows if choice.pack_gqa else problem["seqlen_q"]
    clustered = (
        multicast_size
        and not (causal or local or split or varlen or not by_tma)
        and -(-rows // tile_m) % 2 == 0
    )
    assert choice.cluster_m == (2 if clustered else 1)
    assert (choice.k == "tma_multicast") == clustered
    assert choice.q == ("cp_async" if choice.pack_gqa else "tma_tile")
    assert choice.o == ("stg" if varlen or split or choice.pack_gqa else "tma_store")
    assert choice.num_splits == problem["num_splits"]
    assert all(choice.reasons[name] for name in vars(choice) if name != "reasons")
    assert {choice.k, choice.v, choice.q, choice.o} <= set(MECHANISMS)


@settings(max_examples=1000, deadline=None)
@given(problems({(2, *dims) for dims in FA4_TILES}))
def test_fa4_agrees_with_its_rules(problem):
    problem |= {"append": False, "leftpad": False, "num_splits": 1}
    choice = fa4.choose(AttentionCall(**problem))
    column = 2 if problem["local"] else int(problem["causal"])
    tile_m, tile_n = FA4_TILES[problem["head_dim"], problem["head_dim_v"]][column]
    ratio = problem["heads"] // problem["kv_heads"]
    assert (choice.tile_m, choice.tile_n, choice.cluster_m) == (tile_m, tile_n, 1)
    assert choice.k == choice.v == ("tma_tile" if problem["page_size"] in (None, tile_n) else "cp_async")
    assert choice.pack_gqa == (ratio > 1 if problem["packing"] == "auto" else problem["packing"] == "yes")
    boxes = not choice.pack_gqa or tile_m % ratio == 0
    assert (choice.q, choice.o) == (("tma_tile", "tma_store") if boxes else ("cp_async", "stg"))


@pytest.mark.parametrize("page_size", (16, 32, 64, 128, 256))
@pytest.mark.parametrize("shape", sorted(FA3_TILES), ids=str)
def test_fa3_takes_tma_for_pages_of_a_power_of_two_only_where_a_tile_is_one(shape, page_size):
    element_bytes, head_dim, head_dim_v = shape
    for causal, local in ((False, False), (True, False), (False, True)):
        call = AttentionCall(
            dtype="fp8" if element_bytes == 1 else "bf16",
            head_dim=head_dim,
            head_dim_v=head_dim_v,
            causal=causal,
            local=local,
            heads=32,
            kv_heads=8,
            seqlen_q=2048,
            page_size=page_size,
        )
        choice = fa3.choose(call)
        if choice.k != "cp_async":
            assert choice.tile_n in (64, 128)


def call_of(**changes):
    return AttentionCall(**{"causal": True, "heads": 32, "kv_heads": 8} | changes)


def ratio_four(**changes):
    return fa3.choose(call_of(**changes))


def test_fa3_gathers_until_the_query_tile_is_more_than_full():
    assert ratio_four(seqlen_q=32, page_size=128).k == "cp_async"
    assert ratio_four(seqlen_q=33, page_size=128).k == "tma_tile"


def test_fa3_drops_the_causal_mask_of_one_query_row_except_where_it_would_lose_tma():
    assert ratio_four(seqlen_q=1).tile_n == 176
    assert ratio_four(seqlen_q=1, page_size=128).tile_n == 128
    assert ratio_four(seqlen_q=1, head_dim=256).tile_n == 80


def test_fa3_reasons_name_every_obstacle():
    reason = ratio_four(seqlen_q=1, page_size=16, leftpad=True, append=True).reasons["k"]
    assert all(word in reason for word in ("leftpad", "appended", "16 rows", "seqlen_q × ratio = 4"))


def test_lengths_of_the_keys_alone_change_the_kernel_and_pack_nothing():
    """`flash_attn_with_kvcache(cache_seqlens=...)`, queries of one length: the kernel for lengths that differ."""
    shape = {"causal": False, "seqlen_q": 256}
    plain, lengths, ragged = (
        ratio_four(**shape, **more) for more in ({}, {"cache_seqlens": True}, {"varlen": True})
    )
    assert (plain.k, plain.o, plain.pack_gqa) == ("tma_multicast", "tma_store", False)
    assert (lengths.k, lengths.q, lengths.o, lengths.pack_gqa) == ("tma_tile", "tma_tile", "stg", False)
    assert (ragged.k, ragged.q, ragged.o, ragged.pack_gqa) == ("tma_tile", "cp_async", "stg", True)


def test_fullness_is_compared_in_single_precision():
    """576 of 640 rows, packed 1152 of 1152: 0.9 as a float is below 0.9, so FlashAttention-3 packs."""
    assert fa3.choose(call_of(heads=16, kv_heads=8, causal=False, seqlen_q=576)).pack_gqa


def test_the_host_plans_with_the_tile_of_v_s_own_head_dim():
    """Head dims 64 and 192: planned as 192 x 128, so pages of 128 go by TMA; the kernel's tile is 128 x 96."""
    choice = ratio_four(head_dim=64, head_dim_v=192, seqlen_q=5627, page_size=128)
    assert (choice.k, choice.tile_m, choice.tile_n) == ("tma_tile", 128, 96)


SPLIT = {"num_splits": 0, "page_size": 128, "batch": 1, "seqlen_k": 8192}


@settings(max_examples=300, deadline=None)
@given(
    batch=st.integers(1, 64),
    seqlen_k=st.integers(1, 200_000),
    seqlen_q=st.integers(1, 300),
    sm_count=st.sampled_from((78, 114, 132)),
    cache_seqlens=st.booleans(),
)
def test_fa3_splits_only_to_fill_the_gpu(batch, seqlen_k, seqlen_q, sm_count, cache_seqlens):
    given = {"batch": batch, "seqlen_k": seqlen_k, "seqlen_q": seqlen_q, "sm_count": sm_count}
    choice = ratio_four(**SPLIT | given, cache_seqlens=cache_seqlens)
    splits = choice.num_splits
    blocks = -(-seqlen_k // choice.tile_n)
    total = (1 if cache_seqlens else batch) * 8 * -(-seqlen_q * 4 // choice.tile_m)
    if total >= 0.8 * sm_count or blocks <= 4:
        assert splits == 1
        return

    def efficiency(parts):
        waves = total * parts / sm_count
        return waves / -(-total * parts // sm_count)

    most = min(128, sm_count, blocks)
    best = max(efficiency(parts) for parts in range(1, most + 1))
    assert 1 <= splits <= most
    assert efficiency(splits) >= 0.85 * best - 1e-6
    assert all(efficiency(parts) < 0.85 * best + 1e-6 for parts in range(1, splits))


def test_fa3_s_own_split_decides_how_q_and_o_move():
    given = {"heads": 8, "kv_heads": 8, "seqlen_q": 1}
    one = fa3.choose(call_of(**given))
    assert (one.q, one.o, one.pack_gqa) == ("tma_tile", "tma_store", False)
    chosen = fa3.choose(call_of(**given, num_splits=0, batch=1, seqlen_k=8192))
    assert chosen.num_splits > 1
    assert (chosen.q, chosen.o, chosen.pack_gqa) == ("cp_async", "stg", True)


def test_fa3_splits_long_unmasked_heads_by_what_l2_holds():
    given = {"seqlen_q": 16384, "num_splits": 0, "batch": 1}
    assert ratio_four(**given, causal=False, seqlen_k=250_000).num_splits == 3
    assert ratio_four(**given, causal=True, seqlen_k=250_000).num_splits == 1
    assert ratio_four(**given, causal=False, seqlen_k=100_000).num_splits == 1


def test_a_window_bounds_the_keys_that_are_split():
    given = SPLIT | {"seqlen_q": 1, "local": True}
    assert ratio_four(**given, window=256).num_splits == 1
    assert ratio_four(**given, window=8192).num_splits > 1


BAD = [
    ({"dtype": "fp32"}, "dtype is 'fp32'"),
    ({"heads": 30}, "heads is 30, not a multiple of kv_heads 8"),
    ({"kv_heads": 0}, "kv_heads is 0"),
    ({"seqlen_q": 0}, "seqlen_q is 0"),
    ({"page_size": 0}, "page_size is 0"),
    ({"num_splits": -1}, "num_splits is -1"),
    ({"num_splits": 0}, "num_splits is 0, so that the library chooses it, and batch is not given"),
    ({"num_splits": 0, "batch": 2}, "and seqlen_k is not given: give it"),
    ({"num_splits": 0, "batch": 2, "seqlen_k": 9, "local": True}, "and window is not given: give it"),
    ({"num_splits": 1_000_000}, "num_splits is 1000000, FlashAttention-3 refuses more than 256"),
    ({"heads": 10**400}, "heads is a number of more than 20 digits, above the limit of 2147483647"),
    ({"causal": 1}, "causal is 1, not true or false"),
    ({"seqlen_q": 1.5}, "seqlen_q is 1.5, not a whole number"),
    ({"head_dim": 100}, "head_dim is 100, not a multiple of 8: pad it to 104"),
    ({"head_dim": 264}, "head_dim is 264"),
    ({"head_dim_v": 64}, "head_dim_v is 64 for head_dim 128"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=str)
def test_bad_values_are_refused_by_name(changes, message):
    with pytest.raises(BadArgument, match=message):
        ratio_four(**({"seqlen_q": 1} | changes))


FA4_REFUSES = (
    {"dtype": "fp8"},
    {"append": True},
    {"leftpad": True},
    {"num_splits": 2},
    {"head_dim_v": 512, "head_dim": 64},
    {"head_dim": 72, "page_size": 16},
    {"head_dim_v": 72, "page_size": 16},
)


@pytest.mark.parametrize("changes", FA4_REFUSES, ids=str)
def test_fa4_refuses_what_it_does_not_have(changes):
    problem = {"dtype": "bf16", "head_dim": 128, "heads": 8, "kv_heads": 8, "seqlen_q": 1} | changes
    with pytest.raises(BadArgument, match=f"^{next(iter(changes))} is "):
        fa4.choose(AttentionCall(**problem))


def test_fa4_pads_head_dims_where_tma_brings_the_keys():
    problem = {"head_dim": 72, "heads": 8, "kv_heads": 8, "seqlen_q": 1}
    assert fa4.choose(AttentionCall(**problem, page_size=144)).k == "tma_tile"
    assert fa4.choose(AttentionCall(**problem)).k == "tma_tile"


GIVEN = ["fa3", "--heads", "32", "--kv-heads", "8", "--seqlen-q", "2048", "--page-size", "128", "--causal"]


def test_command_line_gives_every_field_and_its_reason(capsys):
    assert main(["dispatch", *GIVEN, "--json"]) == 0
    choice = json.loads(capsys.readouterr().out)
    assert choice == vars(ratio_four(seqlen_q=2048, page_size=128))
    assert main(["dispatch", *GIVEN]) == 0
    text = capsys.readouterr().out
    assert all(f"{name} " in text and reason in text for name, reason in choice["reasons"].items())


def test_a_refusal_names_the_options_as_they_were_typed(capsys):
    assert main(["dispatch", *GIVEN, "--kv-heads", "5"]) == 2
    said = "labkernels: --heads is 32, not a multiple of --kv-heads 5: give one that is\n"
    assert capsys.readouterr().err == said


def test_every_field_of_a_call_is_an_option_with_its_meaning(capsys):
    with pytest.raises(SystemExit):
        main(["dispatch", "fa3", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"--{one.name.replace('_', '-')} " in text for one in entries(AttentionCall))
    assert all(one.help.partition(" (")[0].replace("`", "") in text for one in entries(AttentionCall))


@given(problems(FA3_TILES))
def test_the_library_is_deterministic_and_heads_scale(problem):
    assume(problem["kv_heads"] < 8)
    double = problem | {"heads": problem["heads"] * 2, "kv_heads": problem["kv_heads"] * 2}
    assert fa3.choose(AttentionCall(**problem)) == fa3.choose(AttentionCall(**double))
