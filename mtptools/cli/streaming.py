"""Running `verify --stream`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.cli.fetching import fetched
from mtptools.cli.loading import require_decodable, set_threads, wired
from mtptools.cli.options import Running
from mtptools.cli.output import note, on_terminal, status
from mtptools.cli.stream_options import Streaming
from mtptools.errors import SystemFailure, UsageError
from mtptools.head import is_sidecar
from mtptools.plan import human_bytes
from mtptools.prompts import builtin_prompts, load_prompts
from mtptools.tensors import Blob

if TYPE_CHECKING:
    from mtptools.decoder.stream.model import Streamed
    from mtptools.decoder.stream.outline import Outline
    from mtptools.decoder.stream.passages import Passages
    from mtptools.decoder.stream.report import StreamReport

__all__ = ["run_stream"]

FEW: Final = 200
"""Positions below which an estimate is rough."""

MOST: Final = 1 << 24
"""Positions, and tokens of a passage: as many as --context takes."""

SOON: Final = 10.0
TOLD: Final = 60.0
"""Seconds to the first line of progress, and between others, where standard error is no terminal."""


def run_stream(
    ckpt: Checkpoint,
    streaming: Streaming,
    running: Running,
    *,
    head: Checkpoint | None = None,
    other: Checkpoint | None = None,
    prompts: Path | None = None,
    limit: int | None = None,
    k: int = 3,
    wiring: Mapping[str, Any] | None = None,
    controls: bool = True,
    quiet: bool = False,
) -> StreamReport | dict[str, Any]:
    """The report; of --layers, what was done and what to type next.

    other  a checkpoint to compare with; a sidecar has no trunk of its own: its head is measured on this one

    Raises what `Streamed` and `stream` raise, UsageError, and SystemFailure when a layer does not fit in memory.
    """
    require_decodable(ckpt)
    _require_bounds(streaming)
    from mtptools.decoder.devices import describing, parse, require_dtype
    from mtptools.decoder.stream.model import Streamed
    from mtptools.decoder.stream.run import stream, stream_layers

    set_threads(ckpt, running, quiet=quiet)
    devices = parse(running.device)
    require_dtype(devices, running.dtype)
    if len(devices) > 1:
        raise UsageError(
            "one pass runs on one device",
            where="--device",
            hint="run layer ranges apart, each on its own device: --layers 0:20 --state DIR",
        )
    if other is not None and streaming.state is not None:
        raise UsageError("states are kept of one checkpoint", where="--state", hint="leave out --against, or --state")
    passages = _passages(ckpt, streaming, prompts, limit)
    if not quiet and passages.n_rows < FEW:
        note(f"{passages.n_rows} tokens of text are few: give a --text of some thousand")

    def opened(one: Checkpoint, beside: Checkpoint | None) -> Streamed:
        return Streamed(
            one,
            passages,
            head=beside,
            wiring=wired(beside or one, wiring),
            device=devices[0],
            dtype=running.dtype,
            exact=streaming.exact,
        )

    def tell(text: str) -> None:
        note(text, quiet=quiet)

    with describing(devices[0], hint="--dtype bfloat16, or fewer --positions"), _progress(quiet=quiet) as say:
        model = opened(ckpt, head)
        twin = None
        if other is not None:
            twin = opened(ckpt, other) if is_sidecar(other) else opened(other, None)
        memory = _planned(model, twin, running, quiet=quiet)
        for one in (model, twin):
            if one is not None:
                fetched(_read(one.outline, streaming.layers), quiet=quiet)
        if streaming.layers is not None:
            first, stop = streaming.layers
            done = stream_layers(model, first, stop, streaming.state, say, tell)
            return _left(model, done, stop)
        report = stream(model, k, other=twin, folder=streaming.state, controls=controls, progress=say, tell=tell)
        report.memory = memory
        return report


def _require_bounds(streaming: Streaming) -> None:
    for flag, value in (("--positions", streaming.positions), ("--window", streaming.window)):
        if value > MOST:
            raise UsageError(f"{value} is more than {MOST}", where=flag, hint=f"{flag} {MOST}, or fewer")


def _passages(ckpt: Checkpoint, streaming: Streaming, prompts: Path | None, limit: int | None) -> Passages:
    from mtptools.decoder.stream.passages import Passages
    from mtptools.decoder.stream.texts import passages_of, read_passages
    from mtptools.decoder.tokenizer import load_tokenizer

    if prompts is not None and streaming.text:
        raise UsageError("--prompts and --text are two texts", hint="give one of them")
    vocab, context = ckpt.hparams.vocab_size, ckpt.hparams.context_length
    tokenizer = load_tokenizer(ckpt, vocab)
    wanted = streaming.positions
    found = [passage for path in streaming.text for passage in read_passages(path, tokenizer, vocab, wanted)]
    if not streaming.text:
        texts = builtin_prompts() if prompts is None else load_prompts(prompts)
        found = passages_of(texts[:limit], tokenizer, wanted)
    window = min(streaming.window, context) if context else streaming.window
    return Passages.cut(found[:limit], streaming.positions, window)


def _read(outline: Outline, layers: tuple[int, int] | None) -> Iterator[Blob]:
    """What a pass over these layers reads, or over all of them."""
    some = outline.layers if layers is None else outline.layers[slice(*layers)]
    for stage in (outline.ends, *some, outline.head):
        yield from stage.blobs()


def _planned(model: Streamed, twin: Streamed | None, running: Running, *, quiet: bool) -> dict[str, Any]:
    """What it will take, told and as `MemoryPlan.to_json` says it. Raises SystemFailure when that is not free."""
    from mtptools.decoder.devices import free_memory, gib

    free = free_memory(model.device)
    needed = model.memory + (0 if twin is None else twin.held)
    rows, place = model.passages.n_rows, str(model.device)
    if free is not None and needed > free:
        raise SystemFailure(
            f"one layer and the states between layers take {gib(needed)}, {gib(free)} are free",
            where=model.ckpt.path,
            hint="--dtype bfloat16" if running.dtype == "float32" else "fewer --positions, or a larger machine",
        )
    room = "" if free is None else f" of {gib(free)} free"
    note(f"memory: {gib(needed)} on {place}{room} (a layer at a time, {running.dtype}, {rows} tokens)", quiet=quiet)
    device = {"device": place, "layers": [0, model.n_layers], "needed": needed, "free": free, "parts": {}}
    return {"weights": "a layer at a time", "dtype": running.dtype, "context": rows, "devices": [device]}


def _left(model: Streamed, done: range, stop: int) -> dict[str, Any]:
    """What running some layers gives."""
    rest = f"with --layers {stop}:{model.n_layers}" if stop < model.n_layers else "without --layers"
    return {"layers": [done.start, done.stop], "of": model.n_layers, "next": f"the same command {rest}"}


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Says what is being done, how fast and for how long: on a terminal in one line, else a line a minute."""
    begun, first, due = time.monotonic(), -1, 0.0
    with status(quiet=quiet) as show:

        def say(done: int, total: int, what: str) -> None:
            nonlocal begun, first, due
            now = time.monotonic()
            if first < 0:
                begun, first, due = now, done, now + SOON
            text = f"{what}, {human_bytes(done)} of {human_bytes(total)}"
            if done > first and now > begun:
                speed = (done - first) / (now - begun)
                text += f", {human_bytes(speed)}/s, {_span((total - done) / speed)} left"
            show(text)
            if not on_terminal() and now >= due:
                note(text, quiet=quiet)
                due = now + TOLD

        yield say


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
