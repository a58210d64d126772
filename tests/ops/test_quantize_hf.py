"""Heads in encodings of safetensors: plans, configurations, what stays float, and acceptance afterwards."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures import releases
from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.codecs import decode
from mtptools.errors import CodecError, ConventionError, UsageError
from mtptools.head import find_head, head_names
from mtptools.ops.convert import convert_head
from mtptools.ops.donor import complete_head
from mtptools.ops.encoded_head import encoded_head
from mtptools.ops.quant_modules import Module
from mtptools.ops.quant_pins import pins_of
from mtptools.ops.quantize_hf import quantize_safetensors
from mtptools.ops.style import Style
from mtptools.ops.validate import validate
from mtptools.plan import Plan
from mtptools.quantized import values_of
from mtptools.recode import recoded
from mtptools.views import pick_columns
from mtptools.writer import write
from tests.conftest import FIXTURES
from tests.ops.quantized_trunks import FP8, METHODS, NVFP4A16, W4A16, compressed, mlx, prompts, trunk
from tests.ops.test_quant_config import modules
from tests.test_link import shards

FAMILIES = ("qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseekv3")
ENCODED = {
    "fp8": "fp8-block128",
    "fp8 BF16": "fp8-block128",
    "int4": "int4-g32",
    "nvfp4": "nvfp4",
    "modelopt": "nvfp4-modelopt",
}


def planned(source: Checkpoint, matrices: str | None, *, link: bool = False, **roles: str) -> Plan:
    style = Style(matrices, roles=tuple((role.replace("__", "."), kind) for role, kind in roles.items()))
    return quantize_safetensors(source, complete_head(source), style, link=link)


def made(plan: Plan, out: Path) -> Checkpoint:
    write(plan, out)
    return open_checkpoint(out)


def encodings(plan: Plan) -> dict[str, str]:
    return {entry.name: entry.encoding for entry in plan.entries if entry.encoding}


def acceptance(ckpt: Checkpoint, family: str) -> float:
    """Of first drafts."""
    from mtptools.decoder.load import load_model
    from mtptools.decoder.run import measure

    return measure(load_model(ckpt), prompts(family), [1], 32)[0].rate


@pytest.mark.parametrize(
    ("family", "method"),
    [("qwen35", method) for method in METHODS]
    + [("qwen35moe", "fp8"), ("qwen35moe", "nvfp4"), ("qwen3next", "modelopt")]
    + [("glm4moe", "int4"), ("deepseekv3", "fp8 BF16")],
)
def test_the_head_as_the_trunk_is(family: str, method: str, tmp_path: Path) -> None:
    """No finding, every trunk byte as it was, the right list, and as many drafts accepted."""
    source = trunk(family, method, tmp_path / "in")
    assert not validate(source).findings
    plan = planned(source, ENCODED[method].partition("-")[0])
    assert plan.verb == "quantize"
    assert set(encodings(plan).values()) == {ENCODED[method]}
    assert plan.nbytes < source.nbytes
    out = made(plan, tmp_path / "out")
    assert not validate(out).findings
    head = set(head_names(source))
    for name in source:
        if name not in head:
            assert out[name].read() == source[name].read(), name
    assert {e.name for e in plan.entries if e.head and e.passes} == {
        name for name in head_names(out) if name in source and out[name].codec == source[name].codec
    }
    scales = {out[name].codec for name in head_names(out) if name.endswith(".weight_scale_inv")}
    assert scales == ({"BF16"} if method == "fp8 BF16" else {"F32"} if method == "fp8" else set())
    assert out.config["num_hidden_layers" if "num_hidden_layers" in out.config else "text_config"]
    pytest.importorskip("torch", reason="needs the decoder: pip install 'mtptools[decoder]'")
    before, after = acceptance(source, family), acceptance(out, family)
    assert before > 0.55
    assert after > before - 0.12


def test_lists_follow_the_head(tmp_path: Path) -> None:
    """Of the head's entries one is left: the fusion, which one runtime builds float."""
    source = trunk("qwen35", "fp8", tmp_path / "in")
    plan = planned(source, "fp8-block128")
    (change,) = plan.changes
    assert change.key == "quantization_config.modules_to_not_convert"
    assert change.after == ["mtp.fc"]
    back = planned(made(plan, tmp_path / "fp8"), "BF16")
    (again,) = back.changes
    assert isinstance(again.after, list)
    assert set(again.after) >= {"mtp.fc", "mtp.layers.0.self_attn.q_proj", "mtp.layers.0.mlp.gate_proj"}
    out = made(back, tmp_path / "bf16")
    assert not validate(out).findings
    assert {out[name].codec for name in head_names(out)} == {"BF16"}
    assert "7 matrices were quantized otherwise: decoded first, and their scales left out" in back.facts
    scales = {drop.name for drop in back.dropped} | {n for e in back.entries for n in e.names if n.endswith("_inv")}
    assert "mtp.layers.0.self_attn.q_proj.weight_scale_inv" in scales


