"""quantization_config and the head's modules: how runtimes read lists, what is found, what is edited."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fixtures import releases
from mtptools.errors import CorruptError
from mtptools.ops.quant_config import (
    Module,
    cover,
    cover_modelopt,
    head_modules,
    judge,
    knows_method,
    unknown_methods,
)
from mtptools.ops.quant_match import _READERS
from mtptools.ops.quant_methods import ALIASES, BUILT, FUSED, METHODS, SPELLINGS, SWITCHES
from mtptools.ops.quant_modules import experts_of, root_of, tail_of

ROOT = Path(__file__).parent.parent.parent
READERS = json.loads((ROOT / "fixtures" / "quant" / "readers.json").read_text())


@functools.cache
def modules(key: str) -> list[Module]:
    head = releases.load(key).head
    return head_modules({name: (spec.dtype, len(spec.shape)) for name, spec in head.items()})


def as_float(key: str) -> list[Module]:
    return [Module(m.name, False) for m in modules(key)]


def config_of(key: str, method: str = "", **stated: Any) -> dict[str, Any]:
    config = {k: v for k, v in releases.load(key).config.items() if k != "quantization_config"}
    return {**config, "quantization_config": {"quant_method": method, **stated}} if method else config


def errors(*arguments: Any) -> list[str]:
    return [row.what for row in judge(*arguments) if row.level == "error"]


# How runtimes read a list: recorded from their own code.


@pytest.mark.parametrize(
    ("runtime", "syntax"),
    [
        ("SGLang fp8", "path_experts"),
        ("SGLang compressed-tensors", "suffix"),
        ("SGLang modelopt", "parts"),
        ("SGLang awq", "substring"),
        ("SGLang quark", "quark"),
        ("compressed-tensors", "regex"),
    ],
)
def test_lists_are_read_as_the_runtime_reads_them(runtime: str, syntax: str) -> None:
    compared = 0
    for items, left_out in READERS["left out"][runtime]:
        if syntax == "quark" and any("*" in item and not item.startswith("re:") for item in items):
            continue  # Quark's own export writes globs, which SGLang reads elsewhere
        mine = [name for name in READERS["names"] if any(_READERS[syntax](item)(name) for item in items)]
        if syntax == "quark":  # experts named one by one
            mine += [n for n in left_out if experts_of(n) == n and n not in mine]
        assert sorted(mine) == sorted(left_out), items
        compared += 1
    assert compared > 10


@pytest.mark.parametrize(
    ("syntax", "item", "name", "out"),
    [
        # vLLM is_layer_skipped, as Fp8Config calls it: whole names, the fused experts as a part of an entry
        ("exact", "mtp.fc", "mtp.fc", True),
        ("exact", "mtp", "mtp.fc", False),
        ("exact", "mtp.layers.0.mlp.experts.3.up_proj", "mtp.layers.0.mlp.experts", True),
        # the examples of vLLM's torchao should_skip
        ("path", "model.model.layers.1.q_proj", "model.model.layers.1.q_proj", True),
        ("path", "o_proj", "model.model.layers.10.o_proj", True),
        ("path", "visual", "visual.model.layers.1.q_proj", True),
        ("path", "layers.1", "model.model.layers.1.q_proj", True),
        ("path", "layers.1", "model.model.layers.11.q_proj", False),
        # vLLM is_layer_skipped_bnb: one component, or the first ones
        ("prefix", "q_proj", "model.layers.1.q_proj", True),
        ("prefix", "model.layers.1", "model.layers.1.q_proj", True),
        ("prefix", "layers.1", "model.layers.1.q_proj", False),
        # GPTQModel dynamic: from the start of the name
        ("dynamic", "-:.*mtp.*", "model.mtp.fc", True),
        ("dynamic", "-:mtp", "model.mtp.fc", False),
        # vLLM qwen3_5_mtp: "-:" with mtp in it is the whole head
        ("dynamic_mtp", "-:mtp\\.fc", "mtp.layers.0.mlp.up_proj", True),
        # vLLM INC: the whole name, or a full match
        ("layers", ".*mtp.*", "mtp.fc", True),
        ("layers", "mtp", "mtp.fc", False),
        ("glob", "model.layers.61", "model.layers.61.mlp.up_proj", True),
        ("glob", "gate", "mtp.layers.0.mlp.gate_proj", False),
        ("regex", "re:(", "mtp.fc", False),
    ],
)
def test_what_an_entry_means(syntax: str, item: str, name: str, out: bool) -> None:
    assert _READERS[syntax](item)(name) is out


# Modules.


def test_modules_of_a_real_head() -> None:
    found = {m.name: m.quantized for m in modules("deepseek-v3")}
    assert len(found) == 1 + 5 + 3 * 256 + 3
    assert found.pop("model.layers.61.eh_proj") is False
    assert all(found.values())
    assert not any(name.endswith(("mlp.gate", "embed_tokens", "head", "norm")) for name in found)


def test_modules_by_codec_companions_and_layout() -> None:
    tensors = {
        "mtp.fc.weight": ("BF16", 2),
        "mtp.norm.weight": ("BF16", 1),
        "mtp.layers.0.mlp.experts.gate_up_proj": ("BF16", 3),
        "mtp.layers.0.mlp.experts.down_proj": ("BF16", 3),
        "mtp.layers.0.self_attn.q_proj.weight_packed": ("I32", 2),
        "mtp.layers.0.self_attn.q_proj.weight_scale": ("BF16", 2),
        "mtp.layers.0.self_attn.k_proj.weight": ("BF16", 2),
        "mtp.layers.0.self_attn.k_proj.k_scale": ("F32", 0),
        "mtp.layers.0.self_attn.o_proj.qweight": ("I32", 2),
        "mtp.0.e_proj.weight": ("F8_E4M3", 2),
        "mtp.0.h_proj.weight": ("F16", 2),  # rounded values beside their scales
        "mtp.0.h_proj.weight_scale": ("F16", 1),
        "mtp.1.experts.gate_up_proj": ("F8_E4M3", 3),
        "mtp.1.experts.gate_up_proj_scale_inv": ("F32", 3),
    }
    assert {m.name: m.quantized for m in head_modules(tensors)} == {
        "mtp.fc": False,
        "mtp.layers.0.mlp.experts": False,
        "mtp.layers.0.self_attn.q_proj": True,
        "mtp.layers.0.self_attn.k_proj": False,
        "mtp.layers.0.self_attn.o_proj": True,
        "mtp.0.e_proj": True,
        "mtp.0.h_proj": True,
        "mtp.1.experts": True,
    }


@pytest.mark.parametrize(
    ("name", "root", "tail"),
    [
        ("mtp.layers.0.self_attn.q_proj", "mtp", "mtp.layers.0.self_attn.q_proj"),
        ("model.mtp.layers.0.eh_proj", "model.mtp", "mtp.layers.0.eh_proj"),
        ("mtp.0.e_proj", "mtp", "mtp.0.e_proj"),
        ("model.layers.61.eh_proj", "model.layers.61", "layers.61.eh_proj"),
        ("model.language_model.layers.45.eh_proj", "model.language_model.layers.45", "layers.45.eh_proj"),
        ("model.mtp_layers.0.eh_proj", "model.mtp_layers", "mtp_layers.0.eh_proj"),
    ],
)
def test_roots(name: str, root: str, tail: str) -> None:
    assert (root_of(name), tail_of(name)) == (root, tail)


# Real releases, as they were released.

WITHOUT = ["deepseek-v3", "deepseek-v3.1-nvfp4", "deepseek-v3.2", "deepseek-v4-flash", "deepseek-v4-flash-nvfp4",
           "glm-4.5-fp8", "glm-5-nvfp4", "mimo-v2-flash", "qwen3.5-27b", "glm-4.5-air"]  # fmt: skip


@pytest.mark.parametrize("key", WITHOUT)
def test_releases_without_a_finding(key: str) -> None:
    facts = releases.load(key).facts
    assert judge(releases.load(key).config, releases.expand_config(facts.get("hf_quant_config")), modules(key)) == []


def test_a_release_that_lists_its_float_fusion_as_quantized() -> None:
    """nvidia/Qwen3.5-397B-A17B-NVFP4 says mtp.layers.0*: vLLM takes mtp.fc as float anyway, so it is a warning."""
    release = releases.load("qwen3.5-397b-a17b-nvfp4")
    modelopt = releases.expand_config(release.facts["hf_quant_config"])
    rows = judge(release.config, modelopt, modules("qwen3.5-397b-a17b-nvfp4"))
    assert [(row.level, row.what) for row in rows] == [
        ("warning", "mtp.fc is float, and listed as quantized (modelopt)")
    ] * 2
    config = {**release.config, "quantization_config": {**release.config["quantization_config"], "quant_algo": "FP8"}}
    assert errors(config, None, modules("qwen3.5-397b-a17b-nvfp4")) == [
        "1 float module(s) of the head are listed as quantized (modelopt)"
    ]


def test_a_list_that_is_not_there() -> None:
    """The hf_quant_config.json of Nemotron-3-Super as it was seen: a method, and no list."""
    release, head = releases.load("nemotron-3-super-nvfp4"), modules("nemotron-3-super-nvfp4")
    modelopt, facts = release.facts["hf_quant_config"], list[str]()
    assert errors(release.config, modelopt, head) == [f"{len(head)} float module(s) of the head are listed as "
                                                      "quantized (modelopt)"]  # fmt: skip
    after = cover_modelopt(modelopt, release.config, head, facts)
    assert after["quantization"] == {**modelopt["quantization"], "exclude_modules": ["mtp*"]}
    assert judge(release.config, after, head) == []


@pytest.mark.parametrize(
    "name", ["nvidia--DeepSeek-V3.1-NVFP4", "nvidia--GLM-5-NVFP4", "nvidia--DeepSeek-V4-Flash-NVFP4"]
)
def test_configs_as_downloaded(name: str) -> None:
    folder = ROOT.parent / "shared" / "real" / "configs"
    if not folder.is_dir():
        pytest.skip("the recorded configs of real releases are not beside this checkout")
    config, modelopt = (
        json.loads((folder / f"{name}_{part}.json").read_text()) for part in ("config", "hf_quant_config")
    )
    head = modules(name.removeprefix("nvidia--").lower())
    assert judge(config, modelopt, head) == []
    assert cover(config, head, []) == config
    assert cover_modelopt(modelopt, config, head, []) == modelopt


# Edits.

LAYOUTS = ["qwen3.5-27b", "qwen3.5-35b-a3b", "qwen3.6-35b-a3b", "deepseek-v3", "glm-4.5-fp8", "glm-5-nvfp4",
           "step-3.7-flash-fp8", "mimo-v2-flash", "ling-3.0-flash", "ernie-4.5-21b-a3b", "minimax-m3"]  # fmt: skip
START: dict[str, dict[str, Any]] = {
    "compressed-tensors": {"ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"]}}},
    "modelopt": {"quant_algo": "NVFP4", "ignore": ["lm_head"]},
    "gptq": {"dynamic": {"+:.*": {"bits": 8}}},
    "auto-round": {"bits": 4, "extra_config": {"lm_head": {"bits": 16}}},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("key", LAYOUTS)
def test_a_float_head_is_left_out_and_the_trunk_is_not(key: str, method: str) -> None:
    head, facts = as_float(key), list[str]()
    config = config_of(key, method, **START.get(method, {}))
    assert errors(config, None, head)
    after = cover(config, head, facts)
    assert judge(after, None, head) == []
    assert facts
    assert cover(after, head, []) == after
    trunk = [m.name.replace(root_of(m.name), "model.layers.3.", 1).replace("..", ".") for m in head]
    quantized = [Module(name, True) for name in trunk if not name.endswith(("eh_proj", "fc"))]
    assert errors(after, None, quantized) == errors(config, None, quantized)
    assert {k: v for k, v in after.items() if k != "quantization_config"} == {
        k: v for k, v in config.items() if k != "quantization_config"
    }


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("key", ["qwen3.5-27b", "deepseek-v3", "step-3.7-flash-fp8"])
def test_a_quantized_head_has_no_entry(key: str, method: str) -> None:
    """What leaves it out is taken out, whoever wrote it; the trunk's entries stay."""
    stale = cover(config_of(key, method, **START.get(method, {})), as_float(key), [])
    head = [Module(m.name, not m.name.endswith(("eh_proj", "mtp.fc"))) for m in modules(key)]
    assert errors(stale, None, head)
    after = cover(stale, head, [])
    # vLLM takes any GPTQ key with mtp in it for the whole head: a float mtp.fc alone cannot be said, and is reported.
    assert any("left out" in what for what in errors(after, None, head)) is ((key, method) == ("qwen3.5-27b", "gptq"))
    kept = json.dumps(after["quantization_config"])
    assert ("lm_head" in kept) == ("lm_head" in json.dumps(START.get(method, {})))


