"""A head grafted onto an MLX checkpoint drafts in mlx-vlm, and mlx-lm reads the trunk as before. Needs no Apple."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.ops.graft import graft
from mtptools.writer import write
from tests.conftest import FIXTURES, load_script

MISSING = [name for name in ("mlx", "mlx_lm", "mlx_vlm") if find_spec(name) is None]
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(bool(MISSING), reason=f"needs MLX: pip install 'mlx[cpu]' mlx-lm mlx-vlm (no {MISSING})"),
]

SCRIPT = FIXTURES / "mlx" / "run_mlx.py"
TOKENS = 32
HEAD_FILE = "model-mtp.safetensors"

Make = Callable[[Path, int | None], Path]


def mlx(*command: object, prompts: list[list[int]] | None = None) -> list[dict[str, Any]]:
    """One object for each folder asked about. A process of its own: MLX's imports warn, and may leave threads."""
    run = subprocess.run(
        [sys.executable, SCRIPT, *map(str, command)], input=json.dumps(prompts), capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return list(json.loads(run.stdout)) if prompts else []


@pytest.fixture(scope="session")
def mlx_trunk(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """(HF folder, bits) -> what mlx-lm converts it to; None is float32. The head is lost, its declaration is not."""
    folder = tmp_path_factory.mktemp("mlx")
    made: dict[tuple[Path, int | None], Path] = {}

    def make(source: Path, bits: int | None) -> Path:
        if (source, bits) not in made:
            made[source, bits] = folder / str(len(made))
            mlx("convert", source, made[source, bits], *(["--bits", bits] if bits else []))
        return made[source, bits]

    return make


def prompts_of(family: str) -> list[list[int]]:
    tree = json.loads((FIXTURES / family / "prompts.json").read_text())
    return [list(prompt["ids"]) for prompt in tree["prompts"][:2]]


def grafted(trunk: Path, donor: Path, out: Path, kind: str | None = None, allow: tuple[str, ...] = ()) -> Path:
    write(graft(open_checkpoint(trunk), open_checkpoint(donor), out.name, head_type=kind, allow=allow), out)
    return out


def head_type(family: str, bits: int | None) -> str | None:
    """None, BF16, where MLX can: its CPU multiplies by experts in float32 only. A float32 trunk gets a float32 head."""
    return "F32" if bits is None or family == "qwen35moe" else None


def head_values(hf: Path) -> int:
    return sum(tensor.n_values for name, tensor in open_checkpoint(hf).items() if name.startswith("mtp."))


def rate(found: dict[str, Any]) -> float:
    return float(found["accepted"] / found["offered"])


def less_one(source: Path, folder: Path) -> Path:
    """A copy with the fault of a graft that takes Hugging Face's norms as they are: each of the head's is 1 less."""
    out = folder / "less-one"
    shutil.copytree(source, out)
    path = out / HEAD_FILE
    raw = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    for name, entry in json.loads(raw[8:start]).items():
        if name != "__metadata__" and len(entry["shape"]) == 1:
            low, high = (start + offset for offset in entry["data_offsets"])
            if entry["dtype"] == "F32":
                raw[low:high] = (np.frombuffer(raw[low:high], "<f4") - np.float32(1)).tobytes()
            else:
                wide = (np.frombuffer(raw[low:high], "<u2").astype(np.uint32) << 16).view(np.float32) - np.float32(1)
                raw[low:high] = (wide.view(np.uint32) >> 16).astype("<u2").tobytes()
    path.write_bytes(raw)
    return out


@pytest.mark.parametrize("bits", [4, None])
def test_grafted_head_drafts(bits: int | None, family: str, hf: Path, mlx_trunk: Make, tmp_path: Path) -> None:
    """Beside a 4-bit trunk MLX's rounding differs with the number of rows: tokens are compared in float32 only."""
    trunk, prompts = mlx_trunk(hf, bits), prompts_of(family)
    out = grafted(trunk, hf, tmp_path / "out", head_type(family, bits))
    before, after = mlx("lm", trunk, out, prompts=prompts)
    assert all(len(tokens) == TOKENS for tokens in before["tokens"])
    assert after == before
    plain, found, broken = mlx("vlm", trunk, out, less_one(out, tmp_path), "--drafts", 1, prompts=prompts)
    assert plain["tokens"] == found["tokens"] == broken["tokens"]
    if bits is None:
        assert found["drafted"] == found["tokens"] == before["tokens"]
    assert found["offered"] > TOKENS
    assert rate(found) > 0.55
    assert rate(broken) < 0.5 * rate(found)


def test_acceptance_is_our_decoders(family: str, hf: Path, mlx_trunk: Make, tmp_path: Path) -> None:
    """In float32: the tokens of our decoder on the release, and its count of drafts but for each prompt's last one.

    mlx-vlm still drafts when one token is left to make; our decoder does not.
    """
    pytest.importorskip("torch", reason="needs the decoder: pip install 'mtptools[decoder]'")
    from mtptools.decoder.acceptance import total
    from mtptools.decoder.load import load_model
    from mtptools.decoder.speculate import decode_speculative

    prompts = prompts_of(family)
    out = grafted(mlx_trunk(hf, None), hf, tmp_path / "out", "F32")
    found = mlx("vlm", out, "--drafts", 1, prompts=prompts)[0]
    model = load_model(open_checkpoint(hf))
    ours = [decode_speculative(model, ids, TOKENS, 1) for ids in prompts]
    assert found["drafted"] == [one.tokens for one in ours]
    counted = total(1, [one.drafts for one in ours])
    assert 0 <= found["offered"] - sum(counted.drafted) <= len(prompts)
    assert 0 <= found["accepted"] - sum(counted.accepted) <= len(prompts)


@pytest.mark.parametrize("bits", [8, None])
def test_a_head_right_by_construction(bits: int | None, family: str, mlx_trunk: Make, tmp_path: Path) -> None:
    """Permutation models: a head that works on the state alone, norms of both signs. Off by one, none is accepted."""
    source = tmp_path / "hf"
    load_script("permutation").build(family, source, reads="hidden")
    out = grafted(mlx_trunk(source, bits), source, tmp_path / "out", "F32", ("head-norms",))
    prompts = [[5, 6, 7], [100, 200, 300]]
    found, broken = mlx("vlm", out, less_one(out, tmp_path), "--drafts", 1, prompts=prompts)
    assert rate(found) > 0.9
    assert rate(broken) < 0.1


def test_head_of_other_bits(family: str, hf: Path, mlx_trunk: Make, tmp_path: Path) -> None:
    """8 bits, by MLX, onto 4: entries in `quantization` make it loadable, and without them it is not."""
    trunk, prompts = mlx_trunk(hf, 4), prompts_of(family)
    donor = grafted(trunk, hf, tmp_path / "donor", head_type(family, 4))
    mlx("head", donor, "--bits", 8)
    out = grafted(trunk, donor, tmp_path / "out")
    assert (out / HEAD_FILE).stat().st_size < 0.6 * 2 * head_values(hf)
    assert rate(mlx("vlm", out, "--drafts", 1, prompts=prompts)[0]) > 0.55
    before, after = mlx("lm", trunk, out, prompts=prompts)
    assert after == before
    shutil.copy(trunk / "config.json", out / "config.json")
    with pytest.raises(AssertionError, match="Expected shape"):
        mlx("vlm", out, "--drafts", 1, prompts=prompts)
