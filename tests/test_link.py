"""Hard links: what does not change is not copied, and what is linked is never written to."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from mtptools.checkpoint import open_checkpoint
from mtptools.cli.main import main
from mtptools.errors import SystemFailure
from mtptools.head import head_names
from mtptools.ops.diff import diff
from mtptools.ops.extract import strip
from mtptools.ops.graft import graft
from mtptools.ops.lineage import lineage
from mtptools.ops.validate import validate
from mtptools.receipt import load_beside
from mtptools.writer import write
from tests.conftest import FIXTURES
from tests.ops.test_surgery import split_by_gguf_py


def run(*words: object) -> int:
    """The exit code of the command line."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def state(path: Path) -> dict[str, tuple[int, int, bytes]]:
    """Inode, time of change and bytes of every file."""
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns, p.read_bytes()) for p in sorted(path.iterdir())}


def shards(source: Path, out: Path, groups: list[Callable[[str], bool]]) -> Path:
    """An HF folder as shards, one for each predicate, written by the safetensors library."""
    tensors, out = load_file(source / "model.safetensors"), shutil.copytree(source, out)
    (out / "model.safetensors").unlink()
    weight_map: dict[str, str] = {}
    for number, wanted in enumerate(groups, 1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        names = [name for name in tensors if name not in weight_map and wanted(name)]
        weight_map |= dict.fromkeys(names, file)
        save_file({name: tensors[name] for name in names}, out / file, metadata={"format": "pt"})
    assert set(weight_map) == set(tensors)
    write_index(out, weight_map)
    return out


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map})
    )


@pytest.fixture
def bare(hf: Path, tmp_path: Path) -> Path:
    """The fixture without its head, one model.safetensors."""
    write(strip(open_checkpoint(hf), "bare"), tmp_path / "bare")
    return tmp_path / "bare"


@pytest.fixture
def sharded(bare: Path, tmp_path: Path) -> Path:
    return shards(bare, tmp_path / "sharded", [lambda n: "embed" in n, lambda n: ".layers.0." in n, lambda n: bool(n)])


@pytest.fixture
def split(full: Path, tmp_path: Path) -> Path:
    """The GGUF fixture without its head, in shards by gguf-py; the first."""
    trunk = tmp_path / "trunk.gguf"
    write(strip(open_checkpoint(full), trunk.name), trunk)
    (tmp_path / "shards").mkdir()
    return split_by_gguf_py(trunk, tmp_path / "shards" / "base.gguf")


def test_single_file_becomes_a_shard(hf: Path, bare: Path, tmp_path: Path) -> None:
    before = state(bare)
    trunk, donor = open_checkpoint(bare), open_checkpoint(hf)
    write(graft(trunk, donor, "copied"), tmp_path / "copied")
    plan = graft(trunk, donor, "linked", link=True)
    written = write(plan, tmp_path / "linked")
    out = open_checkpoint(written.path)
    assert (out.path / "model-trunk.safetensors").samefile(bare / "model.safetensors")
    assert not (out.path / "model.safetensors").exists()
    assert (bare / "model.safetensors").stat().st_nlink == 2
    assert (out.path / "config.json").stat().st_nlink == 1
    assert state(bare) == before
    assert diff(open_checkpoint(tmp_path / "copied"), out).equal
    assert diff(donor, out).equal
    assert validate(out).ok
    assert plan.linked_bytes == sum(tensor.nbytes for tensor in trunk.values())
    side = sum(p.stat().st_size for p in out.path.iterdir() if p.suffix != ".safetensors" and "receipt" not in p.name)
    assert plan.new_bytes == sum(e.nbytes for e in plan.entries if e.head) + side


def test_receipt_and_lineage_of_links(hf: Path, sharded: Path, tmp_path: Path) -> None:
    trunk, donor = open_checkpoint(sharded), open_checkpoint(hf)
    out = open_checkpoint(write(graft(trunk, donor, "o", link=True), tmp_path / "o").path)
    record = load_beside(out)
    assert record is not None
    linked = {row["name"] for row in record["tensors"] if row.get("linked")}
    assert linked == set(trunk)
    assert {row["name"] for row in record["tensors"] if "xxh3_128" in row} == set(head_names(out))
    assert [file["name"] for file in record["linked"]] == [file.path.name for file in trunk.files]
    read: list[int] = []
    found = lineage(out, trunk, donor, read.append)
    assert [item.verdict for item in found] == ["pass", "pass", "pass"]
    assert f"{len(trunk)} tensors in linked files have no digest" in found[0].what
    assert f"{len(head_names(out))} digests equal" in found[0].what
    # The receipt reads the head once, the donor's comparison twice; no byte of the trunk.
    head = sum(out[name].nbytes for name in head_names(out))
    assert sum(read) <= 3 * head


