"""A release of any size, made as it is asked for: a Qwen3.5 whose head lies in two of eight shards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from mtptools.containers.safetensors import read_index
from tests.hub.contents import Bytes, Content, index, shard

MB = 1_000_000
SHARDS = 8
EMBEDDING = "model.embed_tokens.weight"
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Release:
    """The files of a repo; `wanted` are the tensors that a head needs, `nbytes` theirs."""

    files: dict[str, Content]
    wanted: dict[str, tuple[int, ...]]

    @property
    def nbytes(self) -> int:
        return sum(2 * prod(shape) for shape in self.wanted.values())

    def same(self, out: Path) -> bool:
        """Does the file `out` hold the wanted tensors as the release does?"""
        written = read_index(out).tensors
        where = json.loads(bytes(self.files["model.safetensors.index.json"].read(0, 1 << 30)))["weight_map"]
        with open(out, "rb") as file:
            for name in self.wanted:
                content = self.files[where[name]]
                length = int.from_bytes(bytes(content.read(0, 8)), "little")
                start, stop = json.loads(bytes(content.read(8, length)))[name]["data_offsets"]
                file.seek(written[name].blobs[0].offset)
                for at in range(start, stop, 1 << 20):
                    n = min(1 << 20, stop - at)
                    if file.read(n) != bytes(content.read(8 + length + at, n)):
                        return False
        return set(written) == set(self.wanted)


def release(config: dict[str, Any], gigabytes: float, head_megabytes: float) -> Release:
    """`config` is one of a tiny Qwen3.5; its feed-forward part and its layers grow until the sizes are met."""
    hidden = 1024
    ffn = int(head_megabytes * MB / 2 / hidden / 3) // 64 * 64
    body = {"hidden_size": hidden, "intermediate_size": ffn, "vocab_size": 8192, "tie_word_embeddings": True}
    layers = max(round(gigabytes * 1e9 / (6 * hidden * ffn)), SHARDS)
    body |= {"num_hidden_layers": layers, "layer_types": ["full_attention"] * layers, "full_attention_interval": 1}
    config = {**config, **body}
    trunk: Shapes = {EMBEDDING: (8192, hidden)}
    for number in range(layers):
        trunk |= _layer(f"model.layers.{number}", config)
    trunk["model.norm.weight"] = (hidden,)
    head: Shapes = {"mtp.fc.weight": (hidden, 2 * hidden), "mtp.norm.weight": (hidden,)}
    head |= {f"mtp.pre_fc_norm_{side}.weight": (hidden,) for side in ("embedding", "hidden")}
    head |= _layer("mtp.layers.0", config)
    shards = _shards(trunk, head)
    files: dict[str, Content] = {name: shard(tensors) for name, tensors in shards.items()}
    files |= {"config.json": Bytes(json.dumps(config).encode()), "model.safetensors.index.json": index(shards)}
    return Release(files, {EMBEDDING: trunk[EMBEDDING], **head})


def _layer(stem: str, config: dict[str, Any]) -> Shapes:
    hidden, ffn, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    return {
        f"{stem}.input_layernorm.weight": (hidden,),
        f"{stem}.mlp.down_proj.weight": (hidden, ffn),
        f"{stem}.mlp.gate_proj.weight": (ffn, hidden),
        f"{stem}.mlp.up_proj.weight": (ffn, hidden),
        f"{stem}.post_attention_layernorm.weight": (hidden,),
        f"{stem}.self_attn.k_norm.weight": (dim,),
        f"{stem}.self_attn.k_proj.weight": (kv, hidden),
        f"{stem}.self_attn.o_proj.weight": (hidden, q),
        f"{stem}.self_attn.q_norm.weight": (dim,),
        f"{stem}.self_attn.q_proj.weight": (2 * q, hidden),
        f"{stem}.self_attn.v_proj.weight": (kv, hidden),
    }


def _shards(trunk: Shapes, head: Shapes) -> dict[str, Shapes]:
    """The trunk in equal parts; half of the head in the middle of the third shard, half at the end of the last."""
    names, parts = list(trunk), list(head.items())
    cuts = [len(names) * number // SHARDS for number in range(SHARDS + 1)]
    out = {}
    for number, (start, stop) in enumerate(pairwise(cuts)):
        mine = [(name, trunk[name]) for name in names[start:stop]]
        if number == 2:
            middle = len(mine) // 2
            mine = mine[:middle] + parts[: len(parts) // 2] + mine[middle:]
        elif number == SHARDS - 1:
            mine += parts[len(parts) // 2 :]
        out[f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"] = dict(mine)
    return out