@pytest.mark.parametrize("method", METHODS)
def test_stored_as_it_is_asked(method: str, tmp_path: Path) -> None:
    """Every byte of head and trunk passes, and nothing is said of decoding."""
    source = made(planned(trunk("qwen35moe", method, tmp_path / "in"), ENCODED[method]), tmp_path / "once")
    plan = planned(source, ENCODED[method])
    assert all(entry.passes and entry.action == "keep" for entry in plan.entries)
    assert not any("decoded" in fact for fact in plan.facts)
    assert not plan.changes


def test_values_of_another_encoding_are_decoded_first(tmp_path: Path) -> None:
    source = made(planned(mlx("qwen35", tmp_path / "in", bits=4, group_size=64), "8bit"), tmp_path / "once")
    plan = planned(source, "4bit")
    assert any("decoded first" in fact for fact in plan.facts)
    out = made(plan, tmp_path / "out")
    for name in head_names(out):
        if name.endswith(".scales"):
            weight = f"{name.removesuffix('.scales')}.weight"
            now, before = (decode(values_of(weight, ckpt, ckpt.config)) for ckpt in (out, source))
            assert 0 < np.abs(now - before).max() < 0.4 * np.abs(before).max(), name
    # a value of the trunk's own bits needs no entry
    assert out.config["quantization"] == {"bits": 4, "group_size": 64} | {
        key: value for key, value in out.config["quantization"].items() if isinstance(value, dict)
    }


@pytest.mark.parametrize("family", FAMILIES[:2])
@pytest.mark.parametrize("kind", ["4bit", "affine-g32b6", "mxfp4", "mxfp8", "nvfp4"])
def test_mlx(family: str, kind: str, tmp_path: Path) -> None:
    source = mlx(family, tmp_path / "in", bits=4, group_size=64)
    plan = planned(source, kind)
    out = made(plan, tmp_path / "out")
    assert not validate(out).findings
    routers = [name for name in head_names(out) if "gate.weight" in name.replace("gate_proj", "")]
    assert all(out[name].codec == "BF16" for name in routers)
    quantized = [name for name in head_names(out) if name.endswith(".scales")]
    assert len(quantized) == (8 if family == "qwen35" else 11)
    own = {key for key, value in out.config["quantization"].items() if isinstance(value, dict)}
    assert own == (set() if kind == "4bit" else {name.removesuffix(".scales") for name in quantized})
    assert out.config["quantization_config"] == out.config["quantization"]
    assert all(out[name].read() == source[name].read() for name in source if not name.startswith("mtp."))
    pytest.importorskip("torch", reason="needs the decoder: pip install 'mtptools[decoder]'")
    assert acceptance(out, family) > acceptance(source, family) - 0.15


def test_mlx_without_a_quantized_trunk(tmp_path: Path) -> None:
    out = made(planned(mlx("qwen35", tmp_path / "in"), "8bit"), tmp_path / "out")
    layout = {"group_size": 64, "bits": 8, "mode": "affine"}
    assert all(out.config["quantization"][key] == value for key, value in layout.items())
    assert not validate(out).findings


def test_a_float_module_of_mlx_has_no_entry(tmp_path: Path) -> None:
    """mlx-lm makes a quantized module of every name that has one, whether its scales are there or not."""
    source = made(planned(mlx("qwen35", tmp_path / "in", bits=4, group_size=64), "8bit"), tmp_path / "once")
    assert "mtp.fc" in source.config["quantization"]
    plan = planned(source, None, nextn__eh_proj="BF16")
    out = made(plan, tmp_path / "out")
    assert out["mtp.fc.weight"].codec == "BF16"
    assert "mtp.fc.scales" not in out
    for key in ("quantization", "quantization_config"):
        assert "mtp.fc" not in out.config[key]
        assert "mtp.layers.0.self_attn.q_proj" in out.config[key]


def test_what_runtimes_build_float(tmp_path: Path) -> None:
    source = trunk("deepseekv3", "fp8", tmp_path / "in")
    plan = planned(source, "fp8")
    (fact,) = [fact for fact in plan.facts if "eh_proj" in fact]
    assert fact.startswith(
        "stays float: model.layers.3.eh_proj.weight, model.layers.4.eh_proj.weight: nn.Linear in vLLM"
    )
    kinds = {entry.name.rpartition("layers.3.")[2]: entry.codec for entry in plan.entries if "layers.3." in entry.name}
    for name in ("eh_proj", "embed_tokens", "shared_head.head", "mlp.gate", "enorm"):
        assert kinds[f"{name}.weight"] == "BF16"
    with pytest.raises(UsageError, match=r"nextn\.eh_proj cannot be fp8-block128: nn.Linear in vLLM and SGLang"):
        planned(source, "fp8", nextn__eh_proj="fp8-block128")
    with pytest.raises(UsageError, match="shared_head_head is no matrix that runtimes quantize"):
        planned(source, "fp8", nextn__shared_head_head="fp8")
    assert "F32" in {
        e.codec for e in planned(source, "fp8", nextn__shared_head_head="F32").entries if "head.w" in e.name
    }