def test_a_linked_file_that_was_replaced(hf: Path, sharded: Path, tmp_path: Path) -> None:
    trunk = open_checkpoint(sharded)
    out = write(graft(trunk, open_checkpoint(hf), "o", link=True), tmp_path / "o").path
    name = trunk.files[1].path.name
    tensors = load_file(out / name)
    (out / name).unlink()
    copy = {key: value.clone() for key, value in tensors.items()}
    save_file(copy, out / name, metadata={"format": "pt"})
    assert [item.verdict for item in lineage(open_checkpoint(out), trunk)] == ["pass", "pass"]
    first = next(iter(copy))
    copy[first].view(-1)[0] += 1
    save_file(copy, out / name, metadata={"format": "pt"})
    # What a receipt without digests cannot see, a comparison with the trunk does: it is another file now.
    assert [item.verdict for item in lineage(open_checkpoint(out), trunk)] == ["pass", "fail"]
    save_file(copy, out / name, metadata={"format": "pt", "more": "x"})
    assert [item.verdict for item in lineage(open_checkpoint(out), trunk)] == ["fail", "fail"]


def test_unindexed_tensors_go_and_their_shard_is_written(hf: Path, sharded: Path, tmp_path: Path) -> None:
    import torch

    index = json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"]
    second = sharded / "model-00002-of-00003.safetensors"
    save_file(load_file(second) | {"old.head.weight": torch.ones(4, 4)}, second, metadata={"format": "pt"})
    # This one is of the trunk: the index forgot it.
    forgotten = next(name for name in index if name.endswith("layers.1.input_layernorm.weight"))
    write_index(sharded, {name: file for name, file in index.items() if name != forgotten})
    trunk, donor = open_checkpoint(sharded), open_checkpoint(hf)
    for link in (False, True):
        plan = graft(trunk, donor, "o", link=link)
        out = open_checkpoint(write(plan, tmp_path / f"o{link}").path)
        assert out.index is not None
        assert "old.head.weight" not in out
        assert set(out.index["weight_map"]) == set(donor)
        assert ("trunk", "old.head.weight") in {(d.input, d.name) for d in plan.dropped}
        assert any("not in the index: old.head.weight (1 tensors)" in fact for fact in plan.facts)
        same = [(out.path / f.path.name).samefile(f.path) for f in trunk.files]
        assert same == ([True, False, True] if link else [False] * 3)
    assert any("model-00002-of-00003.safetensors is written, not linked: 1 of its" in fact for fact in plan.facts)


def test_strip_links_the_shards_without_a_head(hf: Path, tmp_path: Path) -> None:
    source = shards(hf, tmp_path / "s", [lambda n: ".layers.0." in n and "mtp" not in n, lambda n: bool(n)])
    ckpt = open_checkpoint(source)
    plan = strip(ckpt, "o", link=True)
    out = open_checkpoint(write(plan, tmp_path / "o").path)
    assert [(out.path / f.path.name).samefile(f.path) for f in ckpt.files] == [True, False]
    assert diff(open_checkpoint(write(strip(ckpt, "p"), tmp_path / "p").path), out).equal
    assert not head_names(out)
    assert lineage(out, ckpt)[-1].verdict == "pass"


def test_model_safetensors_in_an_index_is_renamed(hf: Path, bare: Path, tmp_path: Path) -> None:
    write_index(bare, dict.fromkeys(open_checkpoint(bare), "model.safetensors"))
    for link in (False, True):
        out = write(graft(open_checkpoint(bare), open_checkpoint(hf), "o", link=link), tmp_path / f"o{link}").path
        assert not (out / "model.safetensors").exists()
        assert (out / "model-trunk.safetensors").exists()


