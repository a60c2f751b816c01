"""Figures of chapters: their texts have no typed numbers, so that no caption can lie, and each is shown."""

import ast
import re
from collections.abc import Iterator

_TEXTS = ("title", "description", "held_fixed")
# Measured values. What was chosen (tiles, stages, pages, rows of a matrix) may be typed.
_MEASURED = re.compile(
    r"""(?<![\w.,×])\d[\d.,]*\s?(?:[GTM]B/s|TFLOP/s|W\b|[µnm]?s\b|cycles|[MG]Hz|%|percent|SMs|blocks|rounds)
    | (?<![\w.])\d+\.\d+(?![\w]|\.\d)
    | \b(?:about|near|nearly|around|flat\ at|stays?\ at)\ \d
    | \ban?\ (?:third|quarter|fifth|tenth)\b""",
    re.VERBOSE,
)
# Chosen or defined, though they look measured.
_CHOSEN = re.compile(
    r"95 ?% of the best|95 ?% (?:bootstrap )?interval|5 ?% to 95 ?%|[Ww]ithin 15 ?% of|1 ?% or less|every 100 ms|"
    r"flash-attn3-jax [\d.]+"
)


def unseen_figures(source: str) -> Iterator[str]:
    """Figures that a cell draws and nobody sees: Jupyter shows a cell's last expression, and what `display` is given.

    Raises:
        SyntaxError: the cell is no Python.
    """
    for statement in ast.parse(source).body[:-1]:
        if isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call) and _draws(call):
            yield f"line {statement.lineno}: a figure that is not the last expression stays unseen; display(…) it"


def _draws(call: ast.Call) -> bool:
    return ast.unparse(call.func).split(".")[-1] == "figure"


def typed_numbers(source: str) -> Iterator[str]:
    """What a cell has typed in its figures' texts that should be computed, a sentence each.

    Raises:
        SyntaxError: the cell is no Python.
    """
    for name, text in _figure_texts(ast.parse(source)):
        if found := _MEASURED.search(_CHOSEN.sub("", text)):
            yield f"{name} has {found[0].strip()!r} typed in; put in the measured value, as in f'{{value:.1f}}'"


def _figure_texts(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names and texts of a cell's figures, a bar in place of each value that is put in."""
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and _draws(call)):
            continue
        for keyword in call.keywords:
            if keyword.arg in _TEXTS:
                parts = keyword.value.values if isinstance(keyword.value, ast.JoinedStr) else [keyword.value]
                typed = (part.value if isinstance(part, ast.Constant) else "|" for part in parts)
                yield keyword.arg, "".join(map(str, typed))
