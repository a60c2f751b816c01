"""PTX of the kernels in `entry`, with the arguments of the PTX function filled in: its header gives names and types."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from functools import cache

from numba import cuda, types

from labkernels.kernels import entry
from labkernels.kernels.render import AssemblyError

ENTRY = "ENTRY_OF_KERNEL"


@cache
def compiled(
    protocol: str,
    constants: tuple[int, ...],
    function: str,
    arguments: tuple[tuple[str, str], ...],
    arch: str,
) -> tuple[str, dict[str, str]]:
    """PTX of the Numba side of some kernels, its entry called `ENTRY`, and its parameters.

    Args:
        protocol: a function of `entry`, or one whose arguments are passed through.
        constants: that function's arguments.
        function: the PTX function.
        arguments: that function's arguments: name and type, as NumPy names it.
        arch: `sm_90a` or `sm_100a`.

    Returns:
        The text, and name → type of each parameter in order.

    Raises:
        AssemblyError: the entry gives an argument that the PTX function does not have.
    """
    factory = getattr(entry, protocol, entry.passed_through)
    declared = {name: getattr(types, dtype) for name, dtype in arguments}
    callee = cuda.declare_device(function, types.int64(*declared.values()), abi="c")
    return ptx(_filled(factory(*constants), declared, function, callee), arch, declared)


def ptx(kernel: Callable, arch: str, declared: Mapping[str, types.Type]) -> tuple[str, dict[str, str]]:
    """PTX of a Numba kernel, its entry called `ENTRY` so that it can be given a readable name, and its parameters.

    Args:
        kernel: its parameters are annotated, or among `declared`.
        arch: `sm_90a` or `sm_100a`.
        declared: types of parameters that are not annotated.

    Raises:
        AssemblyError: a parameter is neither.
    """
    given = {name: one.annotation for name, one in inspect.signature(kernel).parameters.items()}
    taken = {
        name: declared.get(name) if one is inspect.Parameter.empty else one for name, one in given.items()
    }
    if untyped := [name for name, one in taken.items() if one is None]:
        raise AssemblyError(
            f"entry.{_factory(kernel)} takes {untyped[0]!r}, which the PTX function does not: annotate it, or add it "
            "to the .func header"
        )
    capability = tuple(divmod(int(re.sub(r"\D", "", arch)), 10))
    signature = types.void(*taken.values())
    text, _ = cuda.compile(kernel, signature, device=False, abi="numba", output="ptx", cc=capability)
    mangled = re.search(r"\.visible \.entry (\w+)\(", text)[1]
    dtypes = {name: "uint64" if isinstance(one, types.CPointer) else str(one) for name, one in taken.items()}
    return text.replace(mangled, ENTRY), dtypes


def _filled(kernel: Callable, declared: Mapping[str, types.Type], function: str, callee: object) -> Callable:
    """The kernel with each `call(name=…)` made into a call of the PTX function with all its arguments in order.

    What the PTX function takes and the kernel neither names nor has is passed through: it comes first among the
    kernel's parameters.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(kernel)))
    (definition,) = tree.body
    own = {one.arg for one in definition.args.args}
    given: dict[str, ast.expr] = {}
    for node in ast.walk(definition):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == entry.call.__name__:
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            node.args = [given.get(name, ast.Name(name, ast.Load())) for name in declared]
            node.keywords = []
    if unknown := given.keys() - declared.keys():
        raise AssemblyError(
            f"entry.{_factory(kernel)} gives {min(unknown)!r}, which the PTX function {function} does not take; it "
            f"takes {', '.join(declared)}"
        )
    passed = [ast.arg(name) for name in declared if name not in own and name not in given]
    definition.args.args = passed + definition.args.args
    names = kernel.__globals__ | inspect.getclosurevars(kernel).nonlocals | {entry.call.__name__: callee}
    exec(compile(ast.fix_missing_locations(tree), inspect.getfile(kernel), "exec"), names)
    filled = names[definition.name]
    filled.__qualname__ = kernel.__qualname__
    return filled


def _factory(kernel: Callable) -> str:
    return kernel.__qualname__.partition(".")[0]
