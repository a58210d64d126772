"""A reduced head and the one it was made from, brought to the same roles so that they can be compared."""

from __future__ import annotations

from dataclasses import replace

from mtptools.checkpoint import Checkpoint
from mtptools.head import Found, Head, Stored
from mtptools.ops.own_output import OUTPUT
from mtptools.ops.reduced import EMBED, drafts_with, is_copy
from mtptools.views import gathered
from mtptools.vocab.maps import DraftVocabulary
from mtptools.vocab.stored import draft_vocabulary

__all__ = ["to_same_roles"]


def to_same_roles(
    ckpt: Checkpoint, donor: Checkpoint, ours: Head, theirs: Head, vocabulary: DraftVocabulary
) -> tuple[Head, Head]:
    """One MTP layer of both: each with the rows of the tokens in `vocabulary` as its output matrix.

    The donor's embedding is left out where ours has none and it is a copy of the one beside it. Raises InputError for
    tokens that a donor, reduced too, does not draft; MissingRoleError without an output matrix.
    """
    wider = draft_vocabulary(donor)
    rows = vocabulary if wider is None else vocabulary.within(wider, donor.path)
    (mine,), (whole,) = drafts_with(ckpt, [ours]), drafts_with(donor, [theirs])
    role = replace(mine.found.role, name=OUTPUT)
    picked = gathered(whole.found.tensor, rows.ids, OUTPUT)
    left = {**ours.roles, OUTPUT: replace(mine.found, role=role)}
    right = {**theirs.roles, OUTPUT: Found(role, (Stored(picked),))}
    if EMBED in right and EMBED not in left and is_copy(donor, right[EMBED]):
        del right[EMBED]
    return replace(ours, roles=left), replace(theirs, roles=right)
