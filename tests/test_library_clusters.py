"""The names of cuBLAS's kernels, and its clusters beside the book's rule."""

import pytest

from labkernels.production import nvjet
from labkernels.store import Store
from labkernels.studies import select
from labkernels.studies.gemm import library_clusters, numbers
from labkernels.studies.gemm.findings import Rounds, with_kernels

SHARED_BYTES = 232448  # most that a CTA may have
STAGE_BYTES = 128  # of one row of an operand


@pytest.fixture(scope="module")
def names():
    return Store().read("gemm_library_kernels")


@pytest.fixture(scope="module")
def launched(names):
    return library_clusters.launches(names)


def test_a_name_is_read_in_the_axes_of_the_product():
    kernel = nvjet.parse("nvjet_sm90_tst_192x32_64x7_4x1_v_bz_splitK_TNT")
    assert (kernel.tile, kernel.cluster, kernel.cluster_size) == ((32, 192), (1, 4), 4)
    assert (kernel.k, kernel.stages, kernel.split_k, kernel.cooperative) == (64, 7, True, "")
    assert kernel.unknown == ("v", "bz")
    assert nvjet.parse("nvjet_sm90_qqtst_256x128_128x4_1x2_h_bz_coopA_TNT").cooperative == "A"


@pytest.mark.parametrize("name", ["void cutlass::device_kernel<int>", "nvjet_sm90_tst_256x128", ""])
def test_another_name_is_none(name):
    assert nvjet.parse(name) is None


def test_every_product_has_one_kernel_that_multiplies(names, launched):
    products = names[["dtype", "m", "n", "k"]].drop_duplicates()
    assert len(launched) == len(products) and not launched.duplicated(["dtype", "m", "n", "k"]).any()
    summed = names[~names["library_kernel"].isin(launched["library_kernel"])]
    assert summed["library_kernel"].str.contains("splitKreduce").all()
    assert len(summed) == launched["split_k"].sum()


def test_what_the_parts_are_said_to_mean_holds_for_every_name(names):
    for name in names["library_kernel"]:
        if (kernel := nvjet.parse(name)) is None:
            continue
        used = sum(kernel.tile) * STAGE_BYTES
        assert used * kernel.stages <= SHARED_BYTES
        assert kernel.stages == 16 or used * (kernel.stages + 1) > SHARED_BYTES - 16 * 1024  # of the epilogue
        assert kernel.layout in ("TNT", "TNN") and (kernel.layout == "TNN" or kernel.tile[1] % 64 == 0)
        assert kernel.cooperative != "B" or kernel.tile[1] // 2 % 64
        assert kernel.unknown in (("h", "bz"), ("v", "bz"))
        assert kernel.unknown[0] == "h" or kernel.cluster[0] == 1


def test_the_two_clusters_are_timed_in_one_kernel(launched):
    rounds = Rounds(with_kernels(select.require_rows(Store(), "gemm", "NVIDIA H200")))
    beside = library_clusters.beside_rule(launched, rounds)
    assert len(beside) and beside.loc[beside["same"], "library"].eq(beside.loc[beside["same"], "rule"]).all()
    assert (beside["low"].le(beside["ratio"]) & beside["ratio"].le(beside["high"])).all()
    said = numbers.library_clusters(launched, beside)
    assert said["library_clustered"] == said["library_products"] == 122
    assert said["library_pairs"] + said["library_fours"] + said["library_eights"] == 122
