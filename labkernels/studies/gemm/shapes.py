"""The matrix products that kernel authors meet: what the rule was made from, and what it is tested on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """D[M,N] = A[M,K] · B[N,K]ᵀ.

    Attributes:
        group: `square`, `decode`, `prefill`, `gqa`, `wave` or `ragged`.
        m: Rows of A and D: tokens, in a model.
        n: Rows of B and columns of D: outputs of a layer.
        k: Inputs of a layer.
        held_out: Whether the rule for cluster shapes was made without it.
    """

    group: str
    m: int
    n: int
    k: int
    held_out: bool = False

    @property
    def mnk(self) -> tuple[int, int, int]:
        """M, N and K."""
        return (self.m, self.n, self.k)


SHAPES = (
    Shape("square", 1024, 1024, 1024),
    Shape("square", 2048, 2048, 2048),
    Shape("square", 4096, 4096, 4096),
    Shape("square", 8192, 8192, 8192),
    Shape("square", 16384, 16384, 16384),
    Shape("square", 2048, 2048, 8192),
    Shape("square", 1536, 1536, 1536),
    Shape("square", 3072, 3072, 3072),
    Shape("square", 6144, 6144, 6144),
    Shape("square", 12288, 12288, 12288),
    Shape("square", 4096, 4096, 16384),
    # tokens × a linear layer of Llama 3 8B (hidden 4096, MLP 14336) or 70B (8192, 28672)
    Shape("decode", 1, 4096, 4096),
    Shape("decode", 16, 8192, 8192),
    Shape("decode", 64, 28672, 8192),
    Shape("decode", 128, 4096, 14336),
    Shape("decode", 256, 8192, 28672),
    Shape("decode", 8, 14336, 4096),
    Shape("decode", 32, 10240, 8192),
    Shape("decode", 128, 28672, 8192),
    Shape("decode", 256, 14336, 4096),
    Shape("prefill", 4096, 14336, 4096),
    Shape("prefill", 2048, 28672, 8192),
    Shape("prefill", 8192, 4096, 14336),
    Shape("prefill", 3072, 10240, 8192),
    Shape("prefill", 8192, 28672, 4096),
    Shape("prefill", 2048, 4096, 14336),
    # grouped queries: keys and values alone have 1024 columns, queries with them 6144 or 10240
    Shape("gqa", 4096, 1024, 4096),
    Shape("gqa", 8192, 6144, 4096),
    Shape("gqa", 8192, 1024, 8192),
    Shape("gqa", 2048, 6144, 4096),
    Shape("gqa", 4096, 10240, 8192),
    # tiles of 128 × 256 around one and two waves of 132 SMs, and around what clusters of 4 keep of them
    Shape("wave", 1280, 3072, 4096),
    Shape("wave", 1408, 3072, 4096),
    Shape("wave", 1536, 3072, 4096),
    Shape("wave", 2816, 3072, 4096),
    Shape("wave", 2560, 3072, 8192),
    Shape("wave", 2688, 3072, 4096),
    Shape("wave", 5632, 3072, 4096),
    # one decode product with fewer and fewer of the tile's 128 rows outside A
    Shape("ragged", 16, 28672, 8192),
    Shape("ragged", 32, 28672, 8192),
    Shape("ragged", 96, 28672, 8192),
    Shape("ragged", 112, 28672, 8192),
    Shape("ragged", 120, 28672, 8192),
    # none of these was measured before the rule was fixed
    Shape("square", 2560, 2560, 2560, held_out=True),
    Shape("square", 5120, 5120, 5120, held_out=True),
    Shape("square", 7168, 7168, 7168, held_out=True),
    Shape("square", 10240, 10240, 10240, held_out=True),
    Shape("decode", 4, 6144, 4096, held_out=True),
    Shape("decode", 24, 28672, 4096, held_out=True),
    Shape("decode", 48, 8192, 8192, held_out=True),
    Shape("decode", 96, 10240, 8192, held_out=True),
    Shape("decode", 192, 4096, 4096, held_out=True),
    Shape("prefill", 1024, 28672, 4096, held_out=True),
    Shape("prefill", 6144, 4096, 4096, held_out=True),
    Shape("prefill", 5120, 14336, 4096, held_out=True),
    Shape("gqa", 2048, 1024, 8192, held_out=True),
    Shape("gqa", 16384, 6144, 4096, held_out=True),
    Shape("wave", 2304, 3072, 4096, held_out=True),
    Shape("wave", 3328, 3072, 4096, held_out=True),
    Shape("wave", 8064, 8064, 4096, held_out=True),
    Shape("wave", 7936, 7936, 8192, held_out=True),
)

DECOMPOSED = (
    (2048, 2048, 2048),
    (2048, 2048, 8192),
    (3072, 3072, 3072),
    (4096, 4096, 4096),
    (6144, 6144, 6144),
    (8192, 8192, 8192),
    (4096, 14336, 4096),
    (2048, 28672, 8192),
    (8192, 4096, 14336),
    (8192, 6144, 4096),
    (2816, 3072, 4096),
    (1536, 3072, 4096),
    (256, 8192, 28672),
    (16, 28672, 8192),
    (32, 28672, 8192),
    (64, 28672, 8192),
    (96, 28672, 8192),
    (112, 28672, 8192),
    (120, 28672, 8192),
    (128, 28672, 8192),
)
"""Shapes at which multicast is also switched off inside the same clusters."""
