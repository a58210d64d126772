"""The weight files of an output that keeps those of an input: their names, what stays in them, which can be links."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from mtptools.checkpoint import Checkpoint, File, split_name
from mtptools.containers.gguf import Metadata
from mtptools.errors import InputError
from mtptools.head import find_trunk
from mtptools.ops.declare import shard_metadata
from mtptools.plan import Entry, OutFile
from mtptools.receipt import KEY_PREFIX

__all__ = ["gguf_shards", "keep", "safetensors_shards", "unindexed", "with_made"]

ALIGNMENT: Final = 32  # of a GGUF without general.alignment
SINGLE: Final = "model.safetensors"
RENAMED: Final = ("model-trunk.safetensors", "model-trunk-whole.safetensors")


def keep(source: Checkpoint, label: str, names: Sequence[str]) -> tuple[Entry, ...]:
    """Entries that take these tensors as they are."""
    return tuple(Entry(name, source[name], source[name].codec, label, (name,)) for name in names)


def with_made(
    source: Checkpoint, label: str, made: Mapping[str, Entry], dropped: Collection[str] = ()
) -> list[tuple[File, list[Entry]]]:
    """The source's files with what is made in the place of what it replaces; what is new goes behind the last of the
    head, and a file of which nothing is left goes.
    """
    out: list[tuple[File, list[Entry]]] = []
    for file in source.files:
        kept = keep(source, label, [name for name in file.names if name not in dropped])
        out.append((file, [made.get(entry.name, entry) for entry in kept]))
    heads = [entries for _, entries in out if any(entry.head for entry in entries)]
    (heads or [out[-1][1]])[-1].extend(entry for name, entry in made.items() if name not in source)
    return [(file, entries) for file, entries in out if entries or file is source.files[0]]


def unindexed(source: Checkpoint) -> tuple[str, ...]:
    """Tensors of the shards that the index does not name, apart from the trunk's own: no part of the checkpoint.

    vLLM loads whole shards, so they would be loaded all the same. Where the index forgets a tensor that the trunk
    needs, it is the index that is wrong.
    """
    if source.index is None:
        return ()
    named = source.index["weight_map"]
    loose = [name for name in source if name not in named]
    if not loose:
        return ()
    needed = {name for _, _, found in find_trunk(source) if found is not None for name in found.names}
    return tuple(name for name in loose if name not in needed)


def _hindrance(source: Checkpoint, file: File, names: Sequence[str], position: int) -> str | None:
    """Why this file cannot be the output's file at `position` as it is, header and all; None when it can."""
    if source.container == "gguf" and position == 0:
        return "its header changes"
    gone, new = set(file.names) - set(names), set(names) - set(file.names)
    if gone:
        return f"{len(gone)} of its tensors are left out"
    if new:
        return f"{len(new)} tensors are added"
    if tuple(names) != file.names:
        return "its tensors stand in another order"
    if any(key.startswith(KEY_PREFIX) for key in file.metadata):
        return "its header has an earlier receipt"
    if source.container == "gguf":
        if any(name in source.gaps for name in names):
            return "its tensors do not follow each other as llama.cpp demands"
        if file.metadata.get("split.no") != position:
            return f"its split.no is {file.metadata.get('split.no')}, it becomes {position}"
    return None


def safetensors_shards(
    source: Checkpoint, label: str, dropped: Collection[str], facts: list[str], *, indexed: bool, link: bool
) -> list[OutFile]:
    """The shards of an HF or MLX checkpoint without the tensors of `dropped`. An empty one is no file.

    indexed  the output has an index: loaders try model.safetensors before it, so that file gets another name
    link     shards in which nothing changes become links
    """
    taken = {file.path.name for file in source.files}
    renamed = next(name for name in RENAMED if name not in taken)
    files = []
    for position, file in enumerate(source.files):
        names = [name for name in file.names if name not in dropped]
        if not names:
            continue
        why = _hindrance(source, file, names, position)
        if link and why is not None:
            facts.append(f"{file.path.name} is written, not linked: {why}")
        files.append(
            OutFile(
                renamed if indexed and file.path.name == SINGLE else file.path.name,
                "safetensors",
                dict(file.metadata),
                keep(source, label, names),
                linked=file.path if link and why is None else None,
            )
        )
    return files


def gguf_shards(
    source: Checkpoint,
    groups: Sequence[tuple[File | None, Sequence[Entry]]],
    metadata: Metadata,
    out_name: str,
    facts: list[str],
    *,
    link: bool,
) -> tuple[OutFile, ...]:
    """One GGUF, or shards of it.

    groups    what goes into each file, and the file of `source` it was in; None for a new one
    metadata  of the first file
    link      later shards in which nothing changes become links. Their split.count and split.tensors.count go stale:
              llama.cpp reads these from the first shard, and of the others split.no alone
    """
    count, total = len(groups), sum(len(entries) for _, entries in groups)
    stem = out_name.removesuffix(".gguf")
    files = []
    for position, (file, entries) in enumerate(groups):
        name = out_name if count == 1 else split_name(stem, position + 1, count)
        alignment = ALIGNMENT if file is None else file.alignment
        own = metadata if position == 0 else Metadata() if file is None else file.metadata
        if not isinstance(own, Metadata):
            raise InputError("a GGUF shard without GGUF metadata", where=source.path)
        if link and file is not None:
            made = sum(not entry.passes for entry in entries)
            why = _hindrance(source, file, [entry.name for entry in entries], position)
            why = why or (f"{made} of its tensors change" if made else None)
            if why is None:
                files.append(OutFile(name, "gguf", own, tuple(entries), alignment, linked=file.path))
                continue
            facts.append(f"{name} is written, not linked: {why}")
        shard = shard_metadata(own, position, count, total)
        files.append(OutFile(name, "gguf", shard, tuple(entries), alignment))
    if any(file.linked for file in files):
        facts.append("linked shards keep the split.count they had: llama.cpp reads the first shard's alone")
    return tuple(files)
