"""One model twice: in transformers, and in the decoder. The 0.8B shapes are made in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.views import computed

FIXTURES = Path(__file__).parents[1] / "fixtures"
RELEASE = FIXTURES / "releases" / "qwen3.5-0.8b-base.json"


@dataclass
class Pair:
    """The same weights in both; `large` when a token takes longer than the arms' overhead."""

    theirs: torch.nn.Module
    ours: Model
    large: bool


def pair(name: str, dtype: str) -> Pair:
    """A fixture's name, "0.8B", or the folder of a Hugging Face checkpoint."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    kind = getattr(torch, dtype)
    if name == "0.8B":
        theirs = transformers.AutoModelForCausalLM.from_config(_config(), dtype=kind).eval()
        ckpt = in_memory(theirs, _config().to_dict())
    else:
        folder = FIXTURES / name / "hf" if (FIXTURES / name).is_dir() else Path(name)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=kind).eval()
        ckpt = open_checkpoint(folder)
    ours = load_model(ckpt, dtype=dtype, check=False)
    return Pair(theirs, ours, sum(p.numel() for p in theirs.parameters()) > 10**8)


def _config() -> Any:
    """The text model of the release, with sizes from the recorded fact of it."""
    from transformers import Qwen3_5TextConfig

    stated = json.loads(RELEASE.read_text(encoding="utf-8"))["config"]
    text = dict(stated["text_config"])
    layers = text.pop("layer_types")
    text["layer_types"] = [kind for run in layers for kind in run["of"] * run["repeat"]]
    return Qwen3_5TextConfig(**text, tie_word_embeddings=stated["tie_word_embeddings"])


def in_memory(model: torch.nn.Module, config: dict[str, Any]) -> Checkpoint:
    """A checkpoint whose tensors are the module's parameters; nothing is copied until rows are read."""
    tensors = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        flat = parameter.detach().view(-1, parameter.shape[-1])

        def rows(start: int, stop: int, flat: torch.Tensor = flat) -> np.ndarray:
            return flat[start:stop].float().numpy()

        tensors[name] = computed(name, tuple(parameter.shape), "F32", rows)
    return Checkpoint(Path("0.8B"), "safetensors", "hf", (), tensors, config=config | {"mtp_num_hidden_layers": 0})
