"""convert, whole checkpoints: the bytes and the metadata llama.cpp's own converter writes for the same input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import xxhash
from safetensors.numpy import save_file

from fixtures import permutation
from mtptools.checkpoint import open_checkpoint
from mtptools.codecs import decode
from mtptools.errors import MtpToolsError
from mtptools.families import Role
from mtptools.families.blocks import deltanet
from mtptools.hparams import HParams
from mtptools.ops.convert_gguf import OutType, convert_gguf
from mtptools.ops.extract import strip
from mtptools.ops.trunk_values import trunk_tensors
from mtptools.ops.validate import validate
from mtptools.views import computed
from mtptools.writer import write
from tests.conftest import FIXTURES

RUNS = (("F32", "F32"), ("F32", "BF16"), ("BF16", "BF16"))
NAMING = {"general.name", "general.size_label", "mtptools.receipt"}
# Where our metadata is meant to differ: llama.cpp's converter drops DeepSeek-V3's head, and leaves it to the loader to
# guess from the vocabulary's size that GLM-4.7-Flash routes by sigmoid.
MEANT: dict[str, dict[str, list[object]]] = {
    "deepseekv3": {"deepseek2.block_count": ["UINT32", 3], "deepseek2.nextn_predict_layers": ["UINT32", 1]},
    "glm4lite": {"deepseek2.expert_gating_func": ["UINT32", 2]},
}
LONG = 64  # entries of an array that a golden holds as a digest


def value(field: Any) -> list[object]:
    """A metadata value as the goldens of fixtures/converter_facts.py hold it."""
    kinds, found = [kind.name for kind in field.types], field.contents()
    if kinds[0] != "ARRAY":
        return [kinds[0], found]
    if len(found) <= LONG:
        return [f"{kinds[-1]}[]", found]
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return [f"{kinds[-1]}[]", len(found), xxhash.xxh3_128(text.encode()).hexdigest()]


def metadata(path: Path) -> dict[str, list[object]]:
    fields = gguf.GGUFReader(path).fields
    return {name: value(field) for name, field in fields.items() if not name.startswith("GGUF.") and name not in NAMING}


def tensors(path: Path) -> dict[str, list[object]]:
    return {
        tensor.name: [
            tensor.tensor_type.name,
            [int(n) for n in reversed(tensor.shape)],
            xxhash.xxh3_128(tensor.data.tobytes()).hexdigest(),
        ]
        for tensor in gguf.GGUFReader(path).tensors
    }


def converted(folder: Path, out: Path, outtype: OutType = "BF16", pre: str | None = None) -> Path:
    write(convert_gguf(open_checkpoint(folder), out.name, outtype=outtype, pre=pre), out)
    return out


def edited(folder: Path, file: str, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / file
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree, ensure_ascii=False))


@pytest.mark.parametrize(("dtype", "outtype"), RUNS)
@pytest.mark.parametrize("kind", permutation.KINDS)
def test_equals_the_converter(kind: str, dtype: str, outtype: OutType, tmp_path: Path) -> None:
    """Every tensor's name, type, shape and bytes, and every key of the metadata."""
    golden = json.loads((FIXTURES / "converted" / f"{kind}.json").read_text())
    run = f"{dtype} -> {outtype.lower()}"
    permutation.build(kind, tmp_path / "hf", dtype=dtype)
    out = converted(tmp_path / "hf", tmp_path / "out.gguf", outtype)
    assert tensors(out) == golden["runs"][run]["tensors"] | golden.get("head", {}).get(run, {})
    wanted = {key: one for key, one in golden["runs"][run]["metadata"].items() if key not in NAMING}
    assert metadata(out) == wanted | MEANT.get(kind, {})


def test_equals_the_converter_on_trained_models(hf: Path, full: Path, tmp_path: Path) -> None:
    """Bytes, but for -exp(A_log): PyTorch's exp, by MKL, rounds one value in a hundred the other way, ours none."""
    out = converted(hf, tmp_path / "out.gguf")
    ours, theirs = tensors(out), tensors(full)
    decays = [name for name in theirs if name.endswith("ssm_a")]
    for name in decays:
        values = [decode(open_checkpoint(path)[name]) for path in (out, full)]
        np.testing.assert_array_max_ulp(*values, maxulp=1)
        assert ours.pop(name)[:2] == theirs.pop(name)[:2]
    assert decays
    assert ours == theirs
    assert metadata(out) == metadata(full)
    assert not validate(open_checkpoint(out)).findings


