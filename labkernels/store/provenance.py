"""Whether stored rows were made by the kernels that are here now."""

import hashlib
from collections.abc import Iterable
from functools import cache

from labkernels.kernels.registry import KernelSpec, kernels
from labkernels.kernels.render import render
from labkernels.store import RUNS, Store


def kernels_sha256(names: Iterable[str], arch: str) -> str | None:
    """Hash over the PTX of some kernels, as a run stores it; None if one of them does not exist (any more)."""
    hashes = [_ptx_sha256(name, arch) for name in names]
    return digest(one for one in hashes if one) if hashes and None not in hashes else None


@cache
def _ptx_sha256(name: str, arch: str) -> str | None:
    """Hash of a kernel's PTX; None if there is no such kernel."""
    spec = _known().get(name)
    return hashlib.sha256(render(spec, arch).encode()).hexdigest() if spec else None


@cache
def _known() -> dict[str, KernelSpec]:
    return {spec.name: spec for spec in kernels()}


def digest(ptx_sha256: Iterable[str]) -> str:
    """One hash over the hashes of several PTX texts, whatever their order."""
    return hashlib.sha256("".join(sorted(set(ptx_sha256))).encode()).hexdigest()


def kernels_unchanged(store: Store) -> dict[str, bool | None]:
    """For each run: are its kernels' PTX what it measured? None where the kernels are not the project's own."""
    runs = store.read(RUNS).set_index("run_id")
    names: dict[str, set[str]] = {}
    for table, schema in store.tables.items():
        if schema.of_run and "kernel" in schema.columns:
            for run_id, kernel in store.read(table).groupby("run_id")["kernel"]:
                names.setdefault(str(run_id), set()).update(kernel)
    answers: dict[str, bool | None] = {}
    for run_id, row in runs.iterrows():
        now = kernels_sha256(names.get(str(run_id), ()), f"sm_{row['compute_capability'].replace('.', '')}a")
        answers[str(run_id)] = None if now is None else now == row["kernels_sha256"]
    return answers
