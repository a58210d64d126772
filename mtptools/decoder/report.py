"""What the decoder found out about a model: levels L2, L3 and L4 of `verify`."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mtptools.decoder.acceptance import Acceptance
from mtptools.decoder.by_prompt import PromptCounts
from mtptools.decoder.controls import ControlResult
from mtptools.decoder.kernels import unavailable
from mtptools.decoder.margins import Margins
from mtptools.decoder.model import Model
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.packed import how_held
from mtptools.decoder.parity import Parity
from mtptools.decoder.probe import Probed
from mtptools.decoder.resident import kernels
from mtptools.decoder.sampling import Sampling

__all__ = ["DecoderReport", "SampledAcceptance", "digest_prompts", "fingerprint", "surroundings"]


@dataclass(frozen=True)
class SampledAcceptance:
    """Acceptance per k for every way to choose drafts, by the match rule; `Sampling.for_drafts` explains the ways."""

    sampling: Sampling
    prompts: int
    drafts: dict[str, list[Acceptance]]

    def to_json(self) -> dict[str, Any]:
        return {
            "sampling": self.sampling.to_json(),
            "words": str(self.sampling),
            "prompts": self.prompts,
            "drafts": {choice: [one.to_json() for one in found] for choice, found in self.drafts.items()},
        }


@dataclass
class DecoderReport:
    """prompts and tokens say how much was decoded; parity has one entry per prompt and arm.

    acceptance  per k, greedy; sampled: the same for each sampled arm; probed: of other wirings, best first
    prompts_digest  of the prompts' token ids: two reports can be compared only when these are equal
    distinct    different tokens by emitted ones: a text that loops measures little
    per_prompt  greedy counts of each;  categories  acceptance per k of each, empty when all prompts are of one
    margins     the trunk's along the greedy texts
    """

    prompts: int
    prompt_tokens: int
    tokens: int
    ks: tuple[int, ...]
    parity: list[Parity] = field(default_factory=list)
    acceptance: list[Acceptance] = field(default_factory=list)
    sampled: list[SampledAcceptance] = field(default_factory=list)
    probed: list[Probed] = field(default_factory=list)
    controls: list[ControlResult] = field(default_factory=list)
    diagnosis: str | None = None
    distinct: float = 0.0
    plain_tokens_per_second: float = 0.0
    fingerprint: dict[str, Any] = field(default_factory=dict)
    prompts_digest: str = ""
    per_prompt: list[PromptCounts] = field(default_factory=list)
    categories: dict[str, list[Acceptance]] = field(default_factory=dict)
    margins: Margins | None = None

    @property
    def parity_ok(self) -> bool:
        return all(result.equal for result in self.parity)

    @property
    def powerless(self) -> list[str]:
        """Controls that did not hurt: faults these prompts cannot see."""
        return [result.name for result in self.controls if result.must_hurt and result.verdict == "no power"]

    def first_difference(self) -> Parity | None:
        return next((result for result in self.parity if not result.equal), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "prompts": self.prompts,
            "prompts_digest": self.prompts_digest,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "k": list(self.ks),
            "parity": {"equal": self.parity_ok, "arms": [result.to_json() for result in self.parity]},
            "acceptance": [one.to_json() for one in self.acceptance],
            "categories": {
                name: {"acceptance": [one.to_json() for one in found]} for name, found in self.categories.items()
            },
            "per_prompt": [one.to_json() for one in self.per_prompt],
            "margins": None if self.margins is None else self.margins.to_json(),
            "sampled": [one.to_json() for one in self.sampled],
            "probe": [one.to_json() for one in self.probed],
            "controls": [result.to_json() for result in self.controls],
            "powerless": self.powerless,
            "diagnosis": self.diagnosis,
            "distinct": self.distinct,
            "plain_tokens_per_second": self.plain_tokens_per_second,
            "fingerprint": self.fingerprint,
        }


def digest_prompts(prompts: Sequence[Sequence[int]]) -> str:
    """sha256 over token ids, prompt by prompt."""
    return hashlib.sha256(json.dumps([list(ids) for ids in prompts]).encode()).hexdigest()


def fingerprint(model: Model) -> dict[str, Any]:
    """What the bits may depend on."""
    held = {how_held(weight) for block in model.trunk.blocks for _, weight in block.matrices()}
    found = surroundings(model.arithmetic, model.dtype, held)
    recorded = {"trunk": [model.trunk.replays], "head": model.head.replays if model.head is not None else ()}
    told = [f"{what}: {one}" for what, every in recorded.items() for one in every if one is not None]
    return found | {"graphs": "; ".join(told)} if told else found


def surroundings(arithmetic: Arithmetic, dtype: torch.dtype, held: Collection[str]) -> dict[str, Any]:
    """Machine, versions and tiles; `held` says how matrices are."""
    device = arithmetic.device
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
        "arithmetic": arithmetic.policy,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability(device)))
        found["cuda"] = torch.version.cuda
        found["driver"] = _driver()
    found["weights"] = sorted(held)
    kernels_run = device.type == "cuda" or set(held) & {"resident", "offloaded"}
    if kernels_run and unavailable(device) is None:
        table = kernels().fingerprint()
        found |= table | {"tiles_digest": hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()}
    return found


def _driver() -> str | None:
    """Of NVIDIA's driver, where the system says; the same bits may come from another compiler in it."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as file:
            return file.readline().split(":", 1)[-1].strip() or None
    except OSError:
        return None
