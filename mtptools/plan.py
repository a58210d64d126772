"""A plan: what will be written, tensor by tensor, before a byte is. Flat, total, printable.

Every tensor of every input is either the source of an entry or in the dropped list with a reason; the
constructor checks it. The writer does what the plan says and nothing else; tests compare plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mtptools.checkpoint import Checkpoint
from mtptools.codecs import CODECS
from mtptools.containers.gguf import Metadata
from mtptools.errors import CodecError
from mtptools.recode import recoded
from mtptools.tensors import NOWHERE, Blob, Tensor

__all__ = ["Change", "Dropped", "Entry", "Input", "OutFile", "Plan", "SideFile", "Used", "human_bytes"]

Action = Literal["keep", "rename", "transform", "recode", "insert", "select"]


@dataclass(frozen=True)
class Entry:
    """One tensor of the output.

    name      its name there
    source    where its rows come from, already in the output's layout and shape
    codec     type in the output
    values    (from, to) value conventions, None when values stay
    input     "trunk", "donor" or "source"
    names     names of the input tensors it is made of
    head      True for a tensor of the head
    importance  weights of columns by which it is quantized, float32 [matrices, columns]
    encoding  name of the encoding (`mtptools.quantized.encode`) in which several tensors of the output make a matrix;
              `source` makes the bytes of one of them
    origin    with an encoding: the type that the matrix has in the input
    of_rows   `source` is a choice of rows of a matrix that has so many; 0: all of it
    """

    name: str
    source: Tensor
    codec: str
    input: str
    names: tuple[str, ...]
    values: tuple[str, str] | None = None
    head: bool = False
    importance: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    encoding: str = ""
    origin: str = ""
    of_rows: int = 0

    @property
    def passes(self) -> bool:
        """True when the output's bytes are the input's bytes."""
        return self.values is None and self.codec == self.source.codec and self.source.stored

    @property
    def action(self) -> Action:
        if self.input == "donor" or not self.names:  # of another checkpoint, or of none
            return "insert"
        if self.of_rows and self.source.rows is None:
            return "select"
        if self.values is not None:
            return "transform"
        if self.codec != self.source.codec or self.encoding:
            return "recode"
        return "keep" if self.names == (self.name,) else "rename"

    def made(self) -> Iterator[bytes]:
        """Its bytes, where they are not the input's. Raises CodecError, naming the tensor and the input's file."""
        try:
            yield from recoded(self.source, self.codec, self.values, self.importance)
        except CodecError as error:
            if self.encoding:  # it names the matrix, perhaps another one that shares its scale, and its file
                raise
            paths = {blob.path for blob in self.source.blobs} - {NOWHERE}
            place = f"{paths.pop()}, {self.name}" if len(paths) == 1 else self.name
            raise CodecError(error.what, where=place, hint=error.hint) from error

    @property
    def output(self) -> Tensor:
        """The tensor as the output's header describes it: its size is the output's, its place not known yet."""
        return Tensor(self.name, self.source.shape, self.codec, (Blob(Path(), 0, self.nbytes),))

    @property
    def nbytes(self) -> int:
        shape = self.source.shape
        return self.source.n_rows * CODECS[self.codec].row_bytes(shape[-1] if shape else 1)


@dataclass(frozen=True)
class OutFile:
    """One weight file of the output: its header's metadata and its tensors in order.

    linked  the input's file that becomes this one by a hard link, header and all; None: the file is written
    """

    name: str
    container: Literal["gguf", "safetensors"]
    metadata: Metadata | dict[str, str]
    entries: tuple[Entry, ...]
    alignment: int = 32
    linked: Path | None = None

    def __post_init__(self) -> None:
        if self.linked is not None:
            for entry in self.entries:
                places = {blob.path for blob in entry.source.blobs}
                if entry.head or entry.action != "keep" or places != {self.linked}:
                    raise ValueError(f"{entry.name} is not as {self.linked.name} has it: {self.name} cannot be a link")

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.entries)


@dataclass(frozen=True)
class SideFile:
    """A file that is not weights: copied from `source`, or with `content` made anew."""

    name: str
    source: Path | None = None
    content: bytes | None = None

    @property
    def nbytes(self) -> int:
        return len(self.content or b"") if self.source is None else self.source.stat().st_size


@dataclass(frozen=True)
class Dropped:
    """An input tensor that is not in the output, and why."""

    input: str
    name: str
    reason: str


@dataclass(frozen=True)
class Change:
    """One changed metadata key or configuration field; None means absent."""

    key: str
    before: object
    after: object


@dataclass(frozen=True)
class Used:
    """What else decided bytes of the output: an importance matrix with its digest, foreign code with its version."""

    what: str
    name: str
    detail: str


@dataclass(frozen=True)
class Input:
    """A checkpoint the plan reads, under its label."""

    label: str
    checkpoint: Checkpoint


@dataclass(frozen=True)
class Plan:
    """What one command will write.

    folder  True: the output is a folder; False: one file, or a set of shards beside each other
    facts   what was decided and why, for people
    """

    verb: str
    inputs: tuple[Input, ...]
    files: tuple[OutFile, ...]
    side: tuple[SideFile, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    changes: tuple[Change, ...] = ()
    facts: tuple[str, ...] = ()
    folder: bool = False
    used: tuple[Used, ...] = ()

    def __post_init__(self) -> None:
        placed = {(entry.input, name) for entry in self.entries for name in entry.names}
        gone = {(drop.input, drop.name) for drop in self.dropped}
        for item in self.inputs:
            every = {(item.label, name) for name in item.checkpoint}
            lost = every - placed - gone
            if lost:
                raise ValueError(f"{self.verb}: the plan says nothing of {sorted(lost)[:5]}")
        outputs = Counter(entry.name for entry in self.entries)
        twice = [name for name, count in outputs.items() if count > 1]
        if twice or placed & gone:
            raise ValueError(f"{self.verb}: planned twice: {twice or sorted(placed & gone)[:5]}")

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(entry for file in self.files for entry in file.entries)

    def read(self) -> Iterator[Blob]:
        """What carrying it out reads of its inputs' weight files."""
        stored = {item.label: item.checkpoint for item in self.inputs}
        for file in self.files:
            if file.linked is not None:
                yield Blob(file.linked, 0, file.linked.stat().st_size)
        for entry in self.entries:
            if all(blob.path != NOWHERE for blob in entry.source.blobs):
                yield from entry.source.blobs
            else:  # computed: of what it is made, all
                yield from (blob for name in entry.names for blob in stored[entry.input][name].blobs)
        for side in self.side:
            if side.source is not None:
                yield Blob(side.source, 0, side.nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(file.nbytes for file in self.files)

    @property
    def linked_bytes(self) -> int:
        """Of these, the ones that take no space: their files are links to the input's."""
        return sum(file.nbytes for file in self.files if file.linked is not None)

    @property
    def new_bytes(self) -> int:
        """What the output takes on the disk, at the end and at its peak: tensors that are written, and side files."""
        return self.nbytes - self.linked_bytes + sum(side.nbytes for side in self.side)

    @property
    def space(self) -> str:
        """New and linked bytes, for people."""
        linked = f", linked: {human_bytes(self.linked_bytes)}" if self.linked_bytes else ""
        return f"new on disk: {human_bytes(self.new_bytes)}{linked}"

    def to_json(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "inputs": [{"label": i.label, "name": i.checkpoint.path.name} for i in self.inputs],
            "bytes": self.nbytes,
            "new_bytes": self.new_bytes,
            "linked_bytes": self.linked_bytes,
            "files": [
                {
                    "name": file.name,
                    "container": file.container,
                    "linked": None if file.linked is None else file.linked.name,
                    "tensors": [_entry_json(entry) for entry in file.entries],
                }
                for file in self.files
            ],
            "side_files": [side.name for side in self.side],
            "dropped": [{"input": d.input, "name": d.name, "reason": d.reason} for d in self.dropped],
            "changes": [{"key": c.key, "before": c.before, "after": c.after} for c in self.changes],
            "facts": list(self.facts),
            "used": [asdict(used) for used in self.used],
        }

    def render(self) -> str:
        """The plan for people: the head tensor by tensor, the rest in totals."""
        lines = [f"{self.verb}: {human_bytes(self.nbytes)} of tensors in {len(self.files)} file(s)", f"  {self.space}"]
        lines += [f"  {fact}" for fact in self.facts]
        kept = [entry for entry in self.entries if not entry.head]
        for (action, source, codec), group in _groups(kept).items():
            size = human_bytes(sum(entry.nbytes for entry in group))
            kind = source if source == codec else f"{source} -> {codec}"
            lines.append(f"  {action:<9} {len(group):>4} tensors  {kind:<14} {size:>10}")
        head = [entry for entry in self.entries if entry.head]
        if head:
            lines.append(f"  head: {len(head)} tensors, {human_bytes(sum(entry.nbytes for entry in head))}")
        for entry in head:
            before, after = entry.origin or entry.source.codec, entry.encoding or entry.codec
            kind = entry.codec if before == after else f"{before} -> {after}"
            values = f"  {entry.values[0]} -> {entry.values[1]}" if entry.values else ""
            values += f"  of {entry.of_rows} rows" if entry.of_rows else ""
            lines.append(f"    {entry.action:<9} {entry.name:<44} {kind:<14} {list(entry.source.shape)}{values}")
        reasons = Counter((drop.input, drop.reason) for drop in self.dropped)
        lines += [f"  drop      {n:>4} tensors of the {label}: {why}" for (label, why), n in reasons.items()]
        lines += [f"  change    {c.key}: {_short(c.before)} -> {_short(c.after)}" for c in self.changes]
        return "\n".join(lines)


def _groups(entries: list[Entry]) -> dict[tuple[str, str, str], list[Entry]]:
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.action, entry.source.codec, entry.codec), []).append(entry)
    return groups


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "action": entry.action,
        "input": entry.input,
        "from": list(entry.names),
        "shape": list(entry.source.shape),
        "type": entry.codec,
        "source_type": entry.origin or entry.source.codec,
        "encoding": entry.encoding or None,
        "values": list(entry.values) if entry.values else None,
        "bytes": entry.nbytes,
        "head": entry.head,
        "weighted": entry.importance is not None,
        "of_rows": entry.of_rows or None,
    }


def _short(value: object) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def human_bytes(n: float) -> str:
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.2f} GB"
