"""--role in safetensors: every role of a stored tensor, and what runtimes join."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.errors import CodecError, UsageError
from mtptools.ops.convert import convert_head
from mtptools.ops.donor import complete_head
from mtptools.ops.encoded_head import encoded_head
from mtptools.ops.style import Style
from mtptools.writer import write
from tests.ops.quantized_trunks import trunk
from tests.ops.test_quantize_hf import ENCODED, encodings, float_trunk, made, planned

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
