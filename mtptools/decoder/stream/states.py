"""What lies between two layers, on disk: to go on after a break, or on another machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mtptools.errors import CorruptError, InputError, SystemFailure, typed

__all__ = ["StateFolder"]

MANIFEST: Final = "run.json"

_OTHERWISE: Final = f"another --state folder, or delete {MANIFEST} and after-*.safetensors in this one"

STALE: Final = 600
"""Seconds after which nobody is writing a file any more."""

_PARTIAL: Final = re.compile(r"\.(run\.json|after-\d{4,}\.safetensors)\.[0-9a-f]{8}\.mtptools")
"""Names of files while they are written (`_replace`): nobody else's."""


class StateFolder:
    """A folder with `run.json`, which says what run it is of, and `after-NNNN.safetensors`: states after N layers.

    Every file of states says what run it is of too: files may be copied, and folders may be written to by two runs.
    """

    def __init__(self, folder: Path, run: dict[str, Any]) -> None:
        """run: what states depend on.

        Raises InputError when the folder holds states of another run, or files and no `run.json`, CorruptError when
        that is damaged, SystemFailure.
        """
        self.folder = folder
        self._key = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
        try:
            if folder.is_file():
                raise SystemFailure(
                    "cannot keep states there: it is a file", where=folder, hint="a folder: --state DIR"
                )
            folder.mkdir(parents=True, exist_ok=True)
            self._claim(run)
            self._sweep()
        except OSError as error:
            raise SystemFailure(
                f"cannot keep states there: {error.strerror or error}", where=folder, hint="another --state folder"
            ) from error

    def _claim(self, run: dict[str, Any]) -> None:
        """See that the folder is this run's; an empty one becomes it, unless another run is faster."""
        known = self.folder / MANIFEST
        if not known.exists():
            if any(not _PARTIAL.fullmatch(path.name) for path in self.folder.iterdir()):
                raise InputError(
                    "there are files in this folder and no run.json that says of what run they are",
                    where=self.folder,
                    hint=f"a folder of its own: --state {typed(self.folder / 'states')}",
                )
            with contextlib.suppress(FileExistsError):
                self._replace(known, lambda path: path.write_text(json.dumps(run, indent=1), encoding="utf-8"), _link)
        self._check(known, run)

    def _check(self, known: Path, run: dict[str, Any]) -> None:
        try:
            found = json.loads(known.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if not isinstance(found, dict) or not set(run) <= set(found):
            raise CorruptError(
                "run.json, which says of what run these states are, is damaged",
                where=self.folder,
                hint=_OTHERWISE,
            )
        named = [name for name in run if found[name] != run[name]]
        if named:
            raise InputError(
                f"these states are of another run: other {', '.join(named)}",
                where=self.folder,
                hint=_OTHERWISE,
            )

    def _path(self, layers: int) -> Path:
        return self.folder / f"after-{layers:04d}.safetensors"

    def _replace(
        self, path: Path, write: Callable[[Path], object], place: Callable[[Path, Path], None] = os.replace
    ) -> None:
        """Write beside, then rename: a break leaves the old file."""
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.mtptools")
        try:
            write(partial)
            manifest = self.folder / MANIFEST
            if manifest.exists():  # for whoever may read the folder; safetensors writes for its owner alone
                partial.chmod(manifest.stat().st_mode & 0o777)
            place(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """What runs that were killed while they wrote have left; not what one is writing now."""
        for partial in self.folder.iterdir():
            if _PARTIAL.fullmatch(partial.name):
                with contextlib.suppress(OSError):  # gone, or not a file
                    if time.time() - partial.stat().st_mtime > STALE:
                        partial.unlink()

    def last(self, first: int, stop: int) -> int | None:
        """The most layers, from `first` to `stop`, of which there are states."""
        return next((n for n in range(stop, first - 1, -1) if self._path(n).exists()), None)

    def load(self, layers: int) -> Tensor:
        """States after so many layers, float32 [rows, width].

        Raises CorruptError where they are not what was saved, InputError where they are of another run.
        """
        path = self._path(layers)
        try:
            with safe_open(path, "pt") as file:
                # A copy, placed as torch places what it computes: products of rows elsewhere may have other bits.
                states: Tensor = file.get_tensor("states").clone()
                told = file.metadata() or {}
        except (OSError, SafetensorError) as error:
            raise CorruptError(f"cannot read the states: {error}", where=path, hint="delete the file") from error
        if told.get("digest") != _digest(states):
            raise CorruptError("these are not the states that were saved", where=path, hint="delete the file")
        if told.get("run") != self._key:
            raise InputError(
                "these states are of another run than run.json beside them says",
                where=path,
                hint="delete the file, or another --state folder",
            )
        return states

    def save(self, layers: int, states: Tensor, keep: int) -> None:
        """Keep states after so many layers; those of the layer before are not needed any more, unless it is `keep`."""
        try:
            here = states.contiguous().cpu()
            told = {"digest": _digest(here), "run": self._key}
            self._replace(self._path(layers), lambda path: save_file({"states": here}, path, told))
            if layers - 1 != keep:
                self._path(layers - 1).unlink(missing_ok=True)
        except (OSError, SafetensorError) as error:
            raise SystemFailure(f"cannot keep states: {error}", where=self.folder, hint="free some space") from error


def _link(partial: Path, path: Path) -> None:
    """Give a file its name unless there is one of that name: FileExistsError then."""
    try:
        os.link(partial, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: what is written is read again, and files of states are checked
        partial.replace(path)


def _digest(states: Tensor) -> str:
    digest = xxhash.xxh3_128(repr((states.dtype, states.shape)).encode())
    digest.update(states.numpy().data)
    return digest.hexdigest()
