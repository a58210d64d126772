"""HF quantization_config and the head: which entry keeps a loader from expecting quantized head weights.

One row per method, with its source. A head that was never quantized must be named in the list the method reads,
or loaders look for scales that are not there, or drop its weights silently (facts: vLLM 0.33 and SGLang 0.5.23
loaders; vllm#41994, vllm#53387, sglang#35797).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mtptools.errors import InputError
from mtptools.families import Family

__all__ = ["METHODS", "Exclusion", "cover_head", "covers_head"]


@dataclass(frozen=True)
class Exclusion:
    """`key` of quantization_config holds the excluded modules; `entry` is what a grafted head adds for `{head}`.

    regex  True: list items that start with "re:" are regular expressions on module names
    table  True: `key` is a map whose keys are "-:" + regular expression (GPTQModel's dynamic)
    """

    key: str
    entry: str
    table: bool = False
    source: str = ""


METHODS: Final[Mapping[str, Exclusion]] = {
    "compressed-tensors": Exclusion("ignore", "re:^{head}.*", source="vLLM compressed_tensors utils, re: prefix"),
    "fp8": Exclusion("modules_to_not_convert", "{head}", source="transformers FineGrainedFP8Config; vLLM fp8"),
    "modelopt": Exclusion("ignore", "{head}*", source="ModelOpt hf_quant_config, fnmatch patterns"),
    "gptq": Exclusion("dynamic", "-:.*{head}.*", True, source="GPTQModel dynamic; Qwen GPTQ-Int4 releases"),
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
    stated = quant.get(rule.key) or ()
    probe = f"{_head_name(family)}.layers.0.self_attn.q_proj"
    fusion = f"{_head_name(family)}.fc"
    return all(any(_matches(str(item), name) for item in stated) for name in (probe, fusion))


def _matches(item: str, module: str) -> bool:
    for mark in ("re:", "-:"):
        if item.startswith(mark):
            try:
                return re.match(item[len(mark) :], module) is not None
            except re.error:
                return False
    stem = item.rstrip("*").rstrip(".")
    return module == stem or module.startswith(stem + ".")


def cover_head(config: dict[str, Any], family: Family, facts: list[str]) -> dict[str, Any]:
    """config.json whose quantization_config excludes a float head. Raises InputError for an unknown method."""
    quant = _config(config)
    if quant is None or covers_head(config, family):
        return config
    method = str(quant.get("quant_method"))
    rule = METHODS.get(method)
    if rule is None:
        raise InputError(
            f"quantization_config has the method {method!r}; how it excludes modules is not known here",
            hint=f"known methods: {', '.join(METHODS)}",
        )
    entry = rule.entry.format(head=_head_name(family))
    changed = dict(quant)
    changed[rule.key] = (
        {**(quant.get(rule.key) or {}), entry: {}} if rule.table else [*(quant.get(rule.key) or []), entry]
    )
    facts.append(f"quantization_config.{rule.key} gains {entry!r}: the head is not quantized")
    return {**config, "quantization_config": changed}
