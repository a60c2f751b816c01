"""Categories of a census, counted a second time: straight from `nvdisasm` listings, with nothing of the package.

python tests/independent_count.py FILE…     compares labkernels' census of files with this count, kernel by kernel
"""

import re
import subprocess
import sys
from collections import Counter
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
            new = None if used and state.get(used[0]) == "rank" else "mapped"
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
        mapped = maps_of(body) if sm >= 90 else {}
        counts: Counter[str] = Counter()
        for at, (opcode, rest) in enumerate(body):
            if found := kind(opcode, rest, sm):
                if mapped.get(at):
                    base = opcode.split(".")[0]
                    found = {"LD": "dsm_load", "ST": "dsm_store", "ATOM": "dsm_atomic"}[base]
                counts[found] += 1
        result[name] = counts
    return result


def listing(nvdisasm: str, cubin: Path) -> str:
    """What the disassembler prints."""
    return subprocess.run(
        [nvdisasm, "-c", "-ndf", str(cubin)], capture_output=True, text=True, check=True
    ).stdout


def main(paths: list[str]) -> int:
    """Compare; a line for each file, and one for each kernel that differs."""
    import tempfile

    from labkernels.kernels import sass
    from labkernels.production.containers import Cubin, unpack

    differ = 0
    for path in paths:
        kernels, total = 0, Counter()
        with tempfile.TemporaryDirectory() as scratch:
            for found in unpack(Path(path), Path(scratch)):
                if not isinstance(found, Cubin):
                    print(f"{path}: {found}")
                    continue
                text = listing(sass.tool("nvdisasm"), found.path)
                ours = sass._parse(text)
                mine = count(text)
                for name, function in ours.items():
                    a, b = function.mechanisms(), mine.get(name, Counter())
                    kernels += function.entry
                    total += a
                    if a != b:
                        differ += 1
                        print(f"{path}: {found.arch} {name[:60]}: {dict(a - b)} {dict(b - a)}")
                if str(found.path) != path:
                    found.path.unlink()
        print(f"{path}: {kernels} kernels, {dict(total)}", flush=True)
    print(f"{differ} differ")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
