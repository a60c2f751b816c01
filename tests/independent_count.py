"""Categories of a census, counted a second time: straight from `nvdisasm` listings, with nothing of the package.

python tests/independent_count.py FILE…     compares labkernels' census of files with this count, kernel by kernel
"""

import csv
import hashlib
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LINE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/ +(?:\{ *)?(?:@!?U?P\w+ +)?([A-Z][A-Z0-9_.a-z]*)([^;(]*)")
REGISTER = re.compile(r"\bU?R\d+\b")


def kind(opcode: str, rest: str, sm: int) -> str | None:
    """The category of one instruction, but for what only the origin of its address tells."""
    parts = set(opcode.split("."))
    base = opcode.split(".")[0]
    if base == "UTMALDG":
        return "tma_gather" if "GATHER4" in parts else "tma_multicast" if "MULTICAST" in parts else "tma_tile"
    if base == "UBLKCP":
        if opcode.startswith("UBLKCP.S.G"):
            return "tma_multicast" if "MULTICAST" in parts else "tma_bulk"
        return "dsm_bulk" if opcode.startswith("UBLKCP.S.S") else "bulk_store"
    if base == "UTMASTG":
        return "tma_scatter" if "SCATTER4" in parts else "tma_store"
    if base == "UTMACCTL":
        return "tensormap_prefetch" if "PF" in parts else "tensormap_fence" if "IV" in parts else None
    if base == "CCTL":
        return "prefetch" if {"PF1", "PF2"} & parts else None
    if base == "SYNCS":
        return "remote_arrive" if {"ARRIVE", "RED"} <= parts else None
    if base == "ATOMG" and "EXCH" in parts and "desc[" not in rest and sm >= 90:
        return "tensormap_write"
    if base in ("LD", "ST", "ATOM"):
        bare = sm >= 90 and "desc[" not in rest and ".64" not in rest
        plain = {"LD": "generic_load", "ST": "generic_store", "ATOM": "atomic"}
        mapped = {"LD": "dsm_load", "ST": "dsm_store", "ATOM": "dsm_atomic"}
        return (mapped if bare else plain)[base]
    return {
        "LDG": "ldg", "LDGSTS": "cp_async", "STG": "stg", "STAS": "dsm_store", "UTMAREDG": "tma_reduce",
        "UBLKRED": "bulk_reduce", "ATOMG": "atomic", "RED": "atomic", "REDG": "atomic", "REDAS": "dsm_atomic",
        "UCGABAR_ARV": "cluster_barrier", "UCGABAR_WAIT": "cluster_barrier", "UBLKPF": "prefetch",
        "UTMAPF": "prefetch", "LDGMC": "multimem",
    }.get(base)  # fmt: skip


def maps_of(lines: list[tuple[str, str]]) -> dict[int, bool]:
    """For each generic access, whether its address is another CTA's: values are followed forwards, in code order."""
    state: dict[str, str] = {}  # register -> "mapped" or "rank"
    found = {}
    clustered = any(opcode.startswith("UCGABAR") for opcode, _ in lines)
    for at, (opcode, rest) in enumerate(lines):
        base = opcode.split(".")[0]
        inside = re.search(r"\[(U?R\d+)", re.sub(r"desc\[\w+\]", "", rest))
        if base in ("LD", "ST", "ATOM"):
            found[at] = bool(inside) and state.get(inside[1]) == "mapped"
        first = REGISTER.match(rest.strip())
        if not first:
            continue
        operands = [o.strip() for o in rest.split(",")[1:]]
        operands = [o for o in operands if not re.fullmatch(r"!?U?P[\dT]", o)]
        used = [r[0] for o in operands if (r := REGISTER.search(o))]
        new = None
        if base in ("S2R", "S2UR", "CS2R") and "SR_CgaCtaId" in rest:
            new = "rank"
        elif base in ("PRMT", "UPRMT") and "0x654" in rest:
            alone = operands[0].endswith("RZ") and not clustered  # rank 0 of a cluster of one
            new = None if alone or (used and state.get(used[0]) == "rank") else "mapped"
        elif base in ("MOV", "UMOV", "R2UR") or opcode.startswith(("IMAD.MOV", "IMAD.U32", "UIMAD.MOV")):
            new = next((state[r] for r in used if r in state), None)
        elif (base in ("IADD3", "UIADD3", "VIADD", "IADD") and ".X" not in opcode) or "IMAD.IADD" in opcode:
            new = "mapped" if any(state.get(r) == "mapped" for r in used) else None
        elif base in ("IMAD", "UIMAD") and ".HI" not in opcode and len(operands) > 2:
            new = "mapped" if state.get((REGISTER.search(operands[2]) or [""])[0]) == "mapped" else None
        elif base in ("LEA", "ULEA") and ".HI" not in opcode and len(operands) > 1:
            new = "mapped" if state.get((REGISTER.search(operands[1]) or [""])[0]) == "mapped" else None
        state.pop(first[0], None)
        if new:
            state[first[0]] = new
    return found


def exchanges(lines: list[tuple[str, str]]) -> set[int]:
    """Compare-and-exchanges on any memory, and the loads and stores that stand for them in local memory."""
    found, open_for = (
        set(),
        {},
    )  # address as written -> instructions that are left to find its load and store in
    for at, (opcode, rest) in enumerate(lines):
        address = (re.search(r"\[(U?R\d+)[^\]]*\]", rest) or [""])[0]
        if opcode.startswith("ATOM.") and ".CAS" in opcode and "desc[" not in rest and ".64]" not in rest:
            open_for[address] = at
        if opcode.split(".")[0] in ("LD", "ST", "ATOM") and at - open_for.get(address, -99) <= 24:
            found.add(at)
    return found


def count(text: str) -> dict[str, Counter[str]]:
    """Categories of each section of code in a listing, callees not added."""
    sm = int(re.search(r"EF_CUDA_SM(\d+)|\.target\s+sm_(\d+)", text).group(0).split("M")[-1].split("_")[-1])
    result: dict[str, Counter[str]] = {}
    lines: list[tuple[str, str]] = []
    bodies: dict[str, list[tuple[str, str]]] = {}
    for line in text.split("\n"):
        if match := re.match(r"^([^\s.][^:]*|\.(?!L_|text)[^:]*):$", line):
            lines = bodies.setdefault(match[1], [])
        elif match := LINE.match(line):
            lines.append((match[1], match[2]))
    for name, body in bodies.items():
        mapped, anywhere = (maps_of(body), exchanges(body)) if sm >= 90 else ({}, set())
        counts: Counter[str] = Counter()
        for at, (opcode, rest) in enumerate(body):
            if found := kind(opcode, rest, sm):
                base = opcode.split(".")[0]
                if at in anywhere:
                    found = {"LD": "generic_load", "ST": "generic_store", "ATOM": "atomic"}[base]
                if mapped.get(at):
                    found = {"LD": "dsm_load", "ST": "dsm_store", "ATOM": "dsm_atomic"}[base]
                counts[found] += 1
        result[name] = counts
    return result


def listing(nvdisasm: str, cubin: Path) -> str:
    """What the disassembler prints."""
    return subprocess.run(
        [nvdisasm, "-c", "-ndf", str(cubin)], capture_output=True, text=True, check=True
    ).stdout


COLUMNS = ("source", "cubin_sha256", "arch", "kernel", "counts")


def compared(path: Path, archs: tuple[str, ...] = ()) -> Iterator[tuple[dict[str, str], dict[str, int]]]:
    """Each kernel of a file: a row of the table, and what the package counts for its own code."""
    from labkernels.kernels import sass
    from labkernels.production.containers import Cubin, Selection, unpack

    with tempfile.TemporaryDirectory() as scratch:
        for found in unpack(path, Path(scratch), Selection(archs)):
            if not isinstance(found, Cubin):
                print(f"{path}: {found}", file=sys.stderr)
                continue
            code = found.path.read_bytes()
            mine = count(listing(sass.tool("nvdisasm"), found.path))
            for name, function in sass.disassemble(found.path).items():
                if function.entry:
                    counts = " ".join(f"{k}={n}" for k, n in sorted(mine.get(name, Counter()).items()))
                    row = (path.name, hashlib.sha256(code).hexdigest(), found.arch, shortened(name), counts)
                    yield dict(zip(COLUMNS, row, strict=True)), dict(function.mechanisms())
            if found.path != path:
                found.path.unlink()


def shortened(name: str) -> str:
    """A linker name, a long one by its beginning and its hash."""
    return name if len(name) <= 100 else f"{name[:80]}…{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def parsed(counts: str) -> dict[str, int]:
    """The counts of a row."""
    return {name: int(number) for name, number in (one.split("=") for one in counts.split())}


def main(arguments: list[str]) -> int:
    """Compare and print the table; 1 if a kernel differs."""
    archs = tuple(arguments[1:2]) if arguments[0] == "--arch" else ()
    rows = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    rows.writeheader()
    differ = 0
    for path in map(Path, arguments[2:] if archs else arguments):
        for row, found in compared(path, archs):
            rows.writerow(row)
            if found != parsed(row["counts"]):
                differ += 1
                print(
                    f"{path} {row['arch']} {row['kernel'][:80]}: {found}, not {row['counts']}",
                    file=sys.stderr,
                )
    print(f"{differ} kernels differ", file=sys.stderr)
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
