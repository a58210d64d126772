"""Where an output goes: is the place free, a temporary folder beside it, and the move at the end.

Nothing is at its place before everything is; what stood there before comes back when the move fails half-way.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from mtptools import receipt
from mtptools.checkpoint import SPLIT
from mtptools.errors import OutputExistsError, SystemFailure, UsageError
from mtptools.plan import Plan, human_bytes

__all__ = ["check_output", "publish", "put", "receipt_of", "staging", "unwritable"]


def put(path: Path, data: str | bytes, what: str = "") -> None:
    """A small file, all of it or nothing: what stood there stays if it cannot be written. Raises SystemFailure.

    Half a surrogate pair in text, a byte that is not UTF-8, becomes a question mark.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(data.encode("utf-8", "replace") if isinstance(data, str) else data)
        fresh.replace(path)
    except OSError as error:
        raise unwritable(path, error, what) from error
    finally:
        fresh.unlink(missing_ok=True)


def unwritable(path: Path, error: OSError, what: str = "") -> SystemFailure:
    return SystemFailure(
        f"cannot write{what and ' '}{what}: {error.strerror or error}",
        where=path,
        hint="give a file in a folder of yours",
    )


def receipt_of(plan: Plan, out: Path) -> Path:
    """Where the receipt of this output stands: beside the file or the first shard, or in the folder."""
    return receipt.receipt_path(out if plan.folder else out.parent / plan.files[0].name, plan.folder)


def _targets(plan: Plan, out: Path) -> list[Path]:
    if plan.folder:
        return [out]
    return [*(out.parent / file.name for file in plan.files), receipt_of(plan, out)]


def _other_shards(plan: Plan, out: Path) -> list[Path]:
    """Shards of an earlier output of this name with another count: a glob would take them for part of this one."""
    if plan.folder:
        return []
    stem, names = out.name.removesuffix(".gguf"), {file.name for file in plan.files}
    return [
        path
        for path in sorted(out.parent.glob("*.gguf"))
        if (match := SPLIT.match(path.name)) and match["stem"] == stem and path.name not in names
    ]


def check_output(plan: Plan, out: Path, *, force: bool) -> None:
    """Refuse before any work is done: output equal to an input, already there, or no room for it.

    Raises UsageError, OutputExistsError or SystemFailure.
    """
    if not plan.folder and SPLIT.match(out.name):
        raise UsageError(
            "shard numbers in the output's name",
            where=out,
            hint="give the plain name: shards are numbered by themselves",
        )
    _check_inputs(plan, out)
    for target in _targets(plan, out):
        if os.path.lexists(target):
            _check_kind(plan, target)
    taken = [path for path in (*_targets(plan, out), *_other_shards(plan, out)) if os.path.lexists(path)]
    if taken and not force and not (plan.folder and not any(out.iterdir())):
        raise OutputExistsError("the output exists", where=taken[0], hint="add --force to replace it")
    parent = out.parent
    if not parent.is_dir():
        raise SystemFailure("no such folder", where=parent, hint=f"mkdir -p {parent}")
    need, free = plan.new_bytes, shutil.disk_usage(parent).free
    if need > free:
        raise SystemFailure(
            f"the output needs {human_bytes(need)}, {human_bytes(need - free)} more than are free",
            where=parent,
            hint="free some space, or write to another disk",
        )


def _check_inputs(plan: Plan, out: Path) -> None:
    used = {file.path.resolve() for item in plan.inputs for file in item.checkpoint.files}
    used |= {item.checkpoint.path.resolve() for item in plan.inputs}
    again = {} if plan.folder else {out.parent / file.name: file.linked for file in plan.files if file.linked}
    for target in _targets(plan, out):
        real = target.resolve()
        same = [path for path in used if path.exists() and real.exists() and path.samefile(real)]
        if target in again:  # the link of an earlier run, which takes its place again
            same = [path for path in same if path != again[target].resolve()]
        if real in used or same or (plan.folder and any(real in path.parents for path in used)):
            raise UsageError("the output is one of the inputs", where=target, hint="give another path with -o")


def _check_kind(plan: Plan, target: Path) -> None:
    mode = os.lstat(target).st_mode
    if stat.S_ISDIR(mode) != plan.folder or not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        wanted, there = ("a folder" if plan.folder else "a file"), _kind(mode)
        raise UsageError(f"the output is {wanted}, and {there} stands there", where=target, hint="give another path")
    if plan.folder and any(target.iterdir()) and not receipt.receipt_path(target, True).is_file():
        raise UsageError(
            "the folder was not made by mtptools (no receipt in it): it is not replaced, even with --force",
            where=target,
            hint="remove it yourself, or give another path",
        )
    foreign = _foreign(target) if plan.folder else []
    if foreign:
        shown = ", ".join(foreign[:4]) + (" …" if len(foreign) > 4 else "")
        raise UsageError(
            f"the folder holds what mtptools did not put there: {shown}",
            where=target,
            hint="move it out of the folder first, or give another path: --force would remove it",
        )


def _foreign(folder: Path) -> list[str]:
    """Names in an earlier output's folder that its receipt does not list. A receipt without a list says nothing."""
    place = receipt.receipt_path(folder, True)
    if not place.is_file():
        return []
    try:
        listed = json.loads(place.read_text(encoding="utf-8")).get("files")
    except (OSError, ValueError, AttributeError):
        return []
    if not isinstance(listed, list):
        return []
    return sorted(path.name for path in folder.iterdir() if path.name not in {*listed, place.name})


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "a file" if stat.S_ISREG(mode) else "a device or pipe"


@contextlib.contextmanager
def staging(out: Path) -> Iterator[Path]:
    """A temporary folder beside the output, removed whatever happens; those of killed processes go too."""
    stem = f".{out.name}.mtptools-"
    for stale in out.parent.glob(f"{stem}*"):
        number = stale.name.removeprefix(stem).removesuffix("-old")
        # What a dead run took away is kept while nothing stands in its place.
        kept = stale.name.endswith("-old") and not os.path.lexists(out)
        if number.isdigit() and not _alive(int(number)) and not kept:
            shutil.rmtree(stale, ignore_errors=True)
    stage = out.parent / f"{stem}{os.getpid()}"
    try:
        stage.mkdir()
    except OSError as error:
        raise SystemFailure(
            f"cannot write: {error.strerror or error}", where=out.parent, hint="write to another folder"
        ) from error
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        pass
    return True


def publish(plan: Plan, out: Path, stage: Path, *, force: bool) -> None:
    """Move what is staged into place. The first shard goes last: until it is there, nothing opens as a checkpoint."""
    check_output(plan, out, force=force)  # another run may have been faster
    retired = stage.with_name(stage.name + "-old")
    moves = [(stage, out)] if plan.folder else [(stage / path.name, path) for path in reversed(_targets(plan, out))]
    done: list[Path] = []
    kept: dict[Path, Path] = {}
    try:
        retired.mkdir()
        for number, old in enumerate([*(target for _, target in moves), *_other_shards(plan, out)]):
            if os.path.lexists(old):
                os.replace(old, retired / str(number))
                kept[old] = retired / str(number)
        for new, target in moves:
            os.replace(new, target)
            done.append(target)
    except BaseException:
        for target in done:
            if not plan.folder:
                target.unlink(missing_ok=True)
        for target, old in kept.items():
            if not os.path.lexists(target):
                os.replace(old, target)
        raise
    finally:
        shutil.rmtree(retired, ignore_errors=True)
