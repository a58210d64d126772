"""Byte-level BPE writes every byte as a character that can be seen (GPT-2)."""

from __future__ import annotations

from typing import Final

__all__ = ["CHARACTERS"]

_SEEN: Final = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_REST: Final = [byte for byte in range(256) if byte not in _SEEN]

CHARACTERS: Final = tuple(chr(byte if byte in _SEEN else 256 + _REST.index(byte)) for byte in range(256))
"""[byte] its character: itself, or the next one from 256 on."""
