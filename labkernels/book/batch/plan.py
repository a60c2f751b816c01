"""What a batch runs: parameter files in YAML, checked against the chapters and expanded to jobs."""

import ast
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from labkernels.errors import LabError
from labkernels.paths import BOOK
from labkernels.studies.experiments import experiment

ALL = "all"
KINDS = {kind.__name__: kind for kind in (bool, str, int, float)}
_TAG = "tag:yaml.org,2002:"  # of what YAML knows by itself


class BadParameterFile(LabError, ValueError):
    """A parameter file that cannot be run; the message names the file, the line and what to give."""


@dataclass(frozen=True)
class Job:
    """One execution of one notebook.

    Attributes:
        number: its place in the plan.
        notebook: path of the chapter.
        parameters: those that differ from the chapter's own.
        writes: whether it stores rows, and so needs a GPU and a data folder of its own.
        experiments: those that the chapter measures.
        may_follow: whether it has nothing to measure, or nothing that no other chapter measures too.
    """

    number: int
    notebook: str
    parameters: dict[str, Any] = field(default_factory=dict)
    writes: bool = False
    experiments: tuple[str, ...] = ()
    may_follow: bool = False

    @property
    def measures(self) -> tuple[str, ...]:
        """The experiments that it measures, if it measures."""
        return self.experiments if self.writes else ()

    @property
    def preset(self) -> str:
        """How thoroughly it measures."""
        return self.parameters.get("preset", "quick")

    @property
    def chapter(self) -> str:
        """Name of the chapter."""
        return Path(self.notebook).stem

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.number:03}-{self.chapter}"

    @property
    def key(self) -> str:
        """What tells it from other jobs: chapter and parameters."""
        return f"{self.chapter} {json.dumps(self.parameters, sort_keys=True)}"


