"""From a checkpoint to a model: every weight held once, in the chosen dtype; vectors and routers in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import torch

from mtptools.checkpoint import Checkpoint
from mtptools.decoder import undecodable
from mtptools.decoder.ahead import ahead
from mtptools.decoder.build import Builder
from mtptools.decoder.build_v4 import V4Builder
from mtptools.decoder.devices import parse
from mtptools.decoder.hold import HOW
from mtptools.decoder.kernels import unavailable
from mtptools.decoder.memory import DTYPES, plan_memory
from mtptools.decoder.model import Model, recording
from mtptools.decoder.mtp_head import Head, HeadWiring
from mtptools.decoder.ops import exact_settings
from mtptools.decoder.packed import how_held
from mtptools.decoder.parts import WeightSource
from mtptools.decoder.pipeline import Places
from mtptools.decoder.recorder import Recorder
from mtptools.decoder.selftest import self_test
from mtptools.decoder.settings import read_settings
from mtptools.decoder.settings_v4 import read_v4
from mtptools.decoder.trunk import Trunk
from mtptools.decoder.weights_gguf import GgufWeights
from mtptools.decoder.weights_hf import HfWeights
from mtptools.errors import IncompatibleError, InputError, NoDecoderError, SystemFailure, UsageError
from mtptools.gguf_blocks import gguf_blocks, head_blocks
from mtptools.hparams import HParams
from mtptools.vocab.maps import DraftVocabulary

__all__ = [
    "check_claimed",
    "check_fits",
    "check_known",
    "family_wiring",
    "head_of",
    "load_model",
    "source_of",
    "with_head",
    "with_vocabulary",
]

_LAST: Final = {"offloaded": "resident"}
"""How the output matrix and the head are held, of which every step reads all, where layers are held so."""


def load_model(
    ckpt: Checkpoint,
    *,
    head: Checkpoint | None = None,
    wiring: HeadWiring | None = None,
    device: str | Places = "cpu",
    dtype: str = "float32",
    weights: str | None = None,
    check: bool = True,
    recorder: Recorder | None = None,
    graphs: bool = True,
) -> Model:
    """Load a trunk and its head.

    head    another checkpoint (sidecar or donor) to take the head from; embeddings and output are the trunk's, but for
            a sidecar GGUF that has them, and the output matrix of a reduced head
    wiring  how the head is connected; None: as its family says
    device  as `devices.parse` reads it, or which device each layer of the trunk is on
    weights  how matrices are held, one of `hold.HOW`; None: on a GPU "resident" where the kernels run, else "loaded",
             or "stored" where they would not fit in memory otherwise
    check   run the start-up self-test of exact arithmetic on every weight shape
    recorder  is told what matrices are multiplied with, see `recorder.py`
    graphs  on a GPU, record passes of few rows and replay them, see `replay.py`

    Raises NoDecoderError (no formulas for the family), MissingRoleError (a tensor is not there), CorruptError
    (shapes, values that are not finite),
    CodecError (a type that cannot be decoded), IncompatibleError (the head is of another model), InputError
    (tensors or settings that the formulas here do not have), SystemFailure
    (no such device, no kernels there, arithmetic that is not exact, no room for the largest matrix) and UsageError
    (unknown dtype or way to hold weights). Memory that runs out on the way raises what torch raises: see
    `devices.describing`.
    A checkpoint without a head loads; `Model.require_head` is what complains.
    """
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}", hint=f"one of: {', '.join(DTYPES)}")
    exact_settings()
    devices = parse(device) if isinstance(device, str) else device.devices
    for one in (ckpt, head):
        if one is not None:
            check_known(one)
    how = _how(weights, ckpt, head, devices, dtype)
    if isinstance(device, str) and len(devices) > 1:
        device = plan_memory(ckpt, head, devices, dtype, weights=how).placement

    def builder(source: WeightSource, of: Checkpoint) -> Callable[[torch.device, str], Builder]:
        return lambda on, how: _builder(source, of, on, DTYPES[dtype], how, recorder)

    source = source_of(ckpt)
    with torch.inference_mode():
        last = "loaded" if how == "offloaded" and _lacking(devices) else _LAST.get(how, how)
        trunk_loader = _spread(builder(source, ckpt), device, devices, how, last)
        trunk = ahead(trunk_loader.trunk())
        check_claimed(source, "layer")
        holder, loader = ckpt, trunk_loader
        if head is not None:
            holder, loader = head, builder(source_of(head), head)(devices[-1], last)
        built = head_of(trunk, ckpt.hparams, loader, holder, wiring)
        model = Model(holder.path, ckpt.hparams, trunk, built, holder.hparams.depth, DTYPES[dtype], trunk.arithmetic)
        if check:
            self_test(model)
    return recording(model) if graphs and recorder is None and model.arithmetic.device.type == "cuda" else model


def with_head(model: Model, head: Checkpoint, *, wiring: HeadWiring | None = None) -> Model:
    """A loaded model with the head of another checkpoint; nothing of the trunk is loaded again.

    Matrices are held as the trunk's are: loaded, or as they are stored. No self-test but of a reduced head: the other
    shapes are those that were tested when the model was loaded with a head of its own. Raises what `load_model` raises
    of a head.
    """
    check_known(head)
    how = how_held(model.trunk.output)
    loader = _builder(source_of(head), head, model.arithmetic.device, model.dtype, how, None)
    with torch.inference_mode():
        built = head_of(model.trunk, model.hparams, loader, head, wiring)
        model = replace(model, where=head.path, head=built, declared=head.hparams.depth)
        if built is not None and built.reduced:
            self_test(model)
    return model


def with_vocabulary(model: Model, vocabulary: DraftVocabulary) -> Model:
    """A loaded model whose head drafts over those tokens alone, as if it had been loaded reduced.

    Raises MissingHeadError, InputError (a vocabulary of another model; tokens that a reduced head has no rows of) and
    SystemFailure (arithmetic that is not exact).
    """
    with torch.inference_mode():
        reduced = model.with_head(model.require_head().over(vocabulary))
        self_test(reduced)
    return reduced


def head_of(
    trunk: Trunk, hparams: HParams, loader: Builder, holder: Checkpoint, wiring: HeadWiring | None
) -> Head | None:
    """The head that `holder` has, None for none; `hparams` are the trunk's."""
    if not loader.source.head_depth:
        return None
    check_fits(hparams, holder)
    # llama.cpp drafts from a file of its own with that file's embedding and output matrix.
    alone = holder.dialect == "gguf" and set(gguf_blocks(holder)) == set(head_blocks(holder))
    built = loader.head(loader.beside(trunk) if alone else trunk, wiring or family_wiring(holder))
    check_claimed(loader.source, "head")
    return built


