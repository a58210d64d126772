"""Taking a head out of a donor: complete, known, and in the output's dialect."""

from __future__ import annotations

from typing import Final

from mtptools.checkpoint import Checkpoint
from mtptools.codecs import CODECS, ENCODABLE
from mtptools.errors import CodecError, ConventionError, InputError, MissingHeadError, MissingRoleError, UsageError
from mtptools.families import Role
from mtptools.head import Found, Head, find_head, head_names, is_sidecar, missing_blocks, trunk_blocks
from mtptools.ops.quant_config import COMPANIONS
from mtptools.plan import Entry

__all__ = ["complete_head", "head_depth", "head_entries", "is_quantized", "require_trunk"]

FLOATS: Final = ("F32", "F16", "BF16")


def head_depth(ckpt: Checkpoint) -> int:
    """How many MTP layers to take: what is declared, or one where a head stands undeclared."""
    return ckpt.hparams.depth or 1


def complete_head(ckpt: Checkpoint) -> list[Head]:
    """Every MTP layer of the checkpoint's head. Raises MissingHeadError, MissingRoleError or InputError."""
    heads = [find_head(ckpt, layer) for layer in range(head_depth(ckpt))]
    present = [head for head in heads if head is not None]
    if not present:
        if ckpt.hparams.depth:
            raise MissingHeadError(
                f"declares {ckpt.hparams.depth} MTP layer(s) and holds no head tensor",
                where=ckpt.path,
                hint="take the head from the original release; mtptools validate tells more",
            )
        raise MissingHeadError(
            "no MTP head in it", where=ckpt.path, hint="a donor is a checkpoint that mtptools inspect shows a head for"
        )
    for head in present:
        if head.missing:
            raise MissingRoleError(
                f"the head lacks {', '.join(head.missing)}",
                where=ckpt.path,
                hint="an incomplete head drafts nothing; take it from a complete release",
            )
        scales = [name for name in head.unknown if name.endswith(COMPANIONS)]
        if scales:
            raise InputError(
                f"the head is quantized with separate scales ({scales[0]} …), which this version does not move",
                where=ckpt.path,
                hint="take the head from the BF16 release",
            )
        if head.unknown:
            raise InputError(
                f"head tensors of no known role: {', '.join(head.unknown[:5])}",
                where=ckpt.path,
                hint=f"{ckpt.family.name} is not this architecture, or the file is newer than this version",
            )
    return present


def require_trunk(ckpt: Checkpoint) -> None:
    """Refuse a GGUF whose trunk is not whole, or of which nobody can say where the trunk ends.

    Raises InputError (a sidecar), MissingRoleError (blocks missing) or ConventionError (ambiguous).
    """
    if is_sidecar(ckpt):
        raise InputError("a sidecar: there is no trunk in it", where=ckpt.path, hint="give the trunk it belongs to")
    if ckpt.dialect != "gguf":
        return
    missing = missing_blocks(ckpt)
    if missing:
        raise MissingRoleError(
            f"block(s) {', '.join(map(str, missing[:6]))} of the trunk are missing",
            where=ckpt.path,
            hint="download it again; mtptools validate lists what is missing",
        )
    hparams = ckpt.hparams
    if hparams.depth and not head_names(ckpt) and trunk_blocks(ckpt) > hparams.n_layers:
        raise ConventionError(
            f"{hparams.depth} MTP layer(s) declared in {trunk_blocks(ckpt)} blocks, none with a fusion (nextn.*): "
            f"is block {trunk_blocks(ckpt) - 1} of the trunk, or a head that lost its fusion?",
            where=ckpt.path,
            hint="convert the release again, without its head: convert_hf_to_gguf.py --no-mtp",
        )


def is_quantized(ckpt: Checkpoint) -> bool:
    """True when any tensor is stored in blocks."""
    return any(CODECS[tensor.codec].kind == "block" for tensor in ckpt.values())


def _codec_for(found: Found, donor: Checkpoint, wanted: str | None) -> str:
    """Type of one role in a GGUF output: `wanted` (None keeps the donor's) for matrices, F32 for the rest."""
    source = found.tensor.codec
    if found.role.kind in ("norm", "router", "vector"):
        return "F32" if donor.dialect != "gguf" or wanted is not None else source
    return source if wanted is None else wanted


def head_entries(
    donor: Checkpoint, heads: list[Head], target: str, first_block: int, wanted: str | None
) -> list[Entry]:
    """Plan entries that insert these heads into a checkpoint of dialect `target`.

    first_block  number of the first head block in a GGUF output
    wanted       type name for the head's matrices, None to keep the donor's types
    """
    if wanted is not None:
        if wanted.upper() not in CODECS:
            raise UsageError(
                f"no type is called {wanted!r}", where="--head-type", hint=f"types: {', '.join(ENCODABLE)}"
            )
        wanted = wanted.upper()
    if target == "hf":
        return _hf_entries(donor, wanted)
    entries = []
    for layer, head in enumerate(heads):
        for name, found in head.roles.items():
            role: Role = found.role
            values = (role.convention(donor.dialect), role.convention("gguf"))
            codec = _codec_for(found, donor, wanted)
            if codec != found.tensor.codec or values[0] != values[1]:
                _check_encodable(found, codec)
            entries.append(
                Entry(
                    name=f"blk.{first_block + layer}.{name}",
                    source=found.tensor,
                    codec=codec,
                    input="donor",
                    names=found.names,
                    values=values if values[0] != values[1] else None,
                    head=True,
                )
            )
    return entries


def _check_encodable(found: Found, codec: str) -> None:
    if codec not in ENCODABLE:
        raise CodecError(f"no encoder for {codec}", where="--head-type", hint=f"types: {', '.join(ENCODABLE)}")
    shape = found.tensor.shape
    try:
        CODECS[codec].row_bytes(shape[-1] if shape else 1)
    except CodecError as error:
        raise CodecError(f"{found.role.name}: {error.what}", where="--head-type", hint=error.hint) from error


def _hf_entries(donor: Checkpoint, wanted: str | None) -> list[Entry]:
    """HF to HF: names, layout and conventions are one dialect's; only the wrapper prefix may differ."""
    if donor.dialect != "hf":
        raise UsageError(
            f"a {donor.dialect} donor cannot go into an HF trunk in this version",
            where=donor.path,
            hint="use the Hugging Face release as the donor",
        )
    if wanted is not None and wanted not in FLOATS:
        raise UsageError(f"--head-type {wanted} is not an HF type", hint=f"one of {', '.join(FLOATS)}")
    prefix = donor.family.hf_head
    entries = []
    for name in head_names(donor):
        tensor = donor[name]
        matrix = len(tensor.shape) > 1
        codec = wanted if wanted is not None and matrix else tensor.codec
        entries.append(Entry(prefix + name.split(prefix, 1)[1], tensor, codec, "donor", (name,), head=True))
    return entries
