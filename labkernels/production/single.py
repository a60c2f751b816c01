"""Numbers as C++ code holds them in a `float`: some libraries decide by the last bit of one."""

from ctypes import c_float


def single(value: float) -> float:
    """The nearest number of single precision."""
    return c_float(value).value
