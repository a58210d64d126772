"""convert, for every family: a head made of its table goes through each dialect and comes back bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.families import Family
from mtptools.head import head_names
from mtptools.ops.convert import convert_head
from mtptools.ops.render import Style
from mtptools.writer import write
from tests.test_families import HEADED, made

DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
CASES = [(family, to) for family in HEADED for to in ("gguf", "mlx") if to != "gguf" or family.gguf_arch]


def layered(family: Family) -> bool:
    """Every name and every GGUF role is of one layer, so that there may be two of them."""
    named = all("{d}" in family.hf_head + s.pattern or "{n}" in family.hf_head for r in family.head for s in r.hf)
    return named and not any(role.root for role in family.head)


def filled(family: Family, folder: Path) -> Checkpoint:
    """The tiny checkpoint with values that BF16 and 1 + w in F32 hold exactly, no two tensors alike."""
    ckpt = made(family, folder, 2 if layered(family) else 1)
    rng = torch.Generator().manual_seed(1)
    tensors = {
        name: (torch.randint(-127, 128, ckpt[name].shape, generator=rng) / 64).to(DTYPES[ckpt[name].codec.upper()])
        for name in ckpt
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return open_checkpoint(folder)


@pytest.mark.parametrize(("family", "middle"), CASES, ids=lambda x: getattr(x, "name", x))
def test_there_and_back(family: Family, middle: str, tmp_path: Path) -> None:
    release = filled(family, tmp_path / "release")
    out = tmp_path / ("middle.gguf" if middle == "gguf" else "middle")
    write(convert_head(release, out.name, middle, Style.asked(norms="F32"), bare=True), out)
    between = open_checkpoint(out)
    assert (between.family, between.dialect) == (family, middle)
    assert between.hparams.depth == release.hparams.depth
    write(convert_head(between, "back", "hf", Style.asked(norms="BF16"), bare=True), tmp_path / "back")
    back = open_checkpoint(tmp_path / "back")
    assert set(head_names(back)) == set(head_names(release))
    for name in head_names(release):
        assert (back[name].codec, back[name].shape) == (release[name].codec, release[name].shape), name
        assert back[name].read() == release[name].read(), name
