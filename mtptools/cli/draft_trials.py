"""`prune-vocab`: what is decoded, to count it and to measure acceptance on it. The model is loaded once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.cli.loading import load, require_room, require_torch
from mtptools.cli.output import note, status
from mtptools.cli.prune_options import Keeping, Trying, parse_corpora
from mtptools.decoder import undecodable
from mtptools.errors import InputError, NoDecoderError, UsageError
from mtptools.head import is_sidecar

if TYPE_CHECKING:
    from mtptools.decoder.memory import MemoryPlan
    from mtptools.decoder.model import Model
    from mtptools.decoder.tokenizer import Tokenizer
    from mtptools.decoder.trace import Trace
    from mtptools.plan import Plan
    from mtptools.report.draft_trial import DraftTrial
    from mtptools.vocab.maps import DraftVocabulary

__all__ = ["Decoding"]

PASSAGE: Final = 128  # tokens of a prompt that is cut out of a text
PASSAGES: Final = 8  # of a domain
LOOKED_AT: Final = 200  # held-out pieces of a domain that passages are taken from


class Decoding:
    """Decodes with `ckpt`, or with a sidecar's head on the trunk that was named."""

    def __init__(self, ckpt: Checkpoint, holder: Checkpoint, keeping: Keeping, told: Trying, *, quiet: bool) -> None:
        self.ckpt, self.holder, self.told, self.quiet = ckpt, holder, told, quiet
        self.written_after, self.corpora = keeping.from_model, parse_corpora(keeping.corpora)
        self.traces: dict[str, list[Trace]] = {}

    def require(self) -> None:
        """What can be wrong with little is found out first. Raises NoDecoderError, InputError, MissingExtraError."""
        if is_sidecar(self.ckpt) and self.told.trunk is None:
            raise InputError(
                "a sidecar has no trunk to decode with",
                where=self.ckpt.path,
                hint="--trunk PATH: the one it drafts for",
            )
        if not is_sidecar(self.ckpt) and self.told.trunk is not None:
            raise UsageError("SRC has a trunk of its own", where="--trunk", hint="leave it out")
        reason = undecodable(self.ckpt)
        if reason:
            raise NoDecoderError(
                reason,
                where=self.ckpt.path,
                hint="acceptance cannot be measured here: choose by coverage, --corpus FILE",
            )
        self.told.check(self._trunk.hparams.context_length)
        require_torch()

    @cached_property
    def _trunk(self) -> Checkpoint:
        return self.ckpt if self.told.trunk is None else open_checkpoint(self.told.trunk)

    @cached_property
    def _loaded(self) -> tuple[Model, MemoryPlan]:
        head = None if self.told.trunk is None else self.ckpt
        longest = require_room(self._trunk, self._texts(), self.told.tokens)
        return load(self._trunk, head, self.told, texts=longest, k=self.told.k, quiet=self.quiet)

    def _texts(self) -> Iterator[list[int]]:
        """All prompts that the model will be given: it is loaded once for them."""
        yield from (ids for _, ids in self._questions)
        if self.told.asked:
            yield from (ids for some in self._prompts.values() for ids in some)

    @contextmanager
    def _at_work(self) -> Iterator[tuple[Model, Callable[[str], None]]]:
        """The model, and where to say what it does."""
        model, plan = self._loaded
        with plan.describing(), status(quiet=self.quiet) as say:
            yield model, say

    @cached_property
    def tokenizer(self) -> Tokenizer:
        from mtptools.decoder.tokenizer import load_tokenizer

        return load_tokenizer(self.holder, self.ckpt.hparams.vocab_size)

    @cached_property
    def _questions(self) -> list[tuple[str, list[int]]]:
        """(category, token ids) of what the model writes after, for `written`."""
        from mtptools.prompts import read_prompts, spread

        chosen = [] if self.written_after is None else spread(read_prompts(self.written_after), self.told.limit)
        return [(one.category, self.tokenizer.encode(one.text)) for one in chosen]

    def written(self) -> dict[str, list[list[int]]]:
        """Domain to what the trunk writes after the prompts of --from-model."""
        from mtptools.report.draft_trial import generated, write_texts
        from mtptools.vocab.generated import pooled

        self.require()
        found = pooled(self._questions)
        small = sorted({category for category, _ in self._questions} - found.keys() - {""})
        if small:
            note(f"too few prompts for a domain of their own, counted together: {', '.join(small)}", quiet=self.quiet)
        with self._at_work() as (model, say):
            texts = write_texts(model, found, self.told.tokens, say, stop=self.tokenizer.stop_ids)
        self.traces = {domain: list(some) for domain, some in texts.items()}
        return {domain: generated(some) for domain, some in self.traces.items()}

    def trial(self, vocabulary: DraftVocabulary, spared: Collection[str], plan: Plan) -> DraftTrial:
        """Acceptance before and after, on texts that the vocabulary was not made from where there are any.

        spared  domains that are measured and not judged;  plan  of the reduced head, for the bytes that it reads
        """
        from mtptools.ops.reduced import reduced_bytes
        from mtptools.ops.roofline import traffic
        from mtptools.report.draft_trial import try_vocabulary, write_texts
        from mtptools.vocab.generated import is_held

        self.require()
        texts: dict[str, Sequence[Trace]] = {}
        if self.told.prompts is None:
            for domain, some in self.traces.items():
                texts[domain] = [one for n, one in enumerate(some) if is_held(n, len(some))]
        with self._at_work() as (model, say):
            texts |= write_texts(model, self._prompts, self.told.tokens, say, stop=self.tokenizer.stop_ids)
        with self._at_work() as (model, say):
            trial = try_vocabulary(model, texts, vocabulary, k=self.told.k, progress=say)
        trial = replace(trial, spared=frozenset(spared) & texts.keys())
        if is_sidecar(self.ckpt):
            return trial
        before = traffic(self.ckpt)
        after = replace(before, outputs=(reduced_bytes(plan.entries),) * len(before.outputs))
        return replace(trial, reads=(before, after))

    @cached_property
    def _prompts(self) -> dict[str, list[list[int]]]:
        """Domain to prompts as token ids, for `trial`: those of a file, passages of held-out text, the built-in set.

        Empty where what `written` gave is enough to measure on.
        """
        from mtptools.prompts import read_prompts, spread

        if self.corpora and self.told.prompts is None:
            return {domain: self._passages(paths) for domain, paths in self.corpora.items()}
        if self.written_after is not None and self.told.prompts is None:
            return {}
        out: dict[str, list[list[int]]] = {}
        for one in spread(read_prompts(self.told.prompts), self.told.limit):
            out.setdefault(one.category or "prompts", []).append(self.tokenizer.encode(one.text))
        return out

    def _passages(self, paths: Sequence[Path]) -> list[list[int]]:
        from mtptools.decoder.sweep import passages

        start = self.tokenizer.start
        texts = _some(_pieces(paths, held=True), LOOKED_AT) or _some(_pieces(paths, held=False), LOOKED_AT)
        ids = [self.tokenizer.encode(text)[len(start) :] for text in texts]
        return passages(ids, PASSAGE, self.told.limit or PASSAGES, start)


def _pieces(paths: Sequence[Path], *, held: bool) -> Iterator[str]:
    from mtptools.vocab.corpus import find, pieces

    return (piece.text for piece in pieces(find(paths)) if piece.held == held and piece.text.strip())


def _some(texts: Iterable[str], most: int) -> list[str]:
    """At most so many, from all over: each has the same chance, and the same ones are taken every time."""
    draw, out = Random(0), list[str]()
    for n, text in enumerate(texts):
        if n < most:
            out.append(text)
        elif (at := draw.randrange(n + 1)) < most:
            out[at] = text
    return out
