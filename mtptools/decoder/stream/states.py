"""What lies between two layers, on disk: to go on after a break, or on another machine."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final

import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mtptools.errors import CorruptError, InputError, SystemFailure

__all__ = ["StateFolder"]

MANIFEST: Final = "run.json"

STALE: Final = 600
"""Seconds after which nobody is writing a file any more."""


class StateFolder:
    """A folder with `run.json`, which says what run it is of, and `after-NNNN.safetensors`: states after N layers."""

    def __init__(self, folder: Path, run: dict[str, Any]) -> None:
        """run: what states depend on. Raises InputError when the folder holds states of another run, SystemFailure."""
        self.folder = folder
        known = folder / MANIFEST
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            if known.exists():
                self._check(known, run)
            else:
                self._replace(known, lambda path: path.write_text(json.dumps(run, indent=1), encoding="utf-8"))
        except OSError as error:
            raise SystemFailure(
                f"cannot keep states there: {error.strerror or error}", where=folder, hint="another --state folder"
            ) from error

    def _check(self, known: Path, run: dict[str, Any]) -> None:
        try:
            found = json.loads(known.read_text(encoding="utf-8"))
        except ValueError:
            found = {}
        named = [name for name in run if not isinstance(found, dict) or found.get(name) != run[name]]
        if named:
            raise InputError(
                f"these states are of another run: other {', '.join(named)}",
                where=self.folder,
                hint="another --state folder, or delete this one",
            )

    def _path(self, layers: int) -> Path:
        return self.folder / f"after-{layers:04d}.safetensors"

    def _replace(self, path: Path, write: Any) -> None:
        """Write beside, then rename: a break leaves the old file."""
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            write(partial)
            manifest = self.folder / MANIFEST
            if manifest.exists():  # for whoever may read the folder; safetensors writes for its owner alone
                partial.chmod(manifest.stat().st_mode & 0o777)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """What runs that were killed while they wrote have left; not what one is writing now."""
        for partial in self.folder.glob(".*.*.*"):
            if time.time() - partial.stat().st_mtime > STALE:
                partial.unlink(missing_ok=True)

    def last(self, first: int, stop: int) -> int | None:
        """The most layers, from `first` to `stop`, of which there are states."""
        return next((n for n in range(stop, first - 1, -1) if self._path(n).exists()), None)

    def load(self, layers: int) -> Tensor:
        """States after so many layers, float32 [rows, width]. Raises CorruptError where they are not what was saved."""
        path = self._path(layers)
        try:
            with safe_open(path, "pt") as file:
                states: Tensor = file.get_tensor("states")
                told = (file.metadata() or {}).get("digest")
        except (OSError, SafetensorError) as error:
            raise CorruptError(f"cannot read the states: {error}", where=path, hint="delete the file") from error
        if told != _digest(states):
            raise CorruptError("these are not the states that were saved", where=path, hint="delete the file")
        return states

    def save(self, layers: int, states: Tensor, keep: int) -> None:
        """Keep states after so many layers; those of the layer before are not needed any more, unless it is `keep`."""
        try:
            here = states.contiguous().cpu()
            told = {"digest": _digest(here)}
            self._replace(self._path(layers), lambda path: save_file({"states": here}, path, told))
            if layers - 1 != keep:
                self._path(layers - 1).unlink(missing_ok=True)
        except (OSError, SafetensorError) as error:
            raise SystemFailure(f"cannot keep states: {error}", where=self.folder, hint="free some space") from error


def _digest(states: Tensor) -> str:
    return xxhash.xxh3_128_hexdigest(repr((states.dtype, states.shape)).encode() + states.numpy().tobytes())
