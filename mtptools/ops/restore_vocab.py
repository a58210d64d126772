"""Undo prune-vocab: a reduced head gets back the output matrix, and the embedding, of the head it was made from."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.errors import IncompatibleError, InputError, UsageError
from mtptools.gguf_blocks import trunk_blocks
from mtptools.head import Found, Head, find_shared, head_names, is_sidecar
from mtptools.ops.compatible import mismatches
from mtptools.ops.declare import changes_between, gguf_changes, to_json_bytes
from mtptools.ops.donor import complete_head
from mtptools.ops.folder import left_out, side_files
from mtptools.ops.head_alone import declares
from mtptools.ops.own_output import OUTPUT
from mtptools.ops.prune_vocab import as_head, without_receipt
from mtptools.ops.reduced import EMBED, LABEL, drafts_with, same_bytes
from mtptools.ops.shards import gguf_shards, with_made
from mtptools.plan import Dropped, Entry, Input, OutFile, Plan
from mtptools.views import gathered
from mtptools.vocab.maps import DraftVocabulary
from mtptools.vocab.stored import draft_vocabulary, map_names

__all__ = ["restore_vocab"]

WHY: Final = "of the reduced head"


def restore_vocab(source: Checkpoint, donor: Checkpoint, out_name: str, *, link: bool = False) -> Plan:
    """Plan the reduced head of `source` with what `donor`, the head it was made from, drafts with.

    Raises InputError (nothing is reduced, or the donor is too), IncompatibleError, UsageError (two dialects).
    """
    vocabulary = draft_vocabulary(source)
    if vocabulary is None:
        raise InputError(
            "no draft vocabulary: there is nothing to restore", where=source.path, hint="its head drafts every token"
        )
    if draft_vocabulary(donor) is not None:
        raise InputError("the donor's head is reduced too", where=donor.path, hint="give the one that it was made from")
    if source.dialect != donor.dialect:
        raise UsageError(
            f"the source is in the {source.dialect} dialect, the donor in {donor.dialect}",
            where="--restore",
            hint="give the checkpoint that was pruned",
        )
    heads, theirs = complete_head(source), complete_head(donor)
    if len(heads) != len(theirs):
        what = f"MTP layers: {len(heads)} here, {len(theirs)} in the donor"
        raise IncompatibleError("the donor is another head", [what], where=donor.path, hint="take the one it came from")
    apart = [str(one) for one in mismatches(donor, source)]
    if apart:
        apart = [one.replace(": trunk ", ": DONOR ", 1).replace(", donor ", ", SRC ") for one in apart]
        raise IncompatibleError(
            f"{donor.path.name} is not what {source.path.name} was made from",
            apart,
            where="--restore",
            hint="give the checkpoint that was pruned",
        )
    facts = [_rows_agree(source, donor, heads, theirs, vocabulary)]
    made = _made(source, donor, heads, theirs)
    reduced = {name for one in drafts_with(source, heads) for name in one.found.names} | {*map_names(source)}
    used = {name for entry in made.values() for name in entry.names}
    dropped = [Dropped(LABEL, name, WHY) for name in source if name in reduced]
    dropped += [Dropped("donor", name, "as in the reduced head's file") for name in donor if name not in used]
    inputs = (Input(LABEL, source), Input("donor", donor))
    groups = with_made(source, LABEL, made, reduced - set(made))
    if source.dialect == "gguf":
        metadata = without_receipt(source)
        changed = {*made, *(head_names(source) if len(groups) == 1 else ())}
        groups = [(file, as_head(source, entries, changed)) for file, entries in groups]
        files = gguf_shards(source, groups, metadata, out_name, facts, link=link)
        changes = tuple(gguf_changes(source, metadata))
        return Plan("prune-vocab", inputs, files, dropped=tuple(dropped), changes=changes, facts=tuple(facts))
    entries = tuple(entry for _, group in groups for entry in group)
    config = _config(source, donor)
    return Plan(
        "prune-vocab",
        inputs,
        (OutFile("model.safetensors", "safetensors", dict(source.files[0].metadata), entries),),
        side_files(source, {"config.json": to_json_bytes(config)}),
        tuple(dropped),
        tuple(changes_between(source.config, config)),
        (*facts, *left_out(source)),
        folder=True,
    )


def _made(source: Checkpoint, donor: Checkpoint, heads: Sequence[Head], theirs: Sequence[Head]) -> dict[str, Entry]:
    """What the donor's head has and the reduced one has not, or not whole."""
    first = trunk_blocks(source) if source.dialect == "gguf" else 0
    out: dict[str, Entry] = {}
    for n, (ours, head) in enumerate(zip(heads, theirs, strict=True)):
        for role in (OUTPUT, EMBED):
            if role in head.roles and (role == OUTPUT or role not in ours.roles):
                out |= _taken(donor, head.roles[role], f"blk.{first + n}.{role}")
    shared = find_shared(donor, "output.weight")
    if is_sidecar(source) and shared is not None:
        out |= _taken(donor, shared, "output.weight")
    return out


def _taken(donor: Checkpoint, found: Found, name: str) -> dict[str, Entry]:
    """The donor's tensors of one role; in safetensors under the names that they have there."""
    parts = [tensor for one in found.stored for tensor in (one.tensor, *one.scales.values())]
    names = [name] if donor.dialect == "gguf" else [one.name for one in parts]
    pairs = zip(names, parts, strict=True)
    return {new: Entry(new, one, one.codec, "donor", (one.name,), head=True) for new, one in pairs}


def _config(source: Checkpoint, donor: Checkpoint) -> dict[str, Any]:
    """config.json without a draft vocabulary, its output matrix tied where the donor's is."""
    config = declares(copy.deepcopy(dict(source.config)), None)
    for tree, theirs in ((config, donor.config), (config.get("text_config"), donor.config.get("text_config"))):
        if isinstance(tree, dict) and isinstance(theirs, Mapping) and "tie_word_embeddings" in theirs:
            tree["tie_word_embeddings"] = theirs["tie_word_embeddings"]
    return config


def _rows_agree(
    source: Checkpoint, donor: Checkpoint, heads: Sequence[Head], theirs: Sequence[Head], vocabulary: DraftVocabulary
) -> str:
    """A fact: the reduced rows are the donor's, or in another type. Raises IncompatibleError where they are not."""
    ours, whole = drafts_with(source, heads)[0].stored.tensor, drafts_with(donor, theirs)[0].stored.tensor
    if ours.codec != whole.codec or whole.shape[0] != vocabulary.size:
        return "the reduced rows were not compared with the donor's: they are in another type"
    if same_bytes(gathered(whole, vocabulary.ids, whole.name), ours):
        return f"the {len(vocabulary)} reduced rows are the donor's, byte for byte"
    raise IncompatibleError(
        f"{donor.path.name} is not what {source.path.name} was made from",
        [f"the {len(vocabulary)} reduced rows are not those of the donor's matrix"],
        where="--restore",
        hint="give the checkpoint that was pruned",
    )
