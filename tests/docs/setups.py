"""Checkpoints that recipes begin with and no fixture is, by the names that pages give them (see `pages.py`)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from mtptools.checkpoint import open_checkpoint
from mtptools.families import family_named
from mtptools.ops.extract import strip
from mtptools.writer import write
from tests import rewrite
from tests.conftest import FIXTURES
from tests.ops import quantized_trunks
from tests.test_families import made

HF = FIXTURES / "qwen35" / "hf"
MODEL = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf"


def _stripped(source: Path, out: Path) -> None:
    write(strip(open_checkpoint(source), out.name), out)
    (out / "mtptools-receipt.json").unlink()


def finetune(out: Path) -> None:
    """What a trainer saves: no head, and a config.json that declares one still."""
    _stripped(HF, out)
    shutil.copy(HF / "config.json", out)


def mlx_4bit(out: Path) -> None:
    """What mlx_lm.convert -q makes of it."""
    quantized_trunks.mlx("qwen35", out.with_name(f"{out.name}-head"), bits=4, group_size=64)
    _stripped(out.with_name(f"{out.name}-head"), out)


def nvfp4(out: Path) -> None:
    """What ModelOpt exports: NVFP4, and no head."""
    quantized_trunks.trunk("qwen35", "modelopt", out.with_name(f"{out.name}-head"), ignore=["lm_head"])
    _stripped(out.with_name(f"{out.name}-head"), out)


def swapped_halves(out: Path) -> None:
    """A head whose fusion matrix has its halves the other way round."""
    fusion = "blk.4.nextn.eh_proj.weight"
    rewrite.gguf(MODEL, out, edit={fusion: lambda rows: np.roll(rows, rows.shape[-1] // 2, axis=-1)})


def prose(out: Path) -> None:
    """Text like the fixture's own, some of it twice: a corpus has more than one document."""
    prompts = json.loads((FIXTURES / "qwen35" / "prompts.json").read_text(encoding="utf-8"))["prompts"]
    lines = [json.dumps({"text": prompt["text"]}) + "\n" for prompt in prompts] * 12
    out.write_text("".join(lines), encoding="utf-8")


def code(out: Path) -> None:
    """Some Python."""
    out.mkdir()
    for module in ("json/decoder", "textwrap", "heapq"):
        source = Path(json.__file__).parents[1] / f"{module}.py"
        shutil.copy(source, out / source.name)


def novel(out: Path) -> None:
    """Plain text."""
    prompts = json.loads((FIXTURES / "qwen35" / "prompts.json").read_text(encoding="utf-8"))["prompts"]
    out.write_text("\n\n".join(prompt["text"] for prompt in prompts) * 4, encoding="utf-8")


def acorn(out: Path) -> None:
    """A head of the family that the page adds."""
    made(family_named("acorn"), out, 1)
