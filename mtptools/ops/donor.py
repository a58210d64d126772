"""Taking a head out of a donor: complete, known, and in the output's dialect."""

from __future__ import annotations

from mtptools.checkpoint import Checkpoint
from mtptools.codecs import CODECS
from mtptools.errors import ConventionError, CorruptError, InputError, MissingHeadError, MissingRoleError
from mtptools.gguf_blocks import missing_blocks, trunk_blocks
from mtptools.head import Head, find_head, head_names, is_sidecar, layers_of, not_a_head, within_head
from mtptools.ops import validate_norms, validate_tensors, validate_vocab
from mtptools.ops.head_types import HeadTypes
from mtptools.ops.render import Place, as_stored, gguf_entries, place_of, safetensors_entries
from mtptools.ops.style import EXPERTS, Style
from mtptools.plan import Entry
from mtptools.quantized import COMPANIONS
from mtptools.vocab.stored import map_names

__all__ = [
    "complete_head",
    "doubts",
    "head_entries",
    "is_quantized",
    "kinds_of",
    "renamed",
    "require_full",
    "require_shapes",
    "require_trunk",
]


def complete_head(ckpt: Checkpoint) -> list[Head]:
    """Every MTP layer of the checkpoint's head, declared or there.

    Raises MissingHeadError, MissingRoleError (a layer that is declared and not whole), CorruptError (a draft vocabulary
    that does not fit its matrix) or InputError.
    """
    sign = not_a_head(ckpt)
    if sign is not None:
        raise InputError(f"no MTP head: {sign.what}", where=f"{ckpt.path}, {sign.name}", hint=sign.hint)
    heads = [find_head(ckpt, layer) for layer in layers_of(ckpt)]
    present = [head for head in heads if head is not None]
    if not present:
        if ckpt.hparams.depth:
            raise MissingHeadError(
                f"declares {ckpt.hparams.depth} MTP layer(s) and holds no head tensor",
                where=ckpt.path,
                hint="take the head from the original release; mtptools validate tells more",
            )
        raise MissingHeadError(
            "no MTP head in it",
            where=ckpt.path,
            hint="mtptools inspect shows what is in it; mtptools graft gives it a head",
        )
    for head in present:
        if head.missing:
            raise MissingRoleError(
                f"the head lacks {', '.join(head.missing)}",
                where=ckpt.path,
                hint="an incomplete head drafts nothing; take it from a complete release",
            )
        if head.unknown:
            raise InputError(
                f"head tensors of no known role: {', '.join(head.unknown[:5])}",
                where=ckpt.path,
                hint=f"{ckpt.family.name} is not this architecture, or the file is newer than this version",
            )
    for what, evidence, fix in validate_vocab.agrees(ckpt):
        raise CorruptError(f"{what} ({evidence})", where=ckpt.path, hint=fix)
    return present


def require_shapes(ckpt: Checkpoint) -> None:
    """Refuse a head that is not of the sizes its configuration states. Raises CorruptError."""
    for what, evidence, fix in validate_tensors.head_shapes(ckpt):
        raise CorruptError(f"{what} ({evidence})", where=ckpt.path, hint=fix)


def doubts(ckpt: Checkpoint) -> list[str]:
    """Facts about values that a conversion takes over as they are, right or wrong."""
    rows = [*validate_norms.values(ckpt), *validate_norms.judge_head(ckpt, validate_norms.trunk_means(ckpt))]
    return [f"as in the source, see mtptools validate: {what}" for what, _, _ in rows]


def require_full(ckpt: Checkpoint) -> None:
    """Refuse a head that drafts over a part of the vocabulary. Raises InputError."""
    if map_names(ckpt):
        raise InputError(
            "its head is reduced to a draft vocabulary, which is not carried into another dialect",
            where=ckpt.path,
            hint="convert the head it was made from and prune that, or give it back: prune-vocab --restore DONOR",
        )


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


def head_entries(
    donor: Checkpoint, heads: list[Head], trunk: Checkpoint, first_block: int, types: HeadTypes
) -> list[Entry]:
    """Plan entries that insert these heads into `trunk`.

    first_block  number of the first head block when the trunk is a GGUF

    Within one dialect of safetensors the stored tensors keep their bytes and take the trunk's prefixes, unless another
    layout of the experts is asked for.
    """
    if trunk.dialect == "gguf":
        return gguf_entries(donor, heads, first_block, types)
    style = types.style
    place = place_of(trunk, len(heads))
    if donor.dialect == trunk.dialect and not _laid_out_anew(heads, style) and _readable(donor, trunk, style):
        return as_stored(donor, renamed(donor, place), kinds_of(heads), style)
    return safetensors_entries(donor, heads, place, style)


def _laid_out_anew(heads: list[Head], style: Style) -> bool:
    """Is another layout of the experts asked for than the donor has?"""
    layouts = {f.source.layout for head in heads for f in head.roles.values() if f.role.name.endswith("_exps.weight")}
    return bool(style.experts and layouts - set(EXPERTS[style.experts]))


def kinds_of(heads: list[Head]) -> dict[str, str]:
    """Kind of the role that each stored value tensor belongs to; codes and scales are in none."""
    roles = [found for head in heads for found in head.roles.values() if not found.scaled]
    return {name: found.role.kind for found in roles for name in found.names}


# What two HF quantization configurations must agree on for the codes of one to be read with the other.
_METHOD = ("quant_method", "quant_algo", "fmt", "format", "weight_block_size", "bits", "group_size")


def _readable(donor: Checkpoint, trunk: Checkpoint, style: Style) -> bool:
    """Can a loader of the trunk read the donor's head as it is stored, and is that what is asked for?"""
    if not any(name.endswith(COMPANIONS) for name in head_names(donor)):
        return True
    if style.matrices is not None or trunk.dialect == "mlx":
        return style.matrices is None
    ours, theirs = (ckpt.config.get("quantization_config") or {} for ckpt in (trunk, donor))
    return bool(ours) and all(ours.get(key) == theirs.get(key) for key in _METHOD)


def renamed(donor: Checkpoint, place: Place) -> list[tuple[str, str]]:
    """(name, name in `place`) of every head tensor: only what stands before the head's own names differs."""
    out = []
    for name in head_names(donor):
        layer, rest = within_head(donor, name)
        out.append((name, place.layers[layer] + rest))
    return out
