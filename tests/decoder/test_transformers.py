"""Against transformers: formulas, positions, states, whole models. transformers is what the goldens come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mtptools.decoder.drafter import Drafter
from mtptools.decoder.model import Model
from mtptools.decoder.rope import Rope
from mtptools.decoder.settings import RopeSettings

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("default")]

IDS = torch.randint(0, 384, (1, 140), generator=torch.Generator().manual_seed(4))


@pytest.fixture(scope="module", params=[False, True], ids=["dense", "moe"])
def theirs(request: pytest.FixtureRequest, toy_path: Callable[..., Path]) -> tuple[bool, torch.nn.Module]:
    model = transformers.AutoModelForCausalLM.from_pretrained(toy_path(request.param), dtype=torch.float32)
    return request.param, model.eval()


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["hf", "F32"])
def test_trunk_logits(theirs: tuple[bool, torch.nn.Module], kind: str, load: Callable[..., Model]) -> None:
    """Also says that the GGUF's tiled value heads are put back: there are twice as many as key heads."""
    moe, reference = theirs
    model = load(moe, kind)
    got = model.trunk.logits(model.trunk.forward(IDS[0].tolist(), model.trunk.new_cache()))
    wanted = reference(IDS).logits[0]
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
    assert torch.equal(got.argmax(-1), wanted.argmax(-1))


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["hf", "F32"])
def test_head_logits(theirs: tuple[bool, torch.nn.Module], kind: str, load: Callable[..., Model]) -> None:
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel

    moe, reference = theirs
    # These models do not know their own heads; the settings that would say so are put in by hand.
    reference.config.num_mtp_layers = 1
    reference.config.mtp_layer_types = ["full_attention"]
    head = MtpModel.from_pretrained(reference, device_map={"": "cpu"})
    hidden = reference.model(IDS[:, :-1]).last_hidden_state
    _, wanted, _ = head(
        input_ids=IDS[:, 1:],
        last_hidden_states=hidden,
        attention_mask=None,
        position_ids=torch.arange(1, IDS.shape[1])[None],
        mtp_cache=MtpCache(config=reference.config.get_mtp_config()),
    )
    model = load(moe, kind)
    states = model.trunk.forward(IDS[0, :-1].tolist(), model.trunk.new_cache())
    torch.testing.assert_close(states.post, hidden[0], rtol=0, atol=1e-4)
    drafter = Drafter(model.require_head())
    drafter.observe(states.post, IDS[0, 1:].tolist())
    torch.testing.assert_close(
        drafter.head.logits(drafter.ready[0])[0], wanted.reshape(-1, wanted.shape[-1])[-1], rtol=0, atol=1e-4
    )


def test_rope(theirs: tuple[bool, torch.nn.Module]) -> None:
    from transformers.models.qwen3_5.modeling_qwen3_5 import apply_rotary_pos_emb

    x = torch.randn((1, 6, 100, 64))
    cos, sin = theirs[1].model.rotary_emb(x, torch.arange(100)[None, None].expand(3, 1, -1))
    wanted, _ = apply_rotary_pos_emb(x, x, cos, sin)
    got = Rope(RopeSettings(10000.0, 16), torch.device("cpu")).rotate(x[0].transpose(0, 1), 0)
    assert torch.equal(got.transpose(0, 1), wanted[0])


@torch.inference_mode()
def test_deltanet_steps(theirs: tuple[bool, torch.nn.Module], load: Callable[..., Model]) -> None:
    """One token after another against the recurrent form of transformers, states included."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

    moe, reference = theirs
    layer, ours = reference.model.layers[0].linear_attn, load(moe).trunk.blocks[0].mixer
    x = torch.randn((1, 9, 256), generator=torch.Generator().manual_seed(2))
    mixed = torch.nn.functional.pad(layer.in_proj_qkv(x).transpose(1, 2), (3, 0))
    mixed = torch.nn.functional.silu(layer.conv1d._conv_forward(mixed, layer.conv1d.weight, None)[..., 3:-3])
    q, k, v = mixed.transpose(1, 2).split([64, 64, 256], dim=-1)
    decay = -layer.A_log.exp() * torch.nn.functional.softplus(layer.in_proj_a(x) + layer.dt_bias)
    _, memory = torch_recurrent_gated_delta_rule(
        q.reshape(1, 9, 2, 32),
        k.reshape(1, 9, 2, 32),
        v.reshape(1, 9, 4, 64),
        g=decay,
        beta=layer.in_proj_b(x).sigmoid(),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    cache = ours.new_cache()
    outs = [ours.forward(x[0, t : t + 1], cache, False) for t in range(9)]
    torch.testing.assert_close(cache.state.memory, memory[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.cat(outs), layer(x)[0], rtol=1e-4, atol=1e-5)
