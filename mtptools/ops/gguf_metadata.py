"""config.json as GGUF metadata: the keys llama.cpp's loader reads, as tables per family.

Keys, values and their defaults are those of llama.cpp's converter (conversion/base.py, qwen.py, glm.py, deepseek.py);
what config.json leaves out has the default of transformers' configuration class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.containers.gguf import Metadata
from mtptools.containers.gguf_values import GgufValue, array_value, scalar_value, string_value
from mtptools.errors import CodecError, CorruptError
from mtptools.hparams import HParams, lookup, text_config
from mtptools.ops.gguf_tokenizer import tokenizer_metadata

__all__ = ["FILE_TYPES", "KEYS", "whole_metadata"]

# general.file_type of a file whose matrices are of this type (gguf-py, LlamaFileType).
FILE_TYPES: Final = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}
GATING: Final = {"softmax": 1, "sigmoid": 2}
QUANTIZATION_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class Model:
    """What a key's value is read from; `config` is the text configuration, with what only its wrapper says."""

    hparams: HParams
    config: Mapping[str, Any]
    depth: int


Read = Callable[[Model], Any]


@dataclass(frozen=True, slots=True)
class Key:
    """One key without its `{arch}.`; left out of the file where `read` says None."""

    name: str
    kind: str
    read: Read


def _size(expression: str | int, *, optional: bool = False) -> Read:
    """A size of the model; `optional`: None for 0."""
    return lambda model: model.hparams.size(expression) or (None if optional else 0)


def _stated(*paths: str, default: Any = None) -> Read:
    """The first of these fields that config.json states."""

    def read(model: Model) -> Any:
        found = (lookup(model.config, path) for path in paths)
        return next((value for value in found if value is not None), default)

    return read


def _gating(default: str) -> Read:
    def read(model: Model) -> int:
        word = model.config.get("scoring_func") or default
        if word not in GATING:
            raise CodecError(
                f"experts chosen by {word!r} cannot be expressed",
                where="config.json, scoring_func",
                hint=f"known: {', '.join(GATING)}",
            )
        return GATING[word]

    return read


def _sections(*default: int) -> Read:
    """Rotated pairs of text, height, width and nothing; as a rule three are stated and four are stored."""

    def read(model: Model) -> list[int] | None:
        stated = _rope(model.config).get("mrope_section") or default
        return [*stated, 0, 0, 0, 0][:4] if stated else None

    return read


def _rotated(share: float) -> Read:
    """Rotated dimensions of a head; `share` of it where config.json does not say."""

    def read(model: Model) -> int:
        part = _stated("rope_parameters.partial_rotary_factor", "partial_rotary_factor", default=share)(model)
        return int(model.hparams.head_dim * part)

    return read


def _recurrent(model: Model) -> list[bool]:
    """One entry a block; a head's blocks are attention."""
    return [kind == "linear" for kind in model.hparams.layer_types] + [False] * model.depth


def _log_multiplier(model: Model) -> float | None:
    scale = _rope(model.config).get("mscale_all_dim")
    return None if scale is None else 0.1 * scale


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    stated = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return stated if isinstance(stated, Mapping) else {}


BASE: Final = (
    Key("block_count", "u32", lambda model: model.hparams.n_layers + model.depth),
    Key("context_length", "u32", _size("context_length")),
    Key("embedding_length", "u32", _size("hidden_size")),
    Key("feed_forward_length", "u32", _size("intermediate_size", optional=True)),
    Key("attention.head_count", "u32", _size("n_heads")),
    Key("rope.freq_base", "f32", lambda model: model.hparams.rope_theta),
    Key("attention.layer_norm_rms_epsilon", "f32", lambda model: model.hparams.norm_eps),
    Key("nextn_predict_layers", "u32", lambda model: model.depth or None),
)
GROUPED: Final = (
    Key("attention.head_count_kv", "u32", _size("n_kv_heads")),
    Key("attention.key_length", "u32", _size("head_dim")),
    Key("attention.value_length", "u32", _size("head_dim")),
)
DELTANET: Final = (
    Key("ssm.conv_kernel", "u32", _size("conv_kernel")),
    Key("ssm.state_size", "u32", _size("linear_k_head_dim")),
    Key("ssm.group_count", "u32", _size("linear_k_heads")),
    Key("ssm.time_step_rank", "u32", _size("linear_v_heads")),
    Key("ssm.inner_size", "u32", _size("linear_v_heads*linear_v_head_dim")),
    Key("attention.recurrent_layers", "bool[]", _recurrent),
    Key("full_attention_interval", "u32", _stated("full_attention_interval", default=4)),
    Key("rope.dimension_count", "u32", _rotated(0.25)),
)
MOE: Final = (
    Key("expert_count", "u32", _size("n_experts")),
    Key("expert_used_count", "u32", _size("n_experts_used")),
    Key("expert_feed_forward_length", "u32", _size("moe_intermediate_size")),
)
SHARED_GATED: Final = (Key("expert_shared_feed_forward_length", "u32", _size("shared_expert_intermediate_size")),)
# Every model with these routes by sigmoid; llama.cpp's converter leaves it out for GLM-4.7-Flash, and its loader then
# knows it by the size of the vocabulary.
GROUPS: Final = (
    Key("expert_shared_count", "u32", _size("n_shared_experts")),
    Key("leading_dense_block_count", "u32", _size("first_dense")),
    Key("expert_gating_func", "u32", _gating("sigmoid")),
    Key("expert_weights_norm", "bool", _stated("norm_topk_prob", default=True)),
)
QWEN35: Final = (
    *BASE,
    *GROUPED,
    *DELTANET,
    Key("rope.dimension_sections", "i32[]", _sections(11, 11, 10)),
)
QWEN3NEXT: Final = (*BASE, *GROUPED, *DELTANET, *MOE, *SHARED_GATED)


