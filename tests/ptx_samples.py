"""Small PTX functions, one for each mechanism, and kernels put together from them."""

from collections.abc import Sequence

from cuda.core import Linker, LinkerOptions, ObjectCode

# Each uses %a (global), %map (tensor map), %n, %sm and %bar (shared), and an offset of its own.
SAMPLES = {
    "ldg": "ld.global.u32 %r, [%a + 256]; st.shared.u32 [%sm + 512], %r;",
    "cp_async": "cp.async.cg.shared.global [%sm], [%a], 16; cp.async.wait_all;",
    "tma_bulk": "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%sm], [%a], 256, [%bar];",
    "tma_tile": (
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%sm], [%map, {%n, %n, %n}], [%bar];"
    ),
    "tma_multicast": (
        "mov.b16 %h, 3; cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%sm], [%map, {%n, %n}], [%bar], %h;"
    ),
    "dsm_load": (
        "mapa.shared::cluster.u32 %r, %sm, %n; ld.shared::cluster.u32 %r, [%r + 64]; "
        "st.shared.u32 [%sm + 768], %r;"
    ),
    "dsm_store": "mapa.shared::cluster.u32 %r, %sm, %n; st.shared::cluster.u32 [%r + 128], %n;",
    "dsm_bulk": (
        "mapa.shared::cluster.u32 %r, %sm, %n; mapa.shared::cluster.u32 %q, %bar, %n; "
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r], [%sm], 256, [%q];"
    ),
    "tma_store": "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%map, {%n, %n}], [%sm];",
    "bulk_store": "cp.async.bulk.global.shared::cta.bulk_group [%a], [%sm], 256;",
    "tma_reduce": "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%map, {%n, %n}], [%sm];",
    "bulk_reduce": "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%a], [%sm], 256;",
    "stg": "st.global.u32 [%a + 128], %n;",
    "cluster_barrier": "barrier.cluster.arrive; barrier.cluster.wait;",
    "prefetch": "prefetch.global.L2 [%a + 1024];",
    "tensormap_prefetch": "prefetch.tensormap [%map];",
    "atomic": "red.global.add.u32 [%a + 2048], %n;",
}

_MAPPED = (
    ".reg .b32 %t; mov.u32 %t, %tid.x; cvt.u64.u32 %d, %sm; cvta.shared.u64 %d, %d; mapa.u64 %d, %d, %n;"
)

# Ways to write the same thing that compile to other opcodes.
VARIANTS = {
    "multicast of a bulk copy": (
        "tma_multicast",
        "mov.b16 %h, 3; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%sm], [%a], 256, [%bar], %h;",
    ),
    "st.async": (
        "dsm_store",
        "mapa.shared::cluster.u32 %r, %sm, %n; mapa.shared::cluster.u32 %q, %bar, %n; "
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r], %n, [%q];",
    ),
    "a mapped generic pointer, read": (
        "dsm_load",
        "cvt.u64.u32 %d, %sm; cvta.shared.u64 %d, %d; mapa.u64 %d, %d, %n; ld.u32 %r, [%d + 8]; "
        "st.shared.u32 [%sm + 768], %r;",
    ),
    "a mapped generic pointer, written": (
        "dsm_store",
        "cvt.u64.u32 %d, %sm; cvta.shared.u64 %d, %d; mapa.u64 %d, %d, %n; st.u32 [%d + 8], %n;",
    ),
    "a mapped generic pointer, indexed": (
        "dsm_load",
        f"{_MAPPED} mad.wide.u32 %d, %t, 4, %d; ld.u32 %r, [%d + 8]; st.shared.u32 [%sm + 768], %r;",
    ),
    "a mapped generic pointer, indexed twice": (
        "dsm_store",
        f"{_MAPPED} mad.wide.u32 %d, %t, 4, %d; mad.wide.s32 %d, %n, 96, %d; st.u32 [%d], %n;",
    ),
    "a mapped generic pointer in a loop": (
        "dsm_atomic",
        f"{_MAPPED} .reg .pred %p; mov.u32 %r, 0; AGAIN: red.add.u32 [%d], %t; mad.wide.u32 %d, %t, 4, %d; "
        "add.u32 %r, %r, 1; setp.lt.u32 %p, %r, %n; @%p bra AGAIN;",
    ),
    "the next CTA's memory": (
        "dsm_store",
        "mov.u32 %r, %cluster_ctarank; add.u32 %r, %r, 1; cvt.u64.u32 %d, %sm; cvta.shared.u64 %d, %d; "
        "mapa.u64 %d, %d, %r; st.u32 [%d], %n;",
    ),
    "its own memory, mapped": (
        "generic_store",
        "mov.u32 %r, %cluster_ctarank; cvt.u64.u32 %d, %sm; cvta.shared.u64 %d, %d; mapa.u64 %d, %d, %r; "
        "mad.wide.u32 %d, %n, 4, %d; st.u32 [%d], %n;",
    ),
    "a sum over a multicast address": (
        "multimem",
        "multimem.ld_reduce.global.add.f32 %w, [%a]; st.shared.f32 [%sm], %w;",
    ),
    "a tensor map published": (
        "tensormap_write",
        "cvt.u64.u32 %d, %sm; tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu"
        ".sync.aligned [%map], [%d], 128;",
    ),
    "a tensor map that another wrote": (
        "tensormap_fence",
        "fence.proxy.tensormap::generic.acquire.gpu [%map], 128;",
    ),
    "an exchange": ("atomic", "atom.global.exch.b32 %r, [%a], %n; st.shared.u32 [%sm], %r;"),
    "cp.async of 4 bytes": ("cp_async", "cp.async.ca.shared.global [%sm], [%a], 4; cp.async.wait_all;"),
    "ld.global.nc": ("ldg", "ld.global.nc.u32 %r, [%a + 256]; st.shared.u32 [%sm + 512], %r;"),
    "a generic pointer, written": ("generic_store", "st.u32 [%a], %n;"),
    "an atomic on mapped memory": (
        "dsm_atomic",
        "mapa.shared::cluster.u32 %r, %sm, %n; red.shared::cluster.add.u32 [%r], %n;",
    ),
}

