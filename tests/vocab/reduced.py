"""Reduced heads made without the code under test: GGUF by gguf-py, folders by the safetensors library."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file


def gguf(
    source: Path,
    out: Path,
    *,
    put: Mapping[str, np.ndarray] | None = None,
    cut: Mapping[str, tuple[str, np.ndarray]] | None = None,
    drop: Collection[str] = (),
    keys: Mapping[str, Any] | None = None,
) -> Path:
    """A copy of a GGUF.

    put   tensors, in the type that their numpy type is
    cut   name -> (tensor, rows of it), in the type it has: what a reduced matrix is
    keys  string values to set
    """
    from gguf import GGUFReader, GGUFWriter

    reader = GGUFReader(source)
    writer = GGUFWriter(out, str(reader.fields["general.architecture"].contents()))
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture" and key not in (keys or {}):
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=(*field.types, None)[1])
    for key, value in (keys or {}).items():
        writer.add_string(key, value)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    for name, tensor in stored.items():
        if name not in drop and name not in (put or {}) and name not in (cut or {}):
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, (matrix, rows) in (cut or {}).items():
        of = matrix if matrix in stored else "token_embd.weight"  # tied
        writer.add_tensor(name, np.ascontiguousarray(stored[of].data[rows]), raw_dtype=stored[of].tensor_type)
    for name, array in (put or {}).items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def folder(
    source: Path,
    out: Path,
    *,
    tensors: Callable[[dict[str, torch.Tensor]], None],
    config: Callable[[dict[str, Any]], None] | None = None,
) -> Path:
    """A copy of a sidecar folder of one file, with tensors and config.json edited in place."""
    shutil.copytree(source, out)
    weights = out / "model.safetensors"
    found = load_file(weights)
    tensors(found)
    save_file({name: one.contiguous() for name, one in found.items()}, weights, metadata={"format": "pt"})
    if config is not None:
        tree = json.loads((out / "config.json").read_text(encoding="utf-8"))
        config(tree)
        (out / "config.json").write_text(json.dumps(tree), encoding="utf-8")
    return out
