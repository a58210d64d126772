"""An output matrix of the head's own, so that drafting does not read the trunk's larger one.

llama.cpp takes it where a family has a name for it (`nextn.shared_head_head`): full vocabulary, any type. The trunk's
has 1.27 billion weights on Qwen3.6-27B, the rest of the head 425 million.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mtptools.checkpoint import Checkpoint
from mtptools.errors import ConventionError, MissingRoleError
from mtptools.head import Head, find_trunk
from mtptools.ops.head_types import HeadTypes
from mtptools.ops.render import gguf_entry
from mtptools.ops.style import Style
from mtptools.plan import Entry

__all__ = ["OUTPUT", "own_outputs"]

OUTPUT: Final = "nextn.shared_head_head.weight"


def own_outputs(trunk: Checkpoint, donor: Checkpoint, heads: list[Head], first: int, types: HeadTypes) -> list[Entry]:
    """An output matrix of its own for each MTP layer, in `types.style.own_output`, made from the trunk's.

    One that a layer has already is recoded. `trunk` is a GGUF, and may be the donor; `first` is the number of the first
    head block in it. Raises ConventionError where llama.cpp knows no such tensor, MissingRoleError without a matrix.
    """
    role = next((role for role in trunk.family.head if role.name == OUTPUT), None)
    if role is None:
        raise ConventionError(
            f"a head of {trunk.family.title} has no output matrix of its own",
            where="--own-output",
            hint="leave it out: the head shares the trunk's",
        )
    found = {role.name: one for role, layer, one in find_trunk(trunk) if layer is None and one is not None}
    shared = found.get("output.weight") or found.get("token_embd.weight")
    asked = replace(types, style=Style(types.style.own_output, roles=types.style.roles))
    labels = ("source", "source") if donor is trunk else ("trunk", "donor")
    out = []
    for layer, head in enumerate(heads):
        name, own = f"blk.{first + layer}.{OUTPUT}", head.roles.get(OUTPUT)
        if own is not None:
            out.append(gguf_entry(donor, own, name, asked, label=labels[1], head=True))
        elif shared is not None:
            out.append(gguf_entry(trunk, replace(shared, role=role), name, asked, label=labels[0], head=True))
        else:
            raise MissingRoleError("no output matrix to make the head's own from", where=trunk.path)
    return out
