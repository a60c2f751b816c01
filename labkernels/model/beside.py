"""What a producer costs tensor cores that read its tiles: rates of the SM's load unit and the price of power."""

from dataclasses import dataclass

import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.model.closed_form import Constants
from labkernels.studies.kernel import mainloop_findings as findings
from labkernels.studies.kernel.mainloop_findings import SQUARE, TALL, WIDE, best_form, shares
from labkernels.studies.kernel.mainloop_numbers import power
from labkernels.studies.stats import where

#: Whoever brings tiles to tensor cores, and was measured beside them.
PRODUCERS = ("tma_tile", "cp_async", "ldg")
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
FREE = 1.01  # a step this near to the tensor cores' own is theirs alone
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


def step_cycles(mechanism: str, product: Product, of: Constants) -> float:
    """Cycles from one step to the next, A and B in L2 and the pipeline deep enough.

    Copies and, where they pass the load unit, wgmma's reads share it; the copy engine has a way of its own.
    """
    read = of.get((way(mechanism), READ))
    copied = product.stage_bytes / of[way(mechanism), COPY]
    return max(product.tensor_cycles, copied + (product.read_bytes / read if read else 0.0))


def product_cycles(mechanism: str, product: Product, of: Constants) -> float:
    """Cycles of a whole product of a CTA, in units of the clock that tensor cores alone would have.

    Its steps, longer at the power limit by what the copies draw, and its stores; or device memory, if that is slower.
    """
    steps = product.row_bytes / product.step_bytes
    drawn = 1 + of[way(mechanism), POWER] * product.bytes_per_flop
    sms = of["gpu", "sms_at_fan_out_1"]
    stored = (
        product.m * product.n * OUT_BYTES / of["gpu", "hbm_bytes_per_cycle"] * sms if product.stores else 0.0
    )
    memory = product.memory_bytes / of["gpu", "hbm_bytes_per_cycle"]
    return max(steps * step_cycles(mechanism, product, of) * drawn + stored, memory)


def constants_beside(loops: pd.DataFrame, sustained: pd.DataFrame) -> Constants:
    """The constants of each producer.

    The rates are read off steps of 128×128: copies alone, of one tile for all CTAs, and copies beside tensor cores.
    Where both together take no longer than tensor cores alone nothing tells the second, and it is left out. Power is
    read off steps of 128×256, which TMA and cp.async bring without a loss of cycles; plain loads get cp.async's.

    Args:
        loops: rows of one run of `mainloop`.
        sustained: rows of one run of `mainloop_power`.

    Raises:
        NotMeasured: one of these loops was not.
    """
    found: dict[tuple[str, str], float] = {}
    product = Product(*SQUARE, STEP_BYTES)
    for mechanism in PRODUCERS:
        square = where(best_form(loops, mechanism, SQUARE), **findings.PLACE)
        beside = float(shares(square)["median"].min())
        one_tile = where(
            loops, mechanism=mechanism, tile_m=SQUARE[0], tile_n=SQUARE[1], compute="none", tiles="one"
        )
        alone = float(shares(one_tile)["median"].min())
        found[way(mechanism), COPY] = product.stage_bytes / alone
        if beside > FREE * product.tensor_cycles:
            found[way(mechanism), READ] = product.read_bytes / (beside - alone)
    settled = where(power(sustained), tile="×".join(map(str, WIDE)), data="random").set_index("mechanism")[
        "tflops"
    ]
    for mechanism in PRODUCERS:
        slower = settled["none"] / settled[mechanism if mechanism in PRODUCERS[:2] else "cp_async"] - 1
        found[way(mechanism), POWER] = float(slower) / Product(*WIDE, STEP_BYTES).bytes_per_flop
    return found


def tested(loops: pd.DataFrame, of: Constants) -> pd.DataFrame:
    """Steps of the tiles that the rates were not read off, measured and predicted.

    Args:
        loops: rows of one run of `mainloop`.
        of: with `constants_beside`.

    Returns:
        Columns `mechanism`, `tile`, `measured`, `predicted` (cycles) and `ratio` of the two.
    """
    found = []
    for mechanism in PRODUCERS:
        for tile in (WIDE, TALL):
            try:
                rows = shares(where(best_form(loops, mechanism, tile), **findings.PLACE))
            except NotMeasured:
                continue
            measured = float(rows["median"].min())
            predicted = step_cycles(mechanism, Product(*tile, STEP_BYTES), of)
            named = {"mechanism": mechanism, "tile": "×".join(map(str, tile))}
            found.append(
                named | {"measured": measured, "predicted": predicted, "ratio": measured / predicted}
            )
    return pd.DataFrame(found)
