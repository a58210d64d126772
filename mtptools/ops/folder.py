"""What stands in an output folder beside its weights: the index, copied files, and facts about what is not copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.ops.declare import to_json_bytes
from mtptools.plan import OutFile, SideFile

__all__ = ["NOT_INDEXED", "index_json", "left_out", "loose_facts", "side_files"]

NOT_INDEXED: Final = "not in the index"
WEIGHTS: Final = (".safetensors", ".gguf", ".bin", ".pt", ".pth")


def index_json(before: dict[str, Any] | None, files: Sequence[OutFile]) -> bytes:
    """model.safetensors.index.json for these files; metadata of an earlier index is kept, its size renewed."""
    metadata = dict((before or {}).get("metadata") or {})
    metadata["total_size"] = sum(entry.nbytes for file in files for entry in file.entries)
    names = {entry.name: file.name for file in files for entry in file.entries}
    return to_json_bytes({"metadata": metadata, "weight_map": dict(sorted(names.items()))})


def left_out(ckpt: Checkpoint) -> list[str]:
    """Facts about what stands in the folder and is not part of the checkpoint: weights of no index, folders."""
    folder = ckpt.folder
    if folder is None:
        return []
    used = {file.path.name for file in ckpt.files}
    weights = [p.name for p in sorted(folder.iterdir()) if p.suffix in WEIGHTS and p.name not in used]
    inner = [p.name for p in sorted(folder.iterdir()) if p.is_dir() and not p.name.startswith(".")]
    out = [f"left out, not part of the checkpoint: {', '.join(weights)}"] if weights else []
    return out + ([f"left out, folders are not copied: {', '.join(inner)}"] if inner else [])


def loose_facts(names: Sequence[str]) -> list[str]:
    """The fact about tensors that no index names: they are in the shards and not in the output."""
    shown = f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
    return [f"left out, in a shard and not in the index: {shown} ({len(names)} tensors)"] if names else []


def side_files(ckpt: Checkpoint, made: dict[str, bytes]) -> tuple[SideFile, ...]:
    """The folder's other files, and the ones made anew. An earlier receipt, or settings, are not the output's."""
    skip = {*made, "mtptools-receipt.json", "mtptools.toml"}
    folder = ckpt.folder
    copied = [
        SideFile(str(path), folder / path)
        for path in ckpt.side_files
        if folder is not None and str(path) not in skip and path.suffix not in WEIGHTS
    ]
    return (*copied, *(SideFile(name, content=content) for name, content in made.items()))