def test_rows_that_are_no_whole_blocks_become_f16(tmp_path: Path) -> None:
    """As in llama.cpp's converter: attn_k_b has rows of 48 in this model."""
    permutation.build("glm4lite", tmp_path / "hf", dtype="BF16")
    found = tensors(converted(tmp_path / "hf", tmp_path / "out.gguf", "Q8_0"))
    assert {name for name, (codec, *_) in found.items() if codec == "F16"} == {
        f"blk.{n}.attn_k_b.weight" for n in range(3)
    }
    assert {str(codec) for codec, *_ in found.values()} == {"F32", "F16", "Q8_0"}
    assert metadata(tmp_path / "out.gguf")["general.file_type"] == ["UINT32", 7]


def hparams(keys: int, values: int, key: int, size: int) -> HParams:
    return HParams(
        family="qwen35",
        hidden_size=5,
        n_layers=1,
        depth=0,
        vocab_size=8,
        tie_embeddings=False,
        layer_types=("linear",),
        conv_kernel=4,
        linear_k_heads=keys,
        linear_v_heads=values,
        linear_k_head_dim=key,
        linear_v_head_dim=size,
    )


@pytest.mark.parametrize(("name", "each", "before"), [
    ("attn_qkv.weight", 4, 12), ("attn_gate.weight", 4, 0), ("ssm_alpha.weight", 1, 0), ("ssm_beta.weight", 1, 0),
    ("ssm_conv1d.weight", 4, 12), ("ssm_a", 1, 0), ("ssm_dt.bias", 1, 0), ("ssm_out.weight", 4, 0),
])  # fmt: skip
def test_value_heads_are_tiled(name: str, each: int, before: int) -> None:
    """Six value heads on two key heads: [key, value] becomes [value, key].

    With four on two, as in the models above, the order is its own inverse: the wrong way round would pass.
    """
    model = hparams(2, 6, 3, 4)
    role: Role = next(role for role in deltanet("") if role.name == name)
    shape = tuple(model.size(size) for size in role.shape)
    numbers = np.arange(np.prod(shape), dtype=np.float32).reshape(-1, shape[-1])
    axis = 1 if name in ("ssm_out.weight", "ssm_a", "ssm_dt.bias") else 0
    [(named, found)] = trunk_tensors(role, computed(name, shape, "F32", lambda a, b: numbers[a:b]), model, 0)
    moved = np.moveaxis(numbers, axis, 0)
    heads = moved[before:].reshape(2, 3, each, -1).swapaxes(0, 1).reshape(6 * each, -1)
    wanted = np.moveaxis(np.concatenate([moved[:before], heads]), 0, axis)
    assert named == name
    assert np.array_equal(decode(found), wanted)
    assert not np.array_equal(decode(found), numbers)


@pytest.mark.parametrize("kind", ["qwen35", "glm4moe", "deepseekv3"])
def test_without_a_head(kind: str, tmp_path: Path) -> None:
    """A trunk declares none; so does one that declares a head it does not hold, or llama.cpp would not load it."""
    permutation.build(kind, tmp_path / "hf", dtype="BF16")
    whole = converted(tmp_path / "hf", tmp_path / "whole.gguf")
    write(strip(open_checkpoint(tmp_path / "hf"), "trunk"), tmp_path / "trunk")
    bare = converted(tmp_path / "trunk", tmp_path / "bare.gguf")
    shutil.copyfile(tmp_path / "hf" / "config.json", tmp_path / "trunk" / "config.json")
    plan = convert_gguf(open_checkpoint(tmp_path / "trunk"), "out.gguf")
    assert "declares none" in " ".join(plan.facts)
    trunk = {name: fact for name, fact in tensors(whole).items() if f"blk.{len(permutation_layers(kind))}." not in name}
    assert tensors(bare) == trunk
    arch = str(metadata(bare)["general.architecture"][1])
    assert metadata(bare)[f"{arch}.block_count"] == ["UINT32", len(permutation_layers(kind))]
    assert f"{arch}.nextn_predict_layers" not in metadata(bare)


def permutation_layers(kind: str) -> range:
    return range(int(permutation.config(kind)["num_hidden_layers"]))


