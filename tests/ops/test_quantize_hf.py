"""Heads in encodings of safetensors: plans, configurations, what stays float, and acceptance afterwards."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.codecs import decode
from mtptools.errors import CodecError, ConventionError, UsageError
from mtptools.head import find_head, head_names
from mtptools.ops.donor import complete_head
from mtptools.ops.quantize_hf import quantize_safetensors
from mtptools.ops.style import Style
from mtptools.ops.validate import validate
from mtptools.plan import Plan
from mtptools.quantized import values_of
from mtptools.views import pick_columns
from mtptools.writer import write
from tests.conftest import FIXTURES
from tests.ops.quantized_trunks import METHODS, mlx, prompts, trunk
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

    return measure(load_model(ckpt), prompts(family)[:4], [1], 32)[0].rate


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


@pytest.mark.parametrize(
    ("family", "kind"),
    [("qwen35", kind) for kind in ("affine-g32b6", "mxfp4", "nvfp4")]
    + [("qwen35moe", kind) for kind in ("4bit", "mxfp8")],
)
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
