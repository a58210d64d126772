"""Checks of the tensors: present, known, shaped as the config says, in one layout, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mtptools.checkpoint import Checkpoint
from mtptools.errors import typed
from mtptools.families import Role
from mtptools.head import Found, find_head, find_trunk, head_names, is_sidecar, layers_of
from mtptools.quantized import COMPANIONS
from mtptools.vocab.stored import D2T, map_names

# Tensors that belong to others: scales beside their weight, and rope factors made by converters.
_NO_ROLE: Final = (*COMPANIONS, ".rotary_emb.inv_freq", "rope_freqs.weight")
OPEN: Final = -1
# What a head drafts with: a matrix of its own, or the one beside it, which in a sidecar is the head's alone.
_OWN: Final = "nextn.shared_head_head.weight"
_SHARED: Final = "output.weight"
Report = Iterator[tuple[str, str, str]]


def _layers(ckpt: Checkpoint) -> Iterator[tuple[str, dict[str, Found], tuple[str, ...]]]:
    for layer in layers_of(ckpt):
        head = find_head(ckpt, layer)
        if head is not None:
            yield f"head layer {layer}", head.roles, head.missing


def missing(ckpt: Checkpoint) -> Report:
    for where, roles, lost in _layers(ckpt):
        if lost:
            yield (
                f"{where} lacks {', '.join(lost[:6])}{' …' if len(lost) > 6 else ''}",
                f"{len(roles)} of its roles are there, {len(lost)} required ones are not",
                "take the head from a complete donor and graft it again",
            )
    if is_sidecar(ckpt):
        return
    # A GGUF without output.weight is tied; config.json states it.
    needs_output = ckpt.dialect != "gguf" and not ckpt.hparams.tie_embeddings
    absent = [
        role.name if layer is None else f"layer {layer} {role.name}"
        for role, layer, found in find_trunk(ckpt)
        if found is None and (role.required or (role.name == "output.weight" and needs_output))
    ]
    if absent and not _companions_only(ckpt):
        yield (
            f"the trunk lacks {len(absent)} tensor(s): {', '.join(absent[:6])}{' …' if len(absent) > 6 else ''}",
            f"{ckpt.hparams.n_layers} layers declared",
            "download the missing shard or the whole checkpoint again",
        )


def _companions_only(ckpt: Checkpoint) -> bool:
    """A trunk quantized by a method that replaces `weight` by several tensors: names say nothing then."""
    return any(name.endswith((".qweight", ".weight_packed")) for name in ckpt)


def unknown(ckpt: Checkpoint) -> Report:
    for layer in layers_of(ckpt):
        head = find_head(ckpt, layer)
        lost = [n for n in head.unknown if not n.endswith(_NO_ROLE)] if head is not None else []
        if lost:
            yield (
                f"head tensors of no known role: {', '.join(lost[:6])}",
                f"family {ckpt.family.name} has {len(ckpt.family.head)} head roles",
                "llama.cpp refuses a file with one tensor too many: extract the head again with mtptools",
            )
    claimed = {name for _, _, found in find_trunk(ckpt) if found is not None for name in found.names}
    claimed |= {*head_names(ckpt), *map_names(ckpt)}
    rest = [
        name
        for name in ckpt
        if name not in claimed and not name.startswith(ckpt.family.hf_ignored) and not name.endswith(_NO_ROLE)
    ]
    if rest and ckpt.family.layers != "unknown":
        yield (
            f"{len(rest)} trunk tensor(s) of no known role: {', '.join(rest[:6])}{' …' if len(rest) > 6 else ''}",
            f"family {ckpt.family.name}",
            "is this the right architecture? mtptools families lists the known ones",
        )


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _agree(stated: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """The same lengths, but for dimensions of 1 and the ones left open."""
    left, right = _squeezed(stated), _squeezed(shape)
    return len(left) == len(right) and all(a in (OPEN, b) for a, b in zip(left, right, strict=True))


def reduces(ckpt: Checkpoint, role: Role) -> bool:
    """Is this a matrix of which a draft vocabulary, there being one, keeps some rows?"""
    return role.name == _OWN or (role.name == _SHARED and is_sidecar(ckpt))


def _reduced(ckpt: Checkpoint, role: Role) -> bool:
    return D2T in ckpt and reduces(ckpt, role)


def _stated(ckpt: Checkpoint, role: Role) -> tuple[int, ...]:
    """The shape a role must have; OPEN where the table leaves it open."""
    shape = tuple(OPEN if size == "" else ckpt.hparams.size(size) for size in role.shape)
    return (ckpt[D2T].n_values, *shape[1:]) if _reduced(ckpt, role) else shape


def _wrong(ckpt: Checkpoint, role: Role, found: Found, where: str) -> tuple[str, str, str] | None:
    if not role.shape or found.role.name != role.name:  # not stated, or fused with others
        return None
    if found.problem is not None:  # `readable` says it
        return None
    shape = found.tensor.shape
    if _agree(_stated(ckpt, role), shape):
        return None
    says = "d2t and the config say" if _reduced(ckpt, role) else "the config says"
    return (
        f"{where}{role.name} has shape {list(shape)}, {says} {list(_stated(ckpt, role))}",
        f"dimensions {', '.join(map(str, role.shape))}; stored as {found.names[0]}",
        "head and config are of different models, or the config was edited",
    )


def head_shapes(ckpt: Checkpoint) -> Report:
    for where, roles, _ in _layers(ckpt):
        for found in roles.values():
            wrong = _wrong(ckpt, found.role, found, f"{where} ")
            if wrong is not None:
                yield wrong


def _every(ckpt: Checkpoint) -> Iterator[tuple[str, Role, Found]]:
    for where, roles, _ in _layers(ckpt):
        yield from ((f"{where} ", found.role, found) for found in roles.values())
    for role, layer, standing in find_trunk(ckpt):
        if standing is not None:
            yield "" if layer is None else f"layer {layer} ", role, standing


def shapes(ckpt: Checkpoint) -> Report:
    """All but the matrices that d2t tells the rows of."""
    for where, role, found in _every(ckpt):
        wrong = None if _reduced(ckpt, role) else _wrong(ckpt, role, found, where)
        if wrong is not None:
            yield wrong


def reduced_shapes(ckpt: Checkpoint) -> Report:
    """The matrices that d2t tells the rows of."""
    for where, role, found in _every(ckpt):
        wrong = _wrong(ckpt, role, found, where) if _reduced(ckpt, role) else None
        if wrong is not None:
            yield wrong


def readable(ckpt: Checkpoint) -> Report:
    for where, roles, _ in _layers(ckpt):
        for name, found in roles.items():
            if found.problem is not None:
                yield (
                    f"{where} {name} cannot be read",
                    found.problem,
                    "take the head from the BF16 or FP8 release: mtptools strip, then mtptools graft",
                )


def expert_layout(ckpt: Checkpoint) -> Report:
    if ckpt.dialect == "gguf":
        return
    names = head_names(ckpt)
    fused = [n for n in names if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    single = [n for n in names if ".experts." in n and n not in fused and n.split(".experts.")[1][0].isdigit()]
    if fused and single:
        yield (
            f"the head holds experts both fused and one by one: {fused[0]}, {single[0]}",
            f"{len(fused)} fused and {len(single)} single expert tensors",
            "keep one layout: extract the head from its release again",
        )


def order(ckpt: Checkpoint) -> Report:
    if ckpt.gaps:
        yield (
            f"{len(ckpt.gaps)} tensor(s) do not follow the one before: {', '.join(ckpt.gaps[:3])}",
            "llama.cpp demands offsets equal to the running padded sum",
            f"any writing verb of mtptools puts them in order: mtptools strip {typed(ckpt.path)} -o OUT",
        )
