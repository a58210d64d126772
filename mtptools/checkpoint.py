"""A checkpoint: its tensors by name, its configuration, and what stands beside it. Only headers are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from mtptools.containers import gguf, safetensors
from mtptools.containers.gguf import GgufIndex, Metadata
from mtptools.errors import CorruptError, NotACheckpointError, SystemFailure, UnknownFamilyError
from mtptools.families import Family, find_family, generic_family
from mtptools.hparams import HParams, gguf_hparams, hf_hparams, text_config
from mtptools.hub import Origin, located
from mtptools.tensors import Tensor

__all__ = ["Checkpoint", "File", "Known", "open_checkpoint", "open_declared", "split_name"]

SPLIT: Final = re.compile(r"^(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$")
SHARD: Final = re.compile(r"^.+-\d{5}-of-\d{5}\.safetensors$")
SINGLE: Final = "model.safetensors"
CONFIG: Final = "config.json"
UNKNOWN: Final = "?"  # the type of a tensor of which only the name is known
Known = Literal["config", "names", "values"]


@dataclass(frozen=True)
class File:
    """One weight file. `header` is how many bytes stand before its data; `metadata` is its own header's."""

    path: Path
    size: int
    header: int
    names: tuple[str, ...]
    metadata: Metadata | dict[str, str]
    alignment: int = 32


@dataclass(frozen=True, eq=False)
class Checkpoint(Mapping[str, Tensor]):
    """Tensors by name, in file order.

    container   "gguf" or "safetensors"
    dialect     "gguf", "hf" or "mlx": names and conventions
    files       weight files in shard order
    metadata    GGUF key-values of the first shard (empty for safetensors)
    config      config.json (empty for GGUF)
    folder      where side files live; None for a single file
    side_files  every other file of the folder, relative
    index       model.safetensors.index.json, when there is one
    generic     a GGUF of an unknown architecture is taken as it stands instead of being refused
    origin      the repo or the web address that `path` mirrors; None of what was on this machine
    known       how much was read: "values" can be, "names" (config.json and the index, no weights), or "config" alone
    """

    path: Path
    container: Literal["gguf", "safetensors"]
    dialect: Literal["gguf", "hf", "mlx"]
    files: tuple[File, ...]
    tensors: dict[str, Tensor]
    metadata: Metadata = field(default_factory=Metadata)
    config: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    side_files: tuple[Path, ...] = ()
    index: dict[str, Any] | None = None
    gaps: tuple[str, ...] = ()
    generic: bool = False
    known: Known = "values"
    origin: Origin | None = None

    # One opened checkpoint is itself and no other: what is found out about it may be cached by it.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def nbytes(self) -> int:
        return sum(file.size for file in self.files)

    @cached_property
    def family(self) -> Family:
        """Raises UnknownFamilyError, or NotACheckpointError when there is no config.json to tell."""
        if self.dialect == "gguf":
            arch = str(self.metadata.get("general.architecture"))
            try:
                return find_family(gguf_arch=arch, where=self.path)
            except UnknownFamilyError:
                if not self.generic:
                    raise
                return generic_family(arch)
        types = [str(t) for t in (self.config.get("model_type"), text_config(self.config).get("model_type")) if t]
        if not self.config:
            raise NotACheckpointError(
                "no config.json beside the weights, or an empty one",
                where=self.path,
                hint="put the model's config.json into the folder",
            )
        return find_family(hf_types=types, where=self.path)

    @cached_property
    def hparams(self) -> HParams:
        if self.dialect != "gguf":
            return hf_hparams(self.family, self.config, self.path)
        embedding = self.tensors.get("token_embd.weight")
        tokens = self.metadata.stored.get("tokenizer.ggml.tokens")
        if embedding is not None and embedding.shape:
            vocab = embedding.shape[0]
        elif tokens is not None:
            vocab = tokens.count
        elif isinstance(stated := self.metadata.get(f"{self.family.gguf_arch}.vocab_size"), int):
            vocab = stated
        else:
            raise CorruptError("neither token_embd.weight nor a tokenizer tells the vocabulary's size", where=self.path)
        return gguf_hparams(self.family, self.metadata, vocab, "output.weight" not in self.tensors, self.path)


def open_checkpoint(path: str | Path, *, generic: bool = False) -> Checkpoint:
    """Open a .gguf file (any shard of a split one), a .safetensors file, or a folder with either.

    path     on this machine, or an address (`mtptools.hub.parse`): `user/repo`, `hf://user/repo@revision/file`, a URL.
             Of what is remote only headers are fetched, and bytes when they are read
    generic  take a GGUF of an architecture that is not known as it stands

    Raises NotACheckpointError, CorruptError (header, missing shard, unreadable JSON) or SystemFailure.
    """
    try:
        path, origin = located(Path(path))
        if path.is_dir() or path.is_file():
            opened = _open_folder(path) if path.is_dir() else _open_file(path)
            return replace(opened, generic=generic, origin=origin)
    except OSError as error:
        raise SystemFailure(f"cannot read: {error.strerror or error}", where=error.filename or path) from error
    raise NotACheckpointError("no such file or folder", where=path, hint=_WHAT_TO_GIVE)


