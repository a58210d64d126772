"""A few of PTX's instructions on 32 bits, as its manual (Parallel Thread Execution ISA, "Logic and Shift Instructions",
"prmt") defines them: what the kernels tell the assembler can be tried without a GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence

ALL = 0xFFFFFFFF


def run(assembly: str, n_out: int, given: Sequence[int]) -> list[int]:
    """$0 … of an assembly whose operands from $n_out on are `given`."""
    registers = {f"${n_out + i}": value for i, value in enumerate(given)}

    def value(name: str) -> int:
        return registers[name] if name in registers else int(name, 0)

    body = assembly.strip().removeprefix("{").removesuffix("}")
    for statement in filter(None, (part.strip() for part in body.split(";"))):
        name, operands = statement.split(maxsplit=1)
        if name == ".reg":
            continue
        to, *of = (one.strip() for one in operands.split(","))
        registers[to] = INSTRUCTIONS[name](*map(value, of)) & ALL
    return [registers[f"${i}"] for i in range(n_out)]


def prmt(a: int, b: int, which: int) -> int:
    octets = [*a.to_bytes(4, "little"), *b.to_bytes(4, "little")]
    chosen = [which >> 4 * i & 15 for i in range(4)]
    return int.from_bytes(bytes(octets[i & 7] if i < 8 else (octets[i & 7] >> 7) * 255 for i in chosen), "little")


def shf_l_wrap(low: int, high: int, by: int) -> int:
    return (high << 32 | low) << (by & 31) >> 32


INSTRUCTIONS = {
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "shr.u32": lambda a, by: a >> min(by, 32),
    "shf.l.wrap.b32": shf_l_wrap,
    "prmt.b32": prmt,
}


def operands(assembly: str) -> int:
    return 1 + max(int(number) for number in re.findall(r"\$(\d+)", assembly))
