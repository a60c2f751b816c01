"""The CUTLASS kernels on a GPU: every one right on a ragged shape, controls in the same clusters, bad input refused."""

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

from labkernels.device import Gpu  # noqa: E402
from labkernels.errors import NotInstalled  # noqa: E402
from labkernels.studies.gemm.bench import Candidate, Clocks, Prepared  # noqa: E402
from labkernels.studies.gemm.library import GemmError, Library  # noqa: E402
from labkernels.studies.gemm.operands import Operands, Pool, WrongProduct  # noqa: E402

RAGGED = (1000, 1096, 1184)  # no multiple of any tile; rows still of 16 bytes


@pytest.fixture(scope="module")
def gpu():
    return Gpu()


@pytest.fixture(scope="module")
def library(gpu):
    try:
        return Library(gpu.facts.arch)
    except NotInstalled as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def operands():
    pools = {dtype: Pool(dtype, 4 << 20, seed=7) for dtype in ("bf16", "e4m3")}
    return {dtype: Operands(pool, RAGGED, 1) for dtype, pool in pools.items()}


@pytest.fixture(autouse=True)
def side_stream():
    with torch.cuda.stream(torch.cuda.Stream()):
        yield


@pytest.mark.parametrize("swizzle", [1, 8])
def test_every_kernel_agrees_with_the_float32_reference(gpu, library, operands, swizzle):
    for kernel in library.kernels:
        candidate = Candidate(kernel, gpu.facts.sm_count, swizzle)
        Prepared(library, candidate, operands[kernel.dtype], sample_us=1).close()


def test_a_wrong_product_is_refused(library, operands, gpu):
    kernel = library.kernels[0]
    Prepared(library, Candidate(kernel, gpu.facts.sm_count), operands[kernel.dtype], sample_us=1).close()
    operands[kernel.dtype]._d[0][5, 7] += 1000
    with pytest.raises(WrongProduct, match=kernel.name):
        operands[kernel.dtype].relative_error(kernel.name)
    operands[kernel.dtype].poison()
    with pytest.raises(WrongProduct):
        operands[kernel.dtype].relative_error(kernel.name)


def test_controls_keep_stages_and_resident_clusters(library):
    by_shape = {}
    for kernel in library.kernels:
        by_shape.setdefault((kernel.dtype, kernel.tile, kernel.cluster), []).append(kernel)
    for kernels in by_shape.values():
        assert len({library.stages(k) for k in kernels}) == 1
        assert len({library.shared_bytes(k) for k in kernels}) == 1
        assert len({library.resident_clusters(k) for k in kernels}) == 1


def test_a_row_of_no_whole_16_bytes_is_refused(gpu, library, operands):
    with pytest.raises(GemmError, match="16 bytes"):
        library.plan(
            library.kernels[0], operands["bf16"].addresses(0), (256, 256, 1001), sms=gpu.facts.sm_count
        )


def test_clock_stamps_read_a_plausible_clock(gpu, library):
    clocks = Clocks(library, gpu.facts.sm_count, 1)
    a = torch.randn(4096, 4096, device="cuda")
    clocks.around(0, lambda: [a @ a for _ in range(4)])
    torch.cuda.synchronize()
    assert 200 < clocks.mhz()[0] < 3000
