"""Checks of a reduced head: the map, the matrices whose rows it names, what config.json says, who loads it."""

from __future__ import annotations

from collections.abc import Iterator
from reprlib import repr as short  # a damaged value may be a megabyte long

from mtptools.checkpoint import Checkpoint
from mtptools.head import Found, find_head, find_trunk, is_sidecar, layers_of
from mtptools.hparams import text_config
from mtptools.ops import validate_tensors
from mtptools.ops.draft_loaders import loads
from mtptools.ops.own_output import OUTPUT
from mtptools.vocab.stored import D2T, SIZE_KEY, map_names, raw

__all__ = ["agrees", "matrices", "runtime"]

_AGAIN = "make the reduced head again from the whole one: mtptools prune-vocab --help"
Report = Iterator[tuple[str, str, str]]


def agrees(ckpt: Checkpoint) -> Report:
    if not map_names(ckpt):
        yield from _without_map(ckpt)
        return
    found = raw(ckpt)
    for what, evidence in found.problems if found is not None else ():
        yield f"the draft vocabulary is damaged: {what}", evidence, _AGAIN
    if D2T not in ckpt:
        return
    yield from ((what, evidence, _AGAIN) for what, evidence, _ in validate_tensors.reduced_shapes(ckpt))
    yield from _without_matrix(ckpt)
    yield from _unreadable(ckpt)
    if ckpt.dialect != "gguf":
        yield from _config(ckpt, ckpt[D2T].n_values)


def runtime(ckpt: Checkpoint) -> Report:
    if not map_names(ckpt):
        return
    yield (
        loads(ckpt.dialect, ckpt.family.gguf_arch, alone=is_sidecar(ckpt)),
        f"{', '.join(map_names(ckpt))}: a head that drafts over a part of the vocabulary",
        "what llama.cpp loads is a smaller matrix of all tokens: mtptools quantize WHOLE -o OUT --own-output Q4_K"
        if ckpt.dialect == "gguf"
        else "the head it was made from loads everywhere: mtptools prune-vocab --restore DONOR",
    )


def matrices(ckpt: Checkpoint) -> list[Found]:
    """Every matrix of which a draft vocabulary keeps rows: those of MTP layers; in a sidecar the one beside them."""
    return [found for found in (*_own(ckpt).values(), _shared(ckpt)) if found is not None]


def _shared(ckpt: Checkpoint) -> Found | None:
    """The output matrix that stands beside the head in a sidecar."""
    for role, layer, found in find_trunk(ckpt):
        if layer is not None:  # those outside of layers come first
            break
        if found is not None and validate_tensors.reduces(ckpt, role):
            return found
    return None


def _own(ckpt: Checkpoint) -> dict[int, Found | None]:
    """Each MTP layer's own output matrix."""
    heads = {layer: find_head(ckpt, layer) for layer in layers_of(ckpt)}
    return {layer: head.roles.get(OUTPUT) for layer, head in heads.items() if head is not None}


def _without_map(ckpt: Checkpoint) -> Report:
    size = ckpt.hparams.vocab_size
    for found in matrices(ckpt):
        if found.problem is not None or not found.tensor.shape:
            continue
        rows = found.tensor.shape[0]
        if rows < size and found.tensor.shape[1:] == (ckpt.hparams.hidden_size,):
            yield (
                f"{found.names[0]} has {rows} of {size} rows, and no d2t says of which tokens",
                f"shape {list(found.tensor.shape)}",
                "take d2t from the file it came from, or the whole head again: mtptools prune-vocab --restore DONOR",
            )
    stated = _stated(ckpt)
    for key, value in stated.items():
        if value not in (None, size):
            yield f"config.json says {key} {short(value)}, and there is no d2t", f"vocab_size {size}", _AGAIN


def _without_matrix(ckpt: Checkpoint) -> Report:
    own, shared = _own(ckpt), _shared(ckpt)
    if not own:
        yield "d2t stands without a head", "no tensor of an MTP layer is there", "remove it, or take the head it is of"
    lost = [str(layer) for layer, found in own.items() if found is None] if shared is None else []
    if lost:
        yield (
            f"d2t is there, and head layer {', '.join(lost)} has no reduced matrix to draft with",
            "it would draft with the whole matrix, whose rows d2t does not name",
            _AGAIN,
        )


def _unreadable(ckpt: Checkpoint) -> Report:
    """The matrix beside a head; its own are asked about by head-readable."""
    found = _shared(ckpt)
    if found is not None and found.problem is not None:
        yield f"{found.names[0]} cannot be read", found.problem, _AGAIN


def _stated(ckpt: Checkpoint) -> dict[str, object]:
    """draft_vocab_size by the places where config.json may say it."""
    if ckpt.dialect == "gguf":
        return {}
    trees = {SIZE_KEY: ckpt.config, f"text_config.{SIZE_KEY}": text_config(ckpt.config, ckpt.path)}
    return {
        key: tree[SIZE_KEY]
        for key, tree in trees.items()
        if SIZE_KEY in tree and (key == SIZE_KEY or tree is not ckpt.config)
    }


def _config(ckpt: Checkpoint, rows: int) -> Report:
    stated = _stated(ckpt)
    if not stated:
        yield f"config.json does not say {SIZE_KEY}", f"d2t has {rows} rows", f'add "{SIZE_KEY}": {rows} to config.json'
    for key, value in stated.items():
        if value != rows or isinstance(value, bool):
            fix = f"set it to {rows}, or take the config.json that came with this head"
            yield f"config.json says {key} {short(value)}, d2t has {rows} rows", "both count the rows that draft", fix
    trees = (ckpt.config, text_config(ckpt.config, ckpt.path))
    if any(tree.get("tie_word_embeddings") is True for tree in trees):
        yield (
            "config.json ties the output matrix to the embedding",
            f"d2t names {rows} rows of a matrix of its own: a loader that ties drafts with the wrong one",
            'set "tie_word_embeddings": false in config.json',
        )
