"""What the decoder records: against llama-imatrix on trunks, against transformers on heads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mtptools.checkpoint import open_checkpoint
from mtptools.codecs import decode
from mtptools.decoder.drafter import Drafter
from mtptools.decoder.importance import chunks_of, measure_importance
from mtptools.decoder.load import load_model
from mtptools.decoder.recorder import Recorder
from mtptools.decoder.speculate import prefill
from mtptools.decoder.tokenizer import load_tokenizer
from mtptools.errors import MissingHeadError, UsageError
from mtptools.importance import Importance
from tests import rewrite
from tests.conftest import FIXTURES
from tests.decoder import test_quantized_mlx as mlx

TRUNKS: dict[str, Any] = json.loads((FIXTURES / "imatrix_golden.json").read_text(encoding="utf-8"))
HEADS: dict[str, Any] = json.loads((FIXTURES / "imatrix_head.json").read_text(encoding="utf-8"))

TOLERANCE = 2e-5
"""Relative. Found: 1.5e-6 against llama.cpp, whose sums are float32, and 2.7e-6 against transformers."""

OWN_EMBEDDINGS = {"deepseekv3": 2, "glm4moe": 1}
"""Fixture -> MTP layers that ship an embedding of their own (a copy of the trunk's), which a quantizer asks about."""

ROUTERS = (".ffn_gate_inp.weight", ".ffn_gate_inp_shexp.weight")
"""llama-imatrix counts them too; no quantizer asks."""


def prompts_of(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FIXTURES / name / "prompts.json").read_text(encoding="utf-8"))["prompts"]
    return found


def measured(path: Path, chunks: Sequence[Sequence[int]], scope: str = "head", **options: Any) -> Importance:
    """Without a zeroed embedding, which transformers does not do either."""
    recorder = Recorder(scope)
    model = load_model(open_checkpoint(path), recorder=recorder, check=False, **options)
    if model.head is not None:
        model = model.with_head(model.head.rewired(mask_first=False))
    return measure_importance(model, recorder, chunks)


def apart(found: np.ndarray, wanted: dict[str, Any]) -> float:
    """The largest relative difference of total and picked values."""
    flat = found.reshape(-1).astype(np.float64)
    picked = flat[np.linspace(0, flat.size - 1, len(wanted["picked"])).astype(int)]
    ours, theirs = np.array([flat.sum(), *picked]), np.array([wanted["total"], *wanted["picked"]])
    return float(np.abs(ours / theirs - 1).max())


@pytest.mark.parametrize("name", [name for name in TRUNKS if isinstance(TRUNKS[name], dict) and name in HEADS])
def test_trunk_as_llama_imatrix(name: str) -> None:
    """Every entry, its counts, and columns in the GGUF's order, from the Hugging Face checkpoint."""
    path = FIXTURES / name / "hf"
    tokenizer = load_tokenizer(open_checkpoint(path))
    ids = tokenizer.encode("\n".join(prompt["text"] for prompt in prompts_of(name)))
    found = measured(path, list(chunks_of(ids, TRUNKS["context"], tokenizer.start)), "all")
    golden = {entry: wanted for entry, wanted in TRUNKS[name].items() if not entry.endswith(ROUTERS)}
    first = 1 + max(int(entry.split(".")[1]) for entry in golden)
    assert {entry for entry in found.entries if int(entry.split(".")[1]) < first} == set(golden)
    for entry, wanted in golden.items():
        ours = found.entries[entry]
        assert ours.counts.tolist() == wanted["counts"], entry
        assert ours.sums.size == np.prod(wanted["shape"]), entry
        assert apart(ours.sums, wanted) < TOLERANCE, entry


@pytest.fixture(scope="module", params=list(HEADS))
def head(request: pytest.FixtureRequest) -> tuple[str, Importance, int]:
    """(fixture, what was measured on its prompts, blocks of its trunk)"""
    name = str(request.param)
    path = FIXTURES / name / "hf"
    found = measured(path, [prompt["ids"] for prompt in prompts_of(name)])
    return name, found, open_checkpoint(path).hparams.n_layers