@pytest.mark.parametrize(
    ("method", "key", "entries"),
    [
        ("compressed-tensors", "qwen3.5-27b", [r"re:^mtp\..*"]),
        ("compressed-tensors", "deepseek-v3", [r"re:.*model.layers.61\..*"]),
        ("compressed-tensors", "mimo-v2-flash", [r"re:.*mtp\..*"]),
        ("modelopt", "qwen3.5-27b", ["mtp*"]),
        ("modelopt", "deepseek-v3", ["model.layers.61*"]),
        ("awq", "deepseek-v3", ["model.layers.61."]),
        ("bitsandbytes", "qwen3.5-27b", ["mtp"]),
        ("torchao", "deepseek-v3", ["model.layers.61"]),
        ("quark", "qwen3.5-27b", ["mtp.*", r"re:^mtp\..*"]),
        (
            "fp8",
            "qwen3.5-27b",
            [f"mtp.{n}" for n in ("fc", *(f"layers.0.self_attn.{p}_proj" for p in "qkvo"))]
            + [f"mtp.layers.0.mlp.{p}_proj" for p in ("gate", "up", "down")],
        ),
    ],
)
def test_fewest_entries(method: str, key: str, entries: list[str]) -> None:
    after = cover(config_of(key, method), as_float(key), [])["quantization_config"]
    assert sorted(after[METHODS[method].key]) == sorted(entries)