def test_what_one_runtime_reads_is_for_the_user_to_ask(tmp_path: Path) -> None:
    source = trunk("qwen35", "int4", tmp_path / "in")
    assert not any(name.startswith("mtp.fc") for name in encodings(planned(source, "int4")))
    plan = planned(source, "int4", nextn__eh_proj="int4")
    assert encodings(plan)["mtp.fc.weight_packed"] == "int4-g32"
    assert any(fact.startswith("quantized because it was asked for: mtp.fc.weight: nn.Linear") for fact in plan.facts)
    found = validate(made(plan, tmp_path / "out")).findings
    assert [finding.severity for finding in found] == ["warning"]


def test_an_entry_for_trunk_and_head_together(tmp_path: Path) -> None:
    """Kimi-K2.5's list leaves all attention out: the head's cannot be quantized without touching the trunk's."""
    ignore = ["lm_head", "re:.*self_attn.*", r"re:^mtp\..*"]
    source = trunk("qwen35", "int4", tmp_path / "in", ignore=ignore)
    plan = planned(source, "int4")
    assert not [name for name in encodings(plan) if "self_attn" in name]
    assert [name for name in encodings(plan) if "mlp" in name]
    assert any("leaves it out, of trunk and head alike" in fact for fact in plan.facts)
    assert not [f for f in validate(made(plan, tmp_path / "out")).findings if "head" in f.what]


def test_parts_of_one_matrix_are_alike(tmp_path: Path) -> None:
    source = trunk("qwen35moe", "nvfp4", tmp_path / "in")
    for role in ("attn_q", "ffn_gate_shexp", "ffn_up_exps"):
        with pytest.raises(UsageError, match=r"runtimes join the parts of .*, which must be of one type"):
            planned(source, "nvfp4", **{role: "BF16"})
        with pytest.raises(UsageError, match="which must be of one type"):
            planned(source, None, **{role: "nvfp4"})
    plan = planned(source, "nvfp4", **{"ffn_*_exps": "BF16"})
    assert not [name for name in encodings(plan) if "experts" in name.replace("shared_expert", "")]
    assert not validate(made(plan, tmp_path / "out")).findings


def float_trunk(family: str) -> Checkpoint:
    return open_checkpoint(FIXTURES / family / "hf")


ROLES = [
    ("qwen35moe", "int4-g32", {"ffn_gate_exps": "BF16"}, "ffn_gate_exps BF16, ffn_up_exps int4-g32"),
    ("qwen35moe", None, {"ffn_gate_exps": "int4-g32"}, "ffn_gate_exps int4-g32, ffn_up_exps BF16"),
    ("deepseekv3", None, {"attn_k_b": "int4"}, "attn_k_b int4-g128, attn_v_b BF16"),
    ("deepseekv3", None, {"attn_v_b": "int4"}, "attn_k_b BF16, attn_v_b int4-g128"),
    ("deepseekv3", "int4", {"attn_v_b": "BF16"}, "attn_k_b int4-g128, attn_v_b BF16"),
    ("deepseekv3", "int4", {"attn_v_b": "int4-g64"}, "attn_k_b int4-g128, attn_v_b int4-g64"),
]


@pytest.mark.parametrize(("family", "kind", "roles", "said"), ROLES)
def test_roles_that_stand_in_one_tensor(family: str, kind: str | None, roles: dict[str, str], said: str) -> None:
    """A type for one of them is refused, and what the hint says does what it says."""
    source = float_trunk(family)
    with pytest.raises(UsageError, match=f"of one type: .*{said}") as caught:
        planned(source, kind, **roles)
    typed = re.findall(r"--role (\S+)=(\S+)", str(caught.value.hint))
    assert set(roles) < {role for role, _ in typed}
    made_of = planned(source, kind, **dict(typed))
    (wanted,) = {one for _, one in typed}
    others = {e.names: e.encoding or e.codec for e in made_of.entries if e.head}
    names = [n for e in made_of.entries if e.head for n in e.names if "experts.gate_up" in n or "kv_b_proj" in n]
    assert names
    found = {kind for its, kind in others.items() if set(its) & set(names)}
    assert found == {"int4-g128" if wanted == "int4" else wanted}


def test_parts_of_one_tensor_go_by_their_own_role(tmp_path: Path) -> None:
    """Gate and up stand in one tensor of the input, and apart in the output."""
    source = float_trunk("qwen35moe")
    plan = planned(source, None, **{"ffn_*_exps": "int4-g32"})
    coded = {e.name.rpartition(".")[0] for e in plan.entries if e.encoding}
    assert {name.rpartition(".")[2] for name in coded} == {"gate_proj", "up_proj", "down_proj"}
    kept = planned(source, "int4-g32", **{"ffn_*_exps": "F32"})
    assert {e.codec for e in kept.entries if e.head and ".experts." in e.name} == {"F32"}
    assert not any(".experts.0." in e.name for e in kept.entries)


