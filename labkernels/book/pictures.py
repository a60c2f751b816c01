"""Hand-drawn pictures: SVG in the page itself, so that its ink follows the reader's light, dark or paper."""

import html
from dataclasses import dataclass

from labkernels.charts.grammar import HUES
from labkernels.paths import BOOK

PICTURES = BOOK / "_static" / "pictures"


@dataclass(frozen=True)
class Picture:
    """A picture of `book/_static/pictures` with its caption.

    Ink is `currentColor`; mechanisms have the hues of the charts, as CSS variables: `var(--pink)`.

    Attributes:
        name: of the file, without its ending.
        caption: what it shows, a sentence or two.
    """

    name: str
    caption: str

    def _repr_html_(self) -> str:
        svg = (PICTURES / f"{self.name}.svg").read_text("utf8")
        hues = ";".join(f"--{name}:{color}" for name, color in HUES.items())
        return (
            f'<figure class="lab-picture" style="{hues}">{svg}'
            f"<figcaption>{html.escape(self.caption)}</figcaption></figure>"
        )

    def __repr__(self) -> str:
        return self.caption
