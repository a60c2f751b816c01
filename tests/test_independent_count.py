"""The census against a count of its own, on our kernels and on those of open libraries: no category differs."""

import csv
from pathlib import Path

import independent_count as second
import ptx_samples as ptx
import pytest

from labkernels.kernels import registry, sass
from labkernels.kernels.build import assemble
from labkernels.paths import CACHE

TABLE = Path(__file__).with_name("counted_kernels.csv")
CATEGORIES = {*sass.MECHANISMS, *sass.FEATURES}


@pytest.fixture(scope="module")
def rows():
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_holds_what_was_compared(rows):
    """Up to 60 kernels of each source, evenly taken from all that were compared."""
    sources = {"triton" if row["source"].endswith(".cubin") else row["source"] for row in rows}
    assert len(rows) >= 300 and len(sources) >= 6
    assert {name for row in rows for name in second.parsed(row["counts"])} <= CATEGORIES
    assert all(len(row["cubin_sha256"]) == 64 for row in rows)
    assert len({(row["cubin_sha256"], row["kernel"]) for row in rows}) == len(rows)


def test_files_in_the_cache_give_the_table_again(rows):
    """Whoever has fetched a source (`make catalog`, pip download) counts it twice again."""
    held = [
        path for source in {row["source"] for row in rows} if (path := CACHE / "wheels" / source).is_file()
    ]
    for path in held:
        stored = {
            (row["cubin_sha256"], row["kernel"]): row["counts"] for row in rows if row["source"] == path.name
        }
        for row, found in second.compared(path, ("sm_90a",)):
            assert found == second.parsed(row["counts"])
            assert stored.get((row["cubin_sha256"], row["kernel"]), row["counts"]) == row["counts"]


@pytest.mark.parametrize("mechanism", registry.AXES)
def test_our_own_kernels_are_counted_alike(tmp_path, mechanism):
    for spec in {spec.protocol: spec for spec in registry.kernels(mechanism)}.values():
        path = tmp_path / "k.cubin"
        path.write_bytes(assemble(spec, "sm_90a").cubin)
        for row, found in second.compared(path):
            assert found == second.parsed(row["counts"]) != {}


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_every_spelling_is_counted_alike(tmp_path, arch):
    bodies = {name: ("", body) for name, body in ptx.SAMPLES.items()} | ptx.VARIANTS
    bodies |= ptx.BLACKWELL if arch == "sm_100a" else {}
    for _, body in bodies.values():
        path = tmp_path / "k.cubin"
        path.write_bytes(ptx.link(ptx.kernel([body], arch=arch), arch=arch))
        for row, found in second.compared(path):
            assert found == second.parsed(row["counts"]) != {}