def test_a_fused_donor_in_gguf(tmp_path: Path) -> None:
    """attn_kv_b of older files is named by the roles that it holds."""
    base = trunk("deepseekv3", "fp8", tmp_path / "in")
    write(convert_head(base, "old.gguf", "gguf", Style()), tmp_path / "old.gguf")
    donor = open_checkpoint(tmp_path / "old.gguf")
    with pytest.raises(UsageError, match=r"kv_b_proj.weight is one tensor, .*attn_k_b fp8-block128, attn_v_b BF16"):
        encoded_head(donor, complete_head(donor), base, Style(roles=(("attn_k_b", "fp8"),)), [])
    roles = (("attn_k_b", "fp8"), ("attn_v_b", "fp8"))
    entries = encoded_head(donor, complete_head(donor), base, Style(roles=roles), [])
    assert {e.name.rpartition(".")[0].rpartition(".")[2] for e in entries if e.encoding} == {"kv_b_proj"}


@pytest.mark.parametrize("method", ["fp8", "int4"])
@pytest.mark.parametrize("kind", [None, "fp8"])
def test_one_role_of_the_experts(method: str, kind: str | None, tmp_path: Path) -> None:
    """Whatever the trunk's lists could say of it."""
    source = trunk("qwen35moe", method, tmp_path / "in")
    its = ENCODED[method]
    with pytest.raises(UsageError, match=r"the parts of mtp.layers.0.mlp.experts, .*: .*ffn_down_exps") as caught:
        planned(source, its if kind else None, ffn_down_exps="BF16" if kind else its)
    assert all(f"--role ffn_{part}_exps=" in str(caught.value.hint) for part in ("gate", "up", "down"))


def test_rows_that_do_not_fit_name_what_does() -> None:
    """The experts of which rows are too short, all of them, in what is nearest to what was asked."""
    source = float_trunk("deepseekv4")
    roles: dict[str, str] = {}
    for parts in ("exps", "shexp"):
        with pytest.raises(CodecError, match="whole groups of 128") as caught:
            planned(source, "int4", **roles)
        typed = dict(re.findall(r"--role (\S+)=(\S+)", str(caught.value.hint)))
        names = ("gate", "up", "down") if parts == "exps" else ("down",)
        assert typed == {f"ffn_{part}_{parts}": "int4-g64" for part in names}
        roles |= typed
    assert set(encodings(planned(source, "int4", **roles)).values()) == {"int4-g64", "int4-g128"}


def test_parts_that_differ_already_and_are_not_touched(tmp_path: Path) -> None:
    """kv_a is float in trunk and head, q_a is not: a release's own business."""
    whole = trunk("deepseekv3", "fp8", tmp_path / "in")
    head = made(planned(whole, "fp8"), tmp_path / "fp8")
    kv_a = {name for name in head if name.endswith("kv_a_proj_with_mqa.weight")}
    plain = float_trunk("deepseekv3")
    tensors = {name: plain[name] if name in kv_a else tensor for name, tensor in head.items()}
    odd = replace(head, tensors={n: t for n, t in tensors.items() if n.removesuffix("_scale_inv") not in kv_a - {n}})
    entries = encoded_head(odd, complete_head(odd), odd, Style("fp8"), [], label="source")
    assert all(entry.passes for entry in entries)
    mended = encoded_head(odd, complete_head(odd), odd, Style(roles=(("attn_q_a", "BF16"),)), [], label="source")
    assert {e.codec for e in mended if "q_a_proj" in e.name or "kv_a_proj" in e.name} == {"BF16"}
    with pytest.raises(UsageError, match="of one type: attn_q_a BF16, attn_kv_a_mqa fp8-block128"):
        planned(head, None, attn_q_a="BF16")


def test_the_option_that_was_typed(tmp_path: Path) -> None:
    base = trunk("qwen35", "int4", tmp_path / "in")
    donor = float_trunk("qwen35")
    cases = (("--head-type", Style("4bit")), ("--role", Style(roles=(("attn_q", "4bit"),))))
    for option, style in cases:
        with pytest.raises(UsageError, match="HF has no type '4bit'") as caught:
            encoded_head(donor, complete_head(donor), base, style, [])
        assert caught.value.where == option
    with pytest.raises(UsageError, match="HF has no type '4bit'") as caught:
        planned(base, "4bit")
    assert caught.value.where == "--head"


