"""Weights of a Hugging Face or MLX checkpoint, by the decoder's roles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.checkpoint import Checkpoint
from mtptools.decoder.codes import codes_of
from mtptools.decoder.draft_map import D2T, T2D, hf_map
from mtptools.decoder.key_heads import JOINED, pick
from mtptools.decoder.names_gguf import GGUF_BLOCK
from mtptools.decoder.names_hf import HF_NAMES
from mtptools.decoder.parts import Part, Scope
from mtptools.errors import InputError, MissingRoleError
from mtptools.quantized import companions, stored_name, values_of
from mtptools.tensors import Tensor
from mtptools.views import reshaped
from mtptools.vocab.maps import DraftVocabulary

__all__ = ["HfWeights"]

Array = NDArray[np.float32]

_ONE: Final = np.float32(1)
_UNUSED: Final = (".rotary_emb.inv_freq",)  # written by older releases, made anew by every reader


def _one_plus(w: Array) -> Array:
    return w + _ONE


def _minus_exp(w: Array) -> Array:
    return -np.exp(w)


class HfWeights:
    def __init__(self, ckpt: Checkpoint) -> None:
        self.ckpt, self.hparams, self.where = ckpt, ckpt.hparams, ckpt.path
        self.names = HF_NAMES[ckpt.hparams.family]
        self.mlx = ckpt.dialect == "mlx"
        self.used: set[str] = set()
        self.trunk_prefix = next((p for p in self.names.prefixes if self._anything(p)), "model.")
        self.head_prefixes = self._head_prefixes()
        self.head_depth = len(self.head_prefixes)
        self.sidecar = not self.has(("layer", 0), "mixer_norm")

    def vocabulary(self) -> DraftVocabulary | None:
        found = hf_map(self.ckpt, self.hparams.vocab_size, self.where)
        if found is None:
            return None
        if not self.sidecar:
            raise InputError(
                f"a draft vocabulary of {len(found)} tokens beside a whole model: its lm_head cannot be both matrices",
                where=self.where,
                hint="a reduced head is a folder of its own here: mtptools prune-vocab --help",
            )
        self.used.update((D2T, T2D))
        return found

    def _anything(self, prefix: str) -> bool:
        return prefix + self.names.top["embed"] in self.ckpt or any(
            name.startswith(f"{prefix}layers.") for name in self.ckpt
        )

    def _head_prefixes(self) -> tuple[str, ...]:
        """What stands before each MTP layer's own names, for as many as are there."""
        for pattern in self.names.heads:
            found = []
            for d in range(len(self.ckpt)):
                prefix = pattern.format(trunk=self.trunk_prefix, d=d, n=self.hparams.n_layers + d)
                # One prefix for all layers: then the numbered names below it say how many there are.
                mark = prefix + self.names.block.format(d=d) if d or "{" in pattern else prefix
                if not any(name.startswith(mark) for name in self.ckpt):
                    break
                found.append(prefix)
            if found:
                return tuple(found)
        return ()

    def _at(self, scope: Scope) -> str:
        """What stands before the names of a decoder layer."""
        kind, number = scope
        if kind == "layer":
            return f"{self.trunk_prefix}layers.{number}."
        prefix = self.head_prefixes[number] if number < self.head_depth else "mtp."
        return prefix + self.names.block.format(d=number)

    def _names(self, scope: Scope, role: str) -> tuple[str, ...]:
        kind, number = scope
        if role == "output":
            return self.names.output
        if kind == "top":
            return (self.trunk_prefix + self.names.top[role],)
        if role in self.names.fusion and kind == "head":
            return (self.head_prefixes[number] + self.names.fusion[role],)
        return (self._at(scope) + self.names.layer[role],) if role in self.names.layer else ()

    def _stored(self, scope: Scope, role: str) -> str | None:
        """The name that is there for a role: of its values, or of the codes they are made from."""
        found = (stored_name(name, self.ckpt) for name in self._names(scope, role))
        return next((name for name in found if name in self.ckpt), None)

    def _values(self, name: str) -> Tensor:
        """The tensor of values `name` stands for, whatever it is stored as."""
        self.used.update((name, *companions(name, self.ckpt)))
        return values_of(name, self.ckpt, self.ckpt.config)

    def _whole(self, name: str) -> Part:
        return replace(Part.whole(self._values(name)), codes=codes_of(name, self.ckpt, self.ckpt.config))

    def has(self, scope: Scope, role: str) -> bool:
        return self._stored(scope, role) is not None

    def parts(self, scope: Scope, role: str) -> list[Part]:
        if role in JOINED and self.has(scope, JOINED[role][0]):
            return pick(self.parts(scope, JOINED[role][0])[0], role, self.hparams)
        if role in ("expert_gate_up", "expert_down"):
            return self._experts(scope, role)
        name = self._stored(scope, role)
        if name is None:
            wanted = self._names(scope, role) or (role,)
            raise MissingRoleError(
                f"tensor {wanted[0]} is not there", where=self.where, hint=f"mtptools validate {self.where}"
            )
        if role == "delta_conv" and self.mlx:  # [channels, kernel, 1]
            values = self._values(name)
            return [Part.whole(reshaped(values, values.shape[:2], name))]
        return [replace(self._whole(name), value=self._change(role))]

    def _change(self, role: str) -> Callable[[Array], Array] | None:
        if role == "delta_decay":
            return _minus_exp
        return _one_plus if role in self.names.one_plus and not self.mlx else None  # MLX stores the factors

    def _experts(self, scope: Scope, role: str) -> list[Part]:
        """Fused (`experts.gate_up_proj` [n, 2F, hidden]), stacked by kind (MLX), or one by one."""
        prefix = self._at(scope) + self.names.layer["experts"]
        fused = {"expert_gate_up": "gate_up_proj", "expert_down": "down_proj"}[role]
        for name in (prefix + fused, f"{prefix}{fused}.weight"):
            if name in self.ckpt:
                return [self._whole(name)]
        kinds = [self.names.expert[one] for one in (("gate", "up") if role == "expert_gate_up" else ("down",))]
        stacked = self._at(scope) + self.names.layer["stacked_experts"]
        if f"{stacked}{kinds[0]}.weight" in self.ckpt:
            wholes = [self._whole(f"{stacked}{kind}.weight") for kind in kinds]
            size = wholes[0].tensor.shape[-2]
            return [part.rows(at, at + size) for at in range(0, wholes[0].n_rows, size) for part in wholes]
        parts = []
        for expert in range(self.hparams.n_experts):
            for kind in kinds:
                name = stored_name(f"{prefix}{expert}.{kind}.weight", self.ckpt)
                if name not in self.ckpt:
                    raise MissingRoleError(
                        f"tensor {prefix}{expert}.{kind}.weight is not there",
                        where=self.where,
                        hint=f"mtptools validate {self.where}",
                    )
                parts.append(self._whole(name))
        return parts

    def gguf_names(self, scope: Scope, role: str) -> tuple[str, ...]:
        kind, number = scope
        block = number if kind == "layer" else self.hparams.n_layers + number
        names = GGUF_BLOCK[self.hparams.family]
        roles = ("expert_gate", "expert_up") if role == "expert_gate_up" else (role,)
        if role in ("delta_a", "delta_b") and "delta_ba" in names:  # the one joined projection converters leave joined
            roles = ("delta_ba",)
        return tuple(f"blk.{block}.{names[one]}" for one in roles)

    def leftover(self, kind: str) -> list[str]:
        heads = self.head_prefixes or ("mtp.",)
        tied = self.names.output if self.hparams.tie_embeddings else ()  # releases may ship the copy all the same

        def belongs(name: str) -> bool:
            if name in (D2T, T2D):
                return kind == ("head" if self.head_depth else "layer")
            if name.startswith(heads):
                return kind == "head"
            return kind == "layer" and name not in tied and not name.startswith(self.ckpt.family.hf_ignored)

        return [n for n in self.ckpt if belongs(n) and n not in self.used and not n.endswith(_UNUSED)]
