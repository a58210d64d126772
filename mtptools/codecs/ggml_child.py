"""The other end of `ggml_library`: a process of its own in which ggml's C code runs, and may abort.

Run as a script with the shared object's path. It imports the standard library and nothing of this package, reads
requests from standard input, answers on standard output, and ends when its input does.

    request   REQUEST, then its bytes of data, then, when flagged, float32 [columns]: the importance row
    answer    ANSWER, then its bytes: what was asked for, or, when it failed, a sentence in UTF-8

Operation `q` takes float32 [rows, columns] to blocks, `d` blocks to float32. Numbers are in the machine's own order.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from typing import Any, BinaryIO, Final

__all__ = ["ANSWER", "REQUEST"]

REQUEST: Final = struct.Struct("=c15siqqq?")  # operation, type's name, its number, rows, columns, bytes, weighted
ANSWER: Final = struct.Struct("=?q")  # failed, bytes

_F32: Final = 4


class _Traits(ctypes.Structure):
    """ggml's `ggml_type_traits`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("block_values", ctypes.c_int64),
        ("interleave", ctypes.c_int64),
        ("block_bytes", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float", ctypes.c_void_p),
    )


_TO_FLOAT: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def _open(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    library.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.ggml_quantize_chunk.argtypes = (ctypes.c_int, pointer, pointer, integer, integer, integer, pointer)
    return library


def _run(library: ctypes.CDLL, request: tuple[Any, ...], data: bytearray, weights: bytearray | None) -> Any:
    """The bytes of the answer. Raises ValueError for what this build of ggml does not have."""
    operation, padded, number, rows, columns, _, _ = request
    name = padded.rstrip(b"\0").decode()
    traits = library.ggml_get_type_traits(number)[0]
    if traits.name is None or traits.name.decode().lower() != name.lower():
        raise ValueError(f"this build of ggml has no type {name}")
    blocks = rows * columns // traits.block_values * traits.block_bytes
    given, asked = (blocks, rows * columns * _F32) if operation == b"d" else (rows * columns * _F32, blocks)
    if columns % traits.block_values or len(data) != given:
        raise ValueError(f"{len(data)} bytes are not {rows} rows of {columns} values")
    out = (ctypes.c_char * asked)()
    if operation == b"d":
        if not traits.to_float:
            raise ValueError(f"this build of ggml has no decoder for {name}")
        _TO_FLOAT(traits.to_float)(_address(data), ctypes.addressof(out), rows * columns)
    else:
        importance = None if weights is None else _address(weights)
        library.ggml_quantize_chunk(number, _address(data), ctypes.addressof(out), 0, rows, columns, importance)
    return out


def _address(data: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


def _read(source: BinaryIO, size: int) -> bytearray:
    data = bytearray(size)
    if source.readinto(data) != size:  # type: ignore[attr-defined]
        sys.exit()
    return data


def _serve(library: ctypes.CDLL, source: BinaryIO, sink: BinaryIO) -> None:
    while header := source.read(REQUEST.size):
        request = REQUEST.unpack(header)
        data = _read(source, request[5])
        weights = _read(source, request[4] * _F32) if request[6] else None
        try:
            failed, payload = False, _run(library, request, data, weights)
        except ValueError as error:
            failed, payload = True, str(error).encode()
        sink.write(ANSWER.pack(failed, len(payload)))
        sink.write(payload)
        sink.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which then closes our input.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What the library prints must not stand between answers.
    _serve(_open(sys.argv[1]), sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