def test_what_a_quantized_head_was_before(tmp_path: Path) -> None:
    source = made(planned(float_trunk("qwen35"), "int4-g32"), tmp_path / "int4")
    plan = planned(source, "nvfp4")
    assert any(fact.startswith("not exact: int4-g32 becomes nvfp4: ") for fact in plan.facts)
    assert "int4-g32 -> nvfp4" in plan.render()
    assert "int4-g32 -> BF16" in planned(source, "BF16").render()


def test_head_tensors_that_no_index_names(tmp_path: Path) -> None:
    """They stand in a shard: kept, and named."""
    trunk("qwen35moe", "fp8", tmp_path / "whole")
    cut = [lambda name: name.startswith("mtp."), lambda name: True]
    folder = shards(tmp_path / "whole", tmp_path / "in", cut)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    lost = [
        name
        for name in index["weight_map"]
        if (name.startswith("mtp.") and "q_proj" in name) or name == "mtp.norm.weight"
    ]
    assert len(lost) == 2
    for name in lost:
        del index["weight_map"][name]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    plan = planned(open_checkpoint(folder), "fp8")
    assert "in a shard and not in the index: 2 tensors of the head, now in both" in plan.facts
    out = made(plan, tmp_path / "out")
    assert {*lost, "mtp.layers.0.self_attn.q_proj.weight_scale_inv"} <= set(out)
    assert out.index is not None
    assert set(out.index["weight_map"]) == set(out)
    assert not validate(out).findings


@pytest.mark.parametrize(("family", "loads"), [("qwen35moe", True), ("glm4moe", False), ("qwen35", True)])
def test_what_transformers_makes_of_a_float_trunk(family: str, loads: bool) -> None:
    facts = " ".join(planned(float_trunk(family), "int4-g32").facts)
    assert ("wants the package compressed-tensors" in facts) is loads
    assert ("does not load it (5.23)" in facts) is not loads


def test_targets_that_do_not_name_the_head(tmp_path: Path) -> None:
    stated = compressed(W4A16, "pack-quantized", targets=[r"re:^model\..*"])
    with pytest.raises(CodecError, match=r"config_groups does not name it"):
        planned(trunk("qwen35", "int4", tmp_path / "in", **stated), "int4")


def test_one_global_scale_for_what_is_joined(tmp_path: Path) -> None:
    out = made(planned(trunk("qwen35moe", "nvfp4", tmp_path / "in"), "nvfp4"), tmp_path / "out")

    def scale(module: str) -> float:
        return float(np.frombuffer(out[f"mtp.layers.0.{module}.weight_global_scale"].read(), "<f4")[0])

    assert len({scale(f"self_attn.{part}_proj") for part in "qkv"}) == 1
    assert scale("mlp.experts.2.gate_proj") == scale("mlp.experts.2.up_proj")
    assert scale("self_attn.o_proj") != scale("self_attn.q_proj")
    assert scale("mlp.experts.2.gate_proj") != scale("mlp.experts.1.gate_proj")


def test_experts_become_one_by_one(tmp_path: Path) -> None:
    """Fused in 3-D before; every one decodes to what it was, nearly."""
    source = trunk("qwen35moe", "fp8", tmp_path / "in")
    assert "mtp.layers.0.mlp.experts.gate_up_proj" in source
    out = made(planned(source, "fp8"), tmp_path / "out")
    assert "mtp.layers.0.mlp.experts.3.up_proj.weight_scale_inv" in out
    heads = [find_head(ckpt) for ckpt in (source, out)]
    for role in ("ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"):
        before, after = (decode(head.roles[role].tensor) for head in heads if head is not None)
        assert 0 < np.abs(after - before).max() < 2.0**-4 * np.abs(before).max()


REFUSED = {
    "fp8": [
        ({"weight_block_size": None}, "weight_block_size None"),
        ({"weight_block_size": [64, 128]}, r"weight_block_size \[64, 128\]"),
        ({"activation_scheme": "static"}, "activation_scheme static"),
    ],
    "int4": [
        (compressed({**W4A16, "symmetric": False}, "pack-quantized"), "zero points"),
        (compressed({**W4A16, "actorder": "group"}, "pack-quantized"), "actorder group"),
        (compressed(W4A16, "pack-quantized", input_activations={"num_bits": 8}), "quantized activations"),
        (compressed({**W4A16, "num_bits": 8}, "pack-quantized"), "8-bit int"),
        ({"config_groups": {}}, "without config_groups"),
        ({"quant_method": "gptq", "dynamic": {}}, "quantized by gptq"),
        ({"quant_method": "hqq"}, "quantized by hqq"),
    ],
    "nvfp4": [
        (compressed(NVFP4A16, "nvfp4-pack-quantized", input_activations={"num_bits": 4}), "input_global_scale"),
    ],
    "modelopt": [({"quant_algo": "NVFP4"}, "input_scale"), ({"quant_algo": "FP8"}, "ModelOpt FP8")],
}


