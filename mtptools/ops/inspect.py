"""inspect: what is in a checkpoint, as data. Nothing is judged here; `validate` does that."""

from __future__ import annotations

from collections import Counter
from typing import Any

from mtptools.checkpoint import Checkpoint
from mtptools.errors import InputError
from mtptools.head import Found, find_head, head_names, layers_of
from mtptools.ops.reduced import Matrix
from mtptools.ops.validate_vocab import matrices
from mtptools.receipt import load_inside
from mtptools.tokens import tokenizer_facts
from mtptools.vocab.stored import raw

__all__ = ["inspect"]

_EMBEDDINGS = {"token_embd", "output", "embed_tokens", "lm_head"}


def inspect(ckpt: Checkpoint) -> dict[str, Any]:
    """Container, dialect, family, depth, head roles, sizes, tokenizer and receipt of a checkpoint.

    An architecture that is unknown, or a config that contradicts itself, is no error here: what needs a family is
    None then, and `family_error` says why.
    """
    tokens = tokenizer_facts(ckpt)
    out: dict[str, Any] = {
        "path": ckpt.path.name,
        "container": ckpt.container,
        "dialect": ckpt.dialect,
        "files": [{"name": file.path.name, "bytes": file.size, "tensors": len(file.names)} for file in ckpt.files],
        "tensors": len(ckpt),
        "types": dict(Counter(tensor.codec for tensor in ckpt.values()).most_common()),
        "bytes": {"file": ckpt.nbytes, "tensors": sum(tensor.nbytes for tensor in ckpt.values())},
        "tokenizer": None if tokens is None else {"kind": tokens.kind, "size": tokens.size, "sha256": tokens.digest},
        "receipt": load_inside(ckpt),
        "family": None,
        "family_error": None,
    }
    try:
        out |= _of_family(ckpt)
    except InputError as error:
        out["family_error"] = str(error)
    return out


def _read(found: Found) -> dict[str, Any]:
    """Shape, type and bytes of a role: its values', or where these cannot be read what is stored."""
    if found.problem is None and found.scaled:
        parts = {t.name: t for one in found.stored for t in (one.tensor, *one.scales.values())}
        kind = f"{found.stored[0].tensor.codec} and scales"
        return {"shape": list(found.tensor.shape), "type": kind, "bytes": sum(t.nbytes for t in parts.values())}
    if found.problem is None:
        return {"shape": list(found.tensor.shape), "type": found.tensor.codec, "bytes": found.tensor.nbytes}
    stored = found.stored[0].tensor
    return {"shape": list(stored.shape), "type": stored.codec, "bytes": stored.nbytes, "problem": found.problem}


def _is_embedding(name: str) -> bool:
    """Embeddings or output matrix, in either dialect."""
    module, _, last = name.rpartition(".")
    return last == "weight" and module.rpartition(".")[2] in _EMBEDDINGS and not name.startswith("blk.")


def _draft_vocabulary(ckpt: Checkpoint) -> dict[str, Any] | None:
    """The tokens a reduced head drafts over; None for a whole one.

    bytes        of the reduced matrices with their scales
    whole_bytes  of the whole ones that they stand for, in the same type
    damaged      validate says how; first and last are None when d2t is no list of ids
    """
    found = raw(ckpt)
    if found is None:
        return None
    ids = found.ids
    sizes = [(one.stored.tensor.shape, one.nbytes) for one in (Matrix(ckpt, each, True) for each in matrices(ckpt))]
    return {
        "tokens": found.rows,
        "of": found.size,
        "share": found.rows / found.size,
        "written_as": found.kind,
        "first": None if ids is None else int(ids[0]),
        "last": None if ids is None else int(ids[-1]),
        "bytes": sum(nbytes for _, nbytes in sizes),
        "whole_bytes": sum(nbytes * found.size // shape[0] for shape, nbytes in sizes if shape and shape[0]),
        "damaged": bool(found.problems),
    }


def _of_family(ckpt: Checkpoint) -> dict[str, Any]:
    family, hparams = ckpt.family, ckpt.hparams
    names = set(head_names(ckpt))
    head_bytes = sum(ckpt[name].nbytes for name in names)
    shared = sum(t.nbytes for n, t in ckpt.items() if _is_embedding(n) and n not in names)
    total = sum(tensor.nbytes for tensor in ckpt.values())
    layers = [find_head(ckpt, layer) for layer in layers_of(ckpt)]
    return {
        "family": family.name,
        "title": family.title,
        "trunk_layers": hparams.n_layers,
        "declared": {"depth": hparams.depth, "vocab_size": hparams.vocab_size, "hidden_size": hparams.hidden_size},
        "sizes": {"trunk": total - head_bytes - shared, "embeddings": shared, "head": head_bytes},
        "draft_vocabulary": _draft_vocabulary(ckpt),
        "wiring": {
            "concat": family.wiring.concat,
            "tap": family.wiring.tap,
            "recycle": family.wiring.recycle,
            "mask_first": family.wiring.mask_first,
        },
        "head": [
            {
                "block": head.block,
                "roles": [
                    {
                        "role": name,
                        **_read(found),
                        "stored_as": list(found.names) if len(found.names) == 1 else [found.names[0], "..."],
                        "values": found.role.convention(ckpt.dialect),
                    }
                    for name, found in head.roles.items()
                ],
                "missing": list(head.missing),
                "unknown": list(head.unknown),
            }
            for head in layers
            if head is not None
        ],
    }
