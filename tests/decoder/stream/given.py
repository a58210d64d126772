"""What the tests of one pass share: texts, the ordinary decoder on them, and a pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.decoder.drafter import Drafter
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.decoder.mtp_head import Head
from mtptools.decoder.ops import each_row
from mtptools.decoder.stream.model import Streamed
from mtptools.decoder.stream.passages import Passage, Passages
from mtptools.decoder.trunk import States
from tests.conftest import FIXTURES

FIVE = ("qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseekv3")
TRAINED = (*FIVE, "deepseekv4")
CPU = torch.device("cpu")


@cache
def opened(place: str) -> Checkpoint:
    """A fixture by its path in fixtures/."""
    return open_checkpoint(FIXTURES / place)


def head_of(place: str) -> Checkpoint | None:
    """The head of a trunk that has none: the one of the BF16 file beside it."""
    return opened(f"{place.split('/')[0]}/gguf/model-BF16.gguf") if "trunk-" in place else None


@cache
def ordinary(place: str, dtype: str = "float32") -> Model:
    return load_model(opened(place), head=head_of(place), dtype=dtype, check=False)


@cache
def own_texts(name: str) -> tuple[Passage, ...]:
    """Prompts and what transformers wrote to them, greedily: in float32 the model's own text."""
    golden = np.load(FIXTURES / name / "golden.npz")
    names = sorted(key.removesuffix("_ids") for key in golden if key.endswith("_ids"))
    return tuple(
        Passage((*golden[f"{one}_ids"].tolist(), *golden[f"{one}_greedy"].tolist()), len(golden[f"{one}_ids"]))
        for one in names
    )


def short(name: str) -> Passages:
    """Three passages of different lengths, the last of two tokens, the first beyond a chunk of 64 keys."""
    first, second, *_ = [text for text in own_texts(name) if len(text.ids) == 92]
    return Passages((Passage(first.ids[:76], 28), Passage(second.ids[:37], second.start), Passage(second.ids[40:42])))


def streamed(ckpt: Checkpoint | Path | str, passages: Passages, **options: object) -> Streamed:
    """Before the first layer."""
    given = ckpt if isinstance(ckpt, Checkpoint) else opened(ckpt) if isinstance(ckpt, str) else open_checkpoint(ckpt)
    return Streamed(given, passages, **{"device": CPU, "exact": True, **options})  # type: ignore[arg-type]


def through(model: Streamed) -> States:
    """The states after all layers."""
    model.begin()
    with model.at_work():
        while model.done < model.n_layers:
            model.layer(last=model.done + 1 == model.n_layers)
    return model.ended()


@torch.inference_mode()
def read(model: Model, passage: Passage) -> States:
    """The ordinary decoder on one text."""
    return model.trunk.forward(passage.ids, model.trunk.new_cache())


@torch.inference_mode()
def drafter_logits(head: Head, states: States, ids: Sequence[int], k: int) -> list[dict[int, torch.Tensor]]:
    """Per draft, logits [vocab] by slot of the ordinary `Drafter`, given the text instead of its own drafts.

    Of the first and the last slots, and of every eighth between: each is a draft loop of its own.
    """
    rows = each_row(states.tap(head.wiring.tap))
    drafter, n = Drafter(head), len(ids) - 1
    out: list[dict[int, torch.Tensor]] = [{} for _ in range(k)]
    for slot in range(n):
        drafter.observe(rows[slot], [ids[slot + 1]])
        if 3 <= slot < n - 5 and slot % 8:
            continue
        seen: list[torch.Tensor] = []

        def choose(logits: torch.Tensor, position: int, seen: list[torch.Tensor] = seen) -> int:
            seen.append(logits)
            return ids[position] if position < len(ids) else 0

        drafter.draft(min(k, n - slot), choose)
        for step, logits in enumerate(seen):
            out[step][slot] = logits
    return out
