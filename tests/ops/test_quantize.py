"""quantize, GGUF: types and bytes are llama-quantize's (fixtures/quantize_golden.py), and nothing else changes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtptools.checkpoint import Checkpoint, open_checkpoint, split_name
from mtptools.codecs import decode, ggml_library
from mtptools.containers.gguf_values import string_value
from mtptools.errors import CodecError, ConventionError, MissingRoleError, UsageError
from mtptools.head import find_head, head_names
from mtptools.importance import Entry as Measured
from mtptools.importance import Importance
from mtptools.ops.extract import extract, strip
from mtptools.ops.graft import graft
from mtptools.ops.lineage import lineage
from mtptools.ops.quantize import quantize
from mtptools.ops.style import Style
from mtptools.ops.validate import validate
from mtptools.plan import Plan
from mtptools.preview import preview
from mtptools.recode import recoded
from mtptools.writer import write
from tests import rewrite
from tests.conftest import FIXTURES, load_script

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("quantize.json").read_text())
SLOW = ("IQ2_XS", "IQ2_S", "IQ2_M")  # to search, seconds: the types of the smaller head, and the bytes of one tensor
SMALL = "attn_k.weight"
CASES = [
    (model, how, name)
    for model in GOLDEN
    for how in GOLDEN[model]
    for name in GOLDEN[model][how]
    if model == "qwen35" or name not in SLOW
]
ONLY_GGML = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ2_M", "IQ3_XS")
OWN = "nextn.shared_head_head.weight"


def made(plan: Plan, path: Path) -> Checkpoint:
    write(plan, path)
    return open_checkpoint(path)


def made_up(ckpt: Checkpoint) -> Importance:
    """The importance that the golden was made with."""
    sums = load_script("quantize_golden").sums
    entries = {}
    for name in head_names(ckpt):
        *lead, _, columns = (1, *ckpt[name].shape)
        count = int(np.prod(lead[1:] or [1])) if len(ckpt[name].shape) > 2 else 1
        entries[name] = Measured(sums(name, count, columns), np.ones(count, np.int64))
    return Importance(entries)


@pytest.mark.parametrize(("model", "how", "name"), CASES, ids=["-".join(case) for case in CASES])
def test_the_head_is_llama_quantizes_byte_for_byte(model: str, how: str, name: str) -> None:
    if name in ONLY_GGML and ggml_library.available() is None:
        pytest.skip("no wheel with ggml is installed: pip install xllamacpp")
    source = open_checkpoint(FIXTURES / model / "gguf" / "model-BF16.gguf")
    weights = made_up(source) if how == "weighted" else None
    plan = quantize(source, "out.gguf", Style.asked(name), importance=weights)
    golden = GOLDEN[model][how][name]
    entries = [entry for entry in plan.entries if entry.name in golden]
    assert {entry.name: entry.codec for entry in entries} == {name: codec for name, (codec, _) in golden.items()}
    for entry in entries:
        if name in SLOW and not entry.name.endswith(SMALL):
            continue
        state = hashlib.sha256()
        for data in recoded(entry.source, entry.codec, entry.values, entry.importance):
            state.update(data)
        assert state.hexdigest()[:16] == golden[entry.name][1], entry.name


def test_only_the_head_changes(full: Path, tmp_path: Path) -> None:
    source = open_checkpoint(full)
    out = made(quantize(source, "out.gguf", Style.asked("Q4_K_M")), tmp_path / "out.gguf")
    head = set(head_names(source))
    assert list(out) == list(source)
    assert all(out[name].read() == source[name].read() for name in source if name not in head)
    kept = {k: v for k, v in out.metadata.items() if not k.startswith("mtptools.")}
    assert kept == {**dict(source.metadata), "general.quantization_version": 2}
    found = find_head(out)
    assert found is not None
    small = {name for name, one in found.roles.items() if one.role.kind in ("norm", "router", "vector")}
    assert {found.roles[name].tensor.codec for name in small} == {"F32"}
    assert validate(out).ok
    assert all(item.verdict == "pass" for item in lineage(out, source, source))


def test_a_role_gets_what_it_is_given(full: Path) -> None:
    style = Style.asked("Q4_K", roles=("ffn_*=Q6_K", "nextn.eh_proj.weight=Q8_0", "ffn_down*=IQ4_XS"))
    types = {e.name: e.codec for e in quantize(open_checkpoint(full), "o.gguf", style).entries if e.head}
    roles = {name.split(".", 2)[2].removesuffix(".weight"): codec for name, codec in types.items()}
    assert roles["nextn.eh_proj"] == "Q8_0"
    assert {roles[name] for name in ("attn_q", "attn_k", "attn_v", "attn_output")} == {"Q4_K"}
    assert {codec for name, codec in roles.items() if name.startswith("ffn_down")} == {"IQ4_XS"}
    assert {codec for name, codec in roles.items() if name.startswith("ffn_up")} == {"Q6_K"}


def test_a_role_that_is_not_there(full: Path) -> None:
    with pytest.raises(UsageError, match="no matrix 'attn_qq'") as caught:
        quantize(open_checkpoint(full), "o.gguf", Style.asked("Q4_K", roles=("attn_qq=Q8_0",)))
    assert "attn_q," in str(caught.value.hint)


@pytest.mark.parametrize("text", ["attn_q", "=Q8_0", "attn_q=", "attn_q=Q9_9"])
def test_a_role_that_is_not_said_right(text: str) -> None:
    with pytest.raises(UsageError):
        Style.asked("Q4_K", roles=(text,))


def test_an_output_matrix_of_its_own(full: Path, tmp_path: Path) -> None:
    source = open_checkpoint(full)
    out = made(quantize(source, "out.gguf", Style.asked(own_output="Q4_0")), tmp_path / "out.gguf")
    (name,) = set(out) - set(source)
    assert name.endswith(OWN)
    trunk = source["output.weight" if "output.weight" in source else "token_embd.weight"]
    assert out[name].read() == b"".join(recoded(trunk, "Q4_0", None))
    assert all(out[other].read() == source[other].read() for other in source)
    assert validate(out).ok
    assert [item.verdict for item in lineage(out, source, source)] == ["pass"] * 3
    again = made(quantize(out, "again.gguf", Style.asked(own_output="Q8_0")), tmp_path / "again.gguf")
    assert list(again) == list(out)
    assert again[name].codec == "Q8_0"
    torn = rewrite.gguf(out.path, tmp_path / "torn.gguf", edit={name: lambda rows: rows[::-1]})
    assert [item for item in lineage(open_checkpoint(torn), source, source) if item.verdict == "fail"]


def test_own_output_where_there_is_none(tmp_path: Path) -> None:
    source = open_checkpoint(FIXTURES / "deepseekv4" / "hf")
    with pytest.raises(ConventionError):
        quantize(source, "o", Style.asked(own_output="Q8_0"))


def test_a_sidecar(full: Path, tmp_path: Path) -> None:
    whole = open_checkpoint(full)
    side = made(extract(whole, "side.gguf"), tmp_path / "side.gguf")
    out = made(
        quantize(side, "o.gguf", Style.asked("Q8_0", own_output="Q4_K", roles=("token_embd=Q6_K",))),
        tmp_path / "o.gguf",
    )
    assert set(out) - set(side) <= {name for name in out if name.endswith(OWN)}
    assert out["token_embd.weight"].codec == "Q6_K"
    own = "output.weight" if "output.weight" in side else next(name for name in out if name.endswith(OWN))
    assert out[own].codec == "Q4_K"
    same = made(quantize(side, "s.gguf", Style.asked("Q8_0")), tmp_path / "s.gguf")
    assert same["token_embd.weight"].read() == side["token_embd.weight"].read()
    bare = made(extract(whole, "bare.gguf", bare=True), tmp_path / "bare.gguf")
    with pytest.raises(MissingRoleError, match="no output matrix to make"):
        quantize(bare, "b.gguf", Style.asked(own_output="Q4_K"))


def test_shards_without_the_head_are_linked(full: Path, tmp_path: Path) -> None:
    source = open_checkpoint(full)
    trunk = made(strip(source, "trunk.gguf"), tmp_path / "trunk.gguf")
    from mtptools.ops.shards import gguf_shards, keep

    names = list(trunk)
    groups = [(trunk.files[0], keep(trunk, "trunk", names[:20])), (None, keep(trunk, "trunk", names[20:]))]
    files = gguf_shards(trunk, groups, trunk.metadata, "split.gguf", [], link=False)
    from mtptools.plan import Input

    write(Plan("graft", (Input("trunk", trunk),), files), tmp_path / "split.gguf")
    split = open_checkpoint(tmp_path / split_name("split", 1, 2))
    write(graft(split, source, "whole.gguf"), tmp_path / "whole.gguf")
    whole = open_checkpoint(tmp_path / split_name("whole", 1, 3))
    plan = quantize(whole, "q.gguf", Style.asked("Q5_K"), link=True)
    assert [file.linked is not None for file in plan.files] == [False, True, False]
    write(plan, tmp_path / "q.gguf")
    out = open_checkpoint(tmp_path / split_name("q", 1, 3))
    assert {out[name].codec for name in head_names(out)} == {"F32", "Q5_K"}
    assert all(item.verdict != "fail" for item in lineage(out, whole, source))


def test_graft_takes_the_same_options(full: Path, trunk_q4: Path, hf: Path, tmp_path: Path) -> None:
    """A head from Hugging Face in the types and bytes of the one that quantize makes of the converter's file."""
    trunk, source = open_checkpoint(trunk_q4), open_checkpoint(full)
    weights = made_up(source)
    plan = graft(
        trunk,
        open_checkpoint(hf),
        "o.gguf",
        head_type="Q4_K_M",
        roles=("nextn.eh_proj=Q8_0",),
        own_output="Q4_0",
        importance=weights,
    )
    out = made(plan, tmp_path / "o.gguf")
    style = Style.asked("Q4_K_M", roles=("nextn.eh_proj=Q8_0",))
    other = made(quantize(source, "q.gguf", style, importance=weights), tmp_path / "q.gguf")
    for name in head_names(other):
        assert (out[name].codec, out[name].read()) == (other[name].codec, other[name].read()), name
    (own,) = set(head_names(out)) - set(head_names(other))
    base = trunk["output.weight" if "output.weight" in trunk else "token_embd.weight"]
    assert out[own].read() == b"".join(
        recoded(base, "Q4_0", None, None if own not in weights.entries else weights.entries[own].mean)
    )


