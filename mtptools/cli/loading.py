"""From a checkpoint and the options of running to a model at work: what it takes is told before it is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.cli.fetching import fetched
from mtptools.cli.options import Running
from mtptools.cli.output import note, table
from mtptools.decoder import undecodable
from mtptools.decoder.prompt_room import check_room
from mtptools.errors import (
    InputError,
    MissingExtraError,
    MissingHeadError,
    NoDecoderError,
    SystemFailure,
    UsageError,
    typed,
)
from mtptools.head import head_names, is_sidecar

if TYPE_CHECKING:
    from mtptools.decoder.memory import MemoryPlan
    from mtptools.decoder.model import Model
    from mtptools.decoder.mtp_head import HeadWiring
    from mtptools.decoder.recorder import Recorder

__all__ = [
    "load",
    "loaded",
    "require_decodable",
    "require_head",
    "require_room",
    "require_torch",
    "set_threads",
    "wired",
]

SMALL_MODEL: Final = 200_000_000  # bytes
# What the loader of shared objects says where there is no memory for one.
_NO_ROOM: Final = ("failed to map segment", "cannot allocate memory", "Cannot allocate memory")


def require_torch(needed_for: str = "decoding") -> None:
    """Raises MissingExtraError where torch is not installed, SystemFailure where it is and cannot be loaded."""
    try:
        import torch  # noqa: F401  # only to say clearly what is missing
    except (ImportError, OSError, MemoryError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise MissingExtraError("torch", "decoder", needed_for) from error
        told = str(error) or "out of memory"
        full = isinstance(error, MemoryError) or any(part in told for part in _NO_ROOM)
        raise SystemFailure(
            f"torch is installed and cannot be loaded: {told}",
            hint="free memory, or raise ulimit -v" if full else "pip install --force-reinstall torch",
        ) from error


def require_decodable(ckpt: Checkpoint) -> None:
    """Before anything else is done. Raises NoDecoderError, InputError (a sidecar), MissingExtraError (no torch)."""
    reason = undecodable(ckpt)
    if reason:
        raise NoDecoderError(reason, where=ckpt.path, hint="mtptools verify without --parity checks what can be")
    if is_sidecar(ckpt):
        raise InputError(
            "a sidecar: there is no trunk in it to decode with",
            where=ckpt.path,
            hint=f"give the trunk, and --head {typed(ckpt.path)}",
        )
    require_torch()


def require_head(holder: Checkpoint) -> None:
    """Before anything is loaded, for what `Model.require_head` would say after. Raises MissingHeadError."""
    if not head_names(holder):
        raise MissingHeadError.to_draft_with(holder.path, holder.hparams.depth)


def require_room(ckpt: Checkpoint, prompts: Iterable[Sequence[int]], tokens: int) -> int:
    """Tokens of the longest text: a prompt, and `tokens` more. Before anything is loaded, as decoding would say it.

    Raises UsageError for an empty prompt, and for one that does not fit the model's context.
    """
    lengths = [len(ids) for ids in prompts]
    for length in lengths:
        check_room(length, tokens, ckpt.hparams.context_length)
    return max(lengths, default=0) + tokens


def _cores() -> int:
    """That this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(ckpt: Checkpoint, running: Running, *, quiet: bool) -> None:
    """Of the CPU: what was asked for, or one for a small model, whose matrices are not worth sharing out.

    More than there are cores is said, not refused: settings are shared between machines, and only time is lost.
    """
    import torch

    cores = _cores()
    if running.threads is not None and running.threads > cores:
        note(
            f"{running.threads} threads on {cores} core(s) wait for each other: --threads {cores} is faster",
            quiet=quiet,
        )
    threads = running.threads or (1 if ckpt.nbytes < SMALL_MODEL else None)
    if threads is not None:
        torch.set_num_threads(threads)


def wired(holder: Checkpoint, changes: Mapping[str, Any] | None) -> HeadWiring:
    """How the head is connected: as its family's are, with what was asked for. Raises UsageError."""
    from mtptools.decoder.load import family_wiring

    own = family_wiring(holder)
    if own.tap == "streams" and {"tap", "recycle"} & set(changes or ()):
        raise UsageError("the head takes streams: there is one tap, and one state to go on from", hint="leave it out")
    return replace(own, **(changes or {}))


def load(
    ckpt: Checkpoint,
    head: Checkpoint | None,
    running: Running,
    wiring: Mapping[str, Any] | None = None,
    *,
    recorder: Recorder | None = None,
    texts: int = 0,
    k: int = 0,
    stream: bool = False,
    quiet: bool = False,
    verbose: bool = False,
) -> tuple[Model, MemoryPlan]:
    """Load a model into the decoder, and what was found out of its memory: it is told before.

    wiring    what to change of the family's own;  recorder  is told what matrices are multiplied with
    texts     tokens of the longest text, with what is written to it;  k  drafts a step
    stream    the verb can read layer by layer: that is offered where nothing else fits

    Raises UsageError, and what `require_decodable`, `plan_memory` and `load_model` raise.
    """
    running.check(ckpt.hparams.context_length)
    require_decodable(ckpt)
    from mtptools.decoder.devices import parse, require_dtype
    from mtptools.decoder.load import load_model
    from mtptools.decoder.memory import plan_memory

    connected = wired(head or ckpt, wiring)
    set_threads(ckpt, running, quiet=quiet)
    devices = parse(running.device)
    require_dtype(devices, running.dtype)
    plan = plan_memory(
        ckpt,
        head,
        devices,
        running.dtype,
        weights="offloaded" if running.offload else None,
        context=running.context,
        least=texts,
        k=k,
        flags=("--offload", "--stream") if stream else ("--offload",),
    )
    note(str(plan), quiet=quiet)
    note(table(plan.rows(), header=("device", "what", "size"), indent="  "), quiet=quiet or not verbose)
    for one in (ckpt, *([head] if head is not None else ())):
        fetched((blob for tensor in one.values() for blob in tensor.blobs), quiet=quiet)
    with plan.describing():
        model = load_model(
            ckpt,
            head=head,
            wiring=connected,
            device=plan.placement if len(devices) > 1 else str(devices[0]),
            dtype=running.dtype,
            weights=plan.mode,
            recorder=recorder,
            graphs=running.graphs,
        )
    return model, plan


@contextmanager
def loaded(
    ckpt: Checkpoint,
    head: Checkpoint | None,
    running: Running,
    wiring: Mapping[str, Any] | None = None,
    **room: Any,
) -> Iterator[tuple[Model, MemoryPlan]]:
    """As `load`; memory that runs out while the model works is said as what was needed and what helps."""
    model, plan = load(ckpt, head, running, wiring, **room)
    with plan.describing():
        yield model, plan
