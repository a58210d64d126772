"""convert: there and back is the release again, bit for bit wherever the plan says exact, and said where it is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fixtures import permutation
from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.codecs import decode
from mtptools.errors import CodecError, ConventionError, UsageError
from mtptools.head import find_head, head_names
from mtptools.ops.convert import convert_head
from mtptools.ops.exact import loses
from mtptools.ops.render import Style
from mtptools.plan import Plan
from mtptools.writer import write


def made(plan: Plan, path: Path) -> Checkpoint:
    write(plan, path)
    return open_checkpoint(path)


@pytest.fixture(scope="module", params=permutation.KINDS)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A tiny BF16 release of each family."""
    folder = tmp_path_factory.mktemp(request.param)
    permutation.build(request.param, folder, dtype="BF16")
    return open_checkpoint(folder)


@pytest.mark.parametrize("middle", ["gguf", "mlx"])
def test_there_and_back(release: Checkpoint, middle: str, tmp_path: Path) -> None:
    there = convert_head(release, "m.gguf", middle, Style.asked(norms="F32"), lossless=True)
    assert "exact: " in there.facts[0]
    between = made(there, tmp_path / ("m.gguf" if middle == "gguf" else "m"))
    assert between.dialect == middle
    back = made(convert_head(between, "b", "hf", Style.asked(norms="BF16")), tmp_path / "b")
    assert set(head_names(back)) == set(head_names(release))
    for name in head_names(release):
        assert (back[name].codec, back[name].shape) == (release[name].codec, release[name].shape), name
        assert back[name].read() == release[name].read(), name


def test_exactness_is_told_by_values(release: Checkpoint) -> None:
    """1 + w in BF16 loses w: said of every norm stored so, and refused with --lossless."""
    plan = convert_head(release, "m", "mlx", Style.asked(norms="BF16"))
    lost = [entry for entry in plan.entries if entry.head and loses(entry) is not None]
    offset = [entry for entry in plan.entries if entry.head and entry.values is not None]
    assert {entry.name for entry in lost} <= {entry.name for entry in offset}
    if not offset:
        assert "not exact" not in " ".join(plan.facts)
        return
    assert lost
    assert any("not exact" in fact and f"{len(lost)} tensor(s)" in fact for fact in plan.facts)
    with pytest.raises(CodecError, match="--lossless") as caught:
        convert_head(release, "m", "mlx", Style.asked(norms="BF16"), lossless=True)
    assert caught.value.hint == "--norm-type F32"


def test_what_is_exact_comes_back(release: Checkpoint, tmp_path: Path) -> None:
    """Also through a lossy plan: the tensors that it calls exact are the release's own bytes in the end."""
    plan = convert_head(release, "m", "mlx", Style.asked(norms="BF16"))
    exact = {name for entry in plan.entries if entry.head and loses(entry) is None for name in entry.names}
    lossy = {name for entry in plan.entries if entry.head and loses(entry) is not None for name in entry.names}
    back = made(convert_head(made(plan, tmp_path / "m"), "b", "hf", Style()), tmp_path / "b")
    assert all(back[name].read() == release[name].read() for name in exact - lossy)
    for name in lossy:
        assert back[name].read() != release[name].read(), f"{name} was called lossy and is not"


def test_quantized_head_rounds(release: Checkpoint) -> None:
    if release.hparams.qk_nope_head_dim % 32:
        with pytest.raises(CodecError, match=r"attn_k_b\.weight: a row of 48 values"):
            convert_head(release, "m.gguf", "gguf", Style.asked("Q8_0"))
        return
    plan = convert_head(release, "m.gguf", "gguf", Style.asked("Q8_0"))
    assert any("BF16 to Q8_0" in fact for fact in plan.facts)
    with pytest.raises(CodecError, match="Q8_0"):
        convert_head(release, "m.gguf", "gguf", Style.asked("Q8_0"), lossless=True)


def test_mla_is_split_as_transformers_uses_it(tmp_path: Path) -> None:
    """kv_b [heads * (nope + value), rank]: k_b of a head is its first rows transposed, v_b the rest."""
    permutation.build("deepseekv3", tmp_path / "m", dtype="F32")
    release = open_checkpoint(tmp_path / "m")
    head, h = find_head(release), release.hparams
    assert head is not None
    name = next(name for name in head.names if name.endswith("kv_b_proj.weight"))
    kv_b = decode(release[name]).reshape(h.n_heads, h.qk_nope_head_dim + h.v_head_dim, h.kv_lora_rank)
    k_b, v_b = (head.roles[f"attn_{x}_b.weight"].tensor for x in "kv")
    assert k_b.shape == (h.n_heads, h.kv_lora_rank, h.qk_nope_head_dim)
    assert np.array_equal(decode(k_b).reshape(k_b.shape), kv_b[:, : h.qk_nope_head_dim].transpose(0, 2, 1))
    assert np.array_equal(decode(v_b).reshape(v_b.shape), kv_b[:, h.qk_nope_head_dim :])


def test_one_dialect_is_no_conversion(full: Path, hf: Path) -> None:
    for path, to in ((full, "gguf"), (hf, "hf")):
        with pytest.raises(UsageError, match="already"):
            convert_head(open_checkpoint(path), "o", to, Style())


def test_experts_either_way(tmp_path: Path) -> None:
    """Fused and single experts are the same values: each is written as the other, and comes back."""
    source = Path(__file__).parents[2] / "fixtures" / "qwen35moe"
    full, release = open_checkpoint(source / "gguf" / "model-BF16.gguf"), open_checkpoint(source / "hf")
    single = made(convert_head(full, "s", "hf", Style.asked(experts="single")), tmp_path / "s")
    n = release.hparams.n_experts
    assert sum(".experts." in name for name in head_names(single)) == 3 * n
    gate_up, gate = "mtp.layers.0.mlp.experts.gate_up_proj", "mtp.layers.0.mlp.experts.1.gate_proj.weight"
    half = release[gate_up].shape[1] // 2
    wanted = decode(release[gate_up]).reshape(release[gate_up].shape)[1, :half]
    assert np.array_equal(decode(single[gate]), wanted)
    again = made(convert_head(single, "a.gguf", "gguf", Style()), tmp_path / "a.gguf")
    for name in head_names(again):
        assert again[name].read() == full[name].read(), name


def test_private_matrix_has_no_name_in_hf(full: Path, tmp_path: Path) -> None:
    from tests import rewrite

    ckpt = open_checkpoint(full)
    block = ckpt.hparams.n_layers
    own = np.zeros((ckpt.hparams.vocab_size, ckpt.hparams.hidden_size), np.float32)
    path = rewrite.gguf(full, tmp_path / "own.gguf", add={f"blk.{block}.nextn.shared_head_head.weight": own})
    with pytest.raises(ConventionError, match="shared_head_head"):
        convert_head(open_checkpoint(path), "o", "hf", Style())
