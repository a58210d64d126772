"""Small places where exactness, or a count, once broke or could: duplicates, short texts, half precision, leftovers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from fixtures import permutation, random_models
from mtptools.checkpoint import open_checkpoint
from mtptools.decoder import selftest
from mtptools.decoder.acceptance import first_hits
from mtptools.decoder.attention import attend
from mtptools.decoder.cache import KVCache
from mtptools.decoder.controls import run_controls
from mtptools.decoder.estimate import estimate
from mtptools.decoder.load import family_wiring, load_model
from mtptools.decoder.model import Model
from mtptools.decoder.moe import Moe, MoeWeights
from mtptools.decoder.mtp_head import HeadWiring
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.run import verify_model
from mtptools.decoder.sampling import GREEDY, Sampling
from mtptools.decoder.settings import Routing
from mtptools.decoder.speculate import decode_plain, decode_speculative
from mtptools.errors import InputError, SystemFailure, UsageError
from mtptools.ops.validate import Result
from mtptools.report.verification import Verification

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """GLM-4 MoE with two MTP layers."""
    folder = tmp_path_factory.mktemp("deep")
    permutation.build("glm4moe", folder, reads="hidden", depth=2)
    return load_model(open_checkpoint(folder), check=False)


def test_one_expert_twice() -> None:
    """A token that names an expert twice must not lend its row to a neighbour that does not name it at all."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    table = torch.tensor([[1, 1], [0, 2]])
    weights = MoeWeights(random(3, 8), random(3, 8, 8), random(3, 8, 4), None, table=table)
    moe = Moe(weights, Routing("sigmoid", 2), Arithmetic.on(CPU))
    x = random(2, 8)
    together = moe.forward(x, [0, 1])
    for row in range(2):
        assert torch.equal(moe.forward(x[row : row + 1], [row])[0], together[row])


def test_hits_after_the_shortest_prompt(deep: Model) -> None:
    """The second draft's first target is the third token: after one prompt token one emitted token has no draft."""
    trace = decode_plain(deep, [7], 8, keep_states=True)
    head = deep.require_head()
    assert first_hits(head, trace).shape == (7,)
    assert first_hits(head, trace, draft=2).shape == (6,)
    assert first_hits(head, decode_plain(deep, [7], 2, keep_states=True), draft=2).shape == (0,)
    longer = decode_plain(deep, [7, 99, 12], 8, keep_states=True)
    assert first_hits(head, longer, draft=2).shape == (7,)


def test_no_recycle_control_where_nothing_is_recycled(deep: Model) -> None:
    traces = [decode_plain(deep, [7, 99, 12], 8, keep_states=True)]
    head = deep.require_head()
    assert "other recycle" in {result.name for result in run_controls(head, traces)}
    assert "other recycle" not in {result.name for result in run_controls(head.rewired(recurrence="first"), traces)}


def test_wiring_is_the_familys_unless_told(deep: Model, tmp_path: Path) -> None:
    assert deep.require_head().wiring == HeadWiring(mask_first=True, recurrence="exact")
    random_models.build("mimo", tmp_path)
    ckpt = open_checkpoint(tmp_path)
    assert load_model(ckpt, check=False).require_head().wiring == family_wiring(ckpt)
    assert family_wiring(ckpt).concat == "he"


def test_a_forgotten_slot_is_finite_in_half_precision() -> None:
    cache = KVCache(1, 8, 8, torch.float16, CPU)
    ops, queries = Arithmetic.on(CPU), torch.ones(1, 1, 8)
    cache.append(torch.ones(3, 1, 16))
    before = attend(ops, queries, cache, [2])
    cache.append(torch.full((1, 1, 16), 1e6))
    cache.rollback(3)
    assert torch.equal(attend(ops, queries, cache, [2]), before)


def test_tensors_outside_of_layers_are_claimed_too(tmp_path: Path) -> None:
    permutation.build("glm4moe", tmp_path)
    save_file({"lm_head.bias": np.zeros(2048, np.float32)}, tmp_path / "more.safetensors")
    names = dict.fromkeys(open_checkpoint(tmp_path), "model.safetensors") | {"lm_head.bias": "more.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    with pytest.raises(InputError, match=r"has no use for lm_head\.bias"):
        load_model(open_checkpoint(tmp_path), check=False)


def test_layers_beyond_the_declared_ones_are_claimed_too(tmp_path: Path) -> None:
    permutation.build("qwen35", tmp_path)
    ckpt = open_checkpoint(tmp_path)
    hp = ckpt.hparams
    object.__setattr__(ckpt, "hparams", replace(hp, n_layers=3, layer_types=hp.layer_types[:3]))
    with pytest.raises(InputError, match=r"has no use for model\.layers\.3\."):
        load_model(ckpt, check=False)


def test_stacked_experts_count_one_at_a_time(tmp_path: Path) -> None:
    """The largest matrix that is decoded at once is the embedding, 2048 by 256; four experts together are larger."""
    permutation.build("qwen35moe", tmp_path)
    ckpt = open_checkpoint(tmp_path)
    largest = 2048 * 256 * 4
    assert estimate(ckpt, None, torch.float32).whole.largest == largest


def test_the_self_test_tries_products_by_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    permutation.build("deepseekv3", tmp_path)
    model = load_model(open_checkpoint(tmp_path), check=False)
    honest = Arithmetic.per_head

    def leaky(self: Arithmetic, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return honest(self, x, weight) + x.abs().amax() * 1e-6

    monkeypatch.setattr(selftest, "_PASSED", set())
    selftest.self_test(model)
    monkeypatch.setattr(selftest, "_PASSED", set())
    monkeypatch.setattr(Arithmetic, "per_head", leaky)
    with pytest.raises(SystemFailure, match="key up"):
        selftest.self_test(model)


def test_nothing_drafted_is_said(deep: Model) -> None:
    report = verify_model(deep, [[7, 9]], (1,), 2, samplings=(GREEDY,))
    found = Verification("x", [], Result((), ()), decoder=report)
    assert found.failures() == ["L3 acceptance: nothing was drafted: decode more --tokens"]


def test_an_unknown_mode(deep: Model) -> None:
    with pytest.raises(UsageError, match="no such way"):
        decode_speculative(deep, [7], 4, 1, mode="fats")


def test_plain_sampling_is_known_as_such() -> None:
    assert Sampling(seed=5).is_plain
