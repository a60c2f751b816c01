"""What a producer costs tensor cores that read its tiles: rates of the SM's load unit and the price of power."""

from dataclasses import dataclass

from labkernels.model.closed_form import Constants

COPY, READ, POWER = "copy_bytes_per_cycle", "read_bytes_per_cycle", "power_flop_per_byte"
#: Constants of this module: unit and meaning.
MEANINGS = {
    COPY: (
        "bytes per cycle",
        "what one SM copies into shared memory, one tile for all CTAs, tensor cores at rest",
    ),
    READ: (
        "bytes per cycle",
        "what wgmma's reads take of the load unit beside such copies; none: they share nothing",
    ),
    POWER: ("operations per byte", "longer steps at the power limit, for each byte copied per operation"),
}
MACS_PER_CYCLE = 4096  # of a row's bytes: dense bf16 does 2,048 multiply-adds a cycle, fp8 twice as many
WARPGROUP_ROWS = 64  # of A, that one wgmma multiplies
STEP_BYTES = 128  # of a row, that the main loop multiplies at once
OUT_BYTES = 2  # of an element of the result


def way(mechanism: str) -> str:
    """Under which name the constants of a producer are kept."""
    return f"{mechanism} beside wgmma"


@dataclass(frozen=True)
class Product:
    """Matrix products on tensor cores as a CTA sees them, one CTA on an SM.

    Attributes:
        m: rows of A that a CTA multiplies, a multiple of 64.
        n: rows of B, 8 to 256.
        row_bytes: of A and B along K, in all.
        step_bytes: of them, in one stage.
        element_bytes: of A and B.
        copied_rows: that a stage brings; 0 for all of A and B.
        memory_bytes: that all CTAs together read and write in device memory, for each of these products.
        stores: whether its result is stored, two bytes an element.
    """

    m: int
    n: int
    row_bytes: int
    step_bytes: int = STEP_BYTES
    element_bytes: int = 2
    copied_rows: int = 0
    memory_bytes: float = 0.0
    stores: bool = False

    @property
    def stage_bytes(self) -> int:
        """Copied for a step."""
        return (self.copied_rows or self.m + self.n) * self.step_bytes

    @property
    def tensor_cycles(self) -> float:
        """Of a step: one-byte elements are twice as many in a row, and take half the time each."""
        return self.m * self.n * self.step_bytes / MACS_PER_CYCLE

    @property
    def read_bytes(self) -> int:
        """Shared memory that wgmma reads in a step: A once, B again for every 64 rows of A."""
        return (self.m + self.n * self.m // WARPGROUP_ROWS) * self.step_bytes

    @property
    def bytes_per_flop(self) -> float:
        """Copied, for each operation."""
        return self.stage_bytes / (2 * self.m * self.n * self.step_bytes / self.element_bytes)


def knows(mechanism: str, of: Constants) -> bool:
    """Whether a producer was measured beside tensor cores."""
    return (way(mechanism), COPY) in of


def step_cycles(mechanism: str, product: Product, of: Constants) -> float:
    """Cycles from one step to the next, A and B in L2 and the pipeline deep enough.

    Copies and, where they pass the load unit, wgmma's reads share it; the copy engine has a way of its own.
    """
    read = of.get((way(mechanism), READ))
    copied = product.stage_bytes / of[way(mechanism), COPY]
    return max(product.tensor_cycles, copied + (product.read_bytes / read if read else 0.0))


def drawn_cycles(mechanism: str, product: Product, of: Constants) -> float:
    """`step_cycles` at the power limit, in units of the clock that tensor cores alone would have."""
    return step_cycles(mechanism, product, of) * (1 + of[way(mechanism), POWER] * product.bytes_per_flop)


def product_cycles(mechanism: str, product: Product, of: Constants) -> float:
    """Cycles of a whole product of a CTA, in units of the clock that tensor cores alone would have.

    Its steps, longer at the power limit by what the copies draw, and its stores; or device memory, if that is slower.
    """
    steps = product.row_bytes / product.step_bytes
    sms = of["gpu", "sms_at_fan_out_1"]
    stored = (
        product.m * product.n * OUT_BYTES / of["gpu", "hbm_bytes_per_cycle"] * sms if product.stores else 0.0
    )
    memory = product.memory_bytes / of["gpu", "hbm_bytes_per_cycle"]
    return max(steps * drawn_cycles(mechanism, product, of) + stored, memory)
