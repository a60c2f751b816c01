"""What PyTorch does for the study: random operands on the GPU, the float32 reference, the library's product."""

from typing import Any

from labkernels.errors import LabError, NotInstalled
from labkernels.studies.gemm.family import ELEMENT_BYTES

TOLERANCE = {"bf16": 4e-3, "e4m3": 2e-2}
"""Largest ‖D - reference‖ / ‖reference‖: D's rounding to bf16, and the shorter accumulation of FP8."""


class WrongProduct(LabError, AssertionError):
    """A kernel computed something else than the float32 reference; nothing of it may be timed."""


def require_torch() -> Any:
    """PyTorch with a GPU.

    Raises:
        NotInstalled: It is not installed.
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise NotInstalled(
            "measuring GEMMs needs PyTorch for operands, reference and library product: pip install torch"
        ) from None
    return torch


class Pool:
    """Normally distributed elements, enough for every operand asked of it.

    Args:
        dtype: `bf16` or `e4m3`.
        elements: How many.
        seed: Of the elements.
    """

    def __init__(self, dtype: str, elements: int, seed: int) -> None:
        torch = require_torch()
        self.dtype = dtype
        generator = torch.Generator("cuda").manual_seed(seed)
        self._elements = torch.randn(elements, dtype=torch.bfloat16, device="cuda", generator=generator)
        if dtype == "e4m3":
            self._elements = self._elements.to(torch.float8_e4m3fn)


class Operands:
    """Several sets of A, B and D of one shape; launches that go through them in turn find A and B in memory.

    Args:
        pool: Where A and B are taken from.
        shape: M, N, K.
        spread_bytes: That all sets' A and B together take, at least.
    """

    def __init__(self, pool: Pool, shape: tuple[int, int, int], spread_bytes: int) -> None:
        torch = require_torch()
        self.dtype, self.shape = pool.dtype, shape
        m, n, k = shape
        self.sets = sets_for(pool.dtype, shape, spread_bytes)
        self._a, self._b = [], []
        for number in range(self.sets):
            start = number * (m + n) * k
            self._a.append(pool._elements[start : start + m * k].view(m, k))
            self._b.append(pool._elements[start + m * k : start + (m + n) * k].view(n, k))
        self._d = [torch.empty((m, n), dtype=torch.bfloat16, device="cuda") for _ in range(self.sets)]
        self._one = torch.ones((), device="cuda")
        self._reference = self._a[0].float() @ self._b[0].float().T

    def addresses(self, number: int) -> tuple[int, int, int]:
        """Device addresses of A, B and D of one set."""
        return self._a[number].data_ptr(), self._b[number].data_ptr(), self._d[number].data_ptr()

    def library_product(self, number: int) -> None:
        """Queue the library's product of one set on PyTorch's current stream."""
        torch = require_torch()
        a, b, d = self._a[number], self._b[number].t(), self._d[number]
        if self.dtype == "bf16":
            torch.mm(a, b, out=d)
        else:
            scales = {"scale_a": self._one, "scale_b": self._one}
            torch._scaled_mm(a, b, **scales, out_dtype=d.dtype, use_fast_accum=True, out=d)

    def poison(self) -> None:
        """Fill the first D with NaN."""
        self._d[0].fill_(float("nan"))

    def relative_error(self, kernel: str) -> float:
        """‖D - reference‖ / ‖reference‖ of the first set.

        Raises:
            WrongProduct: It is above the tolerance, or an element was not written.
        """
        error = float((self._d[0].float() - self._reference).norm() / self._reference.norm())
        if not error <= TOLERANCE[self.dtype]:
            raise WrongProduct(
                f"{kernel}: M, N, K = {self.shape} differs from the float32 reference by {error:.2e}, "
                f"allowed is {TOLERANCE[self.dtype]:.0e}"
            )
        return error


def sets_for(dtype: str, shape: tuple[int, int, int], spread_bytes: int) -> int:
    """Sets of A and B that together take at least so many bytes."""
    m, n, k = shape
    return -(-spread_bytes // ((m + n) * k * ELEMENT_BYTES[dtype]))
