"""Rows know whether the kernels that made them are still the same."""

from labkernels.kernels.build import assemble
from labkernels.kernels.registry import kernel
from labkernels.store import RUNS, Store
from labkernels.store.provenance import digest, kernels_sha256, kernels_unchanged


def test_the_hash_of_names_is_the_hash_of_what_is_assembled():
    specs = [kernel("tma_bulk", "issue", per_copy="copy"), kernel("cp_async", "issue")]
    built = [assemble(spec).ptx_sha256 for spec in specs]
    assert kernels_sha256([spec.name for spec in specs], "sm_90a") == digest(built) == digest(reversed(built))


def test_a_kernel_that_is_gone_has_no_hash():
    assert kernels_sha256(["tma_bulk.issue", "tma_bulk.gone"], "sm_90a") is None
    assert kernels_sha256([], "sm_90a") is None


def test_every_run_is_answered_for():
    store = Store()
    answers = kernels_unchanged(store)
    assert set(answers) == set(store.read(RUNS).run_id)
    assert set(answers.values()) <= {True, False, None}
