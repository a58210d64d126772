"""transformers' models of the random checkpoints, float32 and eager, and its heads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from fixtures import random_models
from mtptools.decoder.mtp_head import HeadWiring

IDS = random.Random(4).choices(range(2044), k=150)


def wiring(kind: str, **changes: Any) -> HeadWiring:
    """As the oracles connect a head: nothing is masked. MiMo as vLLM does, but for that."""
    usual = {"concat": "he", "tap": "pre"} if kind == "mimo" else {}
    return HeadWiring(**{**usual, **changes})


def trunk(kind: str, folder: Path, depth: int = 1) -> Any:
    """transformers does not know MiMo-7B, whose trunk is Qwen2's."""
    import transformers

    if kind == "mimo":
        return _qwen2(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    config = getattr(config, "text_config", config)
    model_class = transformers.AutoModelForCausalLM._model_mapping[type(config)]
    if kind not in random_models.QWEN:
        # It knows the layer numbers of released heads only, and looks them up on the family's base class.
        base = next(c for c in model_class.__mro__ if c.__name__.endswith("PreTrainedModel"))
        layers = range(config.num_hidden_layers, config.num_hidden_layers + depth)
        base._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{n}\..*" for n in layers]
    model, loading = model_class.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["mismatched_keys"]
    if kind == "glm4lite":
        # transformers always takes 1e-6 for the norms of latents; the runtimes take the model's epsilon, 1e-5 here.
        for layer in model.model.layers:
            latent_epsilon(layer, config.rms_norm_eps)
    model.generation_config.eos_token_id = None
    return model.eval()


def latent_epsilon(layer: nn.Module, eps: float) -> None:
    for name in ("q_a_layernorm", "kv_a_layernorm"):
        getattr(layer.self_attn, name).variance_epsilon = eps


def _qwen2(folder: Path) -> Any:
    import transformers

    other = ("architectures", "model_type", "num_nextn_predict_layers")
    stated = {name: value for name, value in random_models.config("mimo").items() if name not in other}
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**stated, attn_implementation="eager"))
    values = load_file(folder / "model.safetensors")
    model.load_state_dict({name: value for name, value in values.items() if ".mtp_layers." not in name})
    return model.eval()


def head(kind: str, model: Any, depth: int = 1) -> Any:
    """The library's own head of any family, also where it is not told that the model has one."""
    from transformers.modeling_layers import MtpModel

    model.config.num_mtp_layers = depth
    if kind in random_models.QWEN:
        model.config.mtp_layer_types = ["full_attention"] * depth
    if kind == "glm4lite":
        model.config.mtp_mlp_layer_types = ["sparse"] * depth
    found = MtpModel.from_pretrained(model, device_map={"": "cpu"}).float().eval()
    if kind == "glm4lite":
        for layer in found.layers:
            latent_epsilon(layer.mtp_block, model.config.rms_norm_eps)
    return found


@torch.inference_mode()
def head_logits(model: Any, mtp: Any, ids: list[int]) -> list[torch.Tensor]:
    """Logits [slots, vocab] of each layer over the text: layer j has a slot less than layer j - 1."""
    from transformers.cache_utils import MtpCache

    tokens = torch.tensor([ids])
    state = model.model(tokens, use_cache=False).last_hidden_state
    cache = MtpCache(config=model.config.get_mtp_config())
    found = []
    for j in range(len(mtp.layers)):
        positions = torch.arange(j + 1, len(ids))[None]
        state = mtp.forward_layer(j, state[:, :-1], positions, cache, input_ids=tokens[:, j + 1 :])
        found.append(mtp._project_to_logits(state)[0])
    return found


@torch.inference_mode()
def mimo_head_logits(model: Any, folder: Path, ids: list[int], *, masked: bool) -> torch.Tensor:
    """Logits [slots, vocab] of MiMo's head: vLLM's formula around Qwen2's layer.

    Input: the state before the final norm and the next token's embedding, each normed, joined in this order.
    """
    from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm

    stem = "model.mtp_layers.0."
    values = {
        name.removeprefix(stem): value
        for name, value in load_file(folder / "model.safetensors").items()
        if name.startswith(stem)
    }
    config = model.config
    layer = Qwen2DecoderLayer(config, 0).eval()
    own = layer.state_dict().keys()
    layer.load_state_dict({name: value for name, value in values.items() if name in own})

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        module = Qwen2RMSNorm(config.hidden_size, config.rms_norm_eps)
        module.load_state_dict({"weight": values[f"{name}.weight"]})
        return module(x)

    tokens = torch.tensor([ids])
    states: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    model(tokens)
    hook.remove()
    embedded = model.model.embed_tokens(tokens[:, 1:])
    if masked:
        embedded[:, 0] = 0
    fused = torch.cat((norm("hidden_layernorm", states[0][:, :-1]), norm("token_layernorm", embedded)), dim=-1)
    x = nn.functional.linear(fused, values["input_proj.weight"])
    positions = torch.arange(x.shape[1])[None]
    mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)[None, None]
    out = layer(x, attention_mask=mask, position_embeddings=model.model.rotary_emb(x, positions))
    return model.lm_head(norm("final_layernorm", out[0] if isinstance(out, tuple) else out))[0]


@contextmanager
def drafting() -> Iterator[list[tuple[int, list[int]]]]:
    """Collects what the library drafts: how many tokens are known, and the drafts."""
    from transformers.generation.candidate_generator import MTPCandidateGenerator

    log: list[tuple[int, list[int]]] = []
    original = MTPCandidateGenerator.get_candidates

    def get_candidates(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found, logits = original(self, input_ids, *args, **kwargs)
        if logits is not None:
            log.append((input_ids.shape[1], found[0, input_ids.shape[1] :].tolist()))
        return found, logits

    MTPCandidateGenerator.get_candidates = get_candidates
    try:
        yield log
    finally:
        MTPCandidateGenerator.get_candidates = original