def with_tensor(kind: str, folder: Path, name: str) -> Path:
    """A release with one tensor more, in a shard of its own."""
    permutation.build(kind, folder, dtype="BF16")
    files = dict.fromkeys(open_checkpoint(folder), "model.safetensors") | {name: "more.safetensors"}
    save_file({name: np.ones((4, 4), np.float32)}, folder / "more.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return folder


def test_vision_is_left_out(tmp_path: Path) -> None:
    name = "model.visual.blocks.0.attn.qkv.weight"
    plan = convert_gguf(open_checkpoint(with_tensor("qwen35moe", tmp_path, name)), "out.gguf")
    assert [drop.name for drop in plan.dropped] == [name]


@pytest.mark.parametrize(
    "name", ["model.layers.0.mlp.new_proj.weight", "mtp.layers.0.mlp.new_proj.weight", "new.weight"]
)
def test_a_tensor_of_no_role_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(MtpToolsError, match="of no known role") as caught:
        convert_gguf(open_checkpoint(with_tensor("qwen35", tmp_path, name)), "out.gguf")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(("name", "message"), [
    (b"layers.0.linear_attn.A_log", r"the trunk lacks blk\.0\.ssm_a"), (b"mtp.fc.weight", "the head lacks"),
])  # fmt: skip
def test_a_missing_role_is_named(name: bytes, message: str, tmp_path: Path) -> None:
    permutation.build("qwen35", tmp_path, dtype="BF16")
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data.replace(name, name[:-1] + b"_"))
    with pytest.raises(MtpToolsError, match=message) as caught:
        convert_gguf(open_checkpoint(tmp_path), "out.gguf")
    assert caught.value.exit_code == 3


SPECIAL = ("<think>", "<|odd|>", "a▁b c", "<｜x｜>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")


def added_tokens(tree: dict[str, Any]) -> None:
    """The vocabulary cut to 2035 tokens, and after them some that are matched whole, of which the last are special."""
    vocab = {token: number for token, number in tree["model"]["vocab"].items() if number < 2035}
    merges = [pair if isinstance(pair, list) else pair.split(" ") for pair in tree["model"]["merges"]]
    tree["model"].update(vocab=vocab, merges=[pair for pair in merges if "".join(pair) in vocab])
    plain = tree["added_tokens"][0]
    tree["added_tokens"] = [
        {**plain, "id": 2035 + n, "content": token, "special": n > 3, "normalized": n == 2}
        for n, token in enumerate(SPECIAL)
    ]
    first = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    parts = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    ids = {"<|im_start|>": {"id": "<|im_start|>", "ids": [2040], "tokens": ["<|im_start|>"]}}
    tree["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [first, parts[0]],
        "pair": [first, *parts],
        "special_tokens": ids,
    }


def test_tokens_types_and_special_ids(tmp_path: Path) -> None:
    """What llama.cpp's converter (0c1e57098) wrote for this tokenizer, in its words: 3 control, 4 user, 5 unused."""
    permutation.build("qwen35", tmp_path, dtype="BF16")
    edited(tmp_path, "config.json", lambda tree: tree.update(eos_token_id=2039))
    edited(tmp_path, "tokenizer.json", added_tokens)
    more = {"2042": {"content": "<extra>", "special": True, "normalized": False}}
    named = {"bos_token": "<|im_start|>", "add_bos_token": True, "added_tokens_decoder": more, "chat_template": "{{x}}"}
    edited(tmp_path, "tokenizer_config.json", lambda tree: tree.update(named))
    metadata = convert_gguf(open_checkpoint(tmp_path), "out.gguf").files[0].metadata
    tokens, types = (metadata[f"tokenizer.ggml.{key}"][2035:] for key in ("tokens", "token_type"))
    assert tokens[2] == "a b c"
    assert tokens[:2] + tokens[3:7] == [*SPECIAL[:2], *SPECIAL[3:]]
    assert tokens[7:] == ["<extra>", *(f"[PAD{n}]" for n in range(2043, 2048))]
    assert types == [4, 3, 4, 3, 3, 3, 3, 3, 5, 5, 5, 5, 5]
    ids = {key: metadata[f"tokenizer.ggml.{key}_token_id"] for key in ("bos", "eos", "padding")}
    assert ids == {"bos": 2040, "eos": 2039, "padding": 2039}
    assert metadata["tokenizer.ggml.add_bos_token"] is True
    assert metadata["tokenizer.chat_template"] == "{{x}}"


