"""Real ggml: the C code of an installed wheel, for the types that nothing in Python encodes, and as a test's oracle.

The wheels that carry it export ggml's C functions, which is not an interface they document, and ggml ends the process
when an assertion fails: it runs in processes of its own (`ggml_child`), one for each thread that asks at the same time.
They are started on first use, kept, and end with this one. On x86-64 the wheels are built for the baseline, and their
bytes are llama-quantize's; on other machines fused multiply-adds may move last bits.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs.ggml_child import ANSWER, REQUEST
from mtptools.errors import CodecError, MissingExtraError, SystemFailure

__all__ = ["NEEDS_IMPORTANCE", "TYPES", "available", "dequantize", "quantize"]

# The numbers of ggml's C enum.
TYPES: Final = {
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "IQ2_XXS": 16,
    "IQ2_XS": 17,
    "IQ3_XXS": 18,
    "IQ1_S": 19,
    "IQ4_NL": 20,
    "IQ3_S": 21,
    "IQ2_S": 22,
    "IQ4_XS": 23,
    "IQ1_M": 29,
    "TQ1_0": 34,
    "TQ2_0": 35,
    "MXFP4": 39,
    "NVFP4": 40,
}

# Types of which llama-quantize says "the result will be garbage" without importance (but for token_embd and output,
# which never have any). ggml itself aborts for three of them.
NEEDS_IMPORTANCE: Final = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS"})

_CHILD: Final = Path(__file__).with_name("ggml_child.py")


def _beside(package: str, *patterns: str) -> Path | None:
    """The first file that one of the patterns finds beside or in a package, which is not imported."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    site = Path(spec.origin).parent.parent
    return next((path for pattern in patterns for path in sorted(site.glob(pattern))), None)


# Where each wheel keeps its ggml.
_WHEELS: Final[dict[str, tuple[str, ...]]] = {
    "xllamacpp": ("xllamacpp/xllamacpp*.so",),
    "pywhispercpp": ("pywhispercpp.libs/libggml-base-*.so*", "libggml-base.so", "libggml-base.dylib"),
}


@cache
def _library() -> tuple[str, Path] | None:
    for wheel, patterns in _WHEELS.items():
        path = _beside(wheel, *patterns)
        if path is not None:
            return wheel, path
    return None


def available() -> str | None:
    """The installed wheel that carries ggml, or None."""
    found = _library()
    return None if found is None else found[0]


class _Child:
    """A process that runs ggml, and the way to it. One exchange at a time."""

    def __init__(self, library: Path) -> None:
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_CHILD), str(library)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            # An aborting ggml starts a debugger to print its stack: it would hang on ours.
            env=os.environ | {"GGML_NO_BACKTRACE": "1", "OMP_NUM_THREADS": "1"},
        )

    def exchange(self, *parts: bytes | memoryview) -> tuple[bool, bytearray]:
        """Whether it failed, and the answer's bytes. Raises EOFError or OSError when the process is gone."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        for part in parts:
            self.process.stdin.write(part)
        self.process.stdin.flush()
        failed, size = ANSWER.unpack(self._read(ANSWER.size))
        return failed, self._read(size)

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        if self.process.stdout.readinto(data) != size:  # type: ignore[union-attr]
            raise EOFError
        return data

    def last_words(self) -> str:
        """The last line that a process which is ending wrote."""
        self.process.wait()
        self.complaints.seek(0)
        lines = self.complaints.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self.process.returncode}"

    def close(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.complaints):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:  # What was not sent yet is sent on closing, and nobody reads it.
                pass
        self.process.wait()


_IDLE: Final[list[_Child]] = []


@atexit.register
def _close_all() -> None:
    while _IDLE:
        _IDLE.pop().close()


def _ask(operation: bytes, codec: str, shape: tuple[int, int], data: NDArray[np.generic], weights: bytes) -> bytearray:
    found = _library()
    if found is None:
        raise MissingExtraError("xllamacpp", "ggml", f"{codec}, which only ggml's own code encodes,")
    if codec not in TYPES:
        raise CodecError(f"ggml has no encoder for {codec}", hint=f"types it has: {', '.join(TYPES)}")
    raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    head = REQUEST.pack(operation, codec.encode(), TYPES[codec], *shape, raw.size, bool(weights))
    try:
        child = _IDLE.pop()
    except IndexError:
        child = _Child(found[1])
    try:
        failed, answer = child.exchange(head, raw.data, weights)
    except (EOFError, OSError) as error:
        said = child.last_words()
        child.close()
        raise SystemFailure(
            f"ggml's code ended while it worked on {codec}: {said}",
            where=found[1],
            hint=f"choose another type, or another version of {found[0]}",
        ) from error
    except BaseException:
        child.close()
        raise
    _IDLE.append(child)
    if failed:
        raise CodecError(
            answer.decode(), where=found[1], hint=f"choose another type, or pip install --upgrade {found[0]}"
        )
    return answer


def quantize(
    values: NDArray[np.float32], codec: str, importance: NDArray[np.float32] | None = None
) -> NDArray[np.uint8]:
    """float32 [rows, cols] as ggml's blocks, uint8 [rows, row_bytes]; `importance` is float32 [cols].

    Raises MissingExtraError without a wheel that carries ggml, CodecError for a type it does not have and for one that
    needs importance and got none, SystemFailure when its code aborts; the next call starts anew.
    """
    if importance is None and codec in NEEDS_IMPORTANCE:
        raise CodecError(
            f"{codec} without an importance matrix is noise",
            hint="mtptools imatrix PATH --text FILE -o head.imatrix.gguf, then --imatrix head.imatrix.gguf",
        )
    return _quantize(values, codec, importance)


def _quantize(values: NDArray[np.float32], codec: str, importance: NDArray[np.float32] | None) -> NDArray[np.uint8]:
    values = np.asarray(values, np.float32)
    weights = b"" if importance is None else np.asarray(importance, np.float32).tobytes()
    rows, cols = values.shape
    if weights and len(weights) != 4 * cols:
        raise CodecError(
            f"{len(weights) // 4} importances for rows of {cols} values", hint="the matrix is another model's"
        )
    return np.frombuffer(_ask(b"q", codec, (rows, cols), values, weights), np.uint8).reshape(rows, -1)


def dequantize(blocks: NDArray[np.uint8], codec: str, cols: int) -> NDArray[np.float32]:
    """ggml's blocks, uint8 [rows, row_bytes], as float32 [rows, cols]. Raises as `quantize` does."""
    return np.frombuffer(_ask(b"d", codec, (len(blocks), cols), blocks, b""), np.float32).reshape(-1, cols)
