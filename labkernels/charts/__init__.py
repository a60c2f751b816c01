"""How the book draws: one grammar for every chart, tables, and the Sphinx extension that embeds both."""

from importlib import import_module
from typing import Any

__all__ = [
    "MECHANISM_STYLES",
    "PALETTE",
    "VEGA_LITE_MIME",
    "band_and_line",
    "book_renderer",
    "bytes_axis",
    "bytes_label",
    "ceiling",
    "enable",
    "figure",
    "mechanism_color",
    "mechanism_dash",
    "own_points",
    "published_points",
    "tell_cards",
]


def __getattr__(name: str) -> Any:
    if name in __all__:  # Altair comes with the first chart: text and tables need none of it
        return getattr(import_module("labkernels.charts.grammar"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
