"""A head quantized here, against the one MLX quantizes itself, and drafting in mlx-vlm."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.head import head_names
from mtptools.ops.donor import complete_head
from mtptools.ops.quantize_hf import quantize_safetensors
from mtptools.ops.style import Style
from mtptools.writer import write
from tests.interop.test_mlx import (  # noqa: F401
    HEAD_FILE,
    Make,
    grafted,
    head_type,
    mlx,
    mlx_trunk,
    prompts_of,
    pytestmark,
    rate,
)


def quantized(source: Path, kind: str, out: Path) -> Path:
    ckpt = open_checkpoint(source)
    write(quantize_safetensors(ckpt, complete_head(ckpt), Style(kind), link=True), out)
    return out


@pytest.mark.parametrize("bits", [4, 8])
def test_bytes_are_mlxs(bits: int, family: str, hf: Path, mlx_trunk: Make, tmp_path: Path) -> None:  # noqa: F811
    """Beside a 4-bit trunk: codes, scales and biases, and an entry for each module whose bits are not the trunk's."""
    source = grafted(mlx_trunk(hf, 4), hf, tmp_path / "source", "BF16")
    ours = open_checkpoint(quantized(source, f"{bits}bit", tmp_path / "ours"))
    shutil.copytree(source, tmp_path / "theirs")
    mlx("head", tmp_path / "theirs", "--bits", bits)
    theirs = open_checkpoint(tmp_path / "theirs")
    names = set(head_names(theirs))
    assert set(head_names(ours)) == names
    for name in names:
        assert (ours[name].codec, ours[name].shape) == (theirs[name].codec, theirs[name].shape), name
        assert ours[name].read() == theirs[name].read(), name
    assert sum(name.endswith(".scales") for name in names) > 7
    stated, own = (
        {key: value for key, value in ckpt.config["quantization"].items() if key.startswith("mtp.")}
        for ckpt in (ours, theirs)
    )
    assert stated == (own if bits == 8 else {})


@pytest.mark.parametrize(("family", "kind"), [("qwen35", "affine-g32b6"), ("qwen35", "mxfp4"), ("qwen35moe", "mxfp8")])
def test_a_quantized_head_drafts(kind: str, hf: Path, family: str, mlx_trunk: Make, tmp_path: Path) -> None:  # noqa: F811
    trunk, prompts = mlx_trunk(hf, 4), prompts_of(family)
    source = grafted(trunk, hf, tmp_path / "source", head_type(family, 4))
    out = quantized(source, kind, tmp_path / "out")
    assert (out / HEAD_FILE).stat().st_size < 0.6 * (source / HEAD_FILE).stat().st_size
    found, before = mlx("vlm", out, source, "--drafts", 1, prompts=prompts)
    assert rate(found) > rate(before) - 0.15
    assert mlx("lm", trunk, out, prompts=prompts)[0] == mlx("lm", out, prompts=prompts)[0]
