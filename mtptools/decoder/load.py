"""From a checkpoint to a model: every weight held once, in the chosen dtype; vectors and routers in float32."""

from __future__ import annotations

from dataclasses import replace

import torch

from mtptools.checkpoint import Checkpoint
from mtptools.decoder import undecodable
from mtptools.decoder.build import Builder
from mtptools.decoder.build_v4 import V4Builder
from mtptools.decoder.memory import DTYPES, fits
from mtptools.decoder.model import Model
from mtptools.decoder.mtp_head import Head, HeadWiring
from mtptools.decoder.ops import exact_settings
from mtptools.decoder.packed import Packed
from mtptools.decoder.parts import WeightSource
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

__all__ = ["family_wiring", "load_model", "with_head", "with_vocabulary"]


def load_model(
    ckpt: Checkpoint,
    *,
    head: Checkpoint | None = None,
    wiring: HeadWiring | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    packed: bool | None = None,
    check: bool = True,
    recorder: Recorder | None = None,
) -> Model:
    """Load a trunk and its head.

    head    another checkpoint (sidecar or donor) to take the head from; embeddings and output are the trunk's, but for
            a sidecar GGUF that has them, and the output matrix of a reduced head
    wiring  how the head is connected; None: as its family says
    packed  leave matrices as they are stored and decode them at every use: far slower, the same bits; None: where
            the weights would not fit in memory otherwise
    check   run the start-up self-test of exact arithmetic on every weight shape
    recorder  is told what matrices are multiplied with, see `recorder.py`

    Raises NoDecoderError (no formulas for the family), MissingRoleError (a tensor is not there), CorruptError
    (shapes, values that are not finite),
    CodecError (a type that cannot be decoded), IncompatibleError (the head is of another model), InputError
    (tensors or settings that the formulas here do not have), SystemFailure
    (not enough memory, no such device, arithmetic that is not exact) and UsageError (unknown dtype).
    A checkpoint without a head loads; `Model.require_head` is what complains.
    """
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}", hint=f"one of: {', '.join(DTYPES)}")
    exact_settings()
    target = _device(device)
    for one in (ckpt, head):
        if one is not None:
            _check_known(one)
    if packed is None:
        packed = not fits(ckpt, head, target, dtype)
    source = _source(ckpt)
    trunk_loader = _builder(source, ckpt, target, DTYPES[dtype], packed, recorder)
    with torch.inference_mode():
        trunk = trunk_loader.trunk()
        _check_claimed(source, "layer")
        holder, loader = ckpt, trunk_loader
        if head is not None:
            holder, loader = head, _builder(_source(head), head, target, DTYPES[dtype], packed, recorder)
        built = _head(trunk, ckpt.hparams, loader, holder, wiring)
        model = Model(holder.path, ckpt.hparams, trunk, built, holder.hparams.depth, DTYPES[dtype], trunk.arithmetic)
        if check:
            self_test(model)
    return model


def with_head(model: Model, head: Checkpoint, *, wiring: HeadWiring | None = None) -> Model:
    """A loaded model with the head of another checkpoint; nothing of the trunk is loaded again.

    Matrices are held as the trunk's are: loaded, or as they are stored. No self-test but of a reduced head: the other
    shapes are those that were tested when the model was loaded with a head of its own. Raises what `load_model` raises
    of a head.
    """
    _check_known(head)
    packed = isinstance(model.trunk.embed, Packed)
    loader = _builder(_source(head), head, model.arithmetic.device, model.dtype, packed, None)
    with torch.inference_mode():
        built = _head(model.trunk, model.hparams, loader, head, wiring)
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


def _head(
    trunk: Trunk, hparams: HParams, loader: Builder, holder: Checkpoint, wiring: HeadWiring | None
) -> Head | None:
    """The head that `holder` has, None for none; `hparams` are the trunk's."""
    if not loader.source.head_depth:
        return None
    _check_fit(hparams, holder)
    # llama.cpp drafts from a file of its own with that file's embedding and output matrix.
    alone = holder.dialect == "gguf" and set(gguf_blocks(holder)) == set(head_blocks(holder))
    built = loader.head(loader.beside(trunk) if alone else trunk, wiring or family_wiring(holder))
    _check_claimed(loader.source, "head")
    return built


def family_wiring(ckpt: Checkpoint) -> HeadWiring:
    """How heads of a checkpoint's family are connected."""
    stated = ckpt.family.wiring
    return HeadWiring(stated.concat, stated.tap, stated.recycle, stated.mask_first, stated.recurrence)


def _check_known(ckpt: Checkpoint) -> None:
    """Another architecture's formulas may fit the same names: only the ones that are known are run."""
    reason = undecodable(ckpt)
    if reason:
        raise NoDecoderError(reason, where=ckpt.path, hint="mtptools verify without --parity checks what can be")


def _builder(
    source: WeightSource,
    ckpt: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    packed: bool,
    recorder: Recorder | None,
) -> Builder:
    settings = read_settings(ckpt)
    if ckpt.family.name == "deepseek4":
        return V4Builder(source, ckpt.hparams, settings, read_v4(ckpt), device, dtype, packed, recorder)
    return Builder(source, ckpt.hparams, settings, device, dtype, packed, recorder)


def _source(ckpt: Checkpoint) -> WeightSource:
    return GgufWeights(ckpt) if ckpt.dialect == "gguf" else HfWeights(ckpt)


def _device(name: str) -> torch.device:
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise UsageError(f"the decoder does not run on {name!r}", hint="--device cpu, or cuda, cuda:1 …")
    try:
        device = torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SystemFailure(f"device {name!r} cannot be used: {error}", hint="--device cpu") from error
    return device


def _check_claimed(source: WeightSource, kind: str) -> None:
    """A bias or a scale that the formulas here do not have would be a silent fault."""
    names = source.leftover(kind)
    if names:
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        raise InputError(
            f"the decoder has no use for {shown}", where=source.where, hint=f"mtptools validate {source.where}"
        )


def _check_fit(ours: HParams, head: Checkpoint) -> None:
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
