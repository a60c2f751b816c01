"""The decision page: a form that the browser answers with the model's constants, and a table of typical operands."""

import html
import json
from dataclasses import replace
from urllib.parse import urlencode

import pandas as pd

from labkernels.charts.tables import Table
from labkernels.charts.text import span
from labkernels.forms import Entry, entries
from labkernels.mechanisms import MECHANISMS
from labkernels.model import other_gpus
from labkernels.model.advisor import PREFERENCE, WORTHWHILE, Question, advise, fastest_form
from labkernels.model.closed_form import (
    IN_CLUSTERS,
    TERMS,
    Constants,
    Load,
    constants,
    forms_of,
    predict,
)
from labkernels.operand import KIB
from labkernels.store import Store

_STYLE = """
.lab-decide fieldset { border: 0; border-top: 1px solid var(--pst-color-border, #ccc); margin: 0 0 0.8rem; padding: 0;
  min-width: 0; display: grid; grid-template-columns: repeat(auto-fill, minmax(min(10.5rem, 46%), 1fr));
  gap: 0.5rem 1rem; }
.lab-decide legend { font-size: 1em; font-weight: bold; float: none; width: auto; padding: 0 0.6rem 0 0; margin: 0; }
.lab-decide label { display: block; font-size: 0.85em; }
.lab-decide label small { display: block; font-size: 0.9em; opacity: 0.85; line-height: 1.25; margin-top: 0.15rem; }
.lab-decide input, .lab-decide select { color: inherit; background: transparent; border: 1px solid currentColor;
  border-radius: 3px; padding: 0.15rem 0.4rem; font: inherit; width: 100%; box-sizing: border-box; }
.lab-decide option { color: #000; background: #fff; }
:is(div.cell, div.cell_output, .output, .text_html):has(div.lab-decide) { overflow: visible !important; }
.lab-decide-sticky { position: sticky; top: 3.4rem; z-index: 5; background: var(--pst-color-background, #fff);
  border-left: 0.3rem solid currentColor; padding: 0.3rem 0.8rem; margin: 0.6rem 0; }
.lab-decide .lab-decide-answer { font-size: 1.25em; font-weight: bold; margin: 0; }
.lab-decide .lab-decide-brief { margin: 0; font-size: 0.9em; }
.lab-decide-scroll { overflow-x: auto; }
.lab-decide table { font-size: 0.85em; border-collapse: collapse; color: inherit; margin: 0; width: 100%; }
.lab-decide th, .lab-decide td { text-align: left; vertical-align: top; padding: 0.25rem 0.6rem; }
.lab-decide tbody tr { border-top: 1px solid var(--pst-color-border, #ccc); background: transparent; }
.lab-decide[data-refused="true"] table { display: none; }
.lab-decide-more { font-size: 0.9em; }
.lab-decide-more p, .lab-decide-more ul { margin: 0.4rem 0 0; }
html[data-theme="dark"] .bd-content div.cell_output .text_html:has(div.lab-decide) {
  background: transparent; color: inherit; padding: 0;
}
"""

#: What the browser checks of each entry.
_LIMITS = ("name", "least", "most", "choices", "power_of_two")

_HEADS = ("mechanism, pipeline", "predicted time", "GB/s", "what binds")

TYPICAL: dict[str, Question] = {
    "A or B of a GEMM, its own tile": Question(),
    "the same in small pipelines: 8 KiB in flight": Question(rows=32, stages=2),
    "the same, one tile at a time": Question(stages=1),
    "A or B of a GEMM, four CTAs share it, from HBM": Question(cluster=4, row_bytes=512, rows=64),
    "the same from L2": Question(cluster=4, row_bytes=512, rows=64, source="l2", tensor_mib=32),
    "a tile of 8 KiB that two CTAs compute and both need": Question(
        cluster=2, row_bytes=128, rows=64, source="computed"
    ),
    "32 KiB that four CTAs compute": Question(cluster=4, row_bytes=512, rows=64, source="computed"),
    "A or B of a product of 128×128, tensor cores busy": Question(
        row_bytes=128, rows=128, stages=6, source="l2", tensor_mib=32, product_rows=128, product_columns=128
    ),
    "the same of 128×256": Question(
        row_bytes=128, rows=128, stages=4, source="l2", tensor_mib=32, product_rows=128, product_columns=256
    ),
    "K or V, contiguous cache": Question(row_bytes=256, rows=128, pitch_bytes=2048, stages=2),
    "K or V, pages of 64 rows": Question(row_bytes=256, rows=128, pitch_bytes=2048, stages=2, index_rows=64),
    "K or V, an index for each row": Question(
        row_bytes=256, rows=128, pitch_bytes=2048, stages=2, index_rows=1
    ),
    "rows of an embedding, 512 B, gathered": Question(row_bytes=512, rows=32, pitch_bytes=512, index_rows=1),
    "columns of a wide matrix, rows of 32 B": Question(row_bytes=32, rows=256, pitch_bytes=4096),
    "aligned to 8 bytes only": Question(alignment_bytes=8),
    "a bias, needed in registers": Question(row_bytes=512, rows=8, consumer="registers"),
    "a tile of fp8 weights behind 2000 cycles of work": Question(element_bytes=1, compute_cycles=2000.0),
}
"""Operands as kernels have them, for readers without JavaScript and as starting points of the form."""


