"""Checks of the quantization configuration: what of the head is float and listed, or quantized and left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from mtptools.checkpoint import Checkpoint
from mtptools.head import head_names
from mtptools.ops.declare import modelopt_config
from mtptools.ops.quant_config import METHODS, head_modules, judge, unknown_methods

__all__ = ["listed", "method", "tolerated"]

Report = Iterator[tuple[str, str, str]]


def _rows(ckpt: Checkpoint, level: Literal["error", "warning"]) -> Report:
    names = head_names(ckpt)
    if ckpt.dialect != "hf" or not names:
        return
    modules = head_modules({name: (ckpt[name].codec, len(ckpt[name].shape)) for name in names})
    for row in judge(ckpt.config, modelopt_config(ckpt), modules):
        if row.level == level:
            yield row.what, row.evidence, row.fix


def listed(ckpt: Checkpoint) -> Report:
    """What keeps the head from loading, or drops its weights without a word."""
    yield from _rows(ckpt, "error")


def tolerated(ckpt: Checkpoint) -> Report:
    """What some runtime works around, and another may not."""
    yield from _rows(ckpt, "warning")


def method(ckpt: Checkpoint) -> Report:
    if ckpt.dialect != "hf" or not head_names(ckpt):
        return
    for name in unknown_methods(ckpt.config):
        yield (
            f"quantization_config has the method {str(name)[:40]!r}: whether it covers the head is not known here",
            f"known methods: {', '.join(METHODS)}",
            "check that the head's modules are excluded from quantization, or quantized",
        )
