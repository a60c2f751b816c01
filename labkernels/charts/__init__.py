"""How the book draws: one grammar for every chart, tables, and the Sphinx extension that embeds both."""

from labkernels.charts.grammar import (
    MECHANISM_STYLES,
    PALETTE,
    VEGA_LITE_MIME,
    band_and_line,
    book_renderer,
    bytes_axis,
    bytes_label,
    ceiling,
    enable,
    figure,
    mechanism_color,
    mechanism_dash,
    own_points,
    published_points,
    tell_cards,
)

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
