"""The bibliography: whose numbers stand beside ours, from the table of published numbers and that of their sources."""

import html

from labkernels.store import Store, published


class References:
    """Every source with its address and date, what it measured on which GPU, and an anchor: `references.html#key`."""

    def __init__(self) -> None:
        sources = Store().read("sources").sort_values("title", key=lambda titles: titles.str.lower())
        self.sources = sources.set_index("key").fillna("").to_dict("index")
        self.numbers = published()

    def __repr__(self) -> str:
        return f"{len(self.sources)} sources of {len(self.numbers)} numbers"

    def _repr_html_(self) -> str:
        lines = "".join(self._line(key, one) for key, one in self.sources.items())
        return f'<div class="lab-plain"><ul>{lines}</ul></div>'

    def _line(self, key: str, one: dict[str, str]) -> str:
        rows = self.numbers[self.numbers["source"].eq(one["source"])]
        what = ", ".join(name.replace("_", " ") for name in dict.fromkeys(rows["quantity"]))
        gpus = ", ".join(dict.fromkeys(rows["gpu"]))
        title = html.escape(one["title"])
        if one["address"]:
            title = f'<a href="{html.escape(one["address"], quote=True)}">{title}</a>'
        date = f", {one['published']}" if one["published"] else ""
        return f'<li id="{key}">{title}{date}. {len(rows)} numbers on {html.escape(gpus)}: {what}.</li>'
