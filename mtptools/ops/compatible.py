"""Do a trunk and a donor belong together? Every finding at once, each with an id that can be allowed by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mtptools.checkpoint import Checkpoint
from mtptools.errors import IncompatibleError, UsageError
from mtptools.head import trunk_layers
from mtptools.ops import validate_norms, validate_tensors
from mtptools.ops.quant_config import METHODS, knows_method
from mtptools.tokens import tokenizer_facts

__all__ = ["FINDINGS", "Mismatch", "mismatches", "require_match"]

# finding id: (hyperparameter, what it means, whether --allow-mismatch may overrule it)
_COMPARED: Final[tuple[tuple[str, str, str, bool], ...]] = (
    ("hidden-size", "hidden_size", "hidden size", False),
    ("vocab-size", "vocab_size", "vocabulary size", True),
    ("heads", "n_heads", "attention heads", False),
    ("kv-heads", "n_kv_heads", "key-value heads", False),
    ("head-dim", "head_dim", "head dimension", False),
    ("rope", "rope_theta", "rope base", True),
    ("rope-dim", "rope_dim", "rotated dimensions", True),
    ("norm-eps", "norm_eps", "norm epsilon", True),
    ("ffn", "intermediate_size", "feed-forward size", False),
    ("experts", "n_experts", "experts", False),
    ("experts-used", "n_experts_used", "experts per token", True),
    ("expert-ffn", "moe_intermediate_size", "expert feed-forward size", False),
    ("shared-ffn", "shared_expert_intermediate_size", "shared expert's feed-forward size", False),
)
_OF_THE_HEAD: Final = ("head-shape", "head-readable", "head-norms", "head-values", "quantization-method")
FINDINGS: Final = ("family", "layers", *(row[0] for row in _COMPARED), "tokenizer", *_OF_THE_HEAD)
_FATAL: Final = {"family", "head-shape", *(row[0] for row in _COMPARED if not row[3])}
ALLOWABLE: Final = tuple(name for name in FINDINGS if name not in _FATAL)


@dataclass(frozen=True)
class Mismatch:
    """One difference between trunk and donor."""

    id: str
    what: str

    @property
    def fatal(self) -> bool:
        """True when the head's shapes depend on it: nothing can allow it."""
        return self.id in _FATAL

    def __str__(self) -> str:
        return f"[{self.id}] {self.what}"


def _equal(left: object, right: object) -> bool:
    if isinstance(left, float) and isinstance(right, float):  # GGUF stores 32-bit floats
        return abs(left - right) <= 1e-6 * max(abs(left), abs(right))
    return left == right


def mismatches(trunk: Checkpoint, donor: Checkpoint) -> list[Mismatch]:
    """Everything in which the two differ and a head cares about."""
    out = []
    if trunk.family.name != donor.family.name:
        out.append(Mismatch("family", f"family: trunk {trunk.family.name}, donor {donor.family.name}"))
    layers = trunk_layers(trunk), trunk_layers(donor)
    if layers[0] != layers[1]:
        out.append(Mismatch("layers", f"trunk layers: trunk {layers[0]}, donor {layers[1]}"))
    for key, attribute, words, _ in _COMPARED:
        left, right = getattr(trunk.hparams, attribute), getattr(donor.hparams, attribute)
        if not _equal(left, right):
            out.append(Mismatch(key, f"{words}: trunk {left}, donor {right}"))
    left_tokens, right_tokens = tokenizer_facts(trunk), tokenizer_facts(donor)
    if left_tokens is not None and right_tokens is not None and left_tokens.digest != right_tokens.digest:
        out.append(
            Mismatch(
                "tokenizer",
                f"tokenizer: trunk {left_tokens.size} tokens {left_tokens.digest[:12]}, "
                f"donor {right_tokens.size} tokens {right_tokens.digest[:12]}",
            )
        )
    if trunk.dialect == "hf" and not knows_method(trunk.config):
        out.append(
            Mismatch(
                "quantization-method",
                "the trunk's quantization_config has a method of which it is not known here how to exclude the head "
                f"({', '.join(METHODS)} are known)",
            )
        )
    if trunk.family.name == donor.family.name:
        out += _head(trunk, donor)
    return out


def _head(trunk: Checkpoint, donor: Checkpoint) -> list[Mismatch]:
    """What is wrong with the donor's head itself: shapes, values, and norms against the trunk's of the same kind."""
    out = [Mismatch("head-shape", what) for what, _, _ in validate_tensors.head_shapes(donor)]
    out += [Mismatch("head-readable", f"{what}: {why}") for what, why, _ in validate_tensors.readable(donor)]
    out += [Mismatch("head-values", what) for what, _, _ in validate_norms.values(donor)]
    reference = validate_norms.trunk_means(trunk)
    out += [Mismatch("head-norms", f"{what} ({why})") for what, why, _ in validate_norms.judge_head(donor, reference)]
    return out


def require_match(trunk: Checkpoint, donor: Checkpoint, allowed: Sequence[str]) -> list[str]:
    """Raise IncompatibleError with all findings that are not allowed; return the allowed ones as facts.

    Raises UsageError for an id that does not exist.
    """
    wrong = [name for name in allowed if name not in FINDINGS]
    if wrong:
        raise UsageError(
            f"no finding is called {wrong[0]!r}", where="--allow-mismatch", hint=f"findings: {', '.join(ALLOWABLE)}"
        )
    found = mismatches(trunk, donor)
    refused = [m for m in found if m.fatal or m.id not in allowed]
    if refused:
        free = [m.id for m in refused if not m.fatal]
        raise IncompatibleError(
            f"trunk {trunk.path.name} and donor {donor.path.name} do not belong together",
            [str(m) for m in refused],
            hint="use a donor of the same model"
            if len(free) < len(refused)
            else "if it is meant: " + " ".join(f"--allow-mismatch {name}" for name in dict.fromkeys(free)),
        )
    facts = [f"allowed mismatch: {m}" for m in found]
    for label, ckpt in (("trunk", trunk), ("donor", donor)):
        if tokenizer_facts(ckpt) is None:
            facts.append(f"tokenizers were not compared: the {label} brings none")
    return facts