_WHAT_TO_GIVE: Final = "give a .gguf file, a .safetensors file, a model folder, or user/repo"


def open_declared(path: str | Path, *, generic: bool = False) -> Checkpoint:
    """As `open_checkpoint`, and also a folder, config.json or index whose weights are not there.

    What is known then are the configuration and, from an index, the tensors' names: shapes, types and values are not.
    """
    try:
        path, origin = located(Path(path))
        folder = path if path.is_dir() else path.parent
        if path.is_dir() or path.name == CONFIG or path.name.endswith(".index.json"):
            index_path = folder / safetensors.INDEX_NAME
            index = safetensors.load_json(index_path) if index_path.is_file() else None
            names = _weight_map(index, index_path) if index is not None else {}
            there = any((folder / name).is_file() for name in names.values())
            weights = there or ((not names and any(folder.glob("*.safetensors"))) or any(folder.glob("*.gguf")))
            if not weights and (folder / CONFIG).is_file():
                return replace(_without_weights(path, folder, index), origin=origin)
    except OSError as error:
        raise SystemFailure(f"cannot read: {error.strerror or error}", where=error.filename or path) from error
    return replace(open_checkpoint(folder if path.name == CONFIG else path, generic=generic), origin=origin)


def _without_weights(path: Path, folder: Path, index: dict[str, Any] | None) -> Checkpoint:
    names = _weight_map(index, folder / safetensors.INDEX_NAME) if index is not None else {}
    config = _config(folder)
    return Checkpoint(
        path=path,
        container="safetensors",
        dialect="mlx" if _says_mlx(config) else "hf",
        files=(),
        tensors={name: Tensor(name, (), UNKNOWN, ()) for name in names},
        config=config,
        folder=folder,
        side_files=tuple(sorted(p.relative_to(folder) for p in folder.iterdir() if p.is_file())),
        index=index,
        known="names" if index is not None else "config",
    )


def _open_file(path: Path) -> Checkpoint:
    if path.name.endswith(".index.json"):
        return _open_folder(path.parent)
    with open(path, "rb") as file:
        magic = file.read(4)
    if magic == gguf.MAGIC or path.suffix == ".gguf":
        return _open_gguf(path)
    if path.suffix == ".safetensors":
        return _from_safetensors(path, path.parent, [path], None)
    raise NotACheckpointError("neither GGUF nor safetensors", where=path, hint=_WHAT_TO_GIVE)


def _open_folder(folder: Path) -> Checkpoint:
    index_path = folder / safetensors.INDEX_NAME
    if index_path.is_file():
        index = safetensors.load_json(index_path)
        return _from_safetensors(folder, folder, _indexed_files(index, index_path), index)
    single = folder / SINGLE
    found = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return _from_safetensors(folder, folder, found, None)
    ggufs = sorted(p for p in folder.glob("*.gguf") if not (m := SPLIT.match(p.name)) or int(m["no"]) == 1)
    if len(ggufs) == 1 and not found:
        return _open_gguf(ggufs[0])
    several = [p.name for p in (*found, *ggufs)]
    if several and all(SHARD.match(name) for name in several):
        raise NotACheckpointError(
            f"shards without their index: {', '.join(several[:3])}{' …' if len(several) > 3 else ''}",
            where=folder,
            hint=f"download {safetensors.INDEX_NAME} of this release into the folder",
        )
    raise NotACheckpointError(
        f"several weight files and no index: {', '.join(several[:6])}" if several else "no weights in this folder",
        where=folder,
        hint=f"name one of them: {folder / several[0]}" if several else "expected model.safetensors or a .gguf file",
    )


def _weight_map(index: Any, where: Path) -> dict[str, str]:
    """Tensor name -> file name."""
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise CorruptError("no weight_map in the index", where=where, hint="download the index again")
    return names


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    config = safetensors.load_json(path) if path.is_file() else {}
    if not isinstance(config, dict):
        raise CorruptError("config.json is not an object", where=path, hint="take it from the release again")
    return config


def _says_mlx(config: dict[str, Any]) -> bool:
    """MLX's converters write a `quantization` of their own; Hugging Face has `quantization_config` alone."""
    stated = config.get("quantization")
    return isinstance(stated, dict) and "group_size" in stated and "quant_method" not in stated


def _indexed_files(index: Any, where: Path) -> list[Path]:
    files = sorted(set(_weight_map(index, where).values()))
    for name in files:
        if Path(name).name != name:
            raise CorruptError(
                f"the index names a file outside of its folder: {name!r}", where=where, hint="download the index again"
            )
        if not (where.parent / name).is_file():
            raise CorruptError(
                f"shard {name} is missing", where=where.parent, hint="download the missing shard, then try again"
            )
    return [where.parent / name for name in files]