def test_split_gguf(full: Path, split: Path, tmp_path: Path) -> None:
    before = state(split.parent)
    trunk, donor = open_checkpoint(split), open_checkpoint(full)
    count = len(trunk.files)
    plan = graft(trunk, donor, "out.gguf", link=True)
    assert [file.linked is not None for file in plan.files] == [False] + [True] * (count - 1) + [False]
    (tmp_path / "o").mkdir()
    written = write(plan, tmp_path / "o" / "out.gguf")
    out = open_checkpoint(written.path)
    assert [f.path.name for f in out.files] == [f"out-{n:05d}-of-{count + 1:05d}.gguf" for n in range(1, count + 2)]
    assert [f.metadata["split.count"] for f in out.files] == [count + 1] + [count] * (count - 1) + [count + 1]
    assert [f.metadata["split.no"] for f in out.files] == list(range(count + 1))
    assert [a.path.samefile(b.path) for a, b in zip(trunk.files, out.files, strict=False)] == [False] + [True] * (
        count - 1
    )
    assert diff(donor, out).kept == tuple(donor)
    assert [item.verdict for item in lineage(out, trunk, donor)] == ["pass", "pass", "pass"]
    assert state(split.parent) == before
    # Once more onto itself: a link may take the place of the link of an earlier run.
    write(graft(trunk, donor, "out.gguf", link=True), tmp_path / "o" / "out.gguf", force=True)
    assert state(split.parent) == before
    (tmp_path / "s").mkdir()
    stripped = strip(open_checkpoint(written.path), "back.gguf", link=True)
    back = open_checkpoint(write(stripped, tmp_path / "s" / "back.gguf").path)
    assert [a.path.samefile(b.path) for a, b in zip(trunk.files, back.files, strict=True)] == [False] + [True] * (
        count - 1
    )
    assert diff(trunk, back).kept == tuple(trunk)
    assert state(split.parent) == before


def test_no_link_is_ever_written_to(full: Path, split: Path, tmp_path: Path) -> None:
    """The receipt goes into the first shard: not when a plan links that one."""
    before = state(split.parent)
    plan = graft(open_checkpoint(split), open_checkpoint(full), "out.gguf", link=True)
    kept = open_checkpoint(split).files[0]
    files = (replace(plan.files[0], metadata=kept.metadata, linked=kept.path), *plan.files[1:])
    (tmp_path / "o").mkdir()
    write(replace(plan, files=files), tmp_path / "o" / "out.gguf")
    assert (tmp_path / "o" / files[0].name).samefile(split)
    assert state(split.parent) == before


def test_a_shard_whose_number_changes_is_written(full: Path, split: Path, tmp_path: Path) -> None:
    """The head in the middle: the shards behind it move up, and llama.cpp reads split.no of each."""
    trunk = open_checkpoint(split)
    (tmp_path / "o").mkdir()
    plan = graft(trunk, open_checkpoint(full), "out.gguf")
    head = plan.files[-1]
    order = [plan.files[0], head, *plan.files[1:-1]]
    from mtptools.containers.gguf import Metadata, split_keys

    files = []
    for number, file in enumerate(order):
        assert isinstance(file.metadata, Metadata)
        metadata = file.metadata.edited(dict(split_keys(number, len(order), len(plan.entries))))
        files.append(replace(file, name=f"out-{number + 1:05d}-of-{len(order):05d}.gguf", metadata=metadata))
    source = open_checkpoint(write(replace(plan, files=tuple(files)), tmp_path / "o" / "out.gguf").path)
    stripped = strip(source, "back.gguf", link=True)
    assert stripped.linked_bytes == 0
    assert any("its split.no is 2, it becomes 1" in fact for fact in stripped.facts)
    (tmp_path / "s").mkdir()
    back = open_checkpoint(write(stripped, tmp_path / "s" / "back.gguf").path)
    assert diff(trunk, back).kept == tuple(trunk)


def test_one_gguf_has_nothing_to_link(full: Path, trunk_q8: Path) -> None:
    plan = graft(open_checkpoint(trunk_q8), open_checkpoint(full), "o.gguf", link=True)
    assert plan.linked_bytes == 0
    assert "o.gguf is written, not linked: its header changes" in plan.facts


def test_an_earlier_receipt_is_not_linked(hf: Path, bare: Path, tmp_path: Path) -> None:
    """A header with a receipt of what the file was part of before would be taken for the output's own."""
    tensors = load_file(bare / "model.safetensors")
    save_file(tensors, bare / "model.safetensors", metadata={"format": "pt", "mtptools.receipt": "{}"})
    plan = graft(open_checkpoint(bare), open_checkpoint(hf), "o", link=True)
    assert plan.linked_bytes == 0
    out = open_checkpoint(write(plan, tmp_path / "o").path)
    assert [item.verdict for item in lineage(out)] == ["pass"]