@pytest.mark.parametrize(
    ("method", "stated", "why"), [(method, *case) for method, cases in REFUSED.items() for case in cases]
)
def test_what_runtimes_would_not_read(method: str, stated: dict[str, Any], why: str, tmp_path: Path) -> None:
    source = trunk("qwen35", method, tmp_path / "in", **stated)
    with pytest.raises(CodecError, match=why) as caught:
        planned(source, ENCODED[method])
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("types that fit beside it: F32, BF16, F16;")


def test_actorder_that_moves_no_column(tmp_path: Path) -> None:
    stated = compressed({**W4A16, "actorder": "static"}, "pack-quantized")
    assert encodings(planned(trunk("qwen35", "int4", tmp_path / "in", **stated), "int4"))


def test_another_type_than_the_trunks(tmp_path: Path) -> None:
    source = trunk("qwen35", "int4", tmp_path / "in")
    with pytest.raises(CodecError, match=r"head in int4-g128: the trunk is .* in groups of 32") as caught:
        planned(source, "int4-g128")
    assert "types that fit beside it: int4-g32, F32" in str(caught.value.hint)
    with pytest.raises(CodecError, match="head in fp8-block128"):
        planned(source, "fp8")
    with pytest.raises(UsageError, match="HF has no type 'Q4_K'"):
        planned(source, "Q4_K")
    with pytest.raises(CodecError, match="the trunk is not quantized"):
        planned(open_checkpoint(FIXTURES / "qwen35" / "hf"), "fp8")


def test_other_bad_input(tmp_path: Path) -> None:
    source = trunk("qwen35", "fp8", tmp_path / "in")
    with pytest.raises(UsageError, match="the head has no matrix 'ffn_gate_exps'"):
        planned(source, "fp8", ffn_gate_exps="BF16")
    with pytest.raises(ConventionError, match="output matrix of the head's own") as caught:
        quantize_safetensors(source, complete_head(source), Style("fp8", own_output="BF16"), link=False)
    assert "GGUF" in str(caught.value.hint)
    with pytest.raises(UsageError, match="quantized experts stand one by one"):
        quantize_safetensors(source, complete_head(source), Style("fp8", experts="fused"), link=False)
    group = mlx("qwen35", tmp_path / "mlx", bits=4, group_size=64)
    with pytest.raises(CodecError, match="not whole groups") as failed:
        planned(thin(group), "affine-g128b4")
    assert "--role attn_q=TYPE" in str(failed.value.hint)


def thin(source: Checkpoint) -> Checkpoint:
    """The same, its query matrix cut to rows of 96 values."""
    name = "mtp.layers.0.self_attn.q_proj.weight"
    return replace(source, tensors={**source.tensors, name: pick_columns(source[name], slice(0, 96), name)})


def test_no_number_in_a_matrix(tmp_path: Path) -> None:
    source = trunk("qwen35", "fp8", tmp_path / "in")
    name = "mtp.layers.0.mlp.up_proj.weight"
    (blob,) = source[name].blobs
    with open(blob.path, "r+b") as file:
        file.seek(blob.offset + 2 * 300)
        file.write(b"\x80\x7f\xc0\x7f")  # infinity, NaN
    with pytest.raises(CodecError, match=r"2 of 131072 values are NaN or infinite in BF16") as caught:
        made(planned(source, "fp8"), tmp_path / "out")
    assert str(caught.value.where).endswith(name)
    (entry,) = (entry for entry in planned(source, "fp8").entries if entry.name == name)
    assert entry.source.packed is not None
    with pytest.raises(CodecError) as caught:
        entry.source.packed(0, 1)
    assert caught.value.where == f"{blob.path}, {name}"
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_links(tmp_path: Path) -> None:
    """Shards without a head tensor are the source's own files."""
    trunk("qwen35", "fp8", tmp_path / "whole")
    cut = [lambda name: "layers.0." in name and not name.startswith("mtp."), lambda name: True]
    source = open_checkpoint(shards(tmp_path / "whole", tmp_path / "in", cut))
    plan = planned(source, "fp8", link=True)
    linked = [file.name for file in plan.files if file.linked is not None]
    assert 0 < len(linked) < len(plan.files)
    assert plan.new_bytes < plan.nbytes
    out = made(plan, tmp_path / "out")
    assert not validate(out).findings
    assert all((tmp_path / "out" / name).stat().st_ino == (tmp_path / "in" / name).stat().st_ino for name in linked)
    assert sum(fact.endswith("is written, not linked: the head is in it") for fact in plan.facts) == len(
        plan.files
    ) - len(linked)


def test_what_a_plan_says(tmp_path: Path) -> None:
    plan = planned(trunk("qwen35", "int4", tmp_path / "in"), "int4")
    assert "BF16 -> int4-g32" in plan.render()
    rows = {row["name"]: row for file in plan.to_json()["files"] for row in file["tensors"]}
    row = rows["mtp.layers.0.mlp.up_proj.weight_packed"]
    assert (row["action"], row["encoding"], row["source_type"], row["type"]) == ("recode", "int4-g32", "BF16", "I32")
    assert rows["mtp.norm.weight"]["encoding"] is None
    assert any(fact.startswith("not exact: BF16 becomes int4-g32: 21 tensor(s)") for fact in plan.facts)
    json.dumps(plan.to_json())


