"""A graft onto 20 GB with --link takes seconds and writes the head alone."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fixtures import releases
from mtptools.checkpoint import open_checkpoint
from mtptools.head import head_names
from mtptools.ops.lineage import lineage
from mtptools.ops.validate import validate
from tests.test_link import run, write_index

LAYERS = 500  # of 41 MB each


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Qwen3.5-0.8B-Base, its names and shapes, without its head and with more layers: 21 GB in shards, all holes."""
    release = releases.load("qwen3.5-0.8b-base")
    folder = tmp_path / "large"
    folder.mkdir()
    text = release.config["text_config"]
    text |= {"num_hidden_layers": LAYERS, "mtp_num_hidden_layers": 0, "layer_types": text["layer_types"][:4] * 125}
    (folder / "config.json").write_text(json.dumps(release.config))
    (folder / "tokenizer_config.json").write_text("{}")
    layers: list[dict[str, releases.Spec]] = [{} for _ in range(4)]
    rest: dict[str, releases.Spec] = {}
    for name, spec in release.trunk.items():
        _, mark, end = name.partition(".layers.")
        number, _, tail = end.partition(".")
        if not mark:
            rest[name] = spec
        elif int(number) < 4:
            layers[int(number)][tail] = spec
    lead = "model.language_model.layers"
    groups = [rest] + [
        {f"{lead}.{n}.{tail}": spec for n in range(first, first + 50) for tail, spec in layers[n % 4].items()}
        for first in range(0, LAYERS, 50)
    ]
    weight_map = {}
    for number, group in enumerate(groups, 1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        releases.write_safetensors(folder / file, group)
        weight_map |= dict.fromkeys(group, file)
    write_index(folder, weight_map)
    return folder


def used(folder: Path) -> int:
    """Bytes on the disk of the files that no other folder holds."""
    return sum(p.stat().st_blocks * 512 for p in folder.iterdir() if p.stat().st_nlink == 1)


def test_20_gb(large: Path, tmp_path: Path) -> None:
    donor = tmp_path / "donor"
    donor.mkdir()
    release = releases.load("qwen3.5-0.8b-base")
    text = release.config["text_config"]
    text |= {"num_hidden_layers": LAYERS, "layer_types": text["layer_types"][:4] * 125}
    (donor / "config.json").write_text(json.dumps(release.config))
    releases.write_safetensors(donor / "model.safetensors", release.head)
    before = {p: (p.stat().st_ino, p.stat().st_size, p.stat().st_mtime_ns) for p in large.iterdir()}
    assert sum(size for _, size, _ in before.values()) > 20e9
    start = time.perf_counter()
    # All values of a hole are zero, which is no head.
    command = ["graft", large, donor, "-o", tmp_path / "o", "--link", "-q"]
    assert run(*command, "--allow-mismatch", "head-values", "--allow-mismatch", "head-norms") == 0
    seconds = time.perf_counter() - start
    out = open_checkpoint(tmp_path / "o")
    head = sum(out[name].nbytes for name in head_names(out))
    assert used(out.path) < head + 8e6  # index, receipt, config
    assert {p: (p.stat().st_ino, p.stat().st_size, p.stat().st_mtime_ns) for p in large.iterdir()} == before
    shard_files = sorted(large.glob("*.safetensors"))
    assert len(shard_files) == 11
    assert all((out.path / p.name).samefile(p) and p.stat().st_nlink == 2 for p in shard_files)
    assert all(p.stat().st_blocks * 512 < 4e6 for p in shard_files)
    assert {f.check for f in validate(out).findings} <= {"head-values", "trunk-norms", "tokenizer-missing"}
    read: list[int] = []
    assert [item.verdict for item in lineage(out, open_checkpoint(large), progress=read.append)] == ["pass", "pass"]
    assert sum(read) <= head
    assert seconds < 30, f"{seconds:.0f} s"  # about 2 on one core; a copy reads and writes 21 GB