def _from_safetensors(path: Path, folder: Path, files: list[Path], index: dict[str, Any] | None) -> Checkpoint:
    found = [safetensors.read_index(file) for file in files]
    tensors: dict[str, Tensor] = {}
    for shard in found:
        for name, tensor in shard.tensors.items():
            if name in tensors:
                raise CorruptError(
                    f"tensor {name} is in {tensors[name].blobs[0].path.name} and in {shard.path.name}",
                    where=path,
                    hint="download the shards of one revision; a file of another one may lie among them",
                )
            tensors[name] = tensor
    if index is not None:
        _check_index(index["weight_map"], tensors, folder)
    config = _config(folder)
    weights = {file.name for file in files} | {safetensors.INDEX_NAME}
    side = sorted(p.relative_to(folder) for p in folder.iterdir() if p.is_file() and p.name not in weights)
    mlx = any(shard.metadata.get("format") == "mlx" for shard in found) or _says_mlx(config)
    return Checkpoint(
        path=path,
        container="safetensors",
        dialect="mlx" if mlx else "hf",
        files=tuple(_file(s.path, s.tensors, s.metadata) for s in found),
        tensors=tensors,
        config=config,
        folder=folder,
        side_files=tuple(side),
        index=index,
    )


def _check_index(weight_map: Mapping[str, str], tensors: Mapping[str, Tensor], folder: Path) -> None:
    for name, file in weight_map.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.blobs[0].path.name != file:
            raise CorruptError(
                f"the index says that {name} is in {file}; it is not",
                where=folder / safetensors.INDEX_NAME,
                hint="download the shards and the index from one revision",
            )


def _file(path: Path, tensors: Mapping[str, Tensor], metadata: Metadata | dict[str, str]) -> File:
    size = path.stat().st_size
    starts = [tensor.blobs[0].offset for tensor in tensors.values()]
    return File(path, size, min(starts, default=size), tuple(tensors), metadata)


def split_name(stem: str, number: int, count: int) -> str:
    """The name llama.cpp expects of shard `number` (1-based) of `count`."""
    return f"{stem}-{number:05d}-of-{count:05d}.gguf"


def _open_gguf(path: Path) -> Checkpoint:
    match = SPLIT.match(path.name)
    if match is None:
        whole = gguf.read_index(path)
        count = whole.metadata.get("split.count", 1)
        if isinstance(count, int) and count > 1:
            raise CorruptError(
                f"this is shard {whole.metadata.get('split.no')} (from 0) of {count}, under a name of its own",
                where=path,
                hint="give the shards their names back: NAME-00001-of-00003.gguf and so on, side by side",
            )
        return _from_gguf(path, [whole])
    count = int(match["count"])
    shards = []
    for number in range(1, count + 1):
        shard = path.with_name(split_name(match["stem"], number, count))
        if not shard.is_file():
            raise CorruptError(
                f"shard {number} of {count} is missing: {shard.name}",
                where=path.parent,
                hint="download the missing shard, then try again",
            )
        shards.append(gguf.read_index(shard))
    _check_split(shards)
    return _from_gguf(shards[0].path, shards)


def _check_split(shards: list[GgufIndex]) -> None:
    total = sum(len(shard.tensors) for shard in shards)
    for number, shard in enumerate(shards):
        if shard.metadata.get("split.no") != number:
            raise CorruptError(
                f"split.no is {shard.metadata.get('split.no')}, its name says {number}",
                where=shard.path,
                hint="an unsplit GGUF cannot be a shard; split a whole one with llama-gguf-split",
            )
    stated = (shards[0].metadata.get("split.count"), shards[0].metadata.get("split.tensors.count"))
    if stated != (len(shards), total):
        raise CorruptError(
            f"split.count and split.tensors.count say {stated[0]} files with {stated[1]} tensors, "
            f"there are {len(shards)} with {total}",
            where=shards[0].path,
            hint="download all shards from one revision",
        )


def _from_gguf(path: Path, shards: list[GgufIndex]) -> Checkpoint:
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        for name, tensor in shard.tensors.items():
            if name in tensors:
                raise CorruptError(
                    f"tensor {name} stands in two shards", where=shard.path, hint="download all shards of one revision"
                )
            tensors[name] = tensor
    return Checkpoint(
        path=path,
        container="gguf",
        dialect="gguf",
        files=tuple(
            File(s.path, s.path.stat().st_size, s.data_start, tuple(s.tensors), s.metadata, s.alignment) for s in shards
        ),
        tensors=tensors,
        metadata=shards[0].metadata,
        gaps=tuple(name for shard in shards for name in shard.gaps),
    )