def test_gptq_and_auto_round_tables() -> None:
    """GPTQ: the first key that matches counts, so the new one comes first. AutoRound: 16 bits."""
    after = cover(config_of("qwen3.5-27b", "gptq", **START["gptq"]), as_float("qwen3.5-27b"), [])
    assert list(after["quantization_config"]["dynamic"].items()) == [(r"-:.*mtp\..*", {}), ("+:.*", {"bits": 8})]
    after = cover(config_of("deepseek-v3", "auto-round", bits=4), as_float("deepseek-v3"), [])
    expected = {r".*layers\.61\..*": {"bits": 16, "data_type": "float"}}
    assert after["quantization_config"]["extra_config"] == expected


@pytest.mark.parametrize("only", ["model.layers", ["model.layers", "model.visual"]])
def test_auto_round_blocks(only: object) -> None:
    """A head outside of the blocks that are quantized is float without an entry."""
    stated = {"bits": 4, "to_quant_block_names": only}
    qwen, deepseek = (config_of(key, "auto-round", **stated) for key in ("qwen3.5-27b", "deepseek-v3"))
    assert judge(qwen, None, as_float("qwen3.5-27b")) == []
    assert errors(deepseek, None, as_float("deepseek-v3"))


def test_mixed_precision_lists_what_is_quantized() -> None:
    stated = {
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {"mtp.layers.0.mlp.experts": {"quant_algo": "NVFP4"}},
    }
    config = config_of("qwen3.5-35b-a3b", "modelopt", **stated)
    head = as_float("qwen3.5-35b-a3b")
    assert errors(config, None, head)
    mixed = [Module(m.name, experts_of(m.name) is not None) for m in head]
    assert errors(config, None, mixed) == []


