"""The writer: all or nothing, whatever goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.errors import CorruptError, OutputExistsError, SystemFailure, UsageError
from mtptools.ops.diff import diff
from mtptools.ops.extract import extract, strip
from mtptools.ops.graft import graft
from mtptools.ops.lineage import lineage
from mtptools.receipt import load_beside, load_inside
from mtptools.writer import write
from tests import rewrite


def listing(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_ctrl_c_leaves_nothing(full: Path, tmp_path: Path) -> None:
    def stop(n: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(strip(open_checkpoint(full), "o.gguf"), tmp_path / "o.gguf", progress=stop)
    assert listing(tmp_path) == set()


def test_an_interrupted_force_keeps_the_old_output(full: Path, hf: Path, tmp_path: Path) -> None:
    def stop(n: int) -> None:
        raise KeyboardInterrupt

    for source, name in ((full, "o.gguf"), (hf, "o")):
        out = tmp_path / name
        write(strip(open_checkpoint(source), name), out)
        before = {path.name: path.read_bytes() for path in ([out] if out.is_file() else out.iterdir())}
        with pytest.raises(KeyboardInterrupt):
            write(extract(open_checkpoint(source), name), out, force=True, progress=stop)
        assert {path.name: path.read_bytes() for path in ([out] if out.is_file() else out.iterdir())} == before
        write(extract(open_checkpoint(source), name), out, force=True)
        assert open_checkpoint(out).hparams.depth == 1


def test_no_space_before_starting(full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SystemFailure, match="are free"):
        write(strip(open_checkpoint(full), "o.gguf"), tmp_path / "o.gguf")
    assert listing(tmp_path) == set()


def test_no_space_on_the_way(full: Path, tmp_path: Path) -> None:
    """A real write error: the process may write no file larger than a megabyte."""
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "from mtptools.cli.main import main\n"
        f"main(['strip', {str(full)!r}, '-o', {str(tmp_path / 'o.gguf')!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert listing(tmp_path) == set()


def test_output_equal_to_an_input(full: Path, tmp_path: Path) -> None:
    import shutil

    own = tmp_path / "m.gguf"
    shutil.copyfile(full, own)
    link = tmp_path / "link.gguf"
    link.hardlink_to(own)
    symlink = tmp_path / "symlink.gguf"
    symlink.symlink_to(own)
    for target in (own, link, symlink):
        with pytest.raises(UsageError, match="one of the inputs"):
            write(strip(open_checkpoint(own), target.name), target, force=True)
    assert own.read_bytes() == full.read_bytes()


def test_existing_output(full: Path, hf: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.gguf"
    out.write_bytes(b"precious")
    with pytest.raises(OutputExistsError):
        write(strip(open_checkpoint(full), "o.gguf"), out)
    assert out.read_bytes() == b"precious"
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_text("")
    with pytest.raises(UsageError, match="stands there"):
        write(strip(open_checkpoint(full), "d"), tmp_path / "d", force=True)
    with pytest.raises(UsageError, match="stands there"):
        write(strip(open_checkpoint(hf), "o.gguf"), out, force=True)
    with pytest.raises(SystemFailure, match="no such folder"):
        write(strip(open_checkpoint(full), "o.gguf"), tmp_path / "nowhere" / "o.gguf")


def test_force_does_not_replace_a_folder_of_others(hf: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="not made by mtptools"):
        write(strip(open_checkpoint(hf), "home"), home, force=True)
    assert (home / "thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    write(strip(open_checkpoint(hf), "empty"), tmp_path / "empty", force=True)


def test_what_is_left_out_is_said(hf: Path, tmp_path: Path) -> None:
    import shutil

    own = tmp_path / "m"
    shutil.copytree(hf, own)
    (own / "pytorch_model.bin").write_bytes(b"x")
    (own / "assets").mkdir()
    plan = strip(open_checkpoint(own), "o")
    assert any("pytorch_model.bin" in fact for fact in plan.facts)
    assert any("assets" in fact for fact in plan.facts)


def test_diff_of_two_dialects(full: Path, hf: Path) -> None:
    with pytest.raises(UsageError, match="dialect"):
        diff(open_checkpoint(full), open_checkpoint(hf))


def test_only_plain_files_are_replaced(full: Path, tmp_path: Path) -> None:
    import os

    (tmp_path / "target").write_text("x")
    (tmp_path / "link.gguf").symlink_to(tmp_path / "target")
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.gguf")
    for name in ("link.gguf", "dangling.gguf", "pipe.gguf"):
        with pytest.raises(UsageError, match="stands there"):
            write(strip(open_checkpoint(full), name), tmp_path / name, force=True)
    assert (tmp_path / "target").read_text() == "x"


def test_a_receipt_of_others_is_not_replaced(full: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "o.gguf.receipt.json"
    theirs.write_text("theirs")
    with pytest.raises(OutputExistsError, match="receipt"):
        write(strip(open_checkpoint(full), "o.gguf"), tmp_path / "o.gguf")
    assert theirs.read_text() == "theirs"


def test_a_faster_run_is_not_overwritten(full: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.gguf"

    def other_run(n: int) -> None:
        out.write_bytes(b"faster")

    with pytest.raises(OutputExistsError):
        write(strip(open_checkpoint(full), "o.gguf"), out, progress=other_run)
    assert out.read_bytes() == b"faster"
    assert listing(tmp_path) == {"o.gguf"}


def test_leftovers_of_a_killed_run_are_cleared(full: Path, tmp_path: Path) -> None:
    stale = tmp_path / ".o.gguf.mtptools-999999999"
    stale.mkdir()
    (stale / "half").write_bytes(b"x")
    write(strip(open_checkpoint(full), "o.gguf"), tmp_path / "o.gguf")
    assert listing(tmp_path) == {"o.gguf", "o.gguf.receipt.json"}


def test_donor_lineage_repeats_the_conversion(full: Path, hf: Path, trunk_q8: Path, tmp_path: Path) -> None:
    """An HF head as Q8_0 is not the donor's bytes, and is still what converting them again gives."""
    donor = open_checkpoint(hf)
    out = tmp_path / "o.gguf"
    write(graft(open_checkpoint(trunk_q8), donor, out.name), out)
    assert lineage(open_checkpoint(out), donor=donor)[-1].verdict == "pass"
    name = next(
        e.name for e in graft(open_checkpoint(trunk_q8), donor, "o").entries if e.name.endswith("eh_proj.weight")
    )
    other = rewrite.gguf(out, tmp_path / "other.gguf", edit={name: lambda rows: rows[::-1]})
    assert lineage(open_checkpoint(other), donor=donor)[-1].verdict == "fail"


