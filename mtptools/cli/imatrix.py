"""mtptools imatrix"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import numpy as np

from mtptools.cli.options import PATH, Running, chunk_device_options, examples, output_options
from mtptools.cli.output import emit, note, status, table
from mtptools.cli.texts import read_text
from mtptools.errors import InputError, NoDecoderError

if TYPE_CHECKING:
    from mtptools.checkpoint import Checkpoint
    from mtptools.importance import Importance

__all__ = ["command"]

_TEXT: Final = "give a text file of what the model will be used for: some hundred thousand words do"


@click.command(
    epilog=examples(
        "mtptools imatrix model.gguf --text calibration.txt -o head.imatrix.gguf",
        "mtptools imatrix model.gguf --text a.txt --text b.txt --merge trunk.imatrix.gguf -o imatrix.gguf",
        "mtptools imatrix ./Qwen3.5-27B --text calibration.txt --chunks 100 --dtype bfloat16 -o head.imatrix.gguf",
        "mtptools imatrix trunk.gguf --head mtp.gguf --text calibration.txt -o head.imatrix.gguf",
        "llama-quantize --imatrix imatrix.gguf model.gguf model-IQ2_XS.gguf IQ2_XS",
    )
)
@click.argument("path", type=PATH)
@click.option("--text", "texts", type=PATH, multiple=True, required=True, help="Text to read; may be given again.")
@click.option("-o", "--output", "out", required=True, type=PATH, help="File to write.")
@click.option("--context", default=512, show_default=True, type=click.IntRange(4, 1 << 20), help="Tokens of a chunk.")
@click.option("--chunks", type=click.IntRange(1), help="Read so many chunks at most.  [default: the whole text]")
@click.option("--merge", type=PATH, multiple=True, help="Add what llama-imatrix measured of the trunk (GGUF or .dat).")
@click.option(
    "--scope",
    default="head",
    show_default=True,
    type=click.Choice(["head", "all"]),
    help="The head's matrices, or the trunk's too.",
)
@click.option("--head", type=PATH, help="A sidecar to take the head from.")
@chunk_device_options
@click.option("--force", is_flag=True, help="Replace an existing output.")
@output_options
def command(
    path: Path,
    texts: tuple[Path, ...],
    out: Path,
    context: int,
    chunks: int | None,
    merge: tuple[Path, ...],
    scope: str,
    head: Path | None,
    running: Running,
    force: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Measure which columns of the head's matrices matter, for quantizing it.

    The model reads the text, the head on the trunk's states, and the squares of what each matrix is multiplied with are
    added up. The file is llama.cpp's imatrix format; llama-imatrix itself never runs the head.
    """
    from mtptools.checkpoint import open_checkpoint
    from mtptools.cli.loading import loaded, require_head, require_torch
    from mtptools.cli.one_file import check_file, write_file
    from mtptools.head import is_sidecar
    from mtptools.importance import file_parts, merged, read_importance
    from mtptools.report.importance import HEADER, rows, to_json, unused_note

    ckpt, sidecar = open_checkpoint(path), open_checkpoint(head) if head else None
    files = [file.path for one in (ckpt, sidecar) if one is not None for file in one.files]
    files += [ckpt.folder / name for name in ckpt.side_files if ckpt.folder is not None]
    check_file(out, (path, *files, *texts, *merge, *([head] if head else [])), force=force)
    if is_sidecar(ckpt):
        raise InputError(
            "a sidecar has no trunk to read the text", where=path, hint=f"mtptools imatrix TRUNK --head {path} …"
        )
    others = [_fitted(read_importance(one), ckpt) for one in merge]
    running = replace(running, context=context)
    _require_able(ckpt, running)
    contents = [read_text(text, _TEXT) for text in texts]
    if scope == "head":
        require_head(sidecar or ckpt)
    require_torch("running the head")
    pieces = _pieces(ckpt, texts, contents, context, chunks)
    if chunks and len(pieces) < chunks:
        note(f"the text is {len(pieces)} chunks long", quiet=quiet or as_json)
    from mtptools.decoder.importance import measure_importance
    from mtptools.decoder.recorder import Recorder

    recorder = Recorder(scope)
    silent = quiet or as_json
    room = {"texts": context, "quiet": silent, "verbose": verbose}
    with (
        loaded(ckpt, sidecar, running, None, recorder=recorder, **room) as (model, plan),
        status(quiet=silent) as say,
    ):
        started = time.perf_counter()
        told = _teller(len(pieces) * context, say)
        measured = measure_importance(model, recorder, pieces, [str(text) for text in texts], told)
    _require_finite(measured, path)
    speed = len(pieces) * context / (time.perf_counter() - started)
    whole = measured
    for other in others:
        whole = merged(whole, other)
    size = sum(entry.sums.nbytes for entry in whole.entries.values())
    write_file(file_parts(whole), size, out, force=force)
    lines = [
        f"imatrix: {out} ({len(whole.entries)} tensors, {len(measured.entries)} of them measured on {len(pieces)} "
        f"chunks of {context} tokens, {speed:.0f} tokens/s)",
        table(rows(measured, verbose), header=HEADER),
        unused_note(measured),
    ]
    data = {"output": str(out), "scope": scope, "tokens_per_second": speed, "memory": plan.to_json(), **to_json(whole)}
    emit(data, "\n".join(line for line in lines if line), as_json=as_json, quiet=quiet)


