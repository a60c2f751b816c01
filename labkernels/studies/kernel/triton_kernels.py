"""Triton kernels, each twice: operands by tensor descriptor, or by pointers."""

from types import SimpleNamespace

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:  # where there is no Triton the kernels can be read, and nothing launches them
    triton, tl = SimpleNamespace(jit=lambda kernel: kernel), SimpleNamespace(constexpr=int)


@triton.jit
def gemm_pointers(a, b, d, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, G: tl.constexpr):
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (G * columns)
    size = min(rows - group * G, G)
    pm = group * G + (pid % (G * columns)) % size
    pn = (pid % (G * columns)) // size
    om = pm * BM + tl.arange(0, BM)
    on = pn * BN + tl.arange(0, BN)
    ok = tl.arange(0, BK)
    pa = a + om[:, None] * K + ok[None, :]
    pb = b + on[:, None] * K + ok[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(pa), tl.load(pb).T, acc)
        pa += BK
        pb += BK
    tl.store(d + om[:, None] * N + on[None, :], acc.to(tl.bfloat16))


@triton.jit
def gemm_descriptors(a, b, d, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, G: tl.constexpr):
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (G * columns)
    size = min(rows - group * G, G)
    pm = group * G + (pid % (G * columns)) % size
    pn = (pid % (G * columns)) // size
    om = pm * BM + tl.arange(0, BM)
    on = pn * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([pm * BM, k]), b.load([pn * BN, k]).T, acc)
    tl.store(d + om[:, None] * N + on[None, :], acc.to(tl.bfloat16))


@triton.jit
def reduce_pointers(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    om = tl.program_id(0) * BM + tl.arange(0, BM)
    on = tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for n in range(0, N, BN):
        acc += tl.load(x + om[:, None] * N + (n + on)[None, :]).to(tl.float32)
    tl.store(y + om, tl.sum(acc, 1))


@triton.jit
def reduce_descriptors(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    om = tl.program_id(0) * BM + tl.arange(0, BM)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for n in range(0, N, BN):
        acc += x.load([tl.program_id(0) * BM, n]).to(tl.float32)
    tl.store(y + om, tl.sum(acc, 1))


@triton.jit
def scale_pointers(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    om = tl.program_id(0) * BM + tl.arange(0, BM)
    on = tl.program_id(1) * BN + tl.arange(0, BN)
    tl.store(y + om[:, None] * N + on[None, :], tl.load(x + om[:, None] * N + on[None, :]) * 2)


@triton.jit
def scale_descriptors(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    om = tl.program_id(0) * BM + tl.arange(0, BM)
    on = tl.program_id(1) * BN + tl.arange(0, BN)
    tl.store(y + om[:, None] * N + on[None, :], x.load([tl.program_id(0) * BM, tl.program_id(1) * BN]) * 2)


@triton.jit
def softmax_pointers(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    om = tl.program_id(0) * BM + tl.arange(0, BM)
    on = tl.arange(0, BN)
    v = tl.load(x + om[:, None] * N + on[None, :]).to(tl.float32)
    e = tl.exp(v - tl.max(v, 1)[:, None])
    tl.store(y + om[:, None] * N + on[None, :], (e / tl.sum(e, 1)[:, None]).to(tl.bfloat16))


@triton.jit
def softmax_descriptors(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    om = tl.program_id(0) * BM + tl.arange(0, BM)
    on = tl.arange(0, BN)
    v = x.load([tl.program_id(0) * BM, 0]).to(tl.float32)
    e = tl.exp(v - tl.max(v, 1)[:, None])
    tl.store(y + om[:, None] * N + on[None, :], (e / tl.sum(e, 1)[:, None]).to(tl.bfloat16))
