"""A head in an encoding of safetensors against its donor: made again byte for byte, or caught."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.codecs import decode
from mtptools.ops.convert import convert_head
from mtptools.ops.donor import complete_head
from mtptools.ops.extract import strip
from mtptools.ops.graft import graft
from mtptools.ops.lineage import Lineage, lineage
from mtptools.ops.quantize_hf import quantize_safetensors
from mtptools.ops.style import Style
from mtptools.writer import write
from tests.conftest import FIXTURES
from tests.decoder.quantizers import Stored, fp8_channel
from tests.decoder.quantizers import write as q_write
from tests.ops.quantized_trunks import METHODS, mlx, trunk

HEAD = "mtp.layers.0."
ENCODED = {"fp8": "fp8", "fp8 BF16": "fp8", "int4": "int4", "nvfp4": "nvfp4", "modelopt": "nvfp4"}


def quantized(source: Checkpoint, out: Path, kind: str) -> Checkpoint:
    write(quantize_safetensors(source, complete_head(source), Style(kind), link=False), out)
    return open_checkpoint(out)


def of_donor(ckpt: Checkpoint, donor: Checkpoint) -> Lineage:
    return next(line for line in lineage(ckpt, donor=donor) if line.against == "donor")


def stored(ckpt: Checkpoint, name: str, kind: str) -> np.memmap:
    """A tensor's bytes in the file, to be changed."""
    (blob,) = ckpt[name].blobs
    rows = np.dtype(kind).itemsize
    return np.memmap(blob.path, kind, "r+", blob.offset, (ckpt[name].n_rows, ckpt[name].row_bytes // rows))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["qwen35moe", "deepseekv3"])
def test_made_again(family: str, method: str, tmp_path: Path) -> None:
    source = trunk(family, method, tmp_path / "in")
    out = quantized(source, tmp_path / "out", ENCODED[method])
    line = of_donor(out, source)
    assert line.verdict == "pass", line
    assert "as converting them again gives" in line.what


@pytest.mark.parametrize("kind", ["4bit", "8bit", "mxfp4", "mxfp8", "nvfp4"])
def test_made_again_in_mlx(kind: str, tmp_path: Path) -> None:
    source = mlx("qwen35moe", tmp_path / "in", bits=4, group_size=64)
    out = quantized(source, tmp_path / "out", kind)
    assert of_donor(out, source).verdict == "pass"
    gguf = open_checkpoint(FIXTURES / "qwen35moe/gguf/model-BF16.gguf")
    assert of_donor(out, gguf).verdict == "pass"


def test_made_again_of_another_encoding(tmp_path: Path) -> None:
    source = mlx("qwen35", tmp_path / "in", bits=4, group_size=64)
    first = quantized(source, tmp_path / "8", "8bit")
    assert of_donor(quantized(first, tmp_path / "4", "4bit"), first).verdict == "pass"


def test_grafted(tmp_path: Path) -> None:
    """From a GGUF of the release, whose k and v of latent attention stand apart."""
    whole = trunk("deepseekv3", "fp8", tmp_path / "in")
    write(strip(whole, "bare"), tmp_path / "bare")
    write(convert_head(whole, "donor.gguf", "gguf", Style()), tmp_path / "donor.gguf")
    donor = open_checkpoint(tmp_path / "donor.gguf")
    write(graft(open_checkpoint(tmp_path / "bare"), donor, "out", head_type="fp8"), tmp_path / "out")
    assert of_donor(open_checkpoint(tmp_path / "out"), donor).verdict == "pass"


def zeroed(ckpt: Checkpoint) -> None:
    stored(ckpt, f"{HEAD}self_attn.o_proj.weight_scale", "<u2")[:] = 0


def doubled(ckpt: Checkpoint) -> None:
    stored(ckpt, f"{HEAD}self_attn.o_proj.weight_scale", "<u2")[:] += 1 << 7  # an exponent of BF16


def few_doubled(ckpt: Checkpoint) -> None:
    stored(ckpt, f"{HEAD}self_attn.o_proj.weight_scale", "<u2")[40:48] += 1 << 7


def turned(ckpt: Checkpoint) -> None:
    rows = stored(ckpt, f"{HEAD}self_attn.o_proj.weight_packed", "<u4")
    rows[::2] = rows[::2, ::-1].copy()


def swapped(ckpt: Checkpoint) -> None:
    for part in ("packed", "scale"):
        one, other = (stored(ckpt, f"{HEAD}mlp.experts.{e}.up_proj.weight_{part}", "u1") for e in (1, 2))
        one[:], other[:] = other.copy(), one.copy()


@pytest.mark.parametrize("fault", [zeroed, doubled, few_doubled, turned, swapped])
def test_faults(fault: Callable[[Checkpoint], None], tmp_path: Path) -> None:
    source = trunk("qwen35moe", "int4", tmp_path / "in")
    out = quantized(source, tmp_path / "out", "int4")
    fault(out)
    line = of_donor(out, source)
    assert line.verdict == "fail", line


def test_another_librarys_rounding(tmp_path: Path) -> None:
    """Codes that are as good and not the same are told from what is made here, and from damage."""
    source = trunk("qwen35moe", "int4", tmp_path / "in")
    out = quantized(source, tmp_path / "out", "int4")
    rows = stored(out, f"{HEAD}self_attn.o_proj.weight_packed", "<u4")
    low = rows & 0xF
    rows[:8] = (rows[:8] & ~np.uint32(0xF)) | np.minimum(low[:8] + 1, 15)
    line = of_donor(out, source)
    assert line.verdict == "not checked", line
    assert "1 in an encoding that this tool rounds otherwise" in line.what
    assert "ggml" not in line.what


def test_an_encoding_that_is_not_written(tmp_path: Path) -> None:
    """FP8 with a scale a row."""
    donor = open_checkpoint(FIXTURES / "qwen35" / "hf")
    arrays: Stored = {}
    for name, tensor in donor.items():
        a = decode(tensor).reshape(tensor.shape)
        parts: Stored = {"": (tensor.codec, a)} if not name.endswith("o_proj.weight") else fp8_channel(a)[0]
        arrays |= {name + suffix: pair for suffix, pair in parts.items()}
    out = open_checkpoint(q_write(tmp_path / "out", arrays, donor.config))
    line = of_donor(out, donor)
    assert line.verdict == "not checked", line
    assert "1 in an encoding that is read here and not written" in line.what
