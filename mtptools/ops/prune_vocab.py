"""prune-vocab: a head that drafts over some tokens only. The trunk verifies over all of them, so output stays the same.

    GGUF, with its trunk    `blk.N.nextn.shared_head_head.weight` of every MTP layer, and `d2t`
    GGUF sidecar            `output.weight` and `d2t`: the layout of llama.cpp PR #29143 and unslothai/llama.cpp #225
    safetensors             a sidecar folder as EAGLE-3 heads have it: `lm_head.weight`, `d2t`, `t2d`, draft_vocab_size

No runtime takes a reduced matrix out of a safetensors file that holds a trunk: that file stays where it is, untouched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mtptools.checkpoint import Checkpoint
from mtptools.containers.gguf import Metadata
from mtptools.errors import ConventionError, InputError, UsageError, typed
from mtptools.gguf_blocks import trunk_blocks
from mtptools.head import Head, find_shared, find_trunk, head_names, is_sidecar
from mtptools.ops.donor import complete_head, require_shapes
from mtptools.ops.draft_loaders import loads
from mtptools.ops.exact import statement
from mtptools.ops.head_alone import head_alone, shared_names
from mtptools.ops.own_output import OUTPUT
from mtptools.ops.reduced import EMBED, LABEL, Matrix, drafts_with, is_copy, map_entries, reduced_bytes
from mtptools.ops.roofline import traffic
from mtptools.ops.shards import gguf_shards, keep, with_made
from mtptools.plan import Dropped, Entry, Input, Plan, human_bytes
from mtptools.receipt import KEY_PREFIX
from mtptools.vocab.maps import DraftVocabulary
from mtptools.vocab.stored import draft_vocabulary, map_names

__all__ = ["as_head", "prune_vocab", "without_receipt"]

VERB: Final = "prune-vocab"
_WRAPPER: Final = "language_model."


def prune_vocab(
    source: Checkpoint,
    vocabulary: DraftVocabulary,
    out_name: str,
    *,
    sidecar: bool = False,
    keep_embeddings: bool = False,
    link: bool = False,
    facts: Sequence[str] = (),
) -> Plan:
    """Plan the head of `source` drafting over `vocabulary` alone: absolute ids, also of a head that is reduced already.

    sidecar          of a GGUF with a trunk, write the head alone; safetensors become a sidecar in any case
    keep_embeddings  keep the head's own embedding though it is a copy of the trunk's
    link             files in which nothing changes become hard links to the source's
    facts            how the vocabulary was chosen

    Raises MissingHeadError, MissingRoleError, ConventionError (llama.cpp has no place for the family's reduced matrix
    beside a trunk), InputError (a vocabulary of another size, or with tokens that a reduced head has lost).
    """
    if source.family.generic:
        raise InputError(
            f"{source.family.name} is not known here: which of its tensors a head drafts with cannot be said",
            where=source.path,
            hint="mtptools families lists the known ones",
        )
    heads = complete_head(source)
    require_shapes(source)
    if vocabulary.size != source.hparams.vocab_size:
        raise InputError(
            f"a draft vocabulary of a target with {vocabulary.size} tokens, the model has {source.hparams.vocab_size}",
            where=source.path,
            hint="take the list of this very model",
        )
    before = draft_vocabulary(source)
    rows = vocabulary if before is None else vocabulary.within(before, source.path)
    if len(vocabulary) == vocabulary.size:
        raise UsageError(
            f"all {vocabulary.size} tokens are kept: nothing is pruned",
            where="--size",
            hint="a smaller --size, or auto",
        )
    matrices = drafts_with(source, heads)
    alone = sidecar or is_sidecar(source) or source.dialect != "gguf"
    if before is not None and len(before) == len(vocabulary) and (not sidecar or is_sidecar(source)):
        raise UsageError(
            f"the head drafts these {len(vocabulary)} tokens and no others already: nothing is pruned",
            where="--size",
            hint="a smaller --size, or --restore DONOR first",
        )
    made, gone = _sidecar(source, matrices, rows) if alone else _bundled(source, matrices, rows)
    taken = {name for entry in made.values() for name in entry.names}
    made = {entry.name: entry for entry in (*made.values(), *map_entries(source.dialect, vocabulary))}
    gone |= {} if keep_embeddings else _copied_embeddings(source, heads)
    out = set(gone) - set(made)  # not in the output under their names
    gone = {name: why for name, why in gone.items() if name not in taken}
    why = gone | dict.fromkeys(map_names(source), "of the draft vocabulary before")
    facts = [*facts, *_facts(source, vocabulary, before, matrices, made), *_gone_facts(source, gone)]
    facts.append(loads(source.dialect, source.family.gguf_arch, alone=alone))
    if source.dialect == "gguf" and before is None:
        facts.append(f"stock llama.cpp loads a smaller matrix of all tokens: {_fallback(source)}")
    if source.dialect != "gguf" or (alone and not is_sidecar(source)):
        entries = _taken_out(source, made, out)
        return head_alone(VERB, source, len(heads), entries, out_name, facts, gone=why, vocabulary=vocabulary)
    metadata = without_receipt(source)
    groups = [(file, as_head(source, entries, made)) for file, entries in with_made(source, LABEL, made, out)]
    files = gguf_shards(source, groups, metadata, out_name, facts, link=link)
    return Plan(
        VERB,
        (Input(LABEL, source),),
        files,
        dropped=tuple(Dropped(LABEL, name, reason) for name, reason in why.items()),
        facts=tuple(facts),
    )


def as_head(source: Checkpoint, entries: list[Entry], made: Collection[str]) -> list[Entry]:
    """The head's tensors named as such, in the files that are written."""
    own = set(head_names(source)) if any(entry.name in made for entry in entries) else set()
    return [replace(entry, head=True) if entry.name in own else entry for entry in entries]