def test_one_place_inside_of_text_config() -> None:
    """Kimi-K2.5 states it in text_config, with expressions that leave out all but the experts of a float head."""
    config = releases.load("kimi-k2.5").config
    config = config if "quantization_config" in config["text_config"] else {
        **{k: v for k, v in config.items() if k != "quantization_config"},
        "text_config": {**config["text_config"], "quantization_config": config["quantization_config"]},
    }  # fmt: skip
    head = [Module(f"language_model.{m.name}", False) for m in modules("deepseek-v3")]
    assert "experts" in judge(config, None, head)[0].evidence
    after = cover(config, head, [])
    added = after["text_config"]["quantization_config"]["ignore"][4:]
    assert added == [r"re:.*model.layers.61\..*"]
    assert "quantization_config" not in after
    assert errors(after, None, head) == []


def test_modelopt_in_both_files() -> None:
    head, config = as_float("qwen3.5-27b"), config_of("qwen3.5-27b", "modelopt", quant_algo="FP8", ignore=["lm_head"])
    other = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    assert len(errors(config, other, head)) == 2
    config, facts = cover(config, head, []), list[str]()
    assert len(errors(config, other, head)) == 1
    other = cover_modelopt(other, config, head, facts)
    assert other["quantization"]["exclude_modules"] == ["lm_head", "mtp*"]
    assert other["producer"] == {"name": "modelopt"}
    assert len(facts) == 1
    assert judge(config, other, head) == []
    fp8 = config_of("qwen3.5-27b", "fp8")  # another method: the second file is not read
    assert cover_modelopt({"quantization": {}}, fp8, head, []) == {"quantization": {}}


