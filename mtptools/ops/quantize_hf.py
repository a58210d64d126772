"""quantize, in Hugging Face and MLX folders: the head in another encoding, every byte of the trunk as it was."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.codecs import CODECS
from mtptools.containers.safetensors import INDEX_NAME
from mtptools.head import Head, head_names
from mtptools.ops.declare import MODELOPT_FILE, changes_between, modelopt_config, to_json_bytes
from mtptools.ops.draft_loaders import draft_facts
from mtptools.ops.encoded_head import encoded_head
from mtptools.ops.exact import statement
from mtptools.ops.folder import NOT_INDEXED, index_json, left_out, loose_facts, side_files
from mtptools.ops.head_roles import roles_of
from mtptools.ops.mlx_config import with_head
from mtptools.ops.quant_config import Module, cover, cover_modelopt, head_modules
from mtptools.ops.quant_own import is_own, own_config
from mtptools.ops.quant_pins import routers_of
from mtptools.ops.shards import keep, unindexed
from mtptools.ops.style import Style
from mtptools.plan import Dropped, Entry, Input, OutFile, Plan
from mtptools.quantized import beside, encoding_of
from mtptools.receipt import KEY_PREFIX

__all__ = ["declared", "quantize_safetensors"]

_EXPERT: Final = re.compile(r"\.experts\.\d+\.")


def quantize_safetensors(source: Checkpoint, heads: list[Head], style: Style, *, link: bool) -> Plan:
    """Plan `source` with its head in the types of `style`; every byte of the trunk passes through.

    The head stays in the files it is in: these are written anew, the others become links with `link`.
    Raises as `encoded_head` does.
    """
    facts = draft_facts(source, alone=True)
    head = encoded_head(source, heads, source, style, facts, label="source", option="--head")
    names = set(head_names(source))
    apart = unindexed(source)
    loose = tuple(name for name in apart if name not in names)
    facts += loose_facts(loose)
    if len(loose) < len(apart):
        facts.append(f"in a shard and not in the index: {len(apart) - len(loose)} tensors of the head, now in both")
    files = _files(source, head, loose, facts, link=link)
    facts += left_out(source)
    config, modelopt = source.config, modelopt_config(source) if source.dialect == "hf" else None
    made = {}
    if source.dialect == "mlx":
        config = with_head(config, source, head, facts)
    else:
        config, modules = declared(config, source, source, head, heads, facts)
        if modelopt is not None:
            made[MODELOPT_FILE] = to_json_bytes(cover_modelopt(modelopt, config, modules, facts))
    if not all(entry.passes for entry in head):
        facts += statement(head)
    made["config.json"] = to_json_bytes(config)
    if source.index is not None:
        made[INDEX_NAME] = index_json(source.index, files)
    used = {name for entry in head for name in entry.names}
    scales = [name for one in heads for name in one.names if name not in used]
    return Plan(
        verb="quantize",
        inputs=(Input("source", source),),
        files=tuple(files),
        side=side_files(source, made),
        dropped=(
            *(Dropped("source", name, NOT_INDEXED) for name in loose),
            *(Dropped("source", name, "of the head's earlier encoding") for name in scales),
        ),
        changes=tuple(changes_between(source.config, config)),
        facts=tuple(facts),
        folder=True,
    )


def declared(
    config: dict[str, Any],
    trunk: Checkpoint,
    donor: Checkpoint,
    head: Sequence[Entry],
    heads: Sequence[Head],
    facts: list[str],
) -> tuple[dict[str, Any], list[Module]]:
    """(config.json of an HF trunk that says how this head is quantized, the modules its lists are about).

    config  the trunk's, perhaps edited
    head    entries made of `heads` of `donor`
    """
    modules = head_modules({entry.name: (entry.codec, len(entry.source.shape)) for entry in head})
    kinds = {name: roles[0].kind for name, roles in roles_of(head, heads, trunk).items()}
    encodings = _encodings(head, donor)
    had = donor is trunk and any(found.scaled for one in heads for found in one.roles.values())
    if not is_own(trunk) or not (encodings or had):
        modules += routers_of(trunk, kinds) if any(m.quantized for m in modules) else []
        return cover(config, modules, facts), modules
    names = [m.name for m in modules]
    names += [entry.name.removesuffix(".weight") for entry in head if kinds[entry.name] == "router"]
    if encodings:
        single = any(_EXPERT.search(name) for name in set(trunk) - set(head_names(trunk)))
        loads = (
            "does not load it (5.23): with a quantization_config it does not join experts that stand one by one"
            if single
            else "wants the package compressed-tensors to load it"
        )
        facts.append(
            "the trunk is float: a quantization_config of compressed-tensors names the head alone. vLLM builds all else"
            f" float; transformers {loads}"
        )
    return own_config(config, encodings, names), modules


def _encodings(head: Sequence[Entry], donor: Checkpoint) -> dict[str, str]:
    """Module -> encoding, of what is made and of what stays as it is stored."""
    out = {}
    for entry in head:
        stem, dot, suffix = entry.name.rpartition(".weight")
        if dot and suffix in ("", "_packed") and CODECS[entry.codec].kind != "float":
            name = entry.names[0]
            out[stem] = entry.encoding or str(encoding_of(donor[name], beside(name, donor)))
    return out


def _files(
    source: Checkpoint, head: Sequence[Entry], loose: Sequence[str], facts: list[str], *, link: bool
) -> list[OutFile]:
    """The source's files, with what a head tensor became in its place."""
    taken = {name for entry in head for name in entry.names}
    became: dict[str, list[Entry]] = {}
    for entry in head:
        became.setdefault(entry.names[0], []).append(entry)
    files = []
    for file in source.files:
        entries: list[Entry] = []
        for name in file.names:
            if name not in loose:
                entries += became.get(name, ()) if name in taken else keep(source, "source", [name])
        if not entries:
            continue
        same = not any(name in taken or name in loose for name in file.names)
        linked = link and same and not any(key.startswith(KEY_PREFIX) for key in file.metadata)
        if link and not linked:
            why = "an earlier receipt is in its header" if same else "the head is in it"
            facts.append(f"{file.path.name} is written, not linked: {why}")
        metadata, path = dict(file.metadata), file.path if linked else None
        files.append(OutFile(file.path.name, "safetensors", metadata, tuple(entries), linked=path))
    return files