def _fallback(source: Checkpoint) -> str:
    return f"mtptools quantize {typed(source.path.name)} -o OUT --own-output Q4_K"


def _taken_out(source: Checkpoint, made: Mapping[str, Entry], gone: Collection[str]) -> list[Entry]:
    """The head, with what stands beside it in a sidecar."""
    own = {*head_names(source), *map_names(source)}
    wanted = {*own, *shared_names(source)}
    names = [name for name in source if name in wanted and name not in gone]
    kept = [made.get(entry.name, replace(entry, head=entry.name in own)) for entry in keep(source, LABEL, names)]
    return [*kept, *(entry for name, entry in made.items() if name not in names)]


def _bundled(
    source: Checkpoint, matrices: Sequence[Matrix], rows: DraftVocabulary
) -> tuple[dict[str, Entry], dict[str, str]]:
    """Every layer with a reduced matrix of its own: the trunk needs the whole one beside them."""
    if all(role.name != OUTPUT for role in source.family.head):
        raise ConventionError(
            f"llama.cpp has no place for an output matrix of a {source.family.title} head beside its trunk",
            where=source.path,
            hint="--sidecar writes the head alone, where output.weight is the head's",
        )
    first = trunk_blocks(source)
    every = [entry for n, one in enumerate(matrices) for entry in one.rows(rows, f"blk.{first + n}.{OUTPUT}")]
    return {entry.name: entry for entry in every}, {}


def _sidecar(
    source: Checkpoint, matrices: Sequence[Matrix], rows: DraftVocabulary
) -> tuple[dict[str, Entry], dict[str, str]]:
    """One reduced matrix where a sidecar has its output matrix; one for each layer where they differ."""
    shared = _shared_output(source)
    first, *rest = matrices
    alike = all(one.same(first) for one in rest)
    every = [first.rows(rows, shared)] if alike else [one.rows(rows, _own_name(one, shared)) for one in matrices]
    made = {entry.name: entry for entries in every for entry in entries}
    there = find_shared(source, "output.weight")
    names = [*(there.names if there is not None else ()), *(n for one in matrices if one.own for n in one.found.names)]
    return made, dict.fromkeys(names, "an output matrix: the head has one that is reduced")


def _own_name(one: Matrix, shared: str) -> str:
    return one.stored.tensor.name if one.own else shared


def _shared_output(source: Checkpoint) -> str:
    """What the output matrix of a sidecar is called."""
    found = find_shared(source, "output.weight")
    if found is not None:
        return f"{found.names[0].rpartition('.')[0]}.weight"
    if source.dialect == "gguf":
        return "output.weight"
    role = next(role for role, layer, _ in find_trunk(source) if layer is None and role.name == "output.weight")
    patterns = [one.pattern for one in role.sources(source.dialect)]
    embed = find_shared(source, "token_embd.weight")
    inside = embed is not None and embed.names[0].startswith(_WRAPPER)  # MLX: the whole text model stands in there
    return next((one for one in patterns if inside and one.startswith(_WRAPPER)), patterns[0])


def _copied_embeddings(source: Checkpoint, heads: Sequence[Head]) -> dict[str, str]:
    """The head's own embeddings that are the trunk's, byte for byte."""
    own = [head.roles[EMBED] for head in heads if EMBED in head.roles]
    return {name: "a copy of the embedding beside it" for one in own if is_copy(source, one) for name in one.names}


def _facts(
    source: Checkpoint,
    vocabulary: DraftVocabulary,
    before: DraftVocabulary | None,
    matrices: Sequence[Matrix],
    made: Mapping[str, Entry],
) -> list[str]:
    """What is reduced, and by how much a draft reads less: a model, each byte once and nothing else (`roofline`)."""
    first, small = matrices[0].nbytes, reduced_bytes(made.values())
    if before is not None and len(before) == len(vocabulary):
        return [f"draft vocabulary: {len(vocabulary)} of {vocabulary.size} tokens ({vocabulary.share:.1%}), as it was"]
    was = f", of {len(before)} that it was reduced to" if before is not None else ""
    reads = f"a draft reads {human_bytes(small)} of output matrix where it read {human_bytes(first)}"
    if find_shared(source, "token_embd.weight") is not None:
        whole = traffic(source).drafts(1)
        less = whole - first + small
        reads += f", {human_bytes(less)} in all where it read {human_bytes(whole)} ({less / whole:.2f}x, by a model)"
    rounded = [entry for entry in made.values() if entry.action == "recode"]
    kept = f"draft vocabulary: {len(vocabulary)} of {vocabulary.size} tokens ({vocabulary.share:.1%}){was}"
    return [kept, reads, *(statement(rounded) if rounded else ())]


def _gone_facts(source: Checkpoint, gone: Mapping[str, str]) -> list[str]:
    copies = [source[name] for name, why in gone.items() if "copy" in why]
    if not copies:
        return []
    size = human_bytes(sum(one.nbytes for one in copies))
    return [f"left out, a copy of the trunk's embedding ({size}): {', '.join(one.name for one in copies)}"]


def without_receipt(source: Checkpoint) -> Metadata:
    """The metadata of a GGUF without an earlier receipt."""
    return source.metadata.edited({key: None for key in source.metadata if key.startswith(KEY_PREFIX)})
