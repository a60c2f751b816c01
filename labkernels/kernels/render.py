"""From a kernel's spec to its PTX, and what that text declares: the one source of argument names, widths and limits."""

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from labkernels.errors import BadArgument, LabError
from labkernels.kernels.registry import KernelSpec
from labkernels.mechanisms import ARCHITECTURES

PTX = Path(__file__).parent / "ptx"


class AssemblyError(LabError):
    """A kernel did not assemble, did not link cleanly, or does not contain the machine code it promises."""


@cache
def _templates(sanitizer: bool) -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PTX),
        undefined=jinja2.StrictUndefined,
        variable_start_string="${",
        variable_end_string="}",
        line_statement_prefix="//%",
        comment_start_string="/*%",
        comment_end_string="%*/",
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    templates.globals["sanitizer"] = sanitizer
    return templates


def render(spec: KernelSpec, arch: str, sanitizer: bool = False) -> str:
    """The mechanism's PTX for one kernel and architecture: the text that is assembled.

    Args:
        spec: which kernel.
        arch: a name of `ARCHITECTURES`.
        sanitizer: whether compute-sanitizer must be able to follow it (ptx/macros/stream.ptx, mbarrier.ptx); such
            kernels are not measured.

    Raises:
        AssemblyError: no file, or one that is no template, or asks for a constant that the spec does not have.
    """
    file = f"{spec.mechanism}.ptx"
    try:
        template = _templates(sanitizer).get_template(file)
        text = template.render(arch=arch, protocol=spec.protocol, **dict(spec.constants))
    except jinja2.TemplateNotFound as error:
        raise AssemblyError(f"{spec.name}: there is no kernels/ptx/{error.name}: write it") from None
    except jinja2.UndefinedError as error:
        raise AssemblyError(
            f"{spec.name}: kernels/ptx/{file}: {error}; its axes in kernels/registry.py give "
            f"{', '.join(dict(spec.constants)) or 'nothing'}"
        ) from None
    except jinja2.TemplateSyntaxError as error:
        raise AssemblyError(f"kernels/ptx/{error.name or file}, line {error.lineno}: {error}") from None
    return re.sub(r"\n(?:[ \t]*\n)+", "\n", text)


@dataclass(frozen=True)
class Parameter:
    """One argument of a kernel.

    Attributes:
        name: as in the PTX.
        dtype: as NumPy names it; an address is a `uint64`.
        most: largest value, where that is less than `dtype` holds.
    """

    name: str
    dtype: str
    most: int | None = None

    def cast(self, kernel: str, value: Any) -> np.generic:
        """A value, or what has an `address`, as the kernel takes it.

        Raises:
            BadArgument: no whole number, or one that does not fit.
        """
        try:
            number = operator.index(getattr(value, "address", value))
        except TypeError:
            raise BadArgument(f"{kernel}: {self.name} is {value!r}: give a whole number") from None
        info = np.iinfo(self.dtype)
        if self.most and not 1 <= number <= self.most:
            raise BadArgument(
                f"{kernel}: {self.name} is {number}, its PTX declares barriers for {self.most}: give 1 to {self.most}"
            )
        if not info.min <= number <= info.max:
            raise BadArgument(
                f"{kernel}: {self.name} is {number}, which no {self.dtype} holds: give {info.min} to {info.max}"
            )
        return info.dtype.type(number)


def pack(kernel: str, parameters: tuple[Parameter, ...], given: Mapping[str, Any]) -> list[np.generic]:
    """The arguments of a launch in their order.

    Args:
        kernel: its name, for messages.
        parameters: what it takes.
        given: values by name; a buffer stands for its address.

    Raises:
        BadArgument: one is missing, unknown or does not fit.
    """
    known = [one.name for one in parameters]
    for wrong, names in (("no argument", given.keys() - {*known}), ("is missing", {*known} - given.keys())):
        if names:
            said = f"{wrong} {min(names)!r}" if wrong == "no argument" else f"{min(names)!r} {wrong}"
            raise BadArgument(f"{kernel}: {said}; it takes {', '.join(known)}")
    return [one.cast(kernel, given[one.name]) for one in parameters]


_COMMENT = re.compile(r"//[^\n]*")
_FUNCTION = re.compile(r"\.func\s*\(\s*\.reg\s+\.b64\s+\w+\s*\)\s*(\w+)\s*\(([^)]*)\)")
_ARGUMENT = re.compile(r"\.reg\s+\.b(32|64)\s+(\w+)")
_BARRIERS = re.compile(r"\.shared\s+\.align\s+8\s+\.b64\s+\w+\[(\d+)\]")
_TYPES = {"32": "int32", "64": "uint64"}


@dataclass(frozen=True)
class Declared:
    """What the PTX of a kernel declares.

    Attributes:
        kernel: its name.
        arguments: of the timed function, in order: name → type, as NumPy names it.
        max_stages: stages that it has barriers for; None where stages have none.
    """

    kernel: str
    arguments: Mapping[str, str]
    max_stages: int | None

    def parameter(self, name: str, dtype: str | None = None) -> Parameter:
        """The argument of that name; of the kernel's own, with its type."""
        return Parameter(name, dtype or self.arguments[name], self.max_stages if name == "stages" else None)

    def require(self, **values: int) -> None:
        """Refuse values that the kernel cannot take, before anything is launched.

        Raises:
            BadArgument: with value, limit and fix.
        """
        for name, value in values.items():
            self.parameter(name).cast(self.kernel, value)


@cache
def declared(spec: KernelSpec) -> Declared:
    """What a kernel's PTX declares.

    Raises:
        AssemblyError: see `render`; or it does not declare the spec's function.
    """
    text = _COMMENT.sub("", render(spec, ARCHITECTURES[0]))
    found = next((one for one in _FUNCTION.finditer(text) if one[1] == spec.function), None)
    if found is None:
        raise AssemblyError(
            f"{spec.name}: kernels/ptx/{spec.mechanism}.ptx declares no .func {spec.function}: give it a branch for "
            f"protocol {spec.protocol!r}"
        )
    arguments = {name: _TYPES[bits] for bits, name in _ARGUMENT.findall(found[2])}
    # One mbarrier.init stands in the text for each barrier that a stage has.
    barriers = sum(map(int, _BARRIERS.findall(text)))
    per_stage = text.count("mbarrier.init") if "stages" in arguments else 0
    return Declared(spec.name, arguments, barriers // per_stage if per_stage else None)
