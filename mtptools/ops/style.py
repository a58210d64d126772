"""What was asked of the types and the layout of a head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal

from mtptools.codecs import CODECS, ENCODABLE
from mtptools.errors import UsageError
from mtptools.ops.presets import PRESETS
from mtptools.quantized import ENCODINGS, NAMES

__all__ = ["EXPERTS", "Experts", "Style"]

Experts = Literal["single", "fused"]
EXPERTS: Final = {"single": ("stack_experts",), "fused": ("gate_half", "up_half", "whole")}


@dataclass(frozen=True)
class Style:
    """What was asked of the output.

    matrices    type of the matrices, None to keep the donor's where the dialect can: a codec, an encoding of
                safetensors, or in GGUF a mixture (`mtptools.ops.presets`)
    norms       type of norms in safetensors, None for the one releases have
    experts     one by one or fused in 3-D, None for the way the family's releases have them
    roles       (role, type): what some roles get instead; a role may be a pattern (`ffn_*_exps`), the last that fits
                wins
    own_output  type of an output matrix of the head's own, made from the trunk's; None: none is made
    """

    matrices: str | None = None
    norms: str | None = None
    experts: Experts | None = None
    roles: tuple[tuple[str, str], ...] = ()
    own_output: str | None = None

    @classmethod
    def asked(
        cls,
        matrices: str | None = None,
        norms: str | None = None,
        experts: Experts | None = None,
        *,
        roles: Sequence[str] = (),
        own_output: str | None = None,
        option: str = "--head-type",
    ) -> Style:
        """From what was typed; `roles` as "attn_q=Q6_K". Raises UsageError for a type that does not exist."""
        pairs = []
        for text in roles:
            role, equals, kind = text.partition("=")
            if not (equals and role and kind):
                raise UsageError(f"{text!r} is not ROLE=TYPE", where="--role", hint="--role nextn.eh_proj=Q8_0")
            pairs.append((role.removesuffix(".weight"), _known(kind, "--role")))
        return cls(
            matrices and _known(matrices, option),
            norms and _known(norms, "--norm-type"),
            experts,
            tuple(pairs),
            own_output and _known(own_output, "--own-output"),
        )

    def wanted(self, role: str) -> str | None:
        """What was asked for the matrix of a role (`attn_q.weight`), None for nothing."""
        own = [kind for pattern, kind in self.roles if fnmatchcase(role.removesuffix(".weight"), pattern)]
        return own[-1] if own else self.matrices

    def require_roles(self, names: Sequence[str]) -> None:
        """Refuse a role that the head does not have. Raises UsageError."""
        short = [name.removesuffix(".weight") for name in names]
        for pattern, _ in self.roles:
            if not any(fnmatchcase(name, pattern) for name in short):
                raise UsageError(
                    f"the head has no matrix {pattern!r}", where="--role", hint=f"matrices: {', '.join(short)}"
                )


def _known(text: str, option: str) -> str:
    if text.upper() in CODECS or text.upper() in PRESETS:
        return text.upper()
    if text.lower() in NAMES:
        return text.lower()
    raise UsageError(
        f"no type is called {text!r}",
        where=option,
        hint=f"in GGUF: {', '.join(ENCODABLE)}; mixtures of llama-quantize: {', '.join(PRESETS)}; "
        f"in safetensors: {', '.join(name for name in ENCODINGS if not name.startswith('mlx-affine'))}, "
        "mlx-affine-g64b4 and its like",
    )