def address(question: Question) -> str:
    """The part of the page's address that fills the form with a question."""
    default = Question()
    changed = {
        one.name: f"{getattr(question, one.name):g}" if one.kind is float else getattr(question, one.name)
        for one in entries(Question)
        if getattr(question, one.name) != getattr(default, one.name)
    }
    return f"#{urlencode(changed)}" if changed else "#stages=4"


def typical(gpu: str) -> Table:
    """Typical operands with predicted times in microseconds; each links to itself in the form."""
    rows = []
    for name, question in TYPICAL.items():
        advice = advise(question, gpu)
        chosen = next(one for one in advice.ranked if one.mechanism == advice.choice)
        others = (f"{one.mechanism} {one.time_us:,.3g}" for one in advice.ranked if one is not chosen)
        rows.append(
            {
                "operand": name,
                "take": advice.choice + (", no cluster" if advice.in_cluster is False else ""),
                "predicted, µs": f"{chosen.time_us:,.3g} ({chosen.low_us:,.3g} to {chosen.high_us:,.3g})",
                "the others, µs": ", ".join(others) or "none",
                "binds": chosen.binding,
            }
        )
    links = {"operand": [address(question) for question in TYPICAL.values()]}
    return Table(pd.DataFrame(rows), description="Typical operands and what to take", links=links)


def worked(gpu: str) -> dict[str, str]:
    """K and V of a decode kernel, contiguous and by two kinds of index: time and mechanism; TMA's time of the last."""
    said, names = (
        {},
        ("K or V, contiguous cache", "K or V, pages of 64 rows", "K or V, an index for each row"),
    )
    for key, name in zip(("kv", "kv_pages", "kv_rows"), names, strict=True):
        advice = advise(TYPICAL[name], gpu)
        by_name = {one.mechanism: one for one in advice.ranked}
        said |= {key: f"{by_name[advice.choice].time_us:.3g}", f"{key}_take": advice.choice}
    engine = by_name["tma_tile"]
    return said | {"kv_rows_tma": f"{engine.time_us:.3g}", "kv_rows_binds": engine.binding}


def lead(predictions: pd.DataFrame) -> str:
    """TMA's predicted rate over that of cp.async, least and most along `along_in_flight`: `0.92 to 1.00`."""
    rates = predictions.pivot(index="bytes_in_flight_per_sm", columns="mechanism", values="gbps")
    return span(rates["tma_tile"] / rates["cp_async"], 2)


def along_in_flight(gpu: str) -> pd.DataFrame:
    """The model's throughput from HBM of pipelines with four slots, by their bytes, with the interval of its errors."""
    of, pipeline = constants(gpu), Load(tile_bytes=8 * KIB, row_bytes=2 * KIB, threads=256)
    tiles = [KIB << power for power in range(1, 6)]
    points = {
        (name, tile): fastest_form(
            [predict(name, form, of) for form in forms_of(name, replace(pipeline, tile_bytes=tile), 4)]
        )
        for name in ("cp_async", "tma_tile")
        for tile in tiles
    }
    return pd.DataFrame(
        {
            "mechanism": name,
            "bytes_in_flight_per_sm": tile * pipeline.tiles_in_flight,
            "gbps": one.gbps,
            "low": one.gbps / one.high,
            "high": one.gbps / one.low,
            "binds": one.binding,
            "gpu": gpu,
            "run_id": "model",
        }
        for (name, tile), one in points.items()
    )


