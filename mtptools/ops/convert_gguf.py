"""convert: a whole Hugging Face checkpoint as GGUF, trunk and head, byte-equal to llama.cpp's converter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from mtptools.checkpoint import Checkpoint
from mtptools.codecs import CODECS
from mtptools.errors import CodecError, InputError, MissingRoleError, UsageError
from mtptools.families import Role
from mtptools.head import Found, Head, find_trunk, head_names, not_a_head
from mtptools.hparams import text_config
from mtptools.ops.donor import complete_head, doubts, require_shapes
from mtptools.ops.exact import statement
from mtptools.ops.gguf_metadata import FILE_TYPES, KEYS, whole_metadata
from mtptools.ops.trunk_values import trunk_tensors
from mtptools.plan import Dropped, Entry, Input, OutFile, Plan
from mtptools.quantized import COMPANIONS
from mtptools.tensors import Tensor

__all__ = ["OutType", "convert_gguf", "converts_whole"]

OutType = Literal["F32", "BF16", "F16", "Q8_0"]
# Stay F32 whatever the output's type (conversion/base.py, prepare_tensors); so does every vector.
_F32: Final = ("norm", "router", "vector")
# Constants that old releases ship and no runtime reads.
_CONSTANTS: Final = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")
LABEL: Final = "source"


def converts_whole(source: Checkpoint) -> bool:
    """Is the whole checkpoint's family one that can be converted, and not its head alone?"""
    return source.dialect == "hf" and source.family.name in KEYS


def convert_gguf(source: Checkpoint, out_name: str, *, outtype: OutType = "BF16", pre: str | None = None) -> Plan:
    """Plan one GGUF file of a whole Hugging Face checkpoint.

    outtype  type of the matrices; norms, routers, convolutions and vectors are F32. Rows that are not whole blocks of
             Q8_0 become F16, as in llama.cpp's converter
    pre      llama.cpp's name of the pre-tokenizer, where tokenizer.json does not tell

    The head is taken where there is one, also where llama.cpp's converter drops it. Raises UsageError (a dialect,
    family or type that is not converted whole), InputError (leftover tensors), MissingRoleError, CodecError,
    CorruptError, TokenizerError.
    """
    _require_known(source, outtype)
    heads = _heads(source)
    entries = [*_trunk(source, outtype), *_head(source, heads, outtype)]
    taken = {name for entry in entries for name in entry.names}
    metadata = whole_metadata(source, len(heads), outtype, pre)
    file = OutFile(out_name, "gguf", metadata, tuple(entries))
    facts = _facts(source, heads, entries, outtype)
    dropped = tuple(_dropped(source, taken))
    return Plan("convert", (Input(LABEL, source),), (file,), dropped=dropped, facts=tuple(facts))


def _require_known(source: Checkpoint, outtype: str) -> None:
    if source.dialect != "hf":
        raise UsageError(
            f"a whole checkpoint is converted from Hugging Face, not from {source.dialect}",
            where=source.path,
            hint="--head-only converts its head",
        )
    if source.family.name not in KEYS:
        raise UsageError(
            f"{source.family.title} is not converted whole",
            where=source.path,
            hint=f"--head-only converts its head; converted whole are {', '.join(KEYS)}",
        )
    _require_expressible(source)
    if outtype not in FILE_TYPES:
        raise UsageError(f"no file of type {outtype} can be written", hint=f"one of {', '.join(FILE_TYPES)}")