# Defects.


@pytest.mark.parametrize(
    ("method", "listed"), [("compressed-tensors", r"re:^mtp\.layers.*"), ("quark", "mtp.layers.*")]
)
def test_a_float_fusion_that_is_not_listed(method: str, listed: str) -> None:
    config = config_of("qwen3.5-27b", method, **{METHODS[method].key: [listed]})
    (row,) = judge(config, None, as_float("qwen3.5-27b"))
    assert row.level == "error"
    assert row.what.startswith("1 float module(s)")
    assert "mtp.fc" in row.evidence
    after = cover(config, as_float("qwen3.5-27b"), [])
    assert judge(after, None, as_float("qwen3.5-27b")) == []


def test_parts_named_one_by_one() -> None:
    """vLLM puts q, k and v together itself, SGLang 0.5.23 does not for every family: accepted length exactly 1."""
    head = as_float("qwen3.5-27b")
    listed = [m.name for m in head]
    config = config_of("qwen3.5-27b", "compressed-tensors", ignore=listed)
    rows = judge(config, None, head)
    assert ["qkv_proj" in row.what or "gate_up_proj" in row.what for row in rows] == [True, True]
    assert judge(cover(config, head, []), None, head) == []
    assert errors(config_of("qwen3.5-27b", "fp8", modules_to_not_convert=listed), None, head) == []


@pytest.mark.parametrize("forgotten", ["q_proj", "mlp.down_proj", "mtp.fc"])
@pytest.mark.parametrize("method", ["fp8", "awq", "torchao"])
def test_one_module_forgotten(method: str, forgotten: str) -> None:
    head = as_float("qwen3.5-27b")
    listed = [m.name for m in head if not m.name.endswith(forgotten)]
    found = errors(config_of("qwen3.5-27b", method, modules_to_not_convert=listed), None, head)
    assert found[0] == f"1 float module(s) of the head are listed as quantized ({method})"


