"""HF quantization_config and the head: which entry keeps a loader from expecting quantized head weights.

One row per method, with its source. A head that was never quantized must be named in the list the method reads,
or loaders look for scales that are not there, or drop its weights silently (facts: vLLM 0.33 and SGLang 0.5.23
loaders; vllm#41994, vllm#53387, sglang#35797).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from mtptools.errors import CorruptError
from mtptools.families import Family

__all__ = [
    "COMPANIONS",
    "METHODS",
    "Exclusion",
    "cover_head",
    "cover_in_modelopt",
    "covers_head",
    "knows_method",
]

# Names of the tensors that stand beside quantized values: they belong to a role and are none of their own.
COMPANIONS: Final = (
    ".scale", ".input_scale", ".weight_scale", ".weight_scale_2", ".weight_scale_inv", ".weight_zero_point",
    ".weight_shape", ".weight_g_idx", ".weight_packed", ".qweight", ".qzeros", ".scales", ".g_idx", ".biases",
    ".k_scale", ".v_scale", "rope_freqs.weight",
)  # fmt: skip


@dataclass(frozen=True)
class Exclusion:
    """`key` of quantization_config holds the excluded modules; `entry` is what a grafted head adds for `{head}`.

    also     other keys that mean the same
    table    True: `key` is a map whose keys are "-:" + regular expression (GPTQModel's dynamic)
    fusion   False: loaders take the fusion as float whatever the list says
    """

    key: str
    entry: str
    also: tuple[str, ...] = ()
    table: bool = False
    fusion: bool = True
    source: str = ""


METHODS: Final[Mapping[str, Exclusion]] = {
    "compressed-tensors": Exclusion("ignore", "re:^{head}.*", source="vLLM compressed_tensors utils, re: prefix"),
    "fp8": Exclusion("modules_to_not_convert", "{head}", source="transformers FineGrainedFP8Config; vLLM fp8"),
    "modelopt": Exclusion(
        "ignore", "{head}*", ("exclude_modules",), fusion=False, source="ModelOpt, fnmatch; vLLM and SGLang on mtp.fc"
    ),
    "gptq": Exclusion("dynamic", "-:.*{head}.*", table=True, source="GPTQModel dynamic; Qwen GPTQ-Int4 releases"),
    "awq": Exclusion("modules_to_not_convert", "{head}", source="AutoAWQ config; vLLM awq"),
    "quark": Exclusion("exclude", "{head}*", source="AMD Quark export; sglang#36158"),
}


def _head_name(family: Family) -> str:
    return family.hf_head.rstrip(".")


def _config(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    quant = config.get("quantization_config")
    return quant if isinstance(quant, dict) else None


def covers_head(config: Mapping[str, Any], family: Family) -> bool | None:
    """Does quantization_config exclude the head? None: there is no such config, or its method is not known."""
    quant = _config(config)
    rule = METHODS.get(str(quant.get("quant_method"))) if quant is not None else None
    if quant is None or rule is None:
        return None
    stated = [item for key in (rule.key, *rule.also) for item in _items(quant.get(key))]
    modules = [f"{_head_name(family)}.layers.0.self_attn.q_proj"]
    modules += [f"{_head_name(family)}.fc"] if rule.fusion else []
    return all(any(_matches(item, name) for item in stated) for name in modules)


def _items(value: object) -> list[str]:
    """Entries of an exclusion list or table. Raises CorruptError for anything else."""
    if value is None:
        return []
    if not isinstance(value, list | dict):
        raise CorruptError(
            f"quantization_config excludes {value!r}, which is neither a list nor a table",
            where="config.json",
            hint="take config.json from the release again",
        )
    return [str(item) for item in value]


def _matches(item: str, module: str) -> bool:
    for mark in ("re:", "-:"):
        if item.startswith(mark):
            try:
                return re.match(item[len(mark) :], module) is not None
            except re.error:
                return False
    stem = item.rstrip("*").rstrip(".")
    return module == stem or module.startswith(stem + ".") or fnmatchcase(module, item)


def knows_method(config: Mapping[str, Any]) -> bool:
    """Is it known how this config excludes modules? True when nothing is quantized."""
    quant = config.get("quantization_config")
    return quant is None or (isinstance(quant, dict) and str(quant.get("quant_method")) in METHODS)


def cover_head(config: dict[str, Any], family: Family, facts: list[str]) -> dict[str, Any]:
    """config.json whose quantization_config excludes a float head; unchanged when its method is not known."""
    quant = _config(config)
    if quant is None or not knows_method(config) or covers_head(config, family):
        return config
    rule = METHODS[str(quant.get("quant_method"))]
    entry = rule.entry.format(head=_head_name(family))
    changed = dict(quant)
    for key in (rule.key, *(key for key in rule.also if key in quant)):
        stated = _items(quant.get(key))
        changed[key] = {**(quant.get(key) or {}), entry: {}} if rule.table else [*stated, entry]
    facts.append(f"quantization_config.{rule.key} gains {entry!r}: the head is not quantized")
    return {**config, "quantization_config": changed}


def cover_in_modelopt(tree: Mapping[str, Any], family: Family, facts: list[str]) -> dict[str, Any]:
    """hf_quant_config.json, ModelOpt's second place for the same list, with the head excluded."""
    quant = tree.get("quantization")
    if not isinstance(quant, dict):
        return dict(tree)
    stated, entry = _items(quant.get("exclude_modules")), f"{_head_name(family)}*"
    if any(_matches(item, f"{_head_name(family)}.layers.0.self_attn.q_proj") for item in stated):
        return dict(tree)
    facts.append(f"hf_quant_config.json: exclude_modules gains {entry!r}")
    return {**tree, "quantization": {**quant, "exclude_modules": [*stated, entry]}}