def traits() -> dict[str, dict[str, object]]:
    """What the form asks of each mechanism, those with the fewest busy threads first."""
    asked = (
        "ptx",
        "by_threads",
        "touches_global",
        "crosses_ctas",
        "pushes",
        "source",
        "access_bytes",
        "takes_tensor_map",
        "counts_bytes",
        "through_registers",
        "carriers",
    )
    return {
        name: {trait: getattr(MECHANISMS[name], trait) for trait in asked}
        | {"in_clusters": name in IN_CLUSTERS}
        for name in PREFERENCE
    }


def _nested(of: Constants) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for (way, name), value in of.items():
        found.setdefault(way, {})[name] = value
    return found


def cited_rules(gpu: str) -> list[dict[str, str]]:
    """The rules of thumb that speak of operands, with when they do and their verdict on the GPU."""
    kept = ("statement", "outcome", "evidence", "applies_to")
    return [
        {name: row[name] or "" for name in kept}
        for row in Store().records("verdicts")
        if row["gpu"] == gpu and row["applies_to"]
    ]


class Form:
    """The form, live in the browser.

    Args:
        gpu: whose constants.
    """

    def __init__(self, gpu: str) -> None:
        self.gpu = gpu
        self.constants = _nested(constants(gpu))
        self.others = {
            name: {"constants": _nested(other_gpus.projected(name, gpu)), "said": other_gpus.said(name, gpu)}
            for name in other_gpus.known()
        }

    def __repr__(self) -> str:
        return f"decision form, constants of the {self.gpu}"

    def _repr_html_(self) -> str:
        form = [
            {name: getattr(one, name) for name in _LIMITS} | {"kind": one.kind.__name__}
            for one in entries(Question)
        ]
        given = {
            "constants": self.constants,
            "others": self.others,
            "meanings": TERMS,
            "mechanisms": traits(),
            "form": form,
            "rules": cited_rules(self.gpu),
            "worthwhile": WORTHWHILE,
        }
        data = json.dumps(given).replace("</", "<\\/")
        heads = "".join(f'<th scope="col">{head}</th>' for head in _HEADS)
        return (
            f'<div class="lab-decide" role="group" aria-label="Decision form"><style>{_STYLE}</style>'
            "<noscript><p>The form needs JavaScript; the table of typical operands below does not.</p></noscript>"
            f'<div class="lab-decide-live" hidden><form>{self._presets()}'
            '<div class="lab-decide-sticky" aria-live="polite"><p class="lab-decide-answer"></p>'
            f'<p class="lab-decide-brief"></p></div>{self._groups()}</form>'
            f'<div class="lab-decide-scroll" tabindex="0" role="region" aria-label="Mechanisms">'
            f"<table><thead><tr>{heads}</tr></thead><tbody></tbody></table></div>"
            f'<div class="lab-decide-more"></div></div><script type="application/json">{data}</script></div>'
        )

    def _presets(self) -> str:
        options = "".join(
            f'<option value="{html.escape(address(question))}">{html.escape(name)}</option>'
            for name, question in TYPICAL.items()
        )
        names = "".join(
            f'<option value="{html.escape(name)}">{html.escape(name)}, projected</option>'
            for name in self.others
        )
        return (
            '<fieldset><legend>Start from</legend><label>Typical operand<select class="lab-decide-preset">'
            f'<option value="">your own numbers</option>{options}</select></label><label>GPU'
            f'<select name="gpu" data-default=""><option value="">{html.escape(self.gpu)}</option>{names}'
            "</select></label></fieldset>"
        )

    def _groups(self) -> str:
        groups: dict[str, str] = {}
        for one in entries(Question):
            groups[one.group] = groups.get(one.group, "") + self._field(one)
        return "".join(
            f"<fieldset><legend>{html.escape(name)}</legend>{fields}</fieldset>"
            for name, fields in groups.items()
        )

    @staticmethod
    def _field(one: Entry) -> str:
        label = html.escape(one.label + (f" ({one.unit})" if one.unit else ""))
        note = f"<small>{html.escape(one.help.replace('`', ''))}</small>"
        shown = f"{one.default:g}" if one.kind is float else str(one.default)
        if one.choices:
            values = "".join(
                f"<option{' selected' if value == one.default else ''}>{value}</option>"
                for value in one.choices
            )
            return f'<label>{label}<select name="{one.name}" data-default="{shown}">{values}</select>{note}</label>'
        return (
            f'<label>{label}<input name="{one.name}" type="number" min="{one.least}" max="{one.most}" step="any" '
            f'inputmode="decimal" value="{shown}" data-default="{shown}">{note}</label>'
        )