def test_stored_half_quantized() -> None:
    head = [
        Module(m.name, m.quantized and not m.name.endswith("self_attn.kv_a_proj_with_mqa"))
        for m in modules("deepseek-v3")
    ]
    assert "stored half quantized" in errors(releases.load("deepseek-v3").config, None, head)[0]
    head = [Module(m.name, m.quantized and ".experts.7." not in m.name) for m in modules("deepseek-v3")]
    assert "mlp.experts is stored half quantized" in errors(releases.load("deepseek-v3").config, None, head)[0]


def test_a_quantized_eh_proj_does_not_load() -> None:
    head = [Module(m.name, True) for m in modules("deepseek-v3")]
    assert errors(releases.load("deepseek-v3").config, None, head) == [
        "1 quantized module(s) of the head are built float"
    ]
    longcat = [Module(m.name, True) for m in modules("longcat-flash")]
    assert errors(config_of("longcat-flash", "fp8"), None, longcat) == []


def test_a_float_head_of_deepseek_v4() -> None:
    rows = judge(cover(releases.load("deepseek-v4-flash").config, as_float("deepseek-v4-flash"), []), None,
                 as_float("deepseek-v4-flash"))  # fmt: skip
    assert [row.level for row in rows] == ["warning"]
    assert "vllm#43319" in rows[0].evidence


def test_another_name_at_the_runtime() -> None:
    """SGLang renames layer 61 in lists as text, which an escaped expression does not have (warning); vLLM's Step."""
    head = as_float("deepseek-v3")
    config = config_of("deepseek-v3", "compressed-tensors", ignore=[r"re:.*layers\.61\..*"])
    (row,) = judge(config, None, head)
    assert row.level == "warning"
    assert "model.decoder" in row.evidence
    assert judge(cover(config, head, []), None, head) == []
    step = as_float("step-3.7-flash-fp8")
    config = config_of("step-3.7-flash-fp8", "fp8", modules_to_not_convert=[m.name for m in step])
    (row,) = judge(config, None, step)
    assert "mtp_block" in row.evidence
    after = cover(config, step, [])["quantization_config"]["modules_to_not_convert"]
    assert "model.layers.45.mtp_block.self_attn.q_proj" in after


def test_a_wrapped_head() -> None:
    """vLLM renames plain entries of a wrapper and not expressions; SGLang's GLM5Next wants one entry to the letter."""
    head = [Module(m.name.replace("model.", "model.language_model.", 1), False) for m in modules("glm-5-nvfp4")]
    config: dict[str, Any] = {"model_type": "glm5_next", "quantization_config": {"quant_method": "compressed-tensors"}}
    anchored = {"ignore": [r"re:^model\.language_model\.layers\.78\..*"], **config["quantization_config"]}
    assert [r.level for r in judge({**config, "quantization_config": anchored}, None, head)] == ["warning"]
    after = cover(config, head, [])
    assert after["quantization_config"]["ignore"] == [r"re:.*model.layers.78\..*", "model.layers.78.*"]
    assert judge(after, None, head) == []


def test_switches_for_the_whole_head() -> None:
    head = as_float("longcat-flash")
    config = {**config_of("longcat-flash", "fp8"), "disable_quant_module": ["self_attn"]}
    after = cover(config, head, [])
    assert after["disable_quant_module"] == ["self_attn", "mtp"]
    assert cover(after, head, []) == after
    assert after["quantization_config"] == config["quantization_config"]
    assert judge(after, None, head) == []
    quantized = [Module(m.name, True) for m in head]
    assert "disable_quant_module says that the head is float" in errors(after, None, quantized)[0]
    assert cover(after, quantized, [])["disable_quant_module"] == ["self_attn"]
    hy = {"model_type": "hy_v4", "quantization_config": {"quant_method": "modelopt", "quant_algo": "MXFP8"}}
    after = cover(hy, [Module("model.mtp_layers.0.eh_proj", False)], [])
    assert after["mtp_quant_algo"] == "BF16"
    assert "mtp_quant_algo" not in cover(after, [Module("model.mtp_layers.0.eh_proj", True)], [])