def _require_expressible(source: Checkpoint) -> None:
    """Raises CodecError for settings that a GGUF would lose: the file would mean another model."""
    text = text_config(source.config)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    rope = rope if isinstance(rope, dict) else {}
    latent = source.hparams.kv_lora_rank > 0
    said = {
        "rope_interleave = false": latent and text.get("rope_interleave") is False,
        "norm_topk_prob = false": source.family.name == "qwen3next" and text.get("norm_topk_prob") is False,
        "attention_factor of yarn": rope.get("attention_factor") is not None,
        "mscale_all_dim of yarn other than mscale": latent
        and rope.get("mscale_all_dim") is not None
        and rope.get("mscale_all_dim") != rope.get("mscale"),
    }
    lost = [what for what, there in said.items() if there]
    if lost:
        raise CodecError(
            f"a GGUF would lose {', '.join(lost)}: llama.cpp would run another model",
            where=source.path,
            hint="--head-only converts its head",
        )


def _heads(source: Checkpoint) -> list[Head]:
    """The head, complete and of the config's sizes, or nothing; a declaration alone is undeclared (see `_facts`)."""
    if not head_names(source) and not_a_head(source) is None:
        return []
    heads = complete_head(source)
    require_shapes(source)
    return heads


def _trunk(source: Checkpoint, outtype: str) -> Iterator[Entry]:
    missing = []
    for role, layer, found in find_trunk(source):
        stem = "" if layer is None else f"blk.{layer}."
        if found is not None:
            for name, tensor in trunk_tensors(role, found.tensor, source.hparams, layer):
                yield _entry(stem + name, tensor, found, outtype)
        elif role.required and role.hf:
            missing.append(stem + role.name)
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise MissingRoleError(
            f"the trunk lacks {', '.join(missing[:5])}{more}",
            where=source.path,
            hint="download the missing shards; mtptools validate lists every tensor",
        )


def _head(source: Checkpoint, heads: list[Head], outtype: str) -> Iterator[Entry]:
    for layer, head in enumerate(heads):
        for name, found in head.roles.items():
            block = source.hparams.n_layers + layer
            yield _entry(f"blk.{block}.{name}", found.tensor, found, outtype, head=True)


def _entry(name: str, tensor: Tensor, found: Found, outtype: str, *, head: bool = False) -> Entry:
    stored = found.role.convention("hf")
    values = (stored, "plain") if stored != "plain" else None
    return Entry(name, tensor, _type(found.role, tensor, outtype), LABEL, found.names, values, head)


def _type(role: Role, tensor: Tensor, outtype: str) -> str:
    if role.kind in _F32 or len(tensor.shape) < 2:
        return "F32"
    return outtype if tensor.shape[-1] % CODECS[outtype].block_values == 0 else "F16"


def _dropped(source: Checkpoint, taken: set[str]) -> Iterator[Dropped]:
    """Every tensor that no role took. Raises InputError for one that nobody knows to be left out."""
    unknown = []
    for name in source:
        if name in taken:
            continue
        if name.endswith(_CONSTANTS):
            yield Dropped(LABEL, name, "a constant")
        elif name.startswith(source.family.hf_ignored or ("\0",)):
            yield Dropped(LABEL, name, "vision or audio, which is a file of its own in GGUF (mmproj)")
        else:
            unknown.append(name)
    if unknown:
        raise InputError(
            f"{len(unknown)} tensor(s) of no known role: {', '.join(unknown[:5])}",
            where=source.path,
            hint=f"{source.family.title} is not this architecture, or the release is newer than this version",
        )


def _facts(source: Checkpoint, heads: list[Head], entries: list[Entry], outtype: str) -> Iterator[str]:
    if heads:
        yield f"with the head: {len(heads)} MTP layer(s)"
        yield from statement([entry for entry in entries if entry.head])
        yield from doubts(source)
    elif source.hparams.depth:
        yield f"{source.hparams.depth} MTP layer(s) are declared and none is there: the file declares none"
    else:
        yield "no head: none is there"
    if any(name.endswith(COMPANIONS) for entry in entries for name in entry.names):
        yield f"quantized weights are decoded to {outtype}"
    other = [entry for entry in entries if entry.codec not in ("F32", outtype)]
    if other:
        yield f"{len(other)} tensor(s) are F16: their rows are not whole blocks of {outtype}"