def family_wiring(ckpt: Checkpoint) -> HeadWiring:
    """How heads of a checkpoint's family are connected."""
    stated = ckpt.family.wiring
    return HeadWiring(stated.concat, stated.tap, stated.recycle, stated.mask_first, stated.recurrence)


def check_known(ckpt: Checkpoint) -> None:
    """Another architecture's formulas may fit the same names: only the ones that are known are run."""
    reason = undecodable(ckpt)
    if reason:
        raise NoDecoderError(reason, where=ckpt.path, hint="mtptools verify without --parity checks what can be")


def _builder(
    source: WeightSource,
    ckpt: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    how: str,
    recorder: Recorder | None,
) -> Builder:
    settings = read_settings(ckpt)
    if ckpt.family.name == "deepseek4":
        return V4Builder(source, ckpt.hparams, settings, read_v4(ckpt), device, dtype, how, recorder)
    return Builder(source, ckpt.hparams, settings, device, dtype, how, recorder)


def _how(
    weights: str | None, ckpt: Checkpoint, head: Checkpoint | None, devices: Sequence[torch.device], dtype: str
) -> str:
    """How matrices are held: as asked for, where that can be, or what suits the devices."""
    if weights is not None and weights not in HOW:
        raise UsageError(f"weights cannot be held {weights!r}", hint=f"one of: {', '.join(HOW)}")
    if weights == "resident" and (lacking := _lacking(devices)):
        raise SystemFailure(f"packed weights cannot be multiplied on {devices[0]}: {lacking}", hint="--device cpu")
    if weights is not None:
        return weights
    if devices[0].type == "cuda" and not _lacking(devices):
        return "resident"
    return plan_memory(ckpt, head, devices, dtype).mode


def _lacking(devices: Sequence[torch.device]) -> str | None:
    """Why the kernels do not run on one of the devices; None where they run on all."""
    return next((reason for device in devices if (reason := unavailable(device))), None)


def _spread(
    make: Callable[[torch.device, str], Builder],
    places: str | Places,
    devices: Sequence[torch.device],
    how: str,
    last: str,
) -> Builder:
    """The builder of the output matrix and the head, that knows the builders of layers where they are others."""
    builder = make(devices[-1], last)
    if isinstance(places, str) and how == last:
        return builder
    makers = [make(device, how) for device in devices]
    numbers = [0] * len(builder.settings.layers) if isinstance(places, str) else places.layer_of
    builder.layers = [makers[number] for number in numbers]
    return builder


def source_of(ckpt: Checkpoint) -> WeightSource:
    return GgufWeights(ckpt) if ckpt.dialect == "gguf" else HfWeights(ckpt)


def check_claimed(source: WeightSource, kind: str) -> None:
    """A bias or a scale that the formulas here do not have would be a silent fault."""
    names = source.leftover(kind)
    if names:
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        raise InputError(
            f"the decoder has no use for {shown}", where=source.where, hint=f"mtptools validate {source.where}"
        )


def check_fits(ours: HParams, head: Checkpoint) -> None:
    theirs = head.hparams
    fields = ("family", "hidden_size", "vocab_size")
    findings = [
        f"{field}: trunk {getattr(ours, field)}, head {getattr(theirs, field)}"
        for field in fields
        if getattr(ours, field) != getattr(theirs, field)
    ]
    if findings:
        raise IncompatibleError(
            "the head is of another model: " + "; ".join(findings),
            findings,
            where=head.path,
            hint="take the head from the same model",
        )