def _require_finite(matrix: Importance, path: Path) -> None:
    wrong = [name for name, entry in matrix.entries.items() if not np.isfinite(entry.sums).all()]
    if wrong:
        raise InputError(
            f"the inputs of {', '.join(wrong[:4])} are not finite, or too large",
            where=path,
            hint=f"a weight before them is damaged: mtptools validate {path}, or take the head from the release again",
        )


def _fitted(matrix: Importance, ckpt: Checkpoint) -> Importance:
    """Is what is merged of this model? A GGUF's tensors tell; another dialect's go by other names.

    Of DeepSeek-V4's output by group llama-imatrix writes a row of weights a group, and llama-quantize refuses it.
    """
    from mtptools.importance import Importance

    entries = dict(matrix.entries)
    for name, tensor in ckpt.items() if ckpt.dialect == "gguf" else ():
        if name in entries and len(tensor.shape) > 1:
            columns, n = tensor.shape[-1], tensor.n_rows // tensor.shape[-2]
            if name.endswith(".attn_output_a.weight") and entries[name].sums.size % columns == 0:
                entries[name] = entries[name].pooled(columns)
            Importance(entries, where=matrix.where).importance_of(name, columns, n)
    return replace(matrix, entries=entries)


def _require_able(ckpt: Checkpoint, running: Running) -> None:
    """Raises NoDecoderError, and UsageError for what `running` asks of this model."""
    from mtptools.decoder import undecodable

    reason = undecodable(ckpt)
    if reason:
        raise NoDecoderError(reason, where=ckpt.path, hint="the head cannot be run: quantize it to Q8_0 or BF16")
    running.check(ckpt.hparams.context_length)


def _pieces(
    ckpt: Checkpoint, texts: Sequence[Path], contents: Sequence[str], context: int, most: int | None
) -> list[list[int]]:
    """The chunks to read. What can be wrong with them is found out before weights are loaded."""
    from mtptools.decoder.importance import chunks_of
    from mtptools.decoder.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(ckpt, ckpt.hparams.vocab_size)
    start = tokenizer.start
    ids = [*start, *(token for content in contents for token in tokenizer.encode(content)[len(start) :])]
    if len(ids) < context:
        raise InputError(
            f"the text is {len(ids)} tokens long, one chunk takes {context}", where=texts[0], hint=f"{_TEXT}; --context"
        )
    return list(chunks_of(ids, context, start))[:most]


def _teller(total: int, say: Callable[[str], None]) -> Callable[[int], None]:
    """Says how far reading is, how fast, and how long it will take."""
    started, done = time.perf_counter(), 0

    def told(tokens: int) -> None:
        nonlocal done
        done += tokens
        speed = done / (time.perf_counter() - started)
        minutes, seconds = divmod(int((total - done) / speed), 60)
        say(f"{done:,} of {total:,} tokens, {speed:.0f} tokens/s, {minutes}:{seconds:02} left")

    return told
