"""GGUF metadata values: their types, their bytes, and the way between the two.

Source: the GGUF specification in the ggml repository (docs/gguf.md), value type numbers as in gguf-py.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from reprlib import repr as short  # a damaged value may be a megabyte long
from typing import Any, Final

import numpy as np

from mtptools.errors import CorruptError
from mtptools.tensors import Blob, read_blob

__all__ = ["ARRAY", "BOOL", "STRING", "GgufValue", "array_value", "scalar_value", "string_value"]

STRING: Final = 8
ARRAY: Final = 9
BOOL: Final = 7
# type number: (name, struct code)
SCALARS: Final = {
    0: ("u8", "<B"),
    1: ("i8", "<b"),
    2: ("u16", "<H"),
    3: ("i16", "<h"),
    4: ("u32", "<I"),
    5: ("i32", "<i"),
    6: ("f32", "<f"),
    7: ("bool", "<?"),
    10: ("u64", "<Q"),
    11: ("i64", "<q"),
    12: ("f64", "<d"),
}
NUMBER_OF: Final = {name: number for number, (name, _) in SCALARS.items()} | {"string": STRING, "array": ARRAY}


@dataclass(frozen=True, slots=True)
class GgufValue:
    """One metadata value: where or what its bytes are. Long arrays stay in the file until asked for.

    type    value type number (`SCALARS`, STRING or ARRAY)
    item    item type number of an array, else None
    count   items of an array, else 1
    stored  the value's bytes after the type number: in memory, or a Blob in the file
    """

    type: int
    item: int | None
    count: int
    stored: bytes | Blob

    @property
    def raw(self) -> bytes:
        """The value's bytes as the file has them, without the leading type number."""
        return self.stored if isinstance(self.stored, bytes) else read_blob(self.stored, "metadata")

    @property
    def type_name(self) -> str:
        if self.type == ARRAY:
            return f"array[{_name(self.item or 0)}]"
        return _name(self.type)

    @property
    def value(self) -> Any:
        """Decoded: int, float, bool, str, or a list of these."""
        raw = self.raw
        if self.type == STRING:
            return raw[8:].decode("utf-8", "surrogateescape")
        if self.type != ARRAY:
            return struct.unpack(SCALARS[self.type][1], raw)[0]
        item = self.item
        if item == STRING:
            return _strings(raw, 12, self.count)
        code = SCALARS[item or 0][1]
        if item == BOOL:
            return [byte != 0 for byte in raw[12:]]
        return np.frombuffer(raw, np.dtype(code.replace("?", "u1")), self.count, 12).tolist()

    def encoded(self) -> bytes:
        """Type number and value, as they stand behind the key in a file."""
        return struct.pack("<I", self.type) + self.raw


def _name(number: int) -> str:
    return SCALARS[number][0] if number in SCALARS else {STRING: "string", ARRAY: "array"}.get(number, str(number))


def _strings(raw: bytes, at: int, count: int) -> list[str]:
    out, unpack = [], struct.Struct("<Q").unpack_from
    for _ in range(count):
        n = unpack(raw, at)[0]
        out.append(raw[at + 8 : at + 8 + n].decode("utf-8", "surrogateescape"))
        at += 8 + n
    return out


def string_value(text: str) -> GgufValue:
    data = text.encode("utf-8", "surrogateescape")
    return GgufValue(STRING, None, 1, struct.pack("<Q", len(data)) + data)


def scalar_value(kind: str, value: float | int | bool) -> GgufValue:
    """A scalar of the named type: "u32", "bool", "f32" … Raises CorruptError for a value that it cannot hold."""
    number = NUMBER_OF[kind]
    try:
        return GgufValue(number, None, 1, struct.pack(SCALARS[number][1], value))
    except (struct.error, OverflowError, KeyError) as error:  # f32 overflows; "string" and "array" are no scalars
        raise CorruptError(
            f"{short(value)} does not fit a metadata value of type {kind}",
            hint="mtptools validate names the metadata that contradicts itself",
        ) from error


def array_value(kind: str, items: Sequence[Any]) -> GgufValue:
    """An array of scalars of one type, or of strings. Raises CorruptError for an item of another type."""
    number = NUMBER_OF[kind]
    head = struct.pack("<IQ", number, len(items))
    if number == STRING and all(isinstance(item, str) for item in items):
        body = b"".join(string_value(item).raw for item in items)
    else:
        body = b"".join(scalar_value(kind, item).raw for item in items)
    return GgufValue(ARRAY, number, len(items), head + body)