FIELDS = {
    "norm_topk_prob": "expert_weights_norm",
    "routed_scaling_factor": "expert_weights_scale",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
}


@pytest.mark.parametrize("kind", ["glm4moe", "glm4lite", "deepseekv3"])
def test_defaults_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'mtptools[dev]'")
    permutation.build(kind, tmp_path, dtype="BF16")
    edited(tmp_path, "config.json", lambda tree: [tree.pop(field) for field in FIELDS])
    default = transformers.AutoConfig.for_model(permutation.config(kind)["model_type"])
    metadata = convert_gguf(open_checkpoint(tmp_path), "out.gguf").files[0].metadata
    arch = metadata["general.architecture"]
    for field, key in FIELDS.items():
        assert metadata[f"{arch}.{key}"] == pytest.approx(getattr(default, field)), field


def unigram(tree: dict[str, Any]) -> None:
    tree["model"] = {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 0}


def resplit(tree: dict[str, Any]) -> None:
    tree["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[a-z]+"


REFUSED: dict[str, tuple[str, Callable[[dict[str, Any]], object], int, str]] = {
    "another kind": ("tokenizer.json", unigram, 3, "kind Unigram"),
    "no merges": ("tokenizer.json", lambda tree: tree["model"].update(merges=[]), 3, "no merges"),
    "damaged merges": ("tokenizer.json", lambda tree: tree["model"].update(merges=[7]), 3, "cannot be read"),
    "another split": ("tokenizer.json", resplit, 3, "has no name here"),
    "id beyond": ("tokenizer.json", lambda tree: tree["added_tokens"][0].update(id=2048), 3, "has the id 2048"),
    "special beyond": ("config.json", lambda tree: tree.update(bos_token_id=9999), 3, "beyond the vocabulary"),
    "another rope": ("config.json", lambda tree: tree.update(rope_scaling={"type": "dynamic"}), 5, "rope scaling"),
    "half a rope": ("config.json", lambda tree: tree.update(rope_scaling={"type": "yarn"}), 3, "rope factor"),
    "another router": ("config.json", lambda tree: tree.update(scoring_func="tanh"), 5, "tanh"),
    "a word for a number": ("config.json", lambda tree: tree.update(n_group="two"), 3, "expert_group_count"),
    "other sizes": ("config.json", lambda tree: tree.update(head_dim=32), 3, "the config says"),
    "more layers": ("config.json", lambda tree: tree.update(num_hidden_layers=9), 3, "lacks blk.3."),
    "no special token": ("tokenizer.json", lambda tree: tree["added_tokens"].pop(), 3, r"no token <\|user\|>"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_cannot_be_expressed_is_refused(fault: str, tmp_path: Path) -> None:
    file, change, code, message = REFUSED[fault]
    permutation.build("glm4moe", tmp_path, dtype="BF16")
    edited(tmp_path, file, change)
    with pytest.raises(MtpToolsError, match=message) as caught:
        convert_gguf(open_checkpoint(tmp_path), "out.gguf")
    assert caught.value.exit_code == code
    assert caught.value.hint


def test_a_pre_tokenizer_can_be_named(tmp_path: Path) -> None:
    permutation.build("glm4moe", tmp_path, dtype="BF16")
    edited(tmp_path, "tokenizer.json", resplit)
    plan = convert_gguf(open_checkpoint(tmp_path), "out.gguf", pre="glm4")
    assert plan.files[0].metadata["tokenizer.ggml.pre"] == "glm4"


def test_other_inputs_are_refused(full: Path, hf: Path, tmp_path: Path) -> None:
    with pytest.raises(MtpToolsError, match="not from gguf") as caught:
        convert_gguf(open_checkpoint(full), "out.gguf")
    assert caught.value.exit_code == 2
    shutil.copytree(hf, tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").unlink()
    with pytest.raises(MtpToolsError, match="no tokenizer"):
        convert_gguf(open_checkpoint(tmp_path / "hf"), "out.gguf")
    with pytest.raises(MtpToolsError, match="Q4_K") as caught:
        convert_gguf(open_checkpoint(hf), "out.gguf", outtype="Q4_K")  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
