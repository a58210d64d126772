"""Faults put in on purpose: a GGUF or HF checkpoint copied with changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mtptools.checkpoint import open_checkpoint
from mtptools.codecs import decode, encode
from mtptools.containers.gguf import header_bytes, padded
from mtptools.containers.gguf_values import GgufValue
from mtptools.tensors import Blob, Tensor

Edit = Callable[[np.ndarray], np.ndarray]


def gguf(
    source: Path,
    out: Path,
    *,
    metadata: Mapping[str, GgufValue | None] | None = None,
    drop: tuple[str, ...] = (),
    rename: Mapping[str, str] | None = None,
    edit: Mapping[str, Edit] | None = None,
    add: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """`edit` maps names to functions on decoded values; `add` brings new F32 tensors."""
    ckpt = open_checkpoint(source)
    tensors: list[tuple[Tensor, bytes]] = []
    for name, tensor in ckpt.items():
        if name in drop:
            continue
        data = tensor.read()
        if edit and name in edit:
            rows = edit[name](decode(tensor).reshape(tensor.shape))
            data = encode(np.ascontiguousarray(rows, np.float32).reshape(-1, tensor.shape[-1]), tensor.codec)
        tensors.append((tensor.renamed((rename or {}).get(name, name)), data))
    for name, array in (add or {}).items():
        tensors.append((Tensor(name, array.shape, "F32", (Blob(out, 0, array.nbytes),)), array.tobytes()))
    with open(out, "wb") as file:
        file.write(
            header_bytes(ckpt.metadata.edited(dict(metadata or {})), [t for t, _ in tensors], ckpt.files[0].alignment)
        )
        for _, data in tensors:
            file.write(data + bytes(padded(len(data), ckpt.files[0].alignment) - len(data)))
    return out


def hf(source: Path, out: Path, *, config: Callable[[dict[str, Any]], None] | None = None) -> Path:
    """A copy of a folder with an edited config.json."""
    shutil.copytree(source, out)
    if config is not None:
        tree = json.loads((out / "config.json").read_text())
        config(tree)
        (out / "config.json").write_text(json.dumps(tree))
    return out
