"""The random models of `fixtures/random_models.py`, stored as they come: Hugging Face, GGUF of several types, FP8."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fixtures import random_models
from mtptools.checkpoint import open_checkpoint
from mtptools.codecs import decode
from mtptools.containers.gguf import header_bytes, padded
from mtptools.ops.convert_gguf import convert_gguf
from mtptools.tensors import Blob, Tensor
from mtptools.writer import write

BLOCK = 128  # rows and columns that share a scale in FP8 releases
FLOATS = ("norm", "ffn_gate_inp", "ssm_conv1d")  # parts of names in a GGUF that stay float in every type


class Checkpoints:
    """Each is written once below `root`.

    stored  "hf-F32", "hf-BF16", "hf-FP8" (block-scaled, as DeepSeek-V3 is released); or of a GGUF "F32", "BF16",
            "Q8_0", "Q4_K" (where rows are whole blocks of 256, Q8_0 elsewhere)
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, kind: str, stored: str = "hf-F32", *, depth: int = 1, echo: float | None = None) -> Path:
        stem = f"{kind}-{depth}-{echo}"
        folder = self.root / stem / stored
        if stored.startswith("hf-"):
            if not folder.exists():
                dtype = stored.removeprefix("hf-")
                random_models.build(kind, folder, dtype="BF16" if dtype == "FP8" else dtype, depth=depth, echo=echo)
                if dtype == "FP8":
                    to_fp8(folder)
            return folder
        out = folder.with_suffix(".gguf")
        if not out.exists():
            if stored == "Q4_K":
                q4_k(self.get(kind, "Q8_0", depth=depth, echo=echo), out)
            else:
                source = self.get(kind, "hf-F32", depth=depth, echo=echo)
                write(convert_gguf(open_checkpoint(source), out.name, outtype=stored), out)  # type: ignore[arg-type]
        return out


def q4_k(source: Path, out: Path) -> None:
    """A copy of a GGUF whose matrices are Q4_K where they can be."""
    from tests.decoder import toy

    ckpt = open_checkpoint(source)
    tensors: list[tuple[Tensor, bytes]] = []
    for name, tensor in ckpt.items():
        data = tensor.read()
        if len(tensor.shape) > 1 and tensor.shape[-1] % 256 == 0 and not any(part in name for part in FLOATS):
            data = toy.q4_k(decode(tensor).reshape(tensor.shape)).tobytes()
            tensor = Tensor(name, tensor.shape, "Q4_K", (Blob(out, 0, len(data)),))
        tensors.append((tensor, data))
    alignment = ckpt.files[0].alignment
    with open(out, "wb") as file:
        file.write(header_bytes(ckpt.metadata, [tensor for tensor, _ in tensors], alignment))
        for _, data in tensors:
            file.write(data + bytes(padded(len(data), alignment) - len(data)))


def to_fp8(folder: Path) -> None:
    """Attention's and experts' matrices of a folder to F8_E4M3 with a scale for each 128 x 128, in place."""
    import torch
    from safetensors.torch import load_file, save_file

    found = {}
    for name, values in load_file(folder / "model.safetensors").items():
        found[name] = values
        if name.endswith("_proj.weight") and (".self_attn." in name or ".mlp." in name) and values.ndim == 2:
            rows, columns = values.shape
            blocks = [torch.tensor(np.arange(size) // BLOCK) for size in (rows, columns)]
            grid = torch.zeros((int(blocks[0][-1]) + 1, int(blocks[1][-1]) + 1))
            at = (blocks[0][:, None].expand(rows, columns), blocks[1][None].expand(rows, columns))
            grid.view(-1).scatter_reduce_(
                0, (at[0] * grid.shape[1] + at[1]).reshape(-1), values.float().abs().view(-1), "amax"
            )
            grid /= 448  # the largest value of the type
            found[name] = (values.float() / grid[at]).to(torch.float8_e4m3fn)
            found[f"{name}_scale_inv"] = grid
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [BLOCK, BLOCK],
    }
    (folder / "config.json").write_text(json.dumps(config))
