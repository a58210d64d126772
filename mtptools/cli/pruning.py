"""What `prune-vocab` does with the tokens that are kept: say what they cover, measure, write."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from mtptools.checkpoint import Checkpoint, open_checkpoint, open_declared
from mtptools.cli.draft_trials import Decoding
from mtptools.cli.keep_set import KeepSet, OutOfReachError, keep_set, tokenizer_holder
from mtptools.cli.one_file import check_file, write_file
from mtptools.cli.options import NO_OUTPUT, Writing
from mtptools.cli.output import emit, note
from mtptools.cli.plots import check_plot_place
from mtptools.cli.prune_options import Keeping, Trying, parse_corpora
from mtptools.cli.writing import carry_out, check_plan
from mtptools.cli.written import after_prune
from mtptools.errors import UsageError
from mtptools.tokens import tokenizer_facts
from mtptools.vocab.maps import Absolute, DraftVocabulary
from mtptools.vocab.stored import draft_vocabulary

__all__ = ["prune", "restored", "write_map"]


def restored(source: Path, donor: Path, writing: Writing, *, link: bool) -> int:
    """--restore. Raises what reading and `restore_vocab` raise."""
    from mtptools.ops.restore_vocab import restore_vocab

    ckpt, whole = open_checkpoint(source), open_checkpoint(donor)
    plan = restore_vocab(ckpt, whole, writing.out.name, link=link)
    check = after_prune(whole, None, quiet=writing.quiet or writing.as_json) if writing.verify else None
    return carry_out(plan, writing, check)


def prune(
    source: Path,
    keeping: Keeping,
    trying: Trying,
    writing: Writing,
    *,
    sidecar: bool,
    keep_embeddings: bool,
    link: bool,
) -> int:
    """Choose, measure where asked, and with -o write the reduced head. The exit code: 1 for more loss than allowed."""
    from mtptools.ops.prune_vocab import prune_vocab

    writes, quiet = writing.out != NO_OUTPUT, writing.quiet or writing.as_json
    ckpt = open_checkpoint(source) if writes else _opened(source, keeping, trying)

    name = writing.out.name if writes else ckpt.path.name
    plan_of = partial(prune_vocab, ckpt, out_name=name, sidecar=sidecar, link=link)
    if writes:  # what is wrong with the head, or with the place, is found out before the hours
        check_plan(plan_of(_placeholder(ckpt), keep_embeddings=True), writing)
    done = _chosen(ckpt, keeping, trying, writing.out, strict=writes, quiet=quiet)
    plan = None
    if writes:
        plan = plan_of(done.kept.vocabulary, keep_embeddings=keep_embeddings, facts=done.kept.facts)
    _draw(done.kept, None if writing.dry_run else keeping.plot, quiet=quiet)
    if plan is None or done.lost:
        lines = [*done.kept.facts, done.text]
        emit({**done.data, "output": None}, "\n".join(lines), as_json=writing.as_json, quiet=writing.quiet)
        return _verdict(done.lost, trying, writes=writes)
    emit(done.data, done.text, as_json=False, quiet=quiet)
    trunk = open_checkpoint(trying.trunk) if trying.trunk is not None else None
    check = after_prune(ckpt, trunk, judged=trying.asked, quiet=quiet) if writing.verify else None
    return carry_out(plan, writing, check, done.data)


def _opened(source: Path, keeping: Keeping, trying: Trying) -> Checkpoint:
    """Weights are wanted where something is decoded; a configuration and a tokenizer are enough for the rest."""
    decodes = trying.asked or keeping.from_model is not None
    return open_checkpoint(source) if decodes else open_declared(source)


def _placeholder(ckpt: Checkpoint) -> DraftVocabulary:
    """Some draft vocabulary that the head can be reduced to."""
    before, size = draft_vocabulary(ckpt), ckpt.hparams.vocab_size
    return DraftVocabulary.of(Absolute(np.arange(1) if before is None else before.ids[:1]), size, ckpt.path)


def write_map(source: Path, keeping: Keeping, trying: Trying, to: str | None, writing: Writing) -> int:
    """--map-only: the list in a format that runtimes take, and a receipt beside it."""
    from mtptools.vocab.mapfiles import FORMATS, LOADED_BY, file_bytes, receipt

    form = to or next((name for name, one in FORMATS.items() if one.suffix == writing.out.suffix), None)
    if form is None:
        raise UsageError("its suffix does not say the format", where=writing.out, hint=f"--to {'|'.join(FORMATS)}")
    suffix = FORMATS[form].suffix
    if form != "ids" and writing.out.suffix != suffix:
        raise UsageError("under that name it would not be read back", where=writing.out, hint=f"-o NAME{suffix}")
    if writing.verify:
        raise UsageError("a list is no checkpoint to verify", where="--verify", hint="leave it out")
    ckpt = _opened(source, keeping, trying)
    beside = writing.out.with_name(f"{writing.out.name}.receipt.json")
    for path in (writing.out, beside):
        _check_place(path, ckpt, keeping, trying)
        check_file(path, [source], force=writing.force)
    done = _chosen(ckpt, keeping, trying, writing.out, strict=True, quiet=writing.quiet or writing.as_json)
    tokens = tokenizer_facts(tokenizer_holder(ckpt, keeping.tokenizer))
    digest, vocabulary = None if tokens is None else tokens.digest, done.kept.vocabulary
    body = file_bytes(vocabulary, form, digest)
    record = receipt(vocabulary, form, body, digest, done.kept.origin)
    lines = [
        *done.kept.facts,
        *([done.text] if done.text else []),
        f"{len(vocabulary)} of {vocabulary.size} tokens ({vocabulary.share:.1%}) as {_KINDS[FORMATS[form].kind]}: "
        f"{FORMATS[form].what}",
        f"loaded by: {LOADED_BY[form]}",
    ]
    _draw(done.kept, None if writing.dry_run else keeping.plot, quiet=writing.quiet or writing.as_json)
    writes = not done.lost and not writing.dry_run
    if writes:
        for path, part in ((writing.out, body), (beside, (json.dumps(record, indent=1) + "\n").encode())):
            write_file([part], len(part), path, force=writing.force)
        lines += [f"prune-vocab: {writing.out} ({len(body)} bytes)", f"receipt: {beside}"]
    elif writing.dry_run:
        lines.append("dry run: nothing was written")
    data = {**done.data, "output": str(writing.out) if writes else None, "format": form, "receipt": record}
    emit(data, "\n".join(lines), as_json=writing.as_json, quiet=writing.quiet)
    return _verdict(done.lost, trying, writes=True)


def _check_place(out: Path, ckpt: Checkpoint, keeping: Keeping, trying: Trying) -> None:
    """Refuse to replace what is read: of folders, whatever is in them that a run before did not put there."""
    if not out.exists() or out.with_name(f"{out.name}.receipt.json").exists() or out.name.endswith(".receipt.json"):
        return
    read = [path for paths in parse_corpora(keeping.corpora).values() for path in paths]
    read += [one for one in (keeping.ids, keeping.from_model, keeping.tokenizer, trying.prompts, ckpt.path) if one]
    read += [file.path for file in ckpt.files] + ([ckpt.folder] if ckpt.folder is not None else [])
    real = out.resolve()
    if any(real.samefile(one) or one.resolve() in real.parents for one in read if one.exists()):
        raise UsageError("the output is one of the inputs", where=out, hint="give another path with -o")


_KINDS: Final = {"absolute": "absolute ids", "offsets": "offsets"}


def _verdict(lost: list[str], trying: Trying, *, writes: bool) -> int:
    if lost:
        unwritten = "; nothing is written" if writes else ""
        note(f"more is lost than --max-loss {trying.max_loss:g} points: {', '.join(lost)}{unwritten}")
    return 1 if lost else 0


@dataclass(frozen=True)
class _Done:
    """What was chosen and measured, as JSON and as text; `lost`: domains that lose more than is allowed."""

    kept: KeepSet
    data: dict[str, Any]
    text: str
    lost: list[str]


def _chosen(ckpt: Checkpoint, keeping: Keeping, trying: Trying, out: Path, *, strict: bool, quiet: bool) -> _Done:
    """Count, choose, measure. What can be wrong with little is found out before that takes hours."""
    if keeping.plot is not None:
        check_plot_place(keeping.plot)
        if out != NO_OUTPUT and keeping.plot.resolve() == out.resolve():
            raise UsageError("the picture and the output are one file", where="--plot", hint="--plot coverage.svg")
        if keeping.ids is not None and keeping.size is None:
            raise UsageError("a list has no order to draw", where="--plot", hint="leave out --ids, or give --size too")
    holder = tokenizer_holder(ckpt, keeping.tokenizer)
    decoding = Decoding(ckpt, holder, keeping, trying, quiet=quiet)
    if trying.asked or keeping.from_model is not None:
        decoding.require()
    try:
        kept = keep_set(ckpt, holder, keeping, decoding.written, strict=strict, quiet=quiet)
    except OutOfReachError as error:
        note("\n".join(_told(error.found)[1]), quiet=quiet)
        raise
    data, lines = _told(kept)
    lost: list[str] = []
    if trying.asked:
        from mtptools.ops.prune_vocab import prune_vocab
        from mtptools.report.draft_trial_text import render, to_json

        plan = prune_vocab(ckpt, kept.vocabulary, "", sidecar=True, keep_embeddings=True)
        spared = [name for name, weight in kept.weights.items() if not weight]
        trial = decoding.trial(kept.vocabulary, spared, plan)
        data["trial"] = to_json(trial, trying.max_loss)
        lines.append(render(trial, trying.max_loss))
        lost = [] if trying.max_loss is None else trial.failed(trying.max_loss)
    return _Done(kept, data, "\n\n".join(lines), lost)


def _draw(kept: KeepSet, plot: Path | None, *, quiet: bool) -> None:
    if plot is None or kept.ranking is None:
        return
    from mtptools.report.coverage_plot import plot_coverage
    from mtptools.report.plot import write_plot

    size, kind = len(kept.vocabulary), plot.suffix[1:].lower()
    write_plot(plot, plot_coverage(kept.counted, kept.ranking, kept.weights, size, kind))
    note(f"plot: {plot}", quiet=quiet)


def _told(kept: KeepSet) -> tuple[dict[str, Any], list[str]]:
    vocabulary = kept.vocabulary
    data: dict[str, Any] = {
        "draft_vocabulary": {"size": len(vocabulary), "of": vocabulary.size, "share": vocabulary.share},
        "origin": kept.origin,
        "facts": kept.facts,
    }
    if kept.covered is None:
        return data, []
    from mtptools.report.coverage import render, to_json

    data["coverage"] = to_json(kept.covered, kept.others, kept.ranking, kept.counted)
    return data, [render(kept.covered, kept.others, kept.ranking)]
