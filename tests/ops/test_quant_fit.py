"""Which encodings of a head a trunk takes: what its configuration reads, what stays float, a trunk that is float."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures import releases
from mtptools.checkpoint import open_checkpoint
from mtptools.errors import CodecError, UsageError
from mtptools.head import head_names
from mtptools.ops.donor import complete_head
from mtptools.ops.encoded_head import encoded_head
from mtptools.ops.quant_modules import Module
from mtptools.ops.quant_pins import pins_of
from mtptools.ops.style import Style
from mtptools.ops.validate import validate
from mtptools.recode import recoded
from tests.conftest import FIXTURES
from tests.ops.quantized_trunks import FP8, NVFP4A16, W4A16, compressed, mlx, trunk
from tests.ops.test_quant_config import modules
from tests.ops.test_quantize_hf import ENCODED, acceptance, encodings, float_trunk, made, planned


@pytest.mark.parametrize(("family", "loads"), [("qwen35moe", True), ("glm4moe", False), ("qwen35", True)])
def test_what_transformers_makes_of_a_float_trunk(family: str, loads: bool) -> None:
    facts = " ".join(planned(float_trunk(family), "int4-g32").facts)
    assert ("wants the package compressed-tensors" in facts) is loads
    assert ("does not load it (5.23)" in facts) is not loads


def test_targets_that_do_not_name_the_head(tmp_path: Path) -> None:
    stated = compressed(W4A16, "pack-quantized", targets=[r"re:^model\..*"])
    with pytest.raises(CodecError, match=r"config_groups does not name it"):
        planned(trunk("qwen35", "int4", tmp_path / "in", **stated), "int4")


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
