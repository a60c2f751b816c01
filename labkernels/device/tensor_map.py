"""Tensor maps: the 128-byte descriptors that tell the copy engine shape, strides, box and swizzle of a tensor."""

import ctypes

import numpy as np
from cuda.bindings import driver

from labkernels.device.gpu import Buffer, _check
from labkernels.legality import require_legal
from labkernels.operand import Operand, Swizzle

TENSOR_MAP_BYTES = 128

_TYPE = driver.CUtensorMapDataType
_TYPES = {
    1: _TYPE.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    2: _TYPE.CU_TENSOR_MAP_DATA_TYPE_UINT16,
    4: _TYPE.CU_TENSOR_MAP_DATA_TYPE_UINT32,
    8: _TYPE.CU_TENSOR_MAP_DATA_TYPE_UINT64,
}
_SWIZZLE = driver.CUtensorMapSwizzle
_SWIZZLES = {
    Swizzle.NONE: _SWIZZLE.CU_TENSOR_MAP_SWIZZLE_NONE,
    Swizzle.B32: _SWIZZLE.CU_TENSOR_MAP_SWIZZLE_32B,
    Swizzle.B64: _SWIZZLE.CU_TENSOR_MAP_SWIZZLE_64B,
    Swizzle.B128: _SWIZZLE.CU_TENSOR_MAP_SWIZZLE_128B,
}
_PROMOTION = driver.CUtensorMapL2promotion
_PROMOTIONS = {
    0: _PROMOTION.CU_TENSOR_MAP_L2_PROMOTION_NONE,
    64: _PROMOTION.CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
    128: _PROMOTION.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    256: _PROMOTION.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
}


def encode(operand: Operand, address: int, l2_promotion_bytes: int = 0) -> np.ndarray:
    """The tensor map of an operand at a device address: 128 bytes, to be placed on a 64-byte boundary.

    Args:
        operand: tensor, box and swizzle.
        address: of the tensor.
        l2_promotion_bytes: least that L2 fetches from memory for each request: 0, 64, 128 or 256.

    Raises:
        IllegalOperand: the copy engine cannot take the operand.
        RuntimeError: the driver refused it all the same; the message carries its error.
    """
    require_legal(operand, "tma_tile")
    long, short = driver.cuuint64_t, driver.cuuint32_t
    tensor_map = _check(
        driver.cuTensorMapEncodeTiled(
            _TYPES[operand.element_bytes],
            operand.rank,
            address,
            [long(extent) for extent in operand.shape],
            [long(stride) for stride in operand.strides_bytes]
            or [long(16)],  # not read at rank 1, but not NULL
            [short(side) for side in operand.tile],
            [short(1)] * operand.rank,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            _SWIZZLES[operand.swizzle],
            _PROMOTIONS[l2_promotion_bytes],
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return np.frombuffer(ctypes.string_at(tensor_map.getPtr(), TENSOR_MAP_BYTES), np.uint8)


def place(operand: Operand, address: int, l2_promotion_bytes: int = 0) -> Buffer:
    """Encode a tensor map and put it in global memory, where kernels take it from; see `encode`."""
    return Buffer(TENSOR_MAP_BYTES).write(encode(operand, address, l2_promotion_bytes))