def test_a_shard_under_another_name(full: Path, tmp_path: Path) -> None:
    from mtptools.containers.gguf import split_keys

    path = rewrite.gguf(full, tmp_path / "x.gguf", metadata=dict(split_keys(0, 3, 99)))
    with pytest.raises(CorruptError, match="of 3"):
        open_checkpoint(path)


def test_shard_numbers_in_the_output_name(full: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="shard numbers"):
        write(strip(open_checkpoint(full), "x"), tmp_path / "x-00001-of-00003.gguf")


def test_input_that_shrinks_while_it_is_read(full: Path, tmp_path: Path) -> None:
    own = tmp_path / "m.gguf"
    own.write_bytes(full.read_bytes())
    plan = strip(open_checkpoint(own), "o.gguf")
    with open(own, "r+b") as file:
        file.truncate(own.stat().st_size // 2)
    with pytest.raises(CorruptError, match="ends within"):
        write(plan, tmp_path / "o.gguf")
    assert listing(tmp_path) == {"m.gguf"}


def test_receipts(full: Path, trunk_q8: Path, tmp_path: Path) -> None:
    trunk, donor = open_checkpoint(trunk_q8), open_checkpoint(full)
    out = tmp_path / "o.gguf"
    write(graft(trunk, donor, out.name), out)
    made = open_checkpoint(out)
    beside, inside = load_beside(made), load_inside(made)
    assert beside is not None
    assert inside is not None
    assert [source["name"] for source in beside["sources"]] == [trunk_q8.name, full.name]
    assert str(tmp_path) not in json.dumps(beside)
    assert inside["head_sha256"] == {t["name"]: t["sha256"] for t in beside["tensors"] if "sha256" in t}
    verdicts = [(item.against, item.verdict) for item in lineage(made, trunk, donor)]
    assert verdicts == [("receipt", "pass"), ("trunk", "pass"), ("donor", "pass")]
    out.with_name("o.gguf.receipt.json").unlink()
    assert [item.against for item in lineage(made)] == ["receipt inside"]


@pytest.mark.parametrize("place", ["head", "trunk"])
def test_lineage_sees_one_changed_byte(place: str, full: Path, trunk_q8: Path, tmp_path: Path) -> None:
    trunk, donor = open_checkpoint(trunk_q8), open_checkpoint(full)
    out = tmp_path / "o.gguf"
    write(graft(trunk, donor, out.name), out)
    name = next(e.name for e in graft(trunk, donor, "o").entries if e.head == (place == "head"))
    blob = open_checkpoint(out)[name].blobs[0]
    with open(out, "r+b") as file:
        file.seek(blob.offset + 1)
        byte = file.read(1)
        file.seek(blob.offset + 1)
        file.write(bytes([byte[0] ^ 1]))
    failed = {item.against for item in lineage(open_checkpoint(out), trunk, donor) if item.verdict == "fail"}
    assert failed == {"receipt", "donor" if place == "head" else "trunk"}


def test_diff_words(full: Path, tmp_path: Path) -> None:
    a = open_checkpoint(full)
    names = list(a)
    b = open_checkpoint(
        rewrite.gguf(
            full,
            tmp_path / "b.gguf",
            drop=(names[1],),
            rename={names[2]: "other.weight"},
            edit={names[3]: lambda rows: rows + 1},
        )
    )
    result = diff(a, b)
    assert result.dropped == (names[1],)
    assert result.renamed == ((names[2], "other.weight"),)
    assert result.changed == (names[3],)
    assert len(result.kept) == len(a) - 3
    assert not result.equal
    assert diff(a, a).equal
