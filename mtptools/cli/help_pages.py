"""What --help says of verbs beside their own options: arguments, groups of options, exit codes, pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["ARGUMENTS", "CHECKPOINTS", "CODES", "DOCS", "GROUPS", "PAGES", "WRITING_CODES", "Page"]

DOCS: Final = "docs/cli.md"
_PATH: Final = "A .gguf file, any shard of a split one, a .safetensors file, a folder, or a repository: user/repo."

ARGUMENTS: Final[Mapping[str, str]] = {
    "path": _PATH,
    "source": _PATH,
    "trunk": f"The checkpoint that gets the head: {_PATH[0].lower()}{_PATH[1:]}",
    "donor": "A checkpoint of the same model with a head, in any dialect; what extract wrote is one.",
    "a": _PATH,
    "b": "The same, to compare with.",
    "paths": f"{_PATH} Several may be given.",
    "out": "What mtptools wrote: a folder or a weight file.",
    "repo": "The repository to write to: user/repo, or user/repo@branch.",
    "shell": "bash, zsh or fish.",
}

# Parameters that are checkpoints: completed with model files and folders.
CHECKPOINTS: Final = frozenset(
    {"path", "paths", "source", "sources", "trunk", "donor", "a", "b", "head", "against", "restore", "tokenizer"},
)

CODES: Final[Mapping[int, str]] = {
    0: "done",
    1: "a check failed",
    2: "usage: an option that does not exist, or does not fit",
    3: "bad input: not a checkpoint, damaged, no head, an unknown architecture",
    4: "trunk and donor do not belong together; all findings are listed",
    5: "a type cannot hold it, or bits would be lost",
    6: "the output exists; --force replaces it",
    7: "environment: memory, disk, network, a missing extra",
    8: "no decoder for the family",
    130: "stopped; nothing half-written is left",
}
WRITING_CODES: Final = (5, 6)


@dataclass(frozen=True, slots=True)
class Page:
    """codes      exit codes beyond those of every verb, and what they mean here
    see        pages to read
    arguments  what arguments mean here, where `ARGUMENTS` does not say it
    """

    codes: Mapping[int, str] = field(default_factory=dict)
    see: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)


_VERIFIED: Final = {1: "with --verify: a level failed; the output is there, and its receipt says so"}
_UNREAD: Final = "values that cannot be read"
_DECODED: Final = {4: "the head of --head is of another model", 5: _UNREAD, 8: CODES[8]}
_PASSED: Final = {
    0: "every level passed",
    1: "a level failed",
    4: CODES[4],
    5: _UNREAD,
    8: CODES[8],
}
_RECIPES: Final = "docs/recipes/"

PAGES: Final[Mapping[str, Page]] = {
    "inspect": Page(see=("docs/concepts.md",)),
    "validate": Page({0: "no error was found", 1: "an error was found"}, ("docs/checks.md",)),
    "diff": Page({0: "the same", 1: "they differ"}),
    "extract": Page(_VERIFIED, (f"{_RECIPES}sidecar.md",)),
    "strip": Page(_VERIFIED),
    "graft": Page({**_VERIFIED, 4: CODES[4]}, (f"{_RECIPES}graft-a-quant.md", f"{_RECIPES}restore-a-head.md")),
    "quantize": Page(
        {
            1: "with --verify: a level failed; with --sweep and -o: the head as it is is best, nothing was written",
            8: "with --sweep: no decoder for the family",
        },
        (f"{_RECIPES}choose-a-type.md", f"{_RECIPES}quantize-the-head.md"),
    ),
    "convert": Page(_VERIFIED, ("docs/conventions.md",)),
    "verify": Page(_PASSED, (f"{_RECIPES}zero-acceptance.md", "docs/parity.md", "docs/stream.md")),
    "check": Page(_PASSED, (f"{_RECIPES}check-in-ci.md", "docs/ci.md")),
    "card": Page({1: "the report is of a failure; the card is written, and says so"}, ("docs/reports.md",)),
    "receipt": Page(
        {0: "what was looked at is as it was recorded", 1: "a tensor, a source or a signature is not"},
        ("docs/concepts.md", "docs/reports.md"),
    ),
    "upload": Page(see=("docs/hub.md",)),
    "bench": Page({1: "an output is not that of plain decoding", **_DECODED}, ("docs/bench.md",)),
    "generate": Page(_DECODED, ("docs/parity.md",)),
    "prune-vocab": Page(
        {
            1: "more is lost than --max-loss allows, nothing was written; with --verify: a level failed",
            4: "the trunk of --trunk is of another model",
            8: CODES[8],
        },
        (f"{_RECIPES}prune.md", f"{_RECIPES}prune-the-vocabulary.md"),
    ),
    "imatrix": Page(_DECODED, ("docs/imatrix.md",)),
    "families": Page(see=("docs/families.md", f"{_RECIPES}a-new-family.md")),
}

# heading -> names of parameters; "*" holds for every verb, after the verb's own.
_BYTES: Final = {"Lineage and validity": ("trunk", "against", "generic", "static")}
GROUPS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "verify": _BYTES,
    "check": _BYTES,
    "quantize": {
        "The head": ("head", "roles", "own_output", "imatrix", "norm_type", "generic"),
        "Sweep": (
            *("types", "prompts", "texts", "limit", "tokens", "k", "tolerance", "plot"),
            *("device", "dtype", "threads", "offload", "context", "graphs"),
        ),
    },
    "prune-vocab": {
        "Tokens to keep": (
            *("size", "ids", "ids_as", "as_given", "corpora", "weights", "from_model", "tokenizer", "processes"),
            "plot",
        ),
        "What is written": ("sidecar", "keep_embeddings", "map_only", "to", "restore"),
        "Acceptance": ("trunk", "measure", "max_loss", "prompts", "limit", "tokens", "k"),
    },
    "graft": {
        "The head": ("head_type", "roles", "own_output", "imatrix", "norm_type", "experts", "lossless"),
        "Trunk and donor": ("generic", "allow"),
    },
    "convert": {"The head": ("head_only", "bare", "head_type", "norm_type", "experts", "lossless")},
    "*": {
        "Decoding": (
            *("parity", "k", "tokens", "prompts", "limit", "baseline", "min_acceptance", "head", "serial", "probe"),
        ),
        "One pass over a text": ("stream", "text", "positions", "window", "layers", "state", "exact"),
        "Sampling": (
            *("temperature", "top_k", "top_p", "min_p", "seed", "repetition", "presence", "frequency", "last_n"),
            *("multiplier", "base", "allowed_length", "dry_last_n"),
        ),
        "Wiring, in place of the family's": ("tap", "recycle", "mask_first", "recurrence"),
        "Where it runs": ("device", "dtype", "threads", "offload", "context", "graphs"),
        "A real runtime": (
            *("runtime", "runtime_plain", "runtime_model", "runtime_alone", "runtime_timeout", "runtime_arg"),
            "api_key_env",
        ),
        "Reports": ("html", "markdown", "junit", "report"),
        "Output": ("out", "dry_run", "force", "verify", "link", "as_json", "quiet", "verbose", "help"),
    },
}