def test_preview_is_what_is_written(full: Path, tmp_path: Path) -> None:
    plan = quantize(open_checkpoint(full), "o.gguf", Style.asked("Q3_K_M", own_output="Q4_0"))
    seen, out = preview(plan, open_checkpoint(full)), made(plan, tmp_path / "o.gguf")
    assert list(seen) == list(out)
    for name in out:
        assert (seen[name].codec, seen[name].shape, seen[name].read()) == (
            out[name].codec,
            out[name].shape,
            out[name].read(),
        )
        assert np.array_equal(decode(seen[name], 0, 1), decode(out[name], 0, 1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_none(value: float, full: Path, tmp_path: Path) -> None:
    name = next(n for n in open_checkpoint(full) if n.endswith("nextn.eh_proj.weight"))

    def damage(rows: np.ndarray) -> np.ndarray:
        rows[3, :2] = rows[-1, 5] = value
        return rows

    source = open_checkpoint(rewrite.gguf(full, tmp_path / "bad.gguf", edit={name: damage}))
    with pytest.raises(CodecError, match=f"3 of {source[name].n_values} values are NaN or infinite") as caught:
        write(quantize(source, "o.gguf", Style.asked("Q4_K")), tmp_path / "o.gguf")
    assert str(caught.value.where) == f"{tmp_path / 'bad.gguf'}, {name}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.gguf"]


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS"])
def test_a_value_too_large_for_the_type(kind: str, full: Path, tmp_path: Path) -> None:
    name = next(n for n in open_checkpoint(full) if n.endswith("nextn.eh_proj.weight"))

    def damage(rows: np.ndarray) -> np.ndarray:
        rows[3, 2] = 1e30
        return rows

    source = open_checkpoint(rewrite.gguf(full, tmp_path / "bad.gguf", edit={name: damage}))
    with pytest.raises(CodecError, match="1e\\+30 does not fit"):
        write(quantize(source, "o.gguf", Style.asked(kind)), tmp_path / "o.gguf")


def test_rows_that_are_no_blocks(tmp_path: Path) -> None:
    source = open_checkpoint(FIXTURES / "glm4moe" / "hf")
    trunk = open_checkpoint(FIXTURES / "glm4moe" / "hf")
    from mtptools.ops.convert import convert_head

    side = made(convert_head(source, "s.gguf", "gguf", Style()), tmp_path / "s.gguf")
    with pytest.raises(CodecError, match="a row of 128 values is not a multiple of Q4_K's block of 256") as caught:
        quantize(side, "o.gguf", Style.asked("Q4_K"))
    assert "ffn_down_exps" in str(caught.value.where)
    assert "Q5_0" in str(caught.value.hint)
    assert "--role ffn_down_exps=TYPE" in str(caught.value.hint)
    assert "ffn_down_shexp" in str(caught.value.hint)
    roles = ("ffn_down_exps=Q5_0", "ffn_down_shexp=Q5_0")
    assert trunk.family.name == "glm4moe"
    assert quantize(side, "o.gguf", Style.asked("Q4_K", roles=roles))


def test_types_of_another_container(full: Path) -> None:
    with pytest.raises(CodecError, match="is no type of GGUF"):
        quantize(open_checkpoint(full), "o.gguf", Style.asked("fp8-block128"))


def test_the_receipt_names_ggml(full: Path) -> None:
    if ggml_library.available() is None:
        pytest.skip("no wheel with ggml is installed: pip install xllamacpp")
    source = open_checkpoint(full)
    plan = quantize(source, "o.gguf", Style.asked("IQ3_S"))
    assert [(used.what, bool(used.detail)) for used in plan.used] == [("ggml", True)]


def test_graft_of_a_gguf_head_with_an_output_matrix_of_its_own(full: Path, trunk_q8: Path, tmp_path: Path) -> None:
    trunk, donor = open_checkpoint(trunk_q8), open_checkpoint(full)
    out = made(graft(trunk, donor, "o.gguf", own_output="Q4_K"), tmp_path / "o.gguf")
    (own,) = set(head_names(out)) - set(head_names(donor))
    base = trunk["output.weight" if "output.weight" in trunk else "token_embd.weight"]
    assert out[own].read() == b"".join(recoded(base, "Q4_K", None))
    assert [item.verdict for item in lineage(out, trunk, donor)] == ["pass"] * 3


def test_an_architecture_that_is_not_known(tmp_path: Path) -> None:
    source = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf"
    before = open_checkpoint(source)
    edits = {"general.architecture": string_value("qwen99")}
    for key, value in before.metadata.stored.items():
        if key.startswith("qwen35."):
            edits |= {key: None, key.replace("qwen35.", "qwen99."): value}
    path = rewrite.gguf(source, tmp_path / "new.gguf", metadata=edits)
    generic = open_checkpoint(path, generic=True)
    out = made(quantize(generic, "o.gguf", Style.asked("Q4_K_M")), tmp_path / "o.gguf")
    known = quantize(before, "k.gguf", Style.asked("Q4_K_M"))
    assert {e.name: e.codec for e in known.entries} == {name: out[name].codec for name in out}


def test_strip_takes_the_heads_own_configuration_with_it(tmp_path: Path) -> None:
    source = open_checkpoint(FIXTURES / "qwen35" / "hf")
    coded = made(quantize(source, "q", Style.asked("int4-g32")), tmp_path / "q")
    assert coded.config["quantization_config"]["quant_method"] == "compressed-tensors"
    assert "quantization_config" not in made(strip(coded, "t"), tmp_path / "t").config
