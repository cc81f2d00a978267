"""Storage of each dtype of torch in a safetensors file. Knows nothing of torch.

A dtype that safetensors has no name for is written as a plainer one, with one more dimension: a
complex number as two real ones, anything else as its bytes. The journal has the true name.
A sparse value has as many bytes as it needs, whatever its shape is.
"""

from __future__ import annotations

from typing import NamedTuple


class Stored(NamedTuple):
    """A dtype in a file.

    Attributes:
        code: name of the dtype in the header.
        width: numbers of that dtype per element, the size of a last dimension; 0 for none.
        itemsize: bytes per element.
        dtype: its own name, without a layout.
        is_sparse: whether it has a sparse layout, as ``float32.sparse_coo``.
    """

    code: str
    width: int
    itemsize: int
    dtype: str = ""
    is_sparse: bool = False


STORED = {
    "bool": Stored("BOOL", 0, 1),
    "uint8": Stored("U8", 0, 1),
    "int8": Stored("I8", 0, 1),
    "uint16": Stored("U16", 0, 2),
    "int16": Stored("I16", 0, 2),
    "uint32": Stored("U32", 0, 4),
    "int32": Stored("I32", 0, 4),
    "uint64": Stored("U64", 0, 8),
    "int64": Stored("I64", 0, 8),
    "float16": Stored("F16", 0, 2),
    "bfloat16": Stored("BF16", 0, 2),
    "float32": Stored("F32", 0, 4),
    "float64": Stored("F64", 0, 8),
    "complex64": Stored("C64", 0, 8),
    "float8_e4m3fn": Stored("F8_E4M3", 0, 1),
    "float8_e5m2": Stored("F8_E5M2", 0, 1),
    "complex32": Stored("F16", 2, 4),
    "bcomplex32": Stored("BF16", 2, 4),
    "complex128": Stored("F64", 2, 16),
    "float8_e4m3fnuz": Stored("U8", 1, 1),
    "float8_e5m2fnuz": Stored("U8", 1, 1),
    "float8_e8m0fnu": Stored("U8", 1, 1),
    "float4_e2m1fn_x2": Stored("U8", 1, 1),
    **{f"{sign}int{bits}": Stored("U8", 1, 1) for sign in ("", "u") for bits in range(1, 8)},
    **{name: Stored("U8", 1, 1) for name in ("bits8", "bits1x8", "bits2x4", "bits4x2")},
    "bits16": Stored("U16", 1, 2),
}
"""Name of a dtype of torch -> how it is stored."""
SPARSE = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
"""Layouts of values that are stored as they are: each as the bytes of a safetensors file."""
STORED = {
    **{name: one._replace(dtype=name) for name, one in STORED.items()},
    **{f"{name}.{layout}": Stored("U8", 0, 1, name, True) for name in STORED for layout in SPARSE},
}
