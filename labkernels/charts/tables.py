"""Tables for chapters: whole without JavaScript, filterable with it."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import pandas as pd

_STYLE = """
.lab-table .lab-table-scroll { overflow: auto; }
.lab-table-filters ~ .lab-table-scroll { max-height: 85vh; }
.lab-table table { font-size: 0.85em; border-collapse: collapse; color: inherit; margin: 0; }
.lab-table th, .lab-table td { text-align: left; vertical-align: top; padding: 0.25rem 0.6rem; }
.lab-table tbody tr { border-top: 1px solid var(--pst-color-border, #ccc); background: transparent; }
.lab-table thead th { position: sticky; top: 0; background: var(--pst-color-background, #fff); }
.lab-table td.long { min-width: 15rem; overflow-wrap: anywhere; }
.lab-table td.number { text-align: right; white-space: nowrap; }
.lab-table .lab-table-filters { display: flex; flex-wrap: wrap; gap: 0.4rem 1rem; margin: 0 0 0.6rem; }
.lab-table .lab-table-filters[hidden] { display: none; }
.lab-table select, .lab-table input { max-width: 11rem; color: inherit; background: transparent; }
.lab-table option { color: #000; background: #fff; }
html[data-theme="dark"] .bd-content div.cell_output .text_html:has(div.lab-table) {
  background: transparent; color: inherit; padding: 0;
}
@media screen and (max-width: 600px) {
  .lab-table-filters ~ .lab-table-scroll { max-height: none; }
  .lab-table thead { display: none; }
  .lab-table :is(table, tbody, tr, td) { display: block; }
  .lab-table tr[hidden], .lab-table td:empty { display: none; }
  .lab-table td, .lab-table td.long, .lab-table td.number { min-width: 0; padding: 0.1rem 0; text-align: left;
    white-space: normal; overflow-wrap: anywhere; }
  .lab-table td::before { content: attr(data-label) ": "; opacity: 0.75; }
  .lab-table td:first-child { font-weight: bold; padding-top: 0.5rem; }
}
@media print {
  .lab-table .lab-table-scroll { max-height: none !important; }
  .lab-table .lab-table-filters { display: none; }
  .lab-table thead th { position: static; }
}
"""

_SCRIPT = """
(root => {
  const rows = [...root.querySelectorAll("tbody tr")];
  const controls = [...root.querySelectorAll("select, input")];
  const shown = root.querySelector("output");
  const update = () => {
    const fits = row => controls.every(c => !c.value || (c.dataset.column
      ? row.cells[c.dataset.column].textContent === c.value
      : row.textContent.toLowerCase().includes(c.value.toLowerCase())));
    rows.forEach(row => { row.hidden = !fits(row); });
    shown.textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length} rows`;
  };
  controls.forEach(control => control.addEventListener("input", update));
  root.querySelector(".lab-table-filters").hidden = false;
  update();
})(document.currentScript.parentElement);
"""

_LONG_CHARACTERS = 60
_numbers = count()


@dataclass(frozen=True)
class Table:
    """A frame drawn as an HTML table.

    Attributes:
        frame: What is shown; empty cells stay empty.
        description: What the table holds, for readers who cannot see it.
        filters: Columns to choose a value of; with any, a search over all text comes too.
        links: For a column, the address of each of its cells ("" for none).
    """

    frame: pd.DataFrame
    description: str
    filters: Sequence[str] = ()
    links: dict[str, Sequence[str]] | None = None

    def _repr_html_(self) -> str:
        label = html.escape(self.description, quote=True)
        return (
            f'<div class="lab-table"><style>{_STYLE}</style>{self._controls() if self.filters else ""}'
            f'<div class="lab-table-scroll" tabindex="0" role="region" aria-label="{label}">{self._table()}</div>'
            + (f"<script>{_SCRIPT}</script></div>" if self.filters else "</div>")
        )

    def __repr__(self) -> str:
        return f"{self.description}\n{self.frame.to_string(index=False)}"

    def _controls(self) -> str:
        parts = []
        for column in self.filters:
            position = self.frame.columns.get_loc(column)
            values = sorted(set(self.frame[column].dropna().astype(str)) - {""})
            options = "".join(f"<option>{html.escape(value)}</option>" for value in values)
            label, name = html.escape(column), f"lab-filter-{next(_numbers)}"
            parts.append(
                f'<label for="{name}">{label} <select id="{name}" data-column="{position}">'
                f'<option value="">all</option>{options}</select></label>'
            )
        name = f"lab-filter-{next(_numbers)}"
        parts.append(f'<label for="{name}">text <input id="{name}" type="search"></label><output></output>')
        return f'<div class="lab-table-filters" hidden>{"".join(parts)}</div>'

    def _table(self) -> str:
        names = [html.escape(str(column), quote=True) for column in self.frame.columns]
        head = "".join(f'<th scope="col">{name}</th>' for name in names)
        links = self.links or {}
        long = {c for c in self.frame if self.frame[c].astype(str).str.len().max() > _LONG_CHARACTERS}
        kinds = {c: " class=number" for c in self.frame.select_dtypes("number")} | dict.fromkeys(
            long, " class=long"
        )
        rows = []
        for number, (_, row) in enumerate(self.frame.iterrows()):
            cells = []
            for name, (column, value) in zip(names, row.items(), strict=True):
                text = "" if pd.isna(value) else html.escape(str(value))
                if column in links and (address := links[column][number]):
                    text = f'<a href="{html.escape(address, quote=True)}">{text}</a>'
                cells.append(f'<td{kinds.get(column, "")} data-label="{name}">{text}</td>')
            rows.append(f"<tr>{''.join(cells)}</tr>")
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
