"""convert: a head from one dialect to another, exact where it can be and said where it cannot."""

from __future__ import annotations

import copy
from typing import Any, Final, Literal

from mtptools.checkpoint import Checkpoint
from mtptools.errors import UsageError
from mtptools.head import Found, Head, find_trunk, trunk_layers
from mtptools.ops.declare import changes_between, hf_with_depth, to_json_bytes
from mtptools.ops.donor import complete_head, doubts, kinds_of, renamed, require_full, require_shapes
from mtptools.ops.exact import require_lossless, statement
from mtptools.ops.head_types import HeadTypes
from mtptools.ops.render import Place, as_stored, gguf_entries, gguf_entry, named, safetensors_entries
from mtptools.ops.sidecar import gguf_metadata, hf_config
from mtptools.ops.style import Style
from mtptools.plan import Dropped, Entry, Input, OutFile, Plan, SideFile
from mtptools.quantized import COMPANIONS

__all__ = ["DIALECTS", "convert_head"]

Dialect = Literal["hf", "gguf", "mlx"]
DIALECTS: Final[tuple[Dialect, ...]] = ("hf", "gguf", "mlx")
# mlx-lm loads every model*.safetensors and no other name.
FILES: Final = {"hf": "model.safetensors", "mlx": "model-mtp.safetensors"}
FORMATS: Final = {"hf": "pt", "mlx": "mlx"}
TOKENIZER: Final = ("tokenizer", "special_tokens", "added_tokens", "vocab", "merges", "chat_template")


def convert_head(
    source: Checkpoint, out_name: str, to: Dialect, style: Style, *, bare: bool = False, lossless: bool = False
) -> Plan:
    """Plan a sidecar with the head of `source` in another dialect.

    bare      the head's own tensors alone, without the embedding, final norm and output matrix it shares
    lossless  refuse when any bit of the head could not be had back

    Raises MissingHeadError, MissingRoleError, UsageError (the same dialect), ConventionError (a role without a name in
    that dialect), CodecError (no encoder, or with `lossless` a loss).
    """
    if source.dialect == to:
        raise UsageError(
            f"it is in the {to} dialect already", where=source.path, hint="mtptools extract takes its head out as it is"
        )
    if to == "gguf" and not source.family.gguf_arch:
        raise UsageError(
            f"llama.cpp has no architecture for {source.family.title}", where=source.path, hint="--to hf or --to mlx"
        )
    require_full(source)
    heads = complete_head(source)
    require_shapes(source)
    shared = [] if bare else [found for role, layer, found in find_trunk(source) if layer is None and found is not None]
    entries = _gguf(source, heads, shared, style) if to == "gguf" else _safetensors(source, heads, shared, to, style)
    head = [entry for entry in entries if entry.head]
    if lossless:
        require_lossless(head)
    taken = {name for entry in entries for name in entry.names}
    dropped = tuple(Dropped("source", name, "not of the head") for name in source if name not in taken)
    facts = [*statement(head), *doubts(source)]
    if to == "mlx" and source.family.mlx != "drafts":
        facts.append(f"no MLX runtime is known to draft from a head of {source.family.title}")
    inputs = (Input("source", source),)
    if to == "gguf":
        metadata = gguf_metadata(source, len(heads))
        facts.append("no tokenizer in it: a donor for graft, not a draft for -md")
        file = OutFile(out_name, "gguf", metadata, tuple(entries))
        return Plan("convert", inputs, (file,), dropped=dropped, facts=tuple(facts))
    config = _config(source, len(heads), coded=any(name.endswith(COMPANIONS) for name in (e.name for e in entries)))
    if source.dialect == "gguf":
        facts.append(
            f"config.json is made from the metadata, as {config['model_type']}: for a runtime take the release's, and "
            "its tokenizer"
        )
    file = OutFile(FILES[to], "safetensors", {"format": FORMATS[to]}, tuple(entries))
    side = (*_tokenizer(source), SideFile("config.json", content=to_json_bytes(config)))
    changes = tuple(changes_between(source.config, config)) if source.config else ()
    return Plan("convert", inputs, (file,), side, dropped, changes, tuple(facts), folder=True)


def _gguf(source: Checkpoint, heads: list[Head], shared: list[Found], style: Style) -> list[Entry]:
    types = HeadTypes(style)
    entries = [gguf_entry(source, found, found.role.name, types, label="source") for found in shared]
    return entries + gguf_entries(source, heads, trunk_layers(source), types, label="source")


def _safetensors(
    source: Checkpoint, heads: list[Head], shared: list[Found], to: Literal["hf", "mlx"], style: Style
) -> list[Entry]:
    family = source.family
    prefix = family.hf_prefixes[-1]
    n = source.hparams.n_layers
    lead = prefix if family.hf_head.startswith("^") else ""
    layers = tuple(lead + family.hf_head.removeprefix("^").format(d=d, n=n + d) for d in range(len(heads)))
    place = Place(to, family, source.hparams, prefix, layers)
    if source.dialect != "gguf" and any(role.scheme for role in family.head):
        # MLX reads such a head as it is released, codes, scales and names.
        return [
            *named(source, shared, place, style, label="source"),
            *as_stored(source, renamed(source, place), kinds_of(heads), style, "source"),
        ]
    return [
        *named(source, shared, place, style, label="source"),
        *safetensors_entries(source, heads, place, style, label="source"),
    ]


def _config(source: Checkpoint, depth: int, *, coded: bool) -> dict[str, Any]:
    """config.json of a sidecar: it declares the head, and a quantization where its tensors are codes and scales."""
    if source.dialect == "gguf":
        return hf_config(source, depth)
    config = copy.deepcopy(hf_with_depth(source.config, source.family, depth))
    if not coded:
        for tree in (config, config.get("text_config")):
            for key in ("quantization", "quantization_config"):
                if isinstance(tree, dict):
                    tree.pop(key, None)
    return config


def _tokenizer(source: Checkpoint) -> tuple[SideFile, ...]:
    folder = source.folder
    if folder is None:
        return ()
    return tuple(SideFile(str(p), folder / p) for p in source.side_files if p.name.startswith(TOKENIZER))