def test_head_as_transformers(head: tuple[str, Importance, int]) -> None:
    name, found, first = head
    seen = set()
    for key, wanted in HEADS[name].items():
        layer, role = key.split()
        names = [role, role.replace("gate", "up")] if role == "ffn_gate_exps" else [role]
        for each in names:
            entry = f"blk.{first + int(layer)}.{each}.weight"
            seen.add(entry)
            ours = found.entries[entry]
            assert ours.sums.size == wanted["size"], entry
            assert apart(ours.mean, wanted) < TOLERANCE, entry
            if not (name == "deepseekv4" and role == "nextn.eh_proj"):  # one product there, a stream each here
                assert ours.counts.tolist() == wanted["rows"], entry
    own = {f"blk.{first + d}.nextn.embed_tokens.weight" for d in range(OWN_EMBEDDINGS.get(name, 0))}
    assert set(found.entries) == seen | own
    for entry in own:  # looked up, not multiplied
        assert (found.entries[entry].mean == 1).all(), entry


def test_a_fault_would_show(head: tuple[str, Importance, int]) -> None:
    """The halves of the fusion the other way round, and experts one further, are not what was found."""
    name, found, first = head
    for role in ("nextn.eh_proj", "ffn_down_exps"):
        if f"0 {role}" in HEADS[name]:
            mean = found.entries[f"blk.{first}.{role}.weight"].mean.reshape(-1)
            assert apart(np.roll(mean, len(mean) // 2), HEADS[name][f"0 {role}"]) > 0.05, role


def test_experts_count_their_rows(head: tuple[str, Importance, int]) -> None:
    name, found, _ = head
    used = open_checkpoint(FIXTURES / name / "hf").hparams.n_experts_used
    stacks = [entry for entry in found.entries if "_exps." in entry]
    assert bool(stacks) == (name != "qwen35")
    for entry in stacks:
        block = entry.rpartition(".ffn")[0]
        rows = found.entries[f"{block}.nextn.shared_head_head.weight"].counts[0]
        assert found.entries[entry].counts.sum() == used * rows, entry


@torch.inference_mode()
def test_bits_stay(head: tuple[str, Importance, int]) -> None:
    """Listening changes no bit: states of the trunk and of the head's layers, as a drafter makes them."""
    name = head[0]
    ids = prompts_of(name)[0]["ids"]
    found = []
    for recorder in (None, Recorder("all")):
        model = load_model(open_checkpoint(FIXTURES / name / "hf"), recorder=recorder, check=False)
        if recorder is not None:
            recorder.on = True
        states = prefill(model, ids, model.trunk.new_cache())
        drafter = Drafter(model.require_head())
        drafter.observe(states.tap(drafter.head.wiring.tap)[:-1], ids[1:])
        assert drafter.ready is not None
        found.append((states.pre, states.post, *drafter.ready, drafter.head.logits(drafter.ready[0])))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert recorder is not None
    assert recorder.entries()


@torch.inference_mode()
def test_primed_as_a_drafter_primes() -> None:
    """Both layers of a deep head: what a drafter hears while it observes a prompt is what is measured."""
    path = FIXTURES / "deepseekv3" / "hf"
    ids = prompts_of("deepseekv3")[0]["ids"]
    recorder = Recorder()
    model = load_model(open_checkpoint(path), recorder=recorder, check=False)
    states = prefill(model, ids, model.trunk.new_cache())
    recorder.on = True
    drafter = Drafter(model.require_head())
    assert drafter.used == 2
    drafter.observe(states.tap(drafter.head.wiring.tap)[:-1], ids[1:])
    heard = recorder.entries()
    fresh = Recorder()
    found = measure_importance(load_model(open_checkpoint(path), recorder=fresh, check=False), fresh, [ids])
    assert len(heard) == len(found.entries) - 4  # outputs, with which a drafter multiplies later; embeddings
    for name, entry in heard.items():
        assert np.array_equal(entry.sums, found.entries[name].sums), name
        assert np.array_equal(entry.counts, found.entries[name].counts), name


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe"])
def test_dialects_say_the_same(name: str) -> None:
    """The release and llama.cpp's own conversion of it, in BF16: names, columns, and sums to the rounding of norms."""
    chunks = [prompt["ids"] for prompt in prompts_of(name)]
    one, other = (measured(FIXTURES / name / path, chunks, "all") for path in ("hf", "gguf/model-BF16.gguf"))
    assert one.entries.keys() == other.entries.keys()
    for entry, found in one.entries.items():
        assert np.array_equal(found.counts, other.entries[entry].counts), entry
        assert np.allclose(found.sums, other.entries[entry].sums, rtol=1e-4), entry


def test_tensors_that_hold_several_roles(tmp_path: Path) -> None:
    """A GGUF that keeps q, k and v, or gate and up of the experts, in one tensor is asked about under that name."""
    full = FIXTURES / "qwen35moe/gguf/model-BF16.gguf"
    ckpt, head = open_checkpoint(full), "blk.3."
    parts = [f"{head}{name}.weight" for name in ("attn_q", "attn_k", "attn_v", "ffn_gate_exps", "ffn_up_exps")]
    found = [decode(ckpt[name], 0, ckpt[name].n_rows).reshape(ckpt[name].shape) for name in parts]
    joined = {
        f"{head}attn_qkv.weight": np.concatenate(found[:3]),
        f"{head}ffn_gate_up_exps.weight": np.concatenate(found[3:], axis=1),
    }
    other = rewrite.gguf(full, tmp_path / "joined.gguf", drop=tuple(parts), add=joined)
    chunks = [prompts_of("qwen35moe")[0]["ids"]]
    usual, fused = measured(full, chunks), measured(other, chunks)
    assert fused.entries.keys() == usual.entries.keys() - set(parts) | joined.keys()
    for name, part in zip(joined, (parts[0], parts[3]), strict=True):
        assert np.array_equal(fused.entries[name].sums, usual.entries[part].sums), name


@pytest.mark.parametrize("kind", ["qwen35moe", "deepseekv3"])
def test_mlx_says_the_same(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trunk of a 4-bit MLX checkpoint, stacked experts and kv_b taken apart, and of its values in Hugging Face."""
    arrays, config = mlx.source(kind, monkeypatch)
    layout, quantizer = mlx.MLX_METHODS["affine 4"]

    def choose(name: str, a: np.ndarray) -> Any:
        whole = a.ndim > 1 and "conv1d" not in name and not a.shape[-1] % layout["group_size"]
        return None if name.endswith(("mlp.gate.weight", "shared_expert_gate.weight")) or not whole else quantizer

    stored, values = mlx.quantized(mlx.mlx_arrays(kind, arrays, config), choose)
    stated = mlx.wrapped(kind, config) | {"quantization": layout, "quantization_config": layout}
    one = mlx.q.write(tmp_path / "mlx", stored, stated, "mlx")
    other = mlx.q.write(tmp_path / "hf", mlx.plain(mlx.back(kind, values, arrays, config)), config)
    assert open_checkpoint(one).dialect == "mlx"
    chunks = [list(range(40, 72)), list(range(900, 932))]
    found, wanted = (measured(path, chunks, "all") for path in (one, other))
    assert found.entries.keys() == wanted.entries.keys()
    for name, entry in wanted.entries.items():
        assert np.array_equal(entry.sums, found.entries[name].sums), name


@pytest.mark.parametrize("options", [{"weights": "stored"}, {"dtype": "bfloat16"}], ids=str)
def test_however_weights_are_held(options: dict[str, Any]) -> None:
    """As they are stored: the same bits. In bfloat16: about the same."""
    chunks = [prompts_of("qwen35moe")[0]["ids"]]
    path = FIXTURES / "qwen35moe" / "hf"
    usual, found = measured(path, chunks, "all"), measured(path, chunks, "all", **options)
    assert usual.entries.keys() == found.entries.keys()
    for name, entry in usual.entries.items():
        if "packed" in options:
            assert np.array_equal(entry.sums, found.entries[name].sums), name
        elif "_exps" not in name:  # a rounded router may choose another expert
            assert np.allclose(entry.sums.sum(), found.entries[name].sums.sum(), rtol=0.1), name


def test_a_sidecar_has_its_own(trunk_of: Any) -> None:
    """A quantized trunk and a head from elsewhere: the head's entries alone, under the head's block."""
    recorder = Recorder()
    donor = open_checkpoint(FIXTURES / "qwen35/gguf/model-BF16.gguf")
    model = load_model(open_checkpoint(trunk_of("qwen35", "Q4_K")), head=donor, recorder=recorder, check=False)
    found = measure_importance(model, recorder, [prompts_of("qwen35")[0]["ids"]])
    assert {name.split(".")[1] for name in found.entries} == {"4"}
    assert len(found.entries) == 9


def test_the_trunk_alone_can_be_measured(trunk_of: Any) -> None:
    path = trunk_of("qwen35", "Q8_0")
    chunks = [prompts_of("qwen35")[0]["ids"]]
    with pytest.raises(MissingHeadError):
        measured(path, chunks)
    found = measured(path, chunks, "all")
    assert {name.split(".")[1] for name in found.entries} == {"0", "1", "2", "3"}


def test_chunks() -> None:
    ids = list(range(100, 111))
    assert list(chunks_of(ids, 4)) == [[100, 101, 102, 103], [104, 105, 106, 107]]
    assert list(chunks_of(ids, 4, (1,))) == [[1, 101, 102, 103], [1, 105, 106, 107]]
    assert list(chunks_of(ids, 12)) == []


def test_what_cannot_be_measured() -> None:
    recorder = Recorder()
    model = load_model(open_checkpoint(FIXTURES / "deepseekv3/hf"), recorder=recorder, check=False)
    for chunks in ([], [[5, 6, 7]]):
        with pytest.raises(UsageError, match="too short for 2 MTP"):
            measure_importance(model, recorder, chunks)
    with pytest.raises(MissingHeadError):
        measure_importance(replace(model, head=None), recorder, [[5, 6, 7, 8]])
    assert not recorder.on


def test_a_joined_kv_b_is_measured_as_its_parts_and_layer_by_layer(tmp_path: Path) -> None:
    """Files older than the split of attn_kv_b, trunk and head: the same entries under the parts' names."""
    from mtptools.ops.convert_gguf import convert_gguf
    from mtptools.writer import write

    split = tmp_path / "split.gguf"
    write(convert_gguf(open_checkpoint(FIXTURES / "deepseekv3" / "hf"), split.name, outtype="F32"), split)
    ckpt, joined = open_checkpoint(split), {}
    for name in [name for name in ckpt if name.endswith("attn_k_b.weight")]:
        other = name.replace("attn_k_b", "attn_v_b")
        keys, values = (decode(ckpt[one]).reshape(ckpt[one].shape) for one in (name, other))
        both = np.concatenate([keys.swapaxes(1, 2), values], axis=1)
        joined[name.replace("attn_k_b", "attn_kv_b")] = both.reshape(-1, both.shape[-1])
    dropped = tuple(name for name in ckpt if "attn_k_b" in name or "attn_v_b" in name)
    old = rewrite.gguf(split, tmp_path / "old.gguf", drop=dropped, add=joined)
    chunks = [list(range(5, 69)), list(range(100, 164))]
    before, after = (measured(path, chunks, "all").entries for path in (split, old))
    assert set(dropped) <= set(before)
    assert set(after) == set(before)
    for name, entry in before.items():
        assert np.array_equal(after[name].counts, entry.counts), name
        assert np.allclose(after[name].sums, entry.sums, rtol=1e-5), name
