"""Reads the constants of producers beside tensor cores off the rows of our own main loop, and tests them on others."""

import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.mechanisms import MECHANISMS
from labkernels.model.beside import COPY, POWER, READ, STEP_BYTES, Product, step_cycles, way
from labkernels.model.closed_form import Constants
from labkernels.studies.kernel import mainloop_findings as findings
from labkernels.studies.kernel.mainloop_findings import SQUARE, TALL, WIDE, best_form, shares
from labkernels.studies.kernel.mainloop_numbers import power
from labkernels.studies.stats import having, where

FREE = 1.01  # a step this near to the tensor cores' own is theirs alone


def constants_beside(loops: pd.DataFrame, sustained: pd.DataFrame) -> Constants:
    """The constants of each producer.

    The rates are read off steps of 128×128: copies alone, of one tile for all CTAs, and copies beside tensor cores.
    Where both together take no longer than tensor cores alone nothing tells the second, and it is left out. Power is
    read off steps of 128×256 that are brought without a loss of cycles; other producers get the dearest of these.

    Args:
        loops: rows of one run of `mainloop`.
        sustained: rows of one run of `mainloop_power`.

    Raises:
        NotMeasured: one of these loops was not.
    """
    found: dict[tuple[str, str], float] = {}
    square, wide = Product(*SQUARE, STEP_BYTES), Product(*WIDE, STEP_BYTES)
    settled = where(power(sustained), tile="×".join(map(str, WIDE)), data="random").set_index("mechanism")
    for mechanism in producers(loops):
        rows = having(loops, mechanism=mechanism, tile_m=square.m, tile_n=square.n)
        alone = float(shares(where(rows, compute="none", tiles="one"))["median"].min())
        beside = float(shares(where(best_form(loops, mechanism, SQUARE), **findings.PLACE))["median"].min())
        found[way(mechanism), COPY] = square.stage_bytes / alone
        if beside > FREE * square.tensor_cycles:
            found[way(mechanism), READ] = square.read_bytes / (beside - alone)
        if step_cycles(mechanism, wide, found) <= FREE * wide.tensor_cycles:
            slower = settled.at[findings.ALONE, "tflops"] / settled.at[mechanism, "tflops"] - 1
            found[way(mechanism), POWER] = float(slower) / wide.bytes_per_flop
    dearest = max(value for (_, name), value in found.items() if name == POWER)
    for mechanism in producers(loops):
        found.setdefault((way(mechanism), POWER), dearest)
    return found | _multicast(loops, settled["tflops"], found)


def _multicast(loops: pd.DataFrame, settled: pd.Series, found: Constants) -> Constants:
    """Of copies that several CTAs share: the engine's own rate, as long as tensor cores lose nothing beside them."""
    square, wide = Product(*SQUARE, STEP_BYTES), Product(*WIDE, STEP_BYTES)
    engine = next(name for name in producers(loops) if MECHANISMS[name].takes_tensor_map)
    of: dict[tuple[str, str], float] = {}
    for mechanism in sorted(
        set(loops["mechanism"]) & {name for name in MECHANISMS if MECHANISMS[name].crosses_ctas}
    ):
        steps = shares(where(best_form(loops, mechanism, SQUARE), **findings.PLACE))["median"]
        if steps.min() <= FREE * square.tensor_cycles:
            slower = settled[findings.ALONE] / settled[mechanism] - 1
            of[way(mechanism), COPY] = found[way(engine), COPY]
            of[way(mechanism), POWER] = float(slower) / wide.bytes_per_flop
    return of


def producers(loops: pd.DataFrame) -> list[str]:
    """Mechanisms whose copies were measured alone, with one tile for all CTAs.

    Args:
        loops: rows of one run of `mainloop`.
    """
    return sorted(set(having(loops, compute="none", tiles="one")["mechanism"]))


def on_other_tiles(loops: pd.DataFrame, of: Constants) -> pd.DataFrame:
    """Steps of the tiles that the rates were not read off, measured and predicted.

    Args:
        loops: rows of one run of `mainloop`.
        of: with `constants_beside`.

    Returns:
        Columns `mechanism`, `tile`, `measured`, `predicted` (cycles) and `ratio` of the two.
    """
    found = []
    for mechanism in producers(loops):
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