def test_the_receipt_holds(tmp_path: Path) -> None:
    from mtptools.ops.lineage import lineage

    source = trunk("glm4moe", "nvfp4", tmp_path / "in")
    out = made(planned(source, "nvfp4"), tmp_path / "out")
    lines = lineage(out, source)
    assert all(line.verdict == "pass" for line in lines), lines


@pytest.mark.parametrize("by_name", [True, False])
def test_routers_are_named_where_the_trunks_are(by_name: bool, tmp_path: Path) -> None:
    """vLLM has built gates quantized that no list names: an entry for the whole head must not go without a trace."""
    gates = [f"model.language_model.layers.{n}.mlp.{gate}" for n in range(3) for gate in ("gate", "shared_expert_gate")]
    ignore = ["lm_head", r"re:^mtp\..*", *(gates if by_name else ["re:.*mlp.gate$", "re:.*shared_expert_gate$"])]
    source = trunk("qwen35moe", "int4", tmp_path / "in", ignore=ignore)
    out = made(planned(source, "int4"), tmp_path / "out")
    listed = out.config["quantization_config"]["ignore"]
    assert r"re:^mtp\..*" not in listed
    own = {r"re:^mtp\.layers\.0\.mlp\.gate$", r"re:^mtp\.layers\.0\.mlp\.shared_expert_gate$"}
    assert own & set(listed) == (own if by_name else set())
    assert not validate(out).findings
    fp8 = planned(trunk("deepseekv3", "fp8", tmp_path / "fp8"), "fp8")
    assert not [change for change in fp8.changes if "mlp.gate'" in str(change.after)]


@pytest.mark.parametrize(("family", "kind"), [("qwen35", "int4-g64"), ("qwen35moe", "nvfp4"), ("glm4moe", "int4")])
def test_a_float_trunk(family: str, kind: str, tmp_path: Path) -> None:
    """A quantization_config that names the head alone: every module of the trunk is left out, twice."""
    source = open_checkpoint(FIXTURES / family / "hf")
    out = made(planned(source, kind), tmp_path / "out")
    assert not validate(out).findings
    assert all(out[name].read() == source[name].read() for name in source if name not in head_names(source))
    quant = out.config["quantization_config"]
    (group,) = quant["config_groups"].values()
    assert (
        quant["format"]
        == group["format"]
        == ("nvfp4" if kind == "nvfp4" else "pack") + ("-pack-quantized" if kind == "nvfp4" else "-quantized")
    )
    targets = [re.compile(target.removeprefix("re:")) for target in group["targets"]]
    ignore = [re.compile(item.removeprefix("re:")) for item in quant["ignore"]]
    head = set(head_names(out))
    quantized = {name.rpartition(".weight_")[0] for name in head if name.endswith(".weight_packed")}
    assert len(quantized) > 6
    for name in out:
        module = name.rpartition(".weight")[0]
        aimed, left = (any(p.match(module) for p in patterns) for patterns in (targets, ignore))
        if module in quantized:
            assert (aimed, left) == (True, False), module
        elif name not in head or name.endswith(("fc.weight", "gate.weight", "eh_proj.weight")):
            assert (aimed, left) == (False, True), module
    assert planned(out, "BF16").changes[0].after is None
    again = planned(out, "int4-g32")
    assert set(encodings(again).values()) == {"int4-g32"}
    assert any("decoded first" in fact for fact in again.facts)
    if importlib.util.find_spec("torch") is not None:
        assert acceptance(out, family) > acceptance(source, family) - 0.12


def test_two_encodings_on_a_float_trunk(tmp_path: Path) -> None:
    source = open_checkpoint(FIXTURES / "qwen35moe" / "hf")
    out = made(planned(source, "nvfp4", **{"ffn_*_exps": "int4-g32"}), tmp_path / "out")
    quant = out.config["quantization_config"]
    assert quant["format"] == "mixed-precision"
    formats = {group["format"]: group["targets"] for group in quant["config_groups"].values()}
    assert formats["pack-quantized"] == [r"re:^mtp\.layers\.0\.mlp\.experts.*"]
    assert r"re:^mtp\.layers\.0\.self_attn\..*" in formats["nvfp4-pack-quantized"]
    assert not validate(out).findings