def test_links_in_a_hub_cache_are_followed(hf: Path, bare: Path, tmp_path: Path) -> None:
    """A snapshot is a folder of relative symbolic links into blobs/."""
    snapshot, blobs = tmp_path / "snapshots" / "main", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(bare.iterdir())):
        shutil.copyfile(path, blobs / str(number))
        (snapshot / path.name).symlink_to(Path("..") / ".." / "blobs" / str(number))
    out = write(graft(open_checkpoint(snapshot), open_checkpoint(hf), "o", link=True), tmp_path / "o").path
    made = out / "model-trunk.safetensors"
    assert not made.is_symlink()
    assert made.samefile(snapshot / "model.safetensors")
    assert lineage(open_checkpoint(out), open_checkpoint(snapshot))[-1].verdict == "pass"


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_where_links_are_not_possible(
    number: int, hf: Path, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "o").mkdir()
    with pytest.raises(SystemFailure, match="cannot be linked") as caught:
        write(graft(open_checkpoint(bare), open_checkpoint(hf), "x", link=True), tmp_path / "o" / "x")
    assert "leave out --link" in str(caught.value.hint)
    assert list((tmp_path / "o").iterdir()) == []
    write(graft(open_checkpoint(bare), open_checkpoint(hf), "x"), tmp_path / "o" / "x")


def test_another_filesystem(hf: Path, bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Path("/dev/shm")
    if not os.access(other, os.W_OK) or other.stat().st_dev == bare.stat().st_dev:
        pytest.skip("no second filesystem to write to")
    out = other / f"mtptools-test-{os.getpid()}"
    assert run("graft", bare, hf, "-o", out, "--link") == 7
    assert "--link" in capsys.readouterr().err
    assert not out.exists()


def test_an_interrupted_run_leaves_the_inputs(hf: Path, bare: Path, tmp_path: Path) -> None:
    def stop(n: int) -> None:
        raise KeyboardInterrupt

    before = state(bare)
    with pytest.raises(KeyboardInterrupt):
        write(graft(open_checkpoint(bare), open_checkpoint(hf), "o", link=True), tmp_path / "o", progress=stop)
    assert state(bare) == before
    assert (bare / "model.safetensors").stat().st_nlink == 1
    assert not (tmp_path / "o").exists()


def test_replacing_a_linked_output_leaves_the_inputs(hf: Path, bare: Path, tmp_path: Path) -> None:
    before = state(bare)
    for link in (True, False, True):
        write(graft(open_checkpoint(bare), open_checkpoint(hf), "o", link=link), tmp_path / "o", force=True)
        assert state(bare) == before
        assert (bare / "model.safetensors").stat().st_nlink == 1 + link


def test_space_is_needed_for_new_bytes_alone(
    hf: Path, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trunk, donor = open_checkpoint(bare), open_checkpoint(hf)
    plan = graft(trunk, donor, "o", link=True)
    usage = shutil.disk_usage(tmp_path)._replace(free=plan.new_bytes)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SystemFailure, match="are free"):
        write(graft(trunk, donor, "o"), tmp_path / "o")
    write(plan, tmp_path / "o")


def test_a_link_holds_what_the_file_holds(hf: Path, bare: Path) -> None:
    plan = graft(open_checkpoint(bare), open_checkpoint(hf), "o", link=True)
    file, head = plan.files
    for wrong in (
        replace(file.entries[0], codec="F16"),
        replace(file.entries[0], name="other"),
        replace(file.entries[0], values=("plain", "unit_offset")),
        replace(file.entries[0], head=True),
        replace(file.entries[0], source=open_checkpoint(hf)[file.entries[0].name]),
        head.entries[0],
    ):
        with pytest.raises(ValueError, match="cannot be a link"):
            replace(file, entries=(wrong, *file.entries[1:]))


def test_what_the_command_says(hf: Path, bare: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["graft", bare, hf, "-o", tmp_path / "o", "--link"]
    plan = graft(open_checkpoint(bare), open_checkpoint(hf), "o", link=True)
    assert run(*command, "--dry-run") == 0
    assert f"  {plan.space}\n" in capsys.readouterr().out
    assert not (tmp_path / "o").exists()
    assert run(*command, "--dry-run", "--json") == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (told["new_bytes"], told["linked_bytes"]) == (plan.new_bytes, plan.linked_bytes)
    assert [file["linked"] for file in told["files"]] == ["model.safetensors", None]
    assert run(*command) == 0
    assert plan.space in capsys.readouterr().out
    assert run("strip", hf, "-o", tmp_path / "s", "--link") == 0
    assert "linked:" not in capsys.readouterr().out


def test_mlx_trunk_is_linked(tmp_path: Path) -> None:
    """An MLX folder is told by its header's format; its one file becomes a shard, header and all."""
    source = FIXTURES / "qwen35" / "hf"
    folder = shutil.copytree(source, tmp_path / "m")
    tensors = {k: v for k, v in load_file(source / "model.safetensors").items() if not k.startswith("mtp.")}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "mlx"})
    plan = graft(open_checkpoint(folder), open_checkpoint(source), "o", link=True, allow=("head-norms", "head-values"))
    assert [file.linked is not None for file in plan.files] == [True, False]
