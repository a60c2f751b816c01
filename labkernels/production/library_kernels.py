"""Compiled kernels of open libraries: what their names say of tile and cluster, and which mechanisms their code has.

`python -m labkernels.production.library_kernels FOLDER` takes the census of the wheels in FOLDER into the store.
"""

import re
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from labkernels.errors import LabError
from labkernels.mechanisms import MECHANISMS
from labkernels.production.census import KernelCensus, census
from labkernels.production.containers import Selection
from labkernels.store import Store

TABLE = "library_kernels"
HOPPER = Selection(("sm_90", "sm_90a"))


@dataclass(frozen=True)
class Wheel:
    """One wheel, and what of it is looked at.

    Attributes:
        library: its name in table `operands`.
        name: of the file, up to the first dash behind the version.
        members: libraries inside.
    """

    library: str
    name: str
    members: tuple[str, ...]


WHEELS = (
    Wheel("vLLM", "vllm-0.33.0", ("vllm/_C_stable_libtorch.abi3.so",)),
    Wheel("SGLang", "sglang_kernel-0.4.10", ("sgl_kernel/sm90/common_ops.abi3.so",)),
    Wheel(
        "FBGEMM",
        "fbgemm_gpu_genai-1.9.0",
        ("fbgemm_gpu/experimental/gen_ai/fbgemm_gpu_experimental_gen_ai.so",),
    ),
    Wheel("FlashMLA", "sgl_flash_mla-1.0.0", ("flash_mla/_C_legacy.abi3.so", "flash_mla/cuda.abi3.so")),
    Wheel("FlashMLA", "vllm-0.33.0", ("vllm/_flashmla_C.abi3.so",)),
    Wheel("DeepEP", "sgl_deep_ep-0.1.2.post1", ("deep_ep/_C.cpython-311-x86_64-linux-gnu.so",)),
    Wheel("FlashAttention-3", "fa3_fwd-0.0.3", ("fa3_fwd/_C.abi3.so",)),
    Wheel("FlashAttention-3", "vllm-0.33.0", ("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",)),
)

_SHAPE = r"cute::tuple<cute::C<(\d+)>, cute::C<(\d+)>, cute::C<(\d+)> >"
_CUTLASS = (  # tile and cluster as a collective has them, and as the types that libraries derive from it
    re.compile(rf"MainloopSm90\w+<\d+, {_SHAPE}, cutlass::gemm::(Kernel\w+)(?:<[^>]*>)?>, {_SHAPE}"),
    re.compile(rf"{_SHAPE}, {_SHAPE}, (?:[\w:]+(?:<\d+>)?, )?cutlass::gemm::(Kernel\w+)"),
)
_FLASH = re.compile(rf"CollectiveMainloop(Fwd|Bwd)Sm90<[\d, ]+, {_SHAPE}, {_SHAPE}, (?:\d+, )?cutlass::(\w+)")
_MLA = re.compile(r"flash_fwd_(?:splitkv_)?mla|get_mla_metadata|sparse_attn_fwd")
_OTHER_CHIP = re.compile(r"sm1\d\d|Sm1\d\d|SM1\d\d")


def described(name: str) -> dict[str, object] | None:
    """What a kernel's name says: `family`, `variant`, tile and cluster; None where it is of no family known here."""
    if _OTHER_CHIP.search(name):
        return None
    if flash := _FLASH.search(name):
        direction, *numbers, element = flash.groups()
        cluster, _, _, tile_m, tile_n, _ = map(int, numbers)
        shape = {"tile_m": tile_m, "tile_n": tile_n, "cluster_m": cluster, "cluster_n": 1}
        return {"family": f"FlashAttention-3 {direction}", "variant": element, **shape}
    for at, pattern in enumerate(_CUTLASS):
        if found := pattern.search(name):
            numbers = [int(one) for one in found.groups() if one.isdigit()]
            cluster, tile = (numbers[:3], numbers[3:]) if at == 0 else (numbers[3:], numbers[:3])
            schedule = next(one for one in found.groups() if not one.isdigit())
            shape = {"tile_m": tile[0], "tile_n": tile[1], "cluster_m": cluster[0], "cluster_n": cluster[1]}
            return {"family": "CUTLASS", "variant": schedule, **shape}
    if _MLA.search(name):
        heads = re.search(r"KernelTemplate<\([\w:]+\)\d+, (\d+)", name)
        return {"family": _function(name), "variant": f"{heads[1]} heads" if heads else ""}
    if name.startswith("deep_ep::"):
        return {"family": _function(name), "variant": ""}
    return None


