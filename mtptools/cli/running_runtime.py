"""L5: from the options of `verify` to a runtime's report."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtptools.checkpoint import Checkpoint
from mtptools.cli.fetching import fetched
from mtptools.cli.loading import loaded
from mtptools.cli.options import Running
from mtptools.cli.output import status
from mtptools.cli.runtime_options import EMBEDDED, Asked
from mtptools.decoder import undecodable
from mtptools.errors import MissingHeadError, UsageError, typed
from mtptools.head import head_names, is_sidecar
from mtptools.prompts import Prompt, read_prompts
from mtptools.runtimes.asking import Answers, Open, Watched, ask
from mtptools.runtimes.client import Client, base_url
from mtptools.runtimes.connect import connect
from mtptools.runtimes.generation import Engine
from mtptools.runtimes.judging import judge
from mtptools.runtimes.llama_server import Start, embedded, embedded_version, environment_key, first_shard, server
from mtptools.runtimes.report import RuntimeReport
from mtptools.tensors import Blob

if TYPE_CHECKING:
    from mtptools.decoder.model import Model
    from mtptools.decoder.tokenizer import Tokenizer

__all__ = ["ask_runtime", "judge_runtime", "run_runtime"]

ROOM = 64  # tokens of context beyond prompt and answer: drafts are verified past the end
Say = Callable[[str], None]


def _silent(_: str) -> None:
    return None


def ask_runtime(
    ckpt: Checkpoint,
    head: Checkpoint | None,
    asked: Asked,
    tokenizer: Tokenizer,
    ids: Sequence[Sequence[int]],
    tokens: int,
    k: int,
    *,
    threads: int | None = None,
    gpu: bool = False,
    say: Say = _silent,
) -> Answers:
    """`tokens` greedy tokens of the runtime after each prompt, without MTP and with it.

    ids  of the prompts, by the checkpoint's tokenizer;  k  drafts a step;  threads, gpu  of a llama.cpp that is started

    Raises UsageError, MissingHeadError (nothing to draft with), InputError (the runtime refuses the model) and
    SystemFailure (no server, no answer, an answer that cannot be used).
    """
    if asked.is_address:
        plain = None if asked.runtime_plain is None else _at(asked, asked.runtime_plain, ckpt, tokenizer, k)
        return ask(plain, _at(asked, asked.runtime, ckpt, tokenizer, k), ids, tokens, k, say)
    model, draft = _files(ckpt, head)
    start = partial(
        Start,
        model,
        context=max(map(len, ids)) + tokens + ROOM + k,
        threads=threads,
        gpu_layers=-1 if gpu else 0,
        extra=asked.runtime_arg,
        timeout=asked.runtime_timeout,
    )
    opened = partial(_started, asked, ckpt, tokenizer, k)
    return ask(partial(opened, start(None, 0)), partial(opened, start(draft, k)), ids, tokens, k, say)


def judge_runtime(
    answers: Answers,
    model: Model | None,
    tokenizer: Tokenizer,
    texts: Sequence[Prompt] = (),
    *,
    why: str | None = None,
    say: Say = _silent,
) -> RuntimeReport:
    """The report on answers.

    model  our decoder, None to compare the runtime with itself alone;  why  there is none;  texts  for their categories
    """
    notes = []
    if answers.how_plain is None:
        notes.append("one address: its text with MTP is not compared with that without")
    if model is None:
        notes.append(f"not compared with our decoder: {why or 'not asked for'}")
    categories = [text.category for text in texts] or [""] * len(answers.prompts)
    return judge(answers, model, tokenizer.decode, categories, notes, say)


def run_runtime(
    ckpt: Checkpoint,
    head: Checkpoint | None,
    asked: Asked,
    *,
    prompts: Path | None,
    limit: int | None,
    tokens: int,
    k: int,
    running: Running,
    wiring: Mapping[str, Any] | None = None,
    quiet: bool = False,
    verbose: bool = False,
) -> RuntimeReport:
    """L5 by itself: our decoder, where it knows the model, is loaded once the runtime is gone.

    Raises what `ask_runtime` and `loaded` raise.
    """
    from mtptools.decoder.tokenizer import load_tokenizer

    texts = read_prompts(prompts)[:limit]
    tokenizer = load_tokenizer(ckpt, ckpt.hparams.vocab_size)
    ids = [tokenizer.encode(text.text) for text in texts]
    with status(quiet=quiet) as say:
        where: dict[str, Any] = {"threads": running.threads, "gpu": running.on_gpu}
        answers = ask_runtime(ckpt, head, asked, tokenizer, ids, tokens, k, **where, say=say)
    why = undecodable(ckpt)
    if why is not None or asked.runtime_alone:
        return judge_runtime(answers, None, tokenizer, texts, why=why)
    room: dict[str, Any] = {"texts": max(map(len, ids)) + tokens, "k": k, "quiet": quiet, "verbose": verbose}
    with loaded(ckpt, head, running, wiring, **room) as (model, _), status(quiet=quiet) as say:
        return judge_runtime(answers, model, tokenizer, texts, say=say)


def _files(ckpt: Checkpoint, head: Checkpoint | None) -> tuple[Path, Path | None]:
    """What llama.cpp is given: (model, draft)."""
    for one in (ckpt, head):
        if one is not None and one.dialect != "gguf":
            raise UsageError(
                "llama.cpp reads GGUF alone",
                where=one.path,
                hint=f"mtptools convert {typed(one.path)} --to gguf -o OUT.gguf, or --runtime URL of a server with it",
            )
    if is_sidecar(ckpt):
        raise UsageError(
            "a sidecar: it has no trunk to run", where=ckpt.path, hint="give the trunk, and this as --head"
        )
    if head is None and not head_names(ckpt):
        raise MissingHeadError(
            "no head: there is nothing a runtime could draft with",
            where=ckpt.path,
            hint="mtptools verify PATH --head SIDECAR --runtime llama.cpp",
        )
    for one in (ckpt, head):
        if one is not None:
            fetched((Blob(file.path, 0, file.size) for file in one.files), quiet=False)  # it reads whole files
    draft = None if head is None else first_shard([file.path for file in head.files])
    return first_shard([file.path for file in ckpt.files]), draft


@contextlib.contextmanager
def _started(asked: Asked, ckpt: Checkpoint, tokenizer: Tokenizer, k: int, start: Start) -> Iterator[Engine]:
    """A llama.cpp of our own, gone when the block is left."""
    own = asked.runtime == EMBEDDED
    with embedded(start) if own else server(asked.runtime, start) as (child, address):
        flags = f"--spec-type draft-mtp --spec-draft-n-max {start.k}" if start.k else "no MTP"
        told = "xllamacpp in a process of its own" if own else Path(child.what).name  # no folder of this machine
        how = f"{told}, {flags}"
        client = Client(address, asked.runtime_timeout)
        size = ckpt.hparams.vocab_size
        engine = connect(client, vocabulary=size, decode=tokenizer.decode, k=k, how=how)
        if own:
            engine.version = embedded_version()
        yield Watched(engine, child)


def _at(asked: Asked, url: str, ckpt: Checkpoint, tokenizer: Tokenizer, k: int) -> Open:
    """The server at an address, which stays."""

    @contextlib.contextmanager
    def opened() -> Iterator[Engine]:
        client = Client(base_url(url), asked.runtime_timeout, environment_key(asked.api_key_env))
        size = ckpt.hparams.vocab_size
        yield connect(client, vocabulary=size, decode=tokenizer.decode, k=k, model=asked.runtime_model)

    return opened