class _Notebook:
    """What a chapter's code says of itself, read without running it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _cells(self) -> list[dict[str, Any]]:
        cells = json.loads(self.path.read_text("utf8"))["cells"]
        return [cell for cell in cells if cell["cell_type"] == "code"]

    @cached_property
    def parameters(self) -> dict[str, str]:
        """Names and types of its parameters."""
        tagged = (cell for cell in self._cells if "parameters" in cell["metadata"].get("tags", []))
        statements = [one for cell in tagged for one in ast.parse("".join(cell["source"])).body]
        return {
            ast.unparse(one.target): ast.unparse(one.annotation)
            for one in statements
            if isinstance(one, ast.AnnAssign)
        }

    @cached_property
    def experiments(self) -> tuple[str, ...]:
        """What it gives to `Chapter`."""
        calls = (
            node
            for cell in self._cells
            for node in ast.walk(ast.parse("".join(cell["source"])))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Chapter"
        )
        return tuple(one.value for call in calls for one in call.args if isinstance(one, ast.Constant))


def plan(files: Sequence[Path], book: Path = BOOK) -> list[Job]:
    """The jobs of some parameter files, in the files' order; what two of them ask for is run once.

    A file names chapters and gives parameters; every list of values is an axis of a matrix:

        chapters: [crossover, latency]    # or all
        parameters:
          measure: true
          preset: [quick, full]

    With `chapters: all` a chapter gets those parameters that it has; a chapter that is named has to have all.

    Args:
        files: parameter files.
        book: folder of the notebooks.

    Raises:
        BadParameterFile: a file asks for what there is not.
    """
    notebooks = {path.stem: _Notebook(path) for path in sorted(book.glob("*.ipynb"))}
    jobs: dict[str, Job] = {}
    for file in files:
        for chapter, parameters in _File(file, notebooks).sets():
            one = notebooks[chapter]
            writes = parameters.get("measure", False) and "data_dir" in one.parameters
            job = Job(len(jobs) + 1, str(one.path), parameters, writes, one.experiments)
            jobs.setdefault(job.key, job)
    measured_by: dict[tuple[str, str], set[str]] = {}
    for job in jobs.values():
        for one in job.measures:
            measured_by.setdefault((job.preset, one), set()).add(job.chapter)
    return [
        replace(job, may_follow=all(len(measured_by[job.preset, one]) > 1 for one in job.measures))
        for job in jobs.values()
    ]


class _File:
    """A parameter file, read as YAML nodes, which know their lines; only plain values are constructed from them."""

    def __init__(self, path: Path, notebooks: dict[str, _Notebook]) -> None:
        self.path, self.notebooks = path, notebooks

    def _bad(self, where: yaml.Node | yaml.Mark | None, what: str) -> BadParameterFile:
        mark = where.start_mark if isinstance(where, yaml.Node) else where
        return BadParameterFile(f"{self.path}:{mark.line + 1 if mark else 1}: {what}")

    def sets(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Chapters with a parameter set each."""
        entries = self._mapping(self._root(), ("chapters", "parameters"))
        if "chapters" not in entries:
            raise self._bad(None, f"no chapters: give chapters: {ALL}, or a list of their names")
        chapters, is_all = self._chapters(entries["chapters"])
        given = self._parameters(entries.get("parameters"), chapters, is_all)
        for chapter in chapters:
            known = self.notebooks[chapter].parameters
            axes = {name: values for name, values in given.items() if name in known}
            for values in product(*axes.values()):
                yield chapter, dict(zip(axes, values, strict=True))

    def _root(self) -> yaml.Node | None:
        try:
            return yaml.compose(self.path.read_text("utf8"), yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            raise self._bad(error.problem_mark, f"no YAML: {error.problem}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise self._bad(None, f"no YAML: {error}") from None

    def _mapping(self, node: yaml.Node | None, known: Sequence[str]) -> dict[str, yaml.Node]:
        """The entries of a mapping; an unknown or repeated one is refused."""
        if (
            not isinstance(node, yaml.MappingNode)
            or node.tag != yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG
        ):
            raise self._bad(node, f"give a mapping with {' and '.join(known)}")
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = self._value(key)
            if name not in known:
                raise self._bad(key, f"unknown {name!r}; there are {', '.join(known)}")
            if name in found:
                raise self._bad(key, f"{name} is given twice")
            found[name] = value
        return found

    def _values(self, node: yaml.Node, what: str) -> list[tuple[yaml.Node, Any]]:
        """The plain values of a list, or the one there is."""
        items = node.value if node.tag == f"{_TAG}seq" else [node]
        if not items:
            raise self._bad(node, f"{what} is an empty list: nothing would be run; give at least one value")
        return [(item, self._value(item)) for item in items]

    def _value(self, node: yaml.Node) -> Any:
        kind = node.tag.removeprefix(_TAG)
        if not isinstance(node, yaml.ScalarNode) or kind not in KINDS:
            raise self._bad(node, f"a value of kind {kind}; give a plain {', '.join(KINDS)}")
        try:
            return yaml.constructor.SafeConstructor().construct_document(node)
        except (ValueError, KeyError):
            raise self._bad(node, f"{node.value!r} is none of the kind {kind}") from None

    def _chapters(self, node: yaml.Node) -> tuple[list[str], bool]:
        named = self._values(node, "chapters")
        if isinstance(node, yaml.ScalarNode) and named[0][1] == ALL:
            return [*self.notebooks], True
        for item, name in named:
            if name not in self.notebooks:
                raise self._bad(
                    item, f"unknown chapter {name!r}; there are {', '.join(self.notebooks)}, or {ALL}"
                )
        return [name for _, name in named], False

    def _parameters(
        self, node: yaml.Node | None, chapters: Sequence[str], is_all: bool
    ) -> dict[str, list[Any]]:
        if node is None:
            return {}
        takes = {chapter: self.notebooks[chapter].parameters for chapter in chapters}
        entries = self._mapping(node, [*dict.fromkeys(name for one in takes.values() for name in one)])
        given = {}
        for name, value in entries.items():
            lacking = [chapter for chapter in chapters if name not in takes[chapter]]
            if lacking and not is_all:
                raise self._bad(
                    value, f"{lacking[0]} has no parameter {name}; it has {', '.join(takes[lacking[0]])}"
                )
            items = self._values(value, name)
            for chapter in (one for one in chapters if name in takes[one]):
                for item, one in items:
                    self._check(item, chapter, name, one)
            given[name] = [one for _, one in items]
        return given

    def _check(self, node: yaml.Node, chapter: str, name: str, value: Any) -> None:
        kind = self.notebooks[chapter].parameters[name]
        if type(value).__name__ != kind:
            raise self._bad(node, f"{name} is {value!r}, a {type(value).__name__}; {chapter} takes a {kind}")
        if name == "preset":
            for one in self.notebooks[chapter].experiments:
                if value not in (presets := experiment(one).presets):
                    raise self._bad(node, f"preset {value!r}: {one} has {', '.join(presets)}")
