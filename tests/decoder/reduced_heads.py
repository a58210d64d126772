"""Reduced heads of toys and of trained fixtures, made by hand: by gguf-py, and by the safetensors library."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.decoder.mtp_head import Head
from mtptools.vocab.maps import Absolute, DraftVocabulary
from tests.conftest import FIXTURES
from tests.decoder import toy

TRAINED = ("qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseekv3", "deepseekv4")
DEPTH = 2
"""Of a toy's head, in `gguf_of`."""


@cache
def trained(name: str) -> Model:
    return load_model(open_checkpoint(FIXTURES / name / "hf"), check=False)


def vocabulary(ids: object, size: int = toy.VOCAB) -> DraftVocabulary:
    return DraftVocabulary.of(Absolute(np.unique(np.asarray(ids, dtype=np.int64))), size)


def most(size: int) -> DraftVocabulary:
    """Three tokens of four: drafts that are there, drafts that are not."""
    return vocabulary([token for token in range(size) if token % 4], size)


KEPT = vocabulary([token for token in range(toy.VOCAB) if token % 3])
"""Of a toy."""


@torch.inference_mode()
def rows(model: Model, head: Head, ids: list[int], layer: int = 0) -> torch.Tensor:
    """Logits [rows, vocab] of one layer over a text, on the trunk's states."""
    states = model.trunk.forward(ids[:-1], model.trunk.new_cache()).tap(head.wiring.tap)
    post, _ = head.step(layer, states, ids[1:], head.layers[layer].block.new_cache(), 0)
    return head.logits(post, layer)


def same(ours: Model, theirs: Model, ids: tuple[int, ...] = (5, 17, 99, 3)) -> None:
    """Heads with the same tokens and the same logits, bit for bit."""
    for layer in range(theirs.require_head().depth):
        one, other = (rows(model, model.require_head(), list(ids), layer) for model in (ours, theirs))
        assert ours.require_head().layers[layer].vocabulary == theirs.require_head().layers[layer].vocabulary
        assert torch.equal(one, other)
        assert torch.isinf(one).any()


def gguf_of(
    path: Path, patch: pytest.MonkeyPatch, kind: str = "F32", *, alone: bool = False, own: bool = True, **more: object
) -> Path:
    """A reduced toy, with its trunk or alone. more: what replaces `d2t` and the reduced matrix."""
    arrays = toy.weights(False, DEPTH)
    given = {"d2t": KEPT.ids, "matrix": arrays["lm_head.weight"][KEPT.ids], **more}
    d2t, matrix = (np.asarray(given[name]) for name in ("d2t", "matrix"))
    patch.setitem(toy._TOP_NAMES, "d2t", "d2t")
    if alone:
        wanted = ("mtp.", "model.embed", "model.norm")
        arrays = {name: a for name, a in arrays.items() if name.startswith(wanted)}
        own_names = ["lm_head.weight"]
    else:
        own_names = [f"own.{d}" for d in range(DEPTH)]
        for d, name in enumerate(own_names):
            patch.setitem(toy._TOP_NAMES, name, f"blk.{toy.LAYERS + d}.nextn.shared_head_head.weight")
    reduced = {"d2t": d2t} | (dict.fromkeys(own_names, matrix) if own else {})
    return toy.write_gguf(path, arrays | reduced, False, kind, DEPTH)


def sidecar_of(name: str, folder: Path, kept: DraftVocabulary, **changes: torch.Tensor | None) -> Path:
    """The head of a trained fixture in EAGLE-3's layout, by the safetensors library.

    changes  tensors that stand there instead; None: that do not
    """
    source = FIXTURES / name / "hf"
    arrays = load_file(source / "model.safetensors")
    first = trained(name).hparams.n_layers
    prefixes = ("mtp.", *(f"model.layers.{first + d}." for d in range(trained(name).require_head().depth)))
    own = "shared_head.head.weight"  # copies of the trunk's
    head = {key: a for key, a in arrays.items() if key.startswith(prefixes) and not key.endswith(own)}
    output = "head.weight" if name == "deepseekv4" else "lm_head.weight"
    matrix = arrays.get(output, arrays.get("model.embed_tokens.weight"))
    assert matrix is not None
    ids = torch.from_numpy(kept.ids)
    mask = torch.zeros(kept.size, dtype=torch.bool)
    mask[ids] = True
    head |= {output: matrix[ids], "d2t": ids - torch.arange(len(ids)), "t2d": mask}
    head |= {key: a for key, a in changes.items() if a is not None}
    folder.mkdir()
    given = {key: a.contiguous() for key, a in head.items() if changes.get(key, a) is not None}
    save_file(given, folder / "model.safetensors")
    shutil.copy(source / "config.json", folder)
    return folder