def test_an_entry_for_trunk_and_head_stays() -> None:
    """It cannot be taken out for the head alone: it is reported."""
    config = config_of("deepseek-v3", "compressed-tensors", ignore=["re:.*self_attn.*"])
    head = modules("deepseek-v3")
    assert cover(config, head, [])["quantization_config"]["ignore"] == ["re:.*self_attn.*"]
    assert any("left out" in what for what in errors(config, None, head))


def test_the_end_of_a_name_is_enough_for_one_runtime() -> None:
    """SGLang takes a plain entry of compressed-tensors as the end of a name, vLLM as the whole."""
    config = config_of("qwen3.5-27b", "compressed-tensors", ignore=["mtp.fc", "o_proj"])
    head = [Module(m.name, m.name != "mtp.fc") for m in modules("qwen3.5-27b")]
    assert errors(config, None, head) == ["1 quantized module(s) of the head are left out (compressed-tensors)"]
    head = [Module(m.name, not m.name.endswith(("mtp.fc", "o_proj"))) for m in modules("qwen3.5-27b")]
    assert errors(config, None, head) == ["1 float module(s) of the head are listed as quantized (compressed-tensors)"]


def test_unknown_method() -> None:
    config = {"quantization_config": {"quant_method": "aqlm"}}
    head = as_float("qwen3.5-27b")
    assert unknown_methods(config) == ["aqlm"]
    assert not knows_method(config)
    assert cover(config, head, []) == config
    assert judge(config, None, head) == []
    assert unknown_methods({"text_config": {"quantization_config": "fp8"}}) == ["fp8"]
    assert knows_method({})
    assert knows_method({"quantization_config": {"quant_method": "modelopt_fp4"}})


def test_a_list_that_is_none() -> None:
    with pytest.raises(CorruptError):
        judge(config_of("qwen3.5-27b", "awq", modules_to_not_convert=7), None, as_float("qwen3.5-27b"))


def test_tables_are_sound() -> None:
    assert all(row.source for table in (METHODS.values(), FUSED, BUILT, SPELLINGS, SWITCHES) for row in table)
    assert set(ALIASES.values()) <= set(METHODS)
    assert all(re.compile(row.pattern) for row in (*BUILT, *SPELLINGS))
    assert {reader.syntax for method in METHODS.values() for reader in method.readers} <= set(_READERS)


@pytest.mark.parametrize(
    ("entry", "alone"),
    [
        (r"re:.*(mtp|visual).*", False),
        (r"re:.*lm_head|.*mtp.*|.*visual.*", False),
        (r"re:.*(mlp\.gate$|shared_expert_gate$|mtp\.)", False),
        (r"re:.*mtp\.layers\.0\.(self_attn|mlp)\..*", True),
        (r"re:(.*mtp\.fc|.*mtp\.norm)", True),
        (r"re:(model\.)?mtp\..*", True),
        ("mtp*", True),
        ("-:.*mtp.*", True),
        ("re:.*self_attn.*", False),
    ],
)
def test_which_entries_speak_of_the_head_alone(entry: str, alone: bool) -> None:
    """One that names trunk modules too is never taken out: the trunk would lose it."""
    from mtptools.ops.quant_cover import _of_the_head

    assert _of_the_head(entry, {"mtp"}) is alone


def test_targets_of_nothing_target_nothing() -> None:
    tree = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": [], "weights": {}}},
        "ignore": [],
    }
    rows = judge({"quantization_config": tree}, None, [Module("mtp.layers.0.mlp.up_proj", True)])
    assert [row.level for row in rows] == ["error"]


def test_a_quantized_head_of_which_nothing_is_said() -> None:
    module = Module("mtp.layers.0.mlp.up_proj", True)
    (row,) = judge({"model_type": "qwen3_5_text"}, None, [module])
    assert "no configuration says so" in row.what
    assert not judge({"model_type": "qwen3_5_text"}, None, [Module(module.name, False)])
    assert not judge({"quantization_config": {"quant_method": "new"}}, None, [module])
