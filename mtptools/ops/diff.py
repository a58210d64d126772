"""diff: what differs between two checkpoints, by name and by content. The tool's own receipt keys do not count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import xxhash

from mtptools.checkpoint import Checkpoint
from mtptools.errors import UsageError
from mtptools.ops.declare import changes_between, gguf_changes
from mtptools.plan import Change
from mtptools.tensors import Tensor, read_blob
from mtptools.tokens import tokenizer_facts

__all__ = ["Diff", "diff", "digest"]


@dataclass(frozen=True)
class Diff:
    """Names of A's tensors (of B's in `added`); `renamed` maps A's name to B's, `recoded` gives both types."""

    kept: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    recoded: tuple[tuple[str, str, str], ...]
    changed: tuple[str, ...]
    added: tuple[str, ...]
    dropped: tuple[str, ...]
    metadata: tuple[Change, ...]

    @property
    def equal(self) -> bool:
        return not (self.renamed or self.recoded or self.changed or self.added or self.dropped or self.metadata)

    def to_json(self) -> dict[str, Any]:
        return {
            "equal": self.equal,
            "kept": list(self.kept),
            "renamed": [list(pair) for pair in self.renamed],
            "recoded": [{"name": n, "before": a, "after": b} for n, a, b in self.recoded],
            "changed": list(self.changed),
            "added": list(self.added),
            "dropped": list(self.dropped),
            "metadata": [{"key": c.key, "before": c.before, "after": c.after} for c in self.metadata],
        }


def digest(tensor: Tensor, progress: Callable[[int], None] = lambda n: None) -> str:
    """xxh3-128 of a tensor's bytes, read in chunks."""
    state = xxhash.xxh3_128()
    for blob in tensor.chunks():
        state.update(read_blob(blob, tensor.name))
        progress(blob.nbytes)
    return state.hexdigest()


def diff(a: Checkpoint, b: Checkpoint, progress: Callable[[int], None] = lambda n: None) -> Diff:
    """Compare two checkpoints of one dialect, tensor by tensor, bytes included. `progress` is called with bytes."""
    if a.dialect != b.dialect:
        raise UsageError(
            f"{a.path.name} is in the {a.dialect} dialect, {b.path.name} in {b.dialect}: names cannot be compared",
            hint="compare two GGUF files or two Hugging Face folders",
        )
    kept, recoded, changed = [], [], []
    for name in a:
        if name not in b:
            continue
        left, right = a[name], b[name]
        if left.codec != right.codec and left.shape == right.shape:
            recoded.append((name, left.codec, right.codec))
        elif left.shape == right.shape and _same(left, right, progress):
            kept.append(name)
        else:
            changed.append(name)
    gone, new = [n for n in a if n not in b], [n for n in b if n not in a]
    renamed = _renamed(a, b, gone, new, progress)
    moved = {name for pair in renamed for name in pair}
    return Diff(
        kept=tuple(kept),
        renamed=tuple(renamed),
        recoded=tuple(recoded),
        changed=tuple(changed),
        added=tuple(name for name in new if name not in moved),
        dropped=tuple(name for name in gone if name not in moved),
        metadata=tuple(_metadata(a, b)),
    )


def _same(left: Tensor, right: Tensor, progress: Callable[[int], None]) -> bool:
    if left.nbytes != right.nbytes:
        return False
    equal = True
    for one, other in zip(left.chunks(), right.chunks(), strict=True):
        equal = equal and read_blob(one, left.name) == read_blob(other, right.name)
        progress(one.nbytes + other.nbytes)
    return equal


def _renamed(
    a: Checkpoint, b: Checkpoint, gone: Iterable[str], new: Iterable[str], progress: Callable[[int], None]
) -> list[tuple[str, str]]:
    def key(tensor: Tensor) -> tuple[tuple[int, ...], str]:
        return tensor.shape, tensor.codec

    shapes = {key(b[name]) for name in new}
    waiting: dict[tuple[Any, ...], list[str]] = {}
    candidates = [name for name in gone if key(a[name]) in shapes]
    old_shapes = {key(a[name]) for name in candidates}
    for name in new:
        if key(b[name]) in old_shapes:
            waiting.setdefault((*key(b[name]), digest(b[name], progress)), []).append(name)
    out = []
    for name in candidates:
        matches = waiting.get((*key(a[name]), digest(a[name], progress)))
        if matches:
            out.append((name, matches.pop(0)))
    return out


def _metadata(a: Checkpoint, b: Checkpoint) -> list[Change]:
    if a.dialect == "gguf" and b.dialect == "gguf":
        return gguf_changes(a, b.metadata)
    changes = changes_between(a.config, b.config)
    left, right = (None if facts is None else facts.digest for facts in (tokenizer_facts(a), tokenizer_facts(b)))
    return changes if left == right else [*changes, Change("tokenizer.json", left, right)]
