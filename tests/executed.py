"""A chapter executed in this process, without a kernel: what it shows, and what it says in its text."""

import ast
from dataclasses import dataclass, field
from pathlib import Path

import altair as alt
import nbformat


@dataclass
class Executed:
    """`shown`: charts, tables and texts in the order of the page; `said`: values by the name the text asks for."""

    shown: list = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)

    @property
    def charts(self):
        return [one for one in self.shown if isinstance(one, alt.TopLevelMixin)]


def execute(chapter: Path, monkeypatch, **parameters) -> Executed:
    """Run a chapter's cells as papermill would, with these parameters."""
    done, namespace = Executed(), {"__name__": "__main__"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("IPython.display.display", done.shown.append)
    monkeypatch.setattr(
        "labkernels.book.chapter.glue", lambda name, value, display: done.said.update({name: value})
    )
    for cell in nbformat.read(chapter, as_version=4).cells:
        if cell.cell_type == "code":
            name = f"{chapter.name}, cell {cell.id}"
            body = ast.parse(cell.source).body
            last = body.pop() if isinstance(body[-1], ast.Expr) else None
            exec(compile(ast.Module(body, []), name, "exec"), namespace)
            if "parameters" in cell.metadata.get("tags", []):
                namespace.update(parameters)
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace) if last else None
            if value is not None:
                done.shown.append(value)
    return done