def _grouped_experts(groups: int, used: int, scale: float) -> tuple[Key, ...]:
    """Defaults of the configuration class: groups, groups used, and the factor of the experts' sum."""
    return (
        Key("expert_group_count", "u32", _stated("n_group", default=groups)),
        Key("expert_group_used_count", "u32", _stated("topk_group", default=used)),
        Key("expert_weights_scale", "f32", _stated("routed_scaling_factor", default=scale)),
    )


LATENT: Final = (
    *BASE,
    *MOE,
    *GROUPS,
    # llama.cpp runs the latent cache as one key-value head; `_mla` are the sizes of the heads it stands for.
    Key("attention.head_count_kv", "u32", _size(1)),
    Key("attention.key_length", "u32", _size("kv_lora_rank+qk_rope_head_dim")),
    Key("attention.value_length", "u32", _size("kv_lora_rank")),
    Key("attention.key_length_mla", "u32", _size("qk_nope_head_dim+qk_rope_head_dim")),
    Key("attention.value_length_mla", "u32", _size("v_head_dim")),
    Key("attention.q_lora_rank", "u32", _size("q_lora_rank", optional=True)),
    Key("attention.kv_lora_rank", "u32", _size("kv_lora_rank")),
    Key("rope.dimension_count", "u32", _size("qk_rope_head_dim")),
    Key("rope.scaling.yarn_log_multiplier", "f32", _log_multiplier),
    Key("vocab_size", "u32", _size("vocab_size")),
)

# family -> keys; a model type of its own goes before its family.
KEYS: Final[Mapping[str, tuple[Key, ...]]] = {
    "qwen35": QWEN35,
    "qwen35moe": (*QWEN35, *MOE, *SHARED_GATED),
    "qwen3next": QWEN3NEXT,
    "glm4moe": (
        *BASE,
        *GROUPED,
        *MOE,
        *GROUPS,
        *_grouped_experts(1, 1, 1.0),
        Key("rope.dimension_count", "u32", _rotated(0.5)),
        Key("rope.dimension_sections", "i32[]", _sections()),
    ),
    "deepseek_v3": (*LATENT, *_grouped_experts(8, 4, 2.5)),
    "glm4_moe_lite": (*LATENT, *_grouped_experts(1, 1, 1.8)),
}

# key of rope_parameters or rope_scaling -> key of rope.scaling, where it is stated
YARN: Final = {
    "extrapolation_factor": "yarn_ext_factor",
    "attention_factor": "yarn_attn_factor",
    "attn_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def _scaling(model: Model) -> Iterator[tuple[str, GgufValue]]:
    """Keys of rope.scaling. Raises CodecError for a method GGUF has no keys for, CorruptError for one half stated."""
    stated = _rope(model.config)
    kind = stated.get("rope_type") or stated.get("type") or "default"
    if kind == "default":
        return
    if kind not in ("linear", "yarn"):
        raise CodecError(f"rope scaling {kind!r} cannot be expressed", where="config.json", hint="known: linear, yarn")
    yield "type", string_value(kind)
    yield "factor", _encoded("f32", stated.get("factor"), "rope factor")
    if kind == "yarn":
        before = stated.get("original_max_position_embeddings") or model.config.get("original_max_position_embeddings")
        yield "original_context_length", _encoded("u32", before, "original_max_position_embeddings")
        for field, key in YARN.items():
            if stated.get(field) is not None:
                yield key, _encoded("f32", stated[field], field)


def _encoded(kind: str, value: Any, name: str) -> GgufValue:
    wanted: tuple[type, ...] = {"f32": (int, float), "bool": (bool,)}.get(kind.removesuffix("[]"), (int,))
    items = value if kind.endswith("[]") else [value]
    if not isinstance(items, list) or not all(isinstance(item, wanted) for item in items):
        raise CorruptError(
            f"{name} is {value!r}, which is no {kind}",
            where="config.json",
            hint="take config.json from the release again",
        )
    return array_value(kind.removesuffix("[]"), items) if kind.endswith("[]") else scalar_value(kind, value)


def whole_metadata(source: Checkpoint, depth: int, outtype: str, pre: str | None = None) -> Metadata:
    """Metadata of a whole model with a head of `depth` MTP layers, none for 0.

    outtype  type of its matrices, a key of FILE_TYPES
    pre      llama.cpp's name of the pre-tokenizer, where tokenizer.json does not tell

    Raises CodecError for what GGUF cannot express, CorruptError for a damaged configuration, TokenizerError.
    """
    family = source.family
    config = {**source.config, **text_config(source.config)}
    model_type = str(config.get("model_type"))
    model = Model(source.hparams, config, depth)
    stored = {
        "general.architecture": string_value(family.gguf_arch),
        "general.type": string_value("model"),
        "general.name": string_value((source.folder or source.path).resolve().name),
        "general.file_type": scalar_value("u32", FILE_TYPES[outtype]),
        "general.quantization_version": scalar_value("u32", QUANTIZATION_VERSION),
    }
    for key in KEYS.get(model_type) or KEYS[family.name]:
        value = key.read(model)
        if value is not None:
            stored[f"{family.gguf_arch}.{key.name}"] = _encoded(key.kind, value, key.name)
    stored |= {f"{family.gguf_arch}.rope.scaling.{name}": value for name, value in _scaling(model)}
    return Metadata(stored | tokenizer_metadata(source, model.hparams.vocab_size, model_type, pre))
