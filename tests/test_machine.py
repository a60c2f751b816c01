"""The page of runs: which of them the book shows, and what it says of their kernels."""

import pytest

from labkernels.book import machine
from labkernels.book.chapter import Chapter
from labkernels.store import Store, datasheet
from labkernels.studies.experiments import studies


@pytest.fixture(scope="module")
def chapter():
    annotations = {"measure": bool, "gpu": str}
    return Chapter({"__annotations__": annotations, "measure": False, "gpu": ""}, *studies())


@pytest.fixture(scope="module")
def runs(chapter):
    return machine.runs(chapter.store, chapter.gpu)


def test_what_a_chapter_shows_is_among_the_shown_runs(chapter, runs):
    shown = set(runs.loc[runs["shown"], "run_id"])
    assert set(chapter.stored_runs()["run_id"]) <= shown
    assert set(chapter.stored("gemm", preset="held_out")["run_id"]) <= shown
    assert len(shown) < len(runs)


def test_the_lead_counts_the_shown_runs_and_names_what_has_changed(runs):
    shown = runs[runs["shown"]]
    assert machine.lead(runs).startswith(f"Of the {len(shown)} runs that it shows, ")
    of = shown.index[shown["experiment"].eq("throughput")][0]
    fresh, stale = (
        runs.assign(kernels=runs["kernels"].where(runs.index != of, word))
        for word in ("unchanged", "changed since")
    )
    assert (
        "changed since: " not in machine.lead(fresh)
        or "throughput" not in machine.lead(fresh).split("since: ")[1]
    )
    assert (
        "changed since: " in machine.lead(stale) and "throughput" in machine.lead(stale).split("since: ")[1]
    )
    older = runs.index[~runs["shown"]][0]
    changed = runs.assign(kernels=runs["kernels"].where(runs.index != older, "changed since"))
    assert machine.lead(changed) == machine.lead(runs)


def test_peaks_are_the_data_sheets_and_of_an_unknown_gpu_there_are_none():
    assert datasheet("NVIDIA H200").memory == "4.8 TB/s"
    assert datasheet("H100 SXM5") == datasheet("NVIDIA H100 80GB HBM3")
    assert datasheet("NVIDIA H9999") is None
    assert Store().read("gpus")["source"].str.len().gt(0).all()