def _function(name: str) -> str:
    return name.split("<")[0].removeprefix("legacy::")


def grouped(library: str, wheel: str, kernels: Iterable[KernelCensus]) -> list[dict[str, object]]:
    """Rows of the table: kernels that are alike in what their names say and in the mechanisms that they use.

    Kernels whose code is empty, because they are for another chip, are left out.
    """
    counted: Counter[tuple] = Counter()
    for kernel in kernels:
        said = described(kernel.kernel)
        counts = dict(kernel.mechanisms)
        uses = " ".join(name for name in MECHANISMS if counts.get(name))
        if said and uses:
            counted[(*sorted(said.items()), ("uses", uses))] += 1
    return [
        {"library": library, "wheel": wheel, **dict(key), "kernels": number}
        for key, number in sorted(counted.items(), key=str)
    ]


def clusters(table: pd.DataFrame) -> pd.DataFrame:
    """Kernels by library and cluster shape: `library`, `cluster` (along M and N), `kernels` and `share`.

    Args:
        table: Table `library_kernels`.
    """
    rows = table[table["cluster_m"].notna()]
    shape = rows["cluster_m"].astype(int).astype(str) + "×" + rows["cluster_n"].astype(int).astype(str)
    named = rows["library"].where(rows["family"].eq("CUTLASS"), rows["library"] + ", " + rows["wheel"])
    counts = rows.assign(cluster=shape, library=named).groupby(["library", "cluster"])["kernels"].sum()
    share = counts / counts.groupby("library").transform("sum")
    return pd.DataFrame({"kernels": counts, "share": share}).reset_index()


@dataclass(frozen=True)
class Witness:
    """A condition of a library's source that compiled kernels can refute.

    Attributes:
        id: short name.
        sentence: the condition.
        source: where the source says so.
        applies: rows of the table it speaks of.
        holds: for those rows, whether the code agrees.
    """

    id: str
    sentence: str
    source: str
    applies: Callable[[pd.DataFrame], pd.Series]
    holds: Callable[[pd.DataFrame], pd.Series]


def _uses(name: str) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda rows: rows["uses"].str.split().map(lambda used: name in used).astype(bool)


def _all_of(*names: str, none: tuple[str, ...] = ()) -> Callable[[pd.DataFrame], pd.Series]:
    def check(rows: pd.DataFrame) -> pd.Series:
        used = rows["uses"].str.split().map(set)
        return used.map(lambda one: {*names} <= one and not one & {*none}).astype(bool)

    return check


def _family(word: str) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda rows: rows["family"].str.contains(word, regex=True)


def _clustered(rows: pd.DataFrame) -> pd.Series:
    return rows["cluster_m"].fillna(1) * rows["cluster_n"].fillna(1) > 1


