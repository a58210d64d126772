"""Which files of a repo an address means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from mtptools.errors import NotACheckpointError, typed
from mtptools.hub.address import Address
from mtptools.hub.repo import Entry, Listing

__all__ = ["SPLIT", "Choice", "choose", "is_side", "is_weight", "shards_of"]

WEIGHTS: Final = (".safetensors", ".gguf")
SIDE_LIMIT: Final = 64 << 20  # bytes of the largest file beside the weights that is fetched
SPLIT: Final = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")
_TYPE: Final = re.compile(r"[-.]((?:UD-)?(?:I?Q\d|TQ\d|BF16|F16|F32|MXFP4|NVFP4)\w*)[-.]", re.IGNORECASE)
_SIDE: Final = re.compile(
    r"(.*config.*\.json|.*\.index\.json|tokenizer.*|special_tokens_map\.json|added_tokens\.json|chat_template.*"
    r"|.*\.jinja|vocab.*|merges\.txt|.*\.model|.*\.tiktoken|.*\.py|mtptools-receipt\.json)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Choice:
    """What is opened: `target` is a file or a folder ("" for the repo itself) and needs `weights` and `side`."""

    target: str
    weights: tuple[Entry, ...]
    side: tuple[Entry, ...]


def is_weight(name: str) -> bool:
    return name.endswith(WEIGHTS)


def is_side(name: str) -> bool:
    """Does a checkpoint have a file of this name beside its weights?"""
    return _SIDE.fullmatch(name) is not None


def shards_of(name: str, names: Iterable[str]) -> list[str]:
    """All shards of the split GGUF that `name` is one of, first to last; a file that is not split is alone."""
    match = SPLIT.fullmatch(name)
    if match is None:
        return [name]
    pattern = re.compile(re.escape(match["stem"]) + r"-\d{5}-of-" + match["count"] + r"\.gguf")
    return sorted(other for other in names if pattern.fullmatch(other))


def choose(address: Address, listing: Listing) -> Choice:
    """Raises NotACheckpointError when the address names nothing in the repo, or more than one model."""
    by_name = {entry.name: entry for entry in listing.files}
    where = str(address)
    if address.tag is not None:
        return _gguf(_tagged(address.tag, by_name, address), by_name)
    file = address.file or ""
    if file in by_name:
        if file.endswith(".gguf"):
            return _gguf(file, by_name)
        weights = (by_name[file],) if is_weight(file) else _here(by_name, str(PurePosixPath(file).parent), True)
        return Choice(file, weights, _here(by_name, str(PurePosixPath(file).parent), False))
    weights = _here(by_name, file, True)
    if any(entry.name.endswith(".safetensors") for entry in weights):
        return Choice(file, weights, _here(by_name, file, False))
    models = _models(sorted(n for n in by_name if n.endswith(".gguf") and n.startswith(f"{file}/" if file else "")))
    if len(models) == 1:
        return _gguf(models[0], by_name)
    if models:
        raise NotACheckpointError(
            f"the repo holds {len(models)} GGUF files: {_sizes(models, by_name)}",
            where=where,
            hint=f"name one: {_named(models[0], address)}{_by_type(models[0], address.base)}",
        )
    side = _here(by_name, file, False)
    if any(PurePosixPath(entry.name).name == "config.json" for entry in side):
        return Choice(file, (), side)
    if not file:
        raise NotACheckpointError(
            "no safetensors and no GGUF in this repo", where=where, hint="give a repo that holds a model's weights"
        )
    near = difflib.get_close_matches(file, by_name, n=3, cutoff=0.3) or [n for n in by_name if is_weight(n)][:3]
    raise NotACheckpointError(
        f"the repo has no such file; the nearest are {', '.join(near)}" if near else "the repo has no such file",
        where=where,
        hint=_named(near[0], address) if near else None,
    )


def _gguf(name: str, by_name: dict[str, Entry]) -> Choice:
    """A GGUF holds all that is known of its model: nothing beside it is needed."""
    shards = shards_of(name, by_name)
    return Choice(name, tuple(by_name[shard] for shard in shards), ())


def _here(by_name: dict[str, Entry], folder: str, weights: bool) -> tuple[Entry, ...]:
    """The weight files, or the files beside them, that stand in one folder of the repo."""
    folder = "" if folder == "." else folder
    out = []
    for entry in by_name.values():
        head, _, name = entry.name.rpartition("/")
        if head != folder or name.startswith(".") or is_weight(name) != weights:
            continue
        if weights or (is_side(name) and entry.size <= SIDE_LIMIT):
            out.append(entry)
    return tuple(out)


def _models(names: Sequence[str]) -> list[str]:
    """The GGUF files that are models of their own: of a split one the first shard, and no vision projector."""
    first = [n for n in names if not SPLIT.fullmatch(n) or "-00001-of-" in n]
    return [n for n in first if not n.rpartition("/")[2].lower().startswith("mmproj")] or first


def _tagged(tag: str, by_name: dict[str, Entry], address: Address) -> str:
    models = _models(sorted(name for name in by_name if name.endswith(".gguf")))
    pattern = re.compile(rf"(^|[-._/]){re.escape(tag)}(?=[-._/])", re.IGNORECASE)
    exact = re.compile(rf"(^|[-./]){re.escape(tag)}(?=[-./])", re.IGNORECASE)
    found = [n for n in models if exact.search(n)] or [n for n in models if pattern.search(n)]
    if not found:
        raise NotACheckpointError(
            f"no GGUF of this repo has {tag} in its name" + (f"; it holds {_sizes(models, by_name)}" if models else ""),
            where=address,
            hint=_named(models[0], address) if models else "give a repo with GGUF files",
        )
    # `Q4_K_M` is model-Q4_K_M.gguf also where model-UD-Q4_K_M.gguf and mtp-model-Q4_K_M.gguf stand beside it.
    shortest = min(len(n.rpartition("/")[2]) for n in found)
    best = [n for n in found if len(n.rpartition("/")[2]) == shortest]
    if len(best) > 1:
        raise NotACheckpointError(
            f"{tag} fits {len(best)} files: {_sizes(best, by_name)}",
            where=address,
            hint=f"name one: {_named(best[0], address)}",
        )
    return best[0]


def _named(file: str, address: Address) -> str:
    """The address of one file of the repo, as it is typed."""
    return typed(Address(address.repo, address.revision, file))


def _by_type(name: str, base: str) -> str:
    """The short way to say it, where the file's name holds its type."""
    found = _TYPE.search(name.rpartition("/")[2])
    return f", or its type: {base}:{found[1]}" if found else ""


def _sizes(names: Sequence[str], by_name: dict[str, Entry]) -> str:
    def text(name: str) -> str:
        total = sum(by_name[shard].size for shard in shards_of(name, by_name))
        return f"{name} ({total / 1e9:.3g} GB)"

    return ", ".join(text(name) for name in names[:12]) + (" …" if len(names) > 12 else "")