# What Blackwell adds.
BLACKWELL = {
    "gather4": (
        "tma_gather",
        "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
        "[%sm], [%map, {%n, %n, %n, %n, %n}], [%bar];",
    ),
    "gather4, multicast": (
        "tma_gather",
        "mov.b16 %h, 3; cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%sm], [%map, {%n, %n, %n, %n, %n}], [%bar], %h;",
    ),
    "scatter4": (
        "tma_scatter",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%map, {%n, %n, %n, %n, %n}], [%sm];",
    ),
}

_HEADER = ".version 8.6\n.target {arch}\n.address_size 64\n"
_REGISTERS = ".reg .b64 %d; .reg .b32 %r, %q; .reg .b16 %h; .reg .f32 %w;"


def function(name: str, body: str, arch: str = "sm_90a", visible: bool = True) -> str:
    """A module with one device function that runs `body`."""
    return (
        _HEADER.format(arch=arch)
        + f"{'.visible ' if visible else ''}.func {name}(.reg .b64 %a, .reg .b64 %map, .reg .b32 %n, "
        + f".reg .b32 %sm, .reg .b32 %bar)\n{{\n{_REGISTERS}\n{body}\nret;\n}}\n"
    )


def kernel(bodies: Sequence[str], calls: Sequence[str] = (), arch: str = "sm_90a", name: str = "k") -> str:
    """A module with one kernel that runs bodies inline and calls functions of other modules."""
    parameters = "(.reg .b64 %a, .reg .b64 %map, .reg .b32 %n, .reg .b32 %sm, .reg .b32 %bar)"
    inline = "\n".join(f"{{ {_REGISTERS} {body} }}" for body in bodies)
    called = "\n".join(f"call {callee}, (%a, %map, %n, %sm, %bar);" for callee in calls)
    return (
        _HEADER.format(arch=arch)
        + "".join(f".extern .func {callee}{parameters};\n" for callee in calls)
        + f".visible .entry {name}(.param .u64 a, .param .u64 map, .param .u32 n)\n{{\n"
        + ".reg .b64 %a, %map; .reg .b32 %n, %sm, %bar;\n"
        + ".shared .align 128 .b8 buffer[1024]; .shared .align 8 .b64 barrier;\n"
        + "ld.param.u64 %a, [a]; ld.param.u64 %map, [map]; ld.param.u32 %n, [n];\n"
        + f"mov.u32 %sm, buffer; mov.u32 %bar, barrier;\n{inline}\n{called}\nret;\n}}\n"
    )


def link(*modules: str, arch: str = "sm_90a") -> bytes:
    """One cubin of some PTX modules."""
    objects = [ObjectCode.from_ptx(module.encode()) for module in modules]
    return bytes(Linker(*objects, options=LinkerOptions(arch=arch)).link("cubin").code)