WITNESSES = (
    Witness(
        "multicast_is_cluster",
        "A and B are multicast exactly where the cluster has more than one CTA.",
        "CUTLASS, sm90_common.inl 113-125; vLLM, SGLang and FBGEMM build on it",
        lambda rows: rows["family"].eq("CUTLASS"),
        lambda rows: _uses("tma_multicast")(rows) == _clustered(rows),
    ),
    Witness(
        "flash_multicast_is_cluster",
        "K and V are multicast exactly where the cluster has two CTAs.",
        "FlashAttention-3, flash_fwd_launch_template.h 211-218",
        _family("^FlashAttention-3 Fwd"),
        lambda rows: _uses("tma_multicast")(rows) == _clustered(rows),
    ),
    Witness(
        "mla_dense",
        "Dense decode loads pages by TMA, stores O by TMA and the parts of a split by bulk copies.",
        "FlashMLA, sm90/decode/dense/splitkv_mla.cuh",
        _family("sm90::decode::dense"),
        _all_of("tma_tile", "tma_store", "bulk_store", none=("tma_multicast", "cp_async", "dsm_store")),
    ),
    Witness(
        "mla_sparse_pairs",
        "Sparse decode writes into the other CTA's shared memory exactly for 128 heads.",
        "FlashMLA, sm90/decode/sparse_fp8/splitkv_mla.cuh, config.h",
        _family("sm90::decode::sparse"),
        lambda rows: _uses("dsm_store")(rows) == rows["variant"].eq("128 heads"),
    ),
    Witness(
        "mla_sparse_prefill",
        "Sparse prefill gathers by cp.async, loads Q and stores O by TMA, and the statistics by bulk copies.",
        "FlashMLA, sm90/prefill/sparse/phase1.cuh",
        _family("sm90::prefill::sparse"),
        _all_of("cp_async", "tma_tile", "tma_store", "bulk_store", none=("tma_multicast", "dsm_store")),
    ),
    Witness(
        "mla_combine",
        "The sum over a split uses plain loads and stores alone.",
        "FlashMLA, smxx/decode/combine/combine.cu",
        _family("mla_combine"),
        lambda rows: rows["uses"].eq("ldg stg"),
    ),
    Witness(
        "deepep_bulk",
        "Tokens come and go by bulk copies, and through no other CTA's shared memory.",
        "DeepEP, csrc/kernels/legacy: intranode.cu, internode.cu",
        _family("::(?:intranode|internode)::dispatch$"),
        _all_of("tma_bulk", "bulk_store", none=("tma_tile", "dsm_store", "dsm_load")),
    ),
    Witness(
        "deepep_combine",
        "The sums of tokens leave by bulk copies.",
        "DeepEP, csrc/kernels/legacy: intranode.cu, internode.cu, internode_ll.cu",
        _family("::(?:intranode|internode|internode_ll)::combine(?:_overlappable)?$"),
        _all_of("bulk_store", none=("tma_store", "dsm_store")),
    ),
)


def verdicts(table: pd.DataFrame) -> pd.DataFrame:
    """Each condition, the `kernels` it speaks of, how many are `exceptions`, and which those are (`which`).

    Args:
        table: Table `library_kernels`.
    """
    rows = []
    for one in WITNESSES:
        spoken_of = table[one.applies(table)]
        against = spoken_of[~one.holds(spoken_of)]
        rows.append(
            {
                "id": one.id,
                "sentence": one.sentence,
                "source": one.source,
                "libraries": ", ".join(spoken_of["library"].unique()),
                "kernels": int(spoken_of["kernels"].sum()),
                "exceptions": int(against["kernels"].sum()),
                "which": "; ".join(
                    f"{row.wheel}: {row.family} {row.variant}" for row in against.itertuples()
                ),
            }
        )
    return pd.DataFrame(rows)


def _of_wheel(wheel: Wheel, path: Path) -> Iterator[KernelCensus]:
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(path) as packed:
        for member in wheel.members:
            kernels, errors = census([Path(packed.extract(member, scratch))], HOPPER)
            if errors:
                raise LabError(f"{path.name}, {member}: {errors}")
            yield from kernels


def main(folder: str) -> None:
    """Write the table anew from the wheels in a folder; a wheel that is not there ends it with a sentence."""
    rows: list[Mapping[str, object]] = []
    for wheel in WHEELS:
        if not (found := sorted(Path(folder).glob(f"{wheel.name}-*.whl"))):
            raise SystemExit(
                f"{folder} has no {wheel.name}-….whl: pip download it as data/catalog/wheels.txt says"
            )
        rows += grouped(wheel.library, wheel.name, _of_wheel(wheel, found[0]))
    Store().write(TABLE, rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
