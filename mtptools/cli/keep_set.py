"""`prune-vocab`: from what was typed to the tokens that are kept, with what they cover."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.cli.output import status
from mtptools.cli.prune_options import Keeping, parse_corpora, parse_weights
from mtptools.errors import InputError, TokenizerError, UsageError
from mtptools.tokens import tokenizer_facts
from mtptools.vocab.maps import Absolute, DraftVocabulary
from mtptools.vocab.stored import draft_vocabulary

if TYPE_CHECKING:
    from mtptools.decoder.tokenizer import Tokenizer
    from mtptools.vocab.counting import Counted
    from mtptools.vocab.coverage import Coverage
    from mtptools.vocab.ranking import Ranking

__all__ = ["KeepSet", "OutOfReachError", "keep_set", "tokenizer_holder"]


_SHOWN: Final = 3
_MUCH: Final = 0.01


class OutOfReachError(InputError):
    """No size is enough for `--size auto`. `found` is what there is: coverage by every token that was seen."""

    def __init__(self, error: InputError, found: KeepSet) -> None:
        super().__init__(error.what, where=error.where, hint=error.hint)
        self.found = found


Texts = Mapping[str, Sequence[Sequence[int]]]


@dataclass(frozen=True)
class KeepSet:
    """The draft vocabulary, and what is known of it.

    origin    what it was made from, for the receipt
    facts     what was decided, for people
    counted   the domains counted, none where a list alone was given
    covered   of this vocabulary, and of others at common sizes
    """

    vocabulary: DraftVocabulary
    origin: dict[str, Any]
    facts: list[str]
    counted: list[Counted] = field(default_factory=list)
    ranking: Ranking | None = None
    weights: dict[str, float] = field(default_factory=dict)
    covered: Coverage | None = None
    others: list[Coverage] = field(default_factory=list)


def tokenizer_holder(ckpt: Checkpoint, path: Path | None) -> Checkpoint:
    """The checkpoint whose tokenizer is the model's: itself, or a folder or GGUF that was named.

    Raises TokenizerError: there is none, or it is not the one that the model brings.
    """
    if path is None:
        return ckpt
    from mtptools.checkpoint import open_checkpoint

    folder = path if path.is_dir() else path.parent
    if path.suffix == ".gguf":
        holder = open_checkpoint(path)
    elif not path.exists() or not (folder / "tokenizer.json").is_file():
        raise TokenizerError(
            "no tokenizer.json there" if path.exists() else "no such file or folder",
            where=path,
            hint="--tokenizer FOLDER, where the model's tokenizer.json is, or a GGUF of it",
        )
    else:
        files = tuple(sorted(one.relative_to(folder) for one in folder.iterdir() if one.is_file()))
        holder = Checkpoint(
            path=folder, container="safetensors", dialect="hf", files=(), tensors={}, folder=folder, side_files=files
        )
    own, other = tokenizer_facts(ckpt), tokenizer_facts(holder)
    if own is not None and other is not None and own.digest != other.digest:
        raise TokenizerError(
            f"it is not the model's own: {other.size} tokens {other.digest[:12]}, the model's {own.size} tokens "
            f"{own.digest[:12]}",
            where=path,
            hint="leave out --tokenizer: the model brings one",
        )
    return holder


def keep_set(
    ckpt: Checkpoint,
    holder: Checkpoint,
    told: Keeping,
    written: Callable[[], Texts],
    *,
    strict: bool,
    quiet: bool,
) -> KeepSet:
    """Choose the tokens.

    holder   has the tokenizer
    written  decodes after the prompts of --from-model: domain to the texts that the model wrote, every fifth held out

    strict   a size that `auto` cannot find is an error, not a remark

    Raises what reading, counting and decoding raise; OutOfReachError; UsageError where nothing says what to keep.
    """
    size, before = ckpt.hparams.vocab_size, draft_vocabulary(ckpt)
    corpora, weights = parse_corpora(told.corpora), parse_weights(told.weights)
    tokens = tokenizer_facts(holder)
    given = _given(told, size, None if tokens is None else tokens.digest)
    if given is None and not corpora and told.from_model is None:
        if before is not None and told.size is None:
            return KeepSet(before, {"source": ckpt.path.name}, [])
        raise UsageError(
            "nothing says which tokens to keep",
            where="--size" if told.size else None,
            hint="--size 64k --corpus FILE (more than one kind of text), --from-model PROMPTS, or --ids FILE",
        )
    tokenizer = _tokenizer(holder, size) if corpora or told.from_model is not None or not told.as_given else None
    always = _always(holder, tokenizer, told, size) if tokenizer is not None else {}
    origin: dict[str, Any] = {"tokenizer_sha256": None if tokens is None else tokens.digest, "always_kept": len(always)}
    if given is not None and told.ids is not None:
        origin["ids"] = told.ids.name
    spared = [name for name, weight in weights.items() if not weight]
    counts = corpora or told.from_model is not None
    counted = _counted(corpora, tokenizer, size, told, written, spared, quiet=quiet) if counts else []
    origin["domains"] = [_origin(one) for one in counted]
    if given is not None and (told.size is None or not counted):
        if told.size is not None:
            raise UsageError(
                "a list is taken whole: what comes next in it, nothing says",
                where="--size",
                hint="leave it out, or count text to fill up with: --corpus FILE",
            )
        facts, vocabulary = _list_facts(given, always, before)
        facts += _left_out(counted)
        return _with_coverage(KeepSet(vocabulary, origin, facts, counted, None, weights))
    from mtptools.vocab.ranking import auto, chosen, parse_size, rank, step_of

    kept = {*always, *(given.ids.tolist() if given is not None else ())}
    ranking = rank(counted, weights, kept, size, before)
    asked = parse_size("auto" if told.size is None else told.size)
    facts = _left_out(counted)
    facts += [f"always kept: {len(always)} tokens ({_reasons(always)})"] if always else []
    facts += [f"and the {len(given)} tokens of {told.ids.name}"] if given is not None and told.ids is not None else []
    n = asked or 0
    if asked is None:
        step = step_of(size)
        try:
            n = auto(counted, ranking, weights, step=step)
            said = f"size {n}: the smallest multiple of {step} that covers 99.5 % of every domain's held-out text"
        except InputError as error:
            n, said = ranking.seen, f"no size for auto: {error.what}; shown is every token that was seen"
            if strict:
                found = _with_coverage(KeepSet(chosen(ranking, n), origin, facts, counted, ranking, weights))
                raise OutOfReachError(error, found) from error
        facts.append(said)
    return _with_coverage(KeepSet(chosen(ranking, n), origin, facts, counted, ranking, weights))


def _origin(one: Counted) -> dict[str, Any]:
    return {
        "domain": one.domain,
        "documents": one.documents,
        "bytes": one.nbytes,
        "tokens": int(one.train.sum() + one.held.sum()),
        "left_out": len(one.skipped),
    }


def _given(told: Keeping, size: int, digest: str | None) -> DraftVocabulary | None:
    if told.ids is None:
        return None
    from mtptools.vocab.mapfiles import read_ids

    return read_ids(told.ids, size, tokenizer_sha256=digest, kind=told.ids_as)  # type: ignore[arg-type]  # a click.Choice


def _tokenizer(holder: Checkpoint, size: int) -> Tokenizer:
    from mtptools.decoder.tokenizer import load_tokenizer

    try:
        return load_tokenizer(holder, size)
    except TokenizerError as error:
        hint = f"{error.hint}; or --tokenizer PATH: a folder with tokenizer.json, or a GGUF of the same model"
        raise TokenizerError(error.what, where=error.where, hint=hint) from error


def _always(holder: Checkpoint, tokenizer: Tokenizer, told: Keeping, size: int) -> dict[int, str]:
    """Token id to why it is always kept; of tokens for which the model has a row."""
    from mtptools.vocab.pinned import pinned

    if told.as_given:
        return {}

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text)[len(tokenizer.start) :]

    return {token: why for token, why in pinned(holder, encode).items() if token < size}


def _reasons(always: Mapping[int, str]) -> str:
    counts: dict[str, int] = {}
    for why in always.values():
        counts[why] = counts.get(why, 0) + 1
    return ", ".join(f"{count} {why}" for why, count in counts.items())


def _counted(
    corpora: Mapping[str, Sequence[Path]],
    tokenizer: Tokenizer | None,
    size: int,
    told: Keeping,
    written: Callable[[], Texts],
    spared: Sequence[str],
    *,
    quiet: bool,
) -> list[Counted]:
    from mtptools.vocab.counting import count
    from mtptools.vocab.generated import counted_texts

    out: list[Counted] = []
    if corpora and tokenizer is not None:
        with status(quiet=quiet) as say:
            progress = _teller(say)
            model = tokenizer.backend.to_str()
            out = count(corpora, model, size, processes=told.processes, progress=progress, whole=spared)
    if told.from_model is not None:
        mine = counted_texts(written(), size)
        twice = {one.domain for one in out} & {one.domain for one in mine}
        if twice:
            name = min(twice)
            raise UsageError(
                f"a domain of --corpus and one of --from-model are both called {name}",
                where="--corpus",
                hint=f"--corpus {name}-text=PATH",
            )
        out += mine
    return out


def _teller(say: Callable[[str], None]) -> Callable[[int, int], None]:
    """Says how far counting is, how fast, and how long it will take."""
    started = time.perf_counter()

    def told(done: int, total: int) -> None:
        speed = done / max(time.perf_counter() - started, 1e-9)
        minutes, seconds = divmod(int((total - done) / max(speed, 1)), 60)
        say(
            f"counting: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB, {speed / 1e6:.0f} MB/s, {minutes}:{seconds:02} left"
        )

    return told


def _left_out(counted: Sequence[Counted]) -> list[str]:
    """What the text lost on the way, which a table of shares does not show."""
    out = []
    for one in counted:
        if one.skipped:
            shown = "; ".join(f"{path.name}: {why}" for path, why in one.skipped[:_SHOWN])
            more = f"; and {len(one.skipped) - _SHOWN} more" if len(one.skipped) > _SHOWN else ""
            out.append(f"{one.domain}: {len(one.skipped)} file(s) left out, or read in part ({shown}{more})")
        if one.textless:
            out.append(f"{one.domain}: {one.textless} record(s) hold no text")
        if one.repeated > one.nbytes * _MUCH:
            out.append(f"{one.domain}: {one.repeated:,} characters repeat what was counted, and are not held out")
    return out


def _list_facts(
    given: DraftVocabulary, always: Mapping[int, str], before: DraftVocabulary | None
) -> tuple[list[str], DraftVocabulary]:
    """What is said of a list, and the list with what is always kept."""
    import numpy as np

    # A head that is reduced already has lost what it has lost.
    wanted = [i for i in always if before is None or before.mask[i]]
    added = sorted(set(wanted) - set(given.ids.tolist()))
    said = [f"{len(given)} of {given.size} tokens by the list"]
    if not added:
        return said, given
    ids = np.union1d(given.ids, np.array(added, dtype=np.int64))
    counts = _reasons({i: always[i] for i in added})
    fact = f"{len(added)} tokens that the list lacks are kept all the same ({counts}); --as-given leaves them out"
    return [*said, fact], DraftVocabulary.of(Absolute(ids), given.size)


def _with_coverage(kept: KeepSet) -> KeepSet:
    if not kept.counted:
        return kept
    from mtptools.vocab.coverage import SIZES, coverage
    from mtptools.vocab.ranking import chosen

    ranking, others = kept.ranking, []
    if ranking is not None:
        sizes = [n for n in SIZES if n < len(ranking.ids)] or [len(ranking.ids) * part // 8 for part in (1, 2, 4, 6)]
        sizes = [n for n in sizes if n >= max(ranking.kept, 1)]
        others = [coverage(chosen(ranking, n), kept.counted, kept.weights) for n in sizes]
    return replace(kept, covered=coverage(kept.vocabulary, kept.counted, kept.weights), others=others)
