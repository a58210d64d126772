"""--generic: a GGUF of tomorrow's architecture is moved as it stands, and what was not checked is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.containers.gguf_values import GgufValue, string_value
from mtptools.errors import IncompatibleError, MissingRoleError, UnknownFamilyError
from mtptools.head import head_names
from mtptools.ops.diff import diff
from mtptools.ops.extract import extract, strip
from mtptools.ops.graft import graft
from mtptools.ops.validate import validate
from mtptools.plan import Plan
from mtptools.writer import write
from tests import rewrite

ARCH = "qwen99"


@pytest.fixture
def tomorrow(full: Path, tmp_path: Path) -> Path:
    """The fixture under an architecture nobody knows, every metadata key included."""
    ckpt = open_checkpoint(full)
    old = ckpt.family.gguf_arch
    changes: dict[str, GgufValue | None] = {"general.architecture": string_value(ARCH)}
    for key, value in ckpt.metadata.stored.items():
        if key.startswith(f"{old}."):
            changes |= {key: None, f"{ARCH}{key.removeprefix(old)}": value}
    return rewrite.gguf(full, tmp_path / "tomorrow.gguf", metadata=changes)


def made(plan: Plan, path: Path) -> Checkpoint:
    write(plan, path)
    return open_checkpoint(path, generic=True)


def test_unknown_is_refused_without_the_word(tomorrow: Path) -> None:
    with pytest.raises(UnknownFamilyError, match=ARCH) as caught:
        extract(open_checkpoint(tomorrow), "o.gguf")
    assert "--generic" in str(caught.value.hint)


def test_strip_and_graft_give_the_file_back(tomorrow: Path, tmp_path: Path) -> None:
    source = open_checkpoint(tomorrow, generic=True)
    trunk = made(strip(source, "t.gguf"), tmp_path / "t.gguf")
    assert not head_names(trunk)
    head = made(extract(source, "h.gguf", bare=True), tmp_path / "h.gguf")
    plan = graft(trunk, head, "o.gguf")
    assert any(fact.startswith("generic: qwen99") and "not checked" in fact for fact in plan.facts)
    assert diff(source, made(plan, tmp_path / "o.gguf")).equal


def test_other_sizes_are_still_seen(tomorrow: Path, full: Path, tmp_path: Path) -> None:
    from mtptools.containers.gguf_values import scalar_value

    trunk = made(strip(open_checkpoint(tomorrow, generic=True), "t.gguf"), tmp_path / "t.gguf")
    other = rewrite.gguf(
        tomorrow, tmp_path / "other.gguf", metadata={f"{ARCH}.embedding_length": scalar_value("u32", 512)}
    )
    with pytest.raises(IncompatibleError, match="do not belong together") as caught:
        graft(trunk, open_checkpoint(other, generic=True), "o.gguf")
    assert any("hidden-size" in finding for finding in caught.value.findings)
    assert open_checkpoint(full, generic=True).family.name != ARCH


def test_half_a_trunk_is_still_refused(tomorrow: Path, tmp_path: Path) -> None:
    source = open_checkpoint(tomorrow, generic=True)
    names = tuple(name for name in source if name.startswith("blk.1."))
    broken = rewrite.gguf(tomorrow, tmp_path / "b.gguf", drop=names)
    with pytest.raises(MissingRoleError, match=r"block\(s\) 1"):
        strip(open_checkpoint(broken, generic=True), "o.gguf")


def test_validate_says_what_it_can(tomorrow: Path) -> None:
    result = validate(open_checkpoint(tomorrow, generic=True))
    assert not result.findings
