"""What the names of cuBLAS's `nvjet` kernels say: nothing here was read from the library's machine code.

`nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_splitK_TNT`, part by part:

| part | meaning | known from |
|---|---|---|
| `tst`, `qqtst` | types: t is bf16, q e4m3, s float32 | the products it ran for |
| `256x128` | tile: columns of a row-major D, then rows | with few rows the second fits them |
| `64x4` | elements of K in a stage, stages | tile × stages fills shared memory, one more would not fit |
| `1x2` | cluster: CTAs along the tile's first side, then along its second | as the tile |
| `splitK` | K is cut up; a second kernel adds the parts | that kernel is beside it in the profile |
| `coopA`, `coopB` | consumer groups share a tile; the side that is cut | B: half the first side is no multiple of 64 |
| `TNT`, `TNN` | A is transposed, B is not; third letter unknown | N wherever the first side is no multiple of 64 |
| `h`, `v` | unknown, perhaps the order of tiles | v only with clusters along the first side alone |
| `bz` | unknown | in every name so far |
"""

import re
from dataclasses import dataclass

_NAME = re.compile(
    r"nvjet_(?P<arch>sm\d+)_(?P<types>[a-z]+)_(?P<tile_n>\d+)x(?P<tile_m>\d+)_(?P<k>\d+)x(?P<stages>\d+)"
    r"_(?P<cluster_n>\d+)x(?P<cluster_m>\d+)(?P<rest>(?:_\w+?)*)_(?P<layout>[TN]{3})"
)


@dataclass(frozen=True)
class NvjetKernel:
    """One kernel, in the axes of a row-major D[M,N].

    Attributes:
        arch: architecture it is for, as in `sm90`.
        types: types of operands and result, as the name has them.
        tile: rows and columns of D that a CTA computes.
        k: elements of K in a stage.
        stages: stages of the pipeline.
        cluster: CTAs of a cluster along M and N.
        cooperative: `A` or `B` where two consumer groups share a tile, else empty.
        split_k: whether K is cut up.
        layout: the last part of the name.
        unknown: parts whose meaning is not known.
    """

    arch: str
    types: str
    tile: tuple[int, int]
    k: int
    stages: int
    cluster: tuple[int, int]
    cooperative: str
    split_k: bool
    layout: str
    unknown: tuple[str, ...]

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.cluster[0] * self.cluster[1]


def parse(name: str) -> NvjetKernel | None:
    """Read the name of a kernel; None where it is no nvjet kernel, or one that is named otherwise."""
    if (found := _NAME.fullmatch(name)) is None:
        return None
    parts = [part for part in found["rest"].split("_") if part]
    cooperative = next((part for part in parts if part.startswith("coop")), "")
    known = {cooperative, "splitK"}
    return NvjetKernel(
        arch=found["arch"],
        types=found["types"],
        tile=(int(found["tile_m"]), int(found["tile_n"])),
        k=int(found["k"]),
        stages=int(found["stages"]),
        cluster=(int(found["cluster_m"]), int(found["cluster_n"])),
        cooperative=cooperative.removeprefix("coop"),
        split_k="splitK" in parts,
        layout=found["layout"],
        unknown=tuple(part for part in parts if part not in known),
    )
