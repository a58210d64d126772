"""graft: a trunk and a donor's head become one checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtptools.checkpoint import Checkpoint, split_name
from mtptools.containers.gguf import Metadata
from mtptools.containers.safetensors import INDEX_NAME, parse_json
from mtptools.errors import InputError
from mtptools.head import head_names, trunk_blocks, trunk_layers
from mtptools.ops.compatible import require_match
from mtptools.ops.declare import (
    changes_between,
    gguf_changes,
    gguf_with_depth,
    hf_with_depth,
    shard_metadata,
    stated_by,
    to_json_bytes,
)
from mtptools.ops.donor import complete_head, head_entries, is_quantized, require_trunk
from mtptools.ops.quant_config import cover_head, cover_in_modelopt
from mtptools.plan import Dropped, Entry, Input, OutFile, Plan, SideFile

__all__ = ["graft"]

DEFAULT_ALIGNMENT = 32  # of a GGUF without general.alignment
HEAD_FILE = "model-mtp.safetensors"
TRUNK_FILE = "model-trunk.safetensors"
MODELOPT_FILE = "hf_quant_config.json"
WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")


def graft(
    trunk: Checkpoint,
    donor: Checkpoint,
    out_name: str,
    *,
    head_type: str | None = None,
    allow: Sequence[str] = (),
) -> Plan:
    """Plan one checkpoint from `trunk` and the head of `donor`.

    out_name   file name of the output (its folder does not matter to a plan)
    head_type  type of the head's matrices. By default a GGUF donor's bytes are kept, and an HF head becomes Q8_0 on
               a quantized GGUF trunk, BF16 on a float one. Norms and routers are F32 in GGUF.
    allow      ids of mismatches to accept, see `mtptools.ops.compatible.FINDINGS`

    Raises MissingHeadError, MissingRoleError, InputError (the trunk has a head), IncompatibleError, CodecError.
    """
    heads = complete_head(donor)
    require_trunk(trunk)
    standing = head_names(trunk)
    if standing:
        raise InputError(
            f"the trunk has a head already ({len(standing)} tensors, {standing[0]} …)",
            where=trunk.path,
            hint=f"mtptools strip {trunk.path.name} -o trunk{trunk.path.suffix}, then graft onto that",
        )
    facts = require_match(trunk, donor, allow)
    if trunk.hparams.depth:
        facts.append(f"the trunk declared {trunk.hparams.depth} MTP layer(s) it did not hold; now it holds them")
    if trunk.dialect == "gguf":
        return _gguf(trunk, donor, heads, out_name, head_type, facts)
    return _hf(trunk, donor, len(heads), head_type, facts)


def _dropped(donor: Checkpoint, used: Sequence[Entry]) -> tuple[Dropped, ...]:
    taken = {name for entry in used for name in entry.names}
    return tuple(Dropped("donor", name, "not part of the head") for name in donor if name not in taken)


def _gguf(
    trunk: Checkpoint, donor: Checkpoint, heads: list[Any], out_name: str, head_type: str | None, facts: list[str]
) -> Plan:
    n_trunk = trunk_blocks(trunk)
    wanted = head_type
    if wanted is None and donor.dialect != "gguf":
        wanted = "Q8_0" if is_quantized(trunk) else "BF16"
        facts.append(
            f"head type {wanted}: the donor is HF and the trunk is {'quantized' if wanted == 'Q8_0' else 'float'}"
        )
    head = head_entries(donor, heads, "gguf", n_trunk, wanted)
    metadata = gguf_with_depth(
        trunk.metadata, trunk.family.gguf_arch, n_trunk, len(heads), stated_by(donor), trunk_layers(donor)
    )
    groups = [[Entry(n, trunk[n], trunk[n].codec, "trunk", (n,)) for n in file.names] for file in trunk.files]
    split = len(groups) > 1
    groups = [*groups, head] if split else [groups[0] + head]
    files = _gguf_files(trunk, groups, metadata, out_name)
    return Plan(
        verb="graft",
        inputs=(Input("trunk", trunk), Input("donor", donor)),
        files=files,
        dropped=_dropped(donor, head),
        changes=tuple(gguf_changes(trunk, files[0].metadata)) if isinstance(files[0].metadata, Metadata) else (),
        facts=tuple(facts),
    )


def _gguf_files(trunk: Checkpoint, groups: list[list[Entry]], metadata: Metadata, out_name: str) -> tuple[OutFile, ...]:
    """One file, or shards: the trunk's own shards keep their tensors, the head becomes the last one."""
    count, total = len(groups), sum(map(len, groups))
    if count == 1:
        alone = shard_metadata(metadata, 0, 1, total)
        return (OutFile(out_name, "gguf", alone, tuple(groups[0]), trunk.files[0].alignment),)
    stem = out_name.removesuffix(".gguf")
    files = []
    for number, entries in enumerate(groups):
        own = trunk.files[number].metadata if 0 < number < len(trunk.files) else Metadata()
        base = metadata if number == 0 else own
        if not isinstance(base, Metadata):
            raise InputError("a GGUF shard without GGUF metadata", where=trunk.path)
        shard = shard_metadata(base, number, count, total)
        alignment = trunk.files[number].alignment if number < len(trunk.files) else DEFAULT_ALIGNMENT
        files.append(OutFile(split_name(stem, number + 1, count), "gguf", shard, tuple(entries), alignment))
    return tuple(files)


def _hf(trunk: Checkpoint, donor: Checkpoint, depth: int, head_type: str | None, facts: list[str]) -> Plan:
    head = head_entries(donor, [], "hf", 0, head_type)
    files = []
    for file in trunk.files:
        # Loaders try model.safetensors before the index: beside one it must have another name.
        name = TRUNK_FILE if file.path.name == "model.safetensors" else file.path.name
        entries = tuple(Entry(n, trunk[n], trunk[n].codec, "trunk", (n,)) for n in file.names)
        files.append(OutFile(name, "safetensors", dict(file.metadata), entries))
    taken = {file.name for file in files}
    head_file = next(
        n for n in (HEAD_FILE, "model-mtp-head.safetensors", "model-mtp-graft.safetensors") if n not in taken
    )
    files.append(OutFile(head_file, "safetensors", {"format": "pt"}, tuple(head)))
    facts += left_out(trunk)
    config = cover_head(hf_with_depth(trunk.config, trunk.family, depth), trunk.family, facts)
    made = {"config.json": to_json_bytes(config), INDEX_NAME: index_json(trunk.index, files)}
    if trunk.folder is not None and (second := trunk.folder / MODELOPT_FILE).is_file():
        tree = parse_json(second.read_bytes(), second)
        if isinstance(tree, dict):
            made[MODELOPT_FILE] = to_json_bytes(cover_in_modelopt(tree, trunk.family, facts))
    side = side_files(trunk, made)
    return Plan(
        verb="graft",
        inputs=(Input("trunk", trunk), Input("donor", donor)),
        files=tuple(files),
        side=side,
        dropped=_dropped(donor, head),
        changes=tuple(changes_between(trunk.config, config)),
        facts=tuple(facts),
        folder=True,
    )


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


def side_files(ckpt: Checkpoint, made: dict[str, bytes]) -> tuple[SideFile, ...]:
    """The folder's other files, and the ones made anew. An earlier receipt does not describe the output."""
    skip = {*made, "mtptools-receipt.json"}
    folder = ckpt.folder
    copied = [
        SideFile(str(path), folder / path)
        for path in ckpt.side_files
        if folder is not None and str(path) not in skip and path.suffix not in WEIGHTS
    ]
    return (*copied, *(SideFile(name, content=content) for name, content in made.items()))