def test_entries_for_another_checkpoint(tmp_path: Path) -> None:
    """What graft writes: a donor of any dialect, the trunk's method. From a GGUF of the release, the same bytes."""
    base = trunk("qwen35", "fp8", tmp_path / "in")
    style, facts = Style("fp8-block128"), list[str]()
    made_of = {}
    for name, path in {"hf": FIXTURES / "qwen35" / "hf", "gguf": FIXTURES / "qwen35/gguf/model-BF16.gguf"}.items():
        donor = open_checkpoint(path)
        entries = encoded_head(donor, complete_head(donor), base, style, facts)
        assert {entry.action for entry in entries if entry.head} == {"insert"}
        made_of[name] = {e.name: b"".join(recoded(e.source, e.codec, e.values)) for e in entries if e.encoding}
    assert len(made_of["hf"]) == 14
    assert made_of["hf"] == made_of["gguf"]
    donor = made(planned(base, "fp8"), tmp_path / "donor")
    passed = encoded_head(donor, complete_head(donor), base, style, facts)
    assert all(entry.passes for entry in passed)
    other = encoded_head(donor, complete_head(donor), mlx("qwen35", tmp_path / "mlx"), Style("8bit"), facts)
    assert {entry.encoding for entry in other} == {"", "mlx-affine-g64b8"}
    assert any("decoded first" in fact for fact in facts)


def test_an_indexer_keeps_its_small_part_float() -> None:
    """vLLM joins wk and weights_proj, and under FP8 knows that one is FP8, the other not; under no other method."""
    stem = "model.layers.61.self_attn"
    small = f"{stem}.indexer.weights_proj"
    parts = ("indexer.wk", "indexer.wq_b", "o_proj")
    modules = [Module(small, False), *(Module(f"{stem}.{part}", True) for part in parts)]
    fp8 = {"model_type": "deepseek_v32", "quantization_config": FP8}
    assert set(pins_of(fp8, None, modules, {small})) == {small}
    packed = {"model_type": "deepseek_v32", "quantization_config": compressed(W4A16, "pack-quantized")}
    pins = pins_of(packed, None, modules, {small})
    assert set(pins) == {small, f"{stem}.indexer.wk"}
    assert pins[f"{stem}.indexer.wk"].why.startswith("runtimes join it with weights_proj (wk_weights_proj)")


@pytest.mark.parametrize("key", ["deepseek-v3", "deepseek-v3.2", "mimo-v2-flash", "glm-4.5-fp8"])
def test_what_stays_float_is_what_releases_keep_float(key: str) -> None:
    """Asked for all of a head, and what their own makers quantized of it."""
    stated = {**FP8, "quant_method": "fp8" if key != "glm-4.5-fp8" else "compressed-tensors"}
    config = {**releases.load(key).config, "quantization_config": stated}
    small = {m.name for m in modules(key) if m.name.endswith("weights_proj")}
    pins = pins_of(config, None, [Module(m.name, m.name not in small) for m in modules(key)], small)
    assert set(pins) == {m.name for m in modules(key) if not m.quantized} != set()


def test_what_is_float_in_the_trunk(tmp_path: Path) -> None:
    """Step-3.7-FP8 keeps g_proj float and lists it nowhere."""
    source = trunk("qwen35", "fp8", tmp_path / "in")
    like = re.compile(r"model\.layers\.\d+\.(self_attn\.o_proj|mlp\.down_proj)\.weight")
    floats = {name: replace(tensor, codec="BF16") for name, tensor in source.items() if like.fullmatch(name)}
    scales = {f"{name}_scale_inv" for name in floats}
    tensors = {name: floats.get(name, tensor) for name, tensor in source.items() if name not in scales}
    odd = replace(source, tensors=tensors)
    made_of = encoded_head(odd, complete_head(odd), odd, Style("fp8"), [], label="source")
    parts = ("self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate", "mlp.up")
    coded = {e.name for e in made_of if e.encoding and e.name.endswith(".weight")}
    assert coded == {f"mtp.layers.0.{part}_proj.weight" for part in parts}
    own = encoded_head(odd, complete_head(odd), odd, Style("fp8", roles=(("ffn_down", "fp8"),)), [], label="source")
    assert "mtp.layers.0.mlp.down_proj.weight_scale_inv" in {e.name for e in own}


def test_scales_as_the_configuration_has_them(tmp_path: Path) -> None:
    """DeepSeek-V3.1's scale_fmt: powers of two. A head that is stored so keeps its bytes."""
    source = trunk("deepseekv3", "fp8", tmp_path / "in")
    stated = source.config["quantization_config"]
    path = tmp_path / "in" / "config.json"
    path.write_text(json.dumps({**source.config, "quantization_config": {**stated, "scale_fmt": "ue8m0"}}))
    source = open_checkpoint(tmp_path / "in")
    out = made(planned(source, "fp8"), tmp_path / "out")
    scales = [decode(out[name]) for name in head_names(out) if name.endswith(".weight_scale_inv")]
    assert scales
    assert all((np.frexp(scale)[0] == 0.5).all() for scale in scales)
    again = planned(out, "fp8")
    assert all(entry.passes for entry in again.entries)
