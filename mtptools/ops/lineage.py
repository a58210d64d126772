"""Level L0: are the trunk's bytes the input's bytes, and the head's bytes the donor's?"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from mtptools.checkpoint import Checkpoint
from mtptools.codecs import CODECS, ENCODABLE, EXACT, NEEDS_IMPORTANCE, decode, decode_bytes, encode
from mtptools.conventions import convert_values
from mtptools.errors import CodecError, MissingExtraError
from mtptools.head import Found, find_head, find_trunk, head_names, is_sidecar, layers_of, within_head
from mtptools.ops.diff import digest
from mtptools.ops.lineage_encoded import Again
from mtptools.ops.lineage_reduced import to_same_roles
from mtptools.ops.lineage_tokenizer import other_tokenizer
from mtptools.ops.own_output import OUTPUT
from mtptools.receipt import identity, load_beside, load_inside
from mtptools.recode import recoded
from mtptools.tensors import Tensor, read_blob
from mtptools.vocab.stored import draft_vocabulary, map_names

__all__ = ["Lineage", "lineage"]

Verdict = Literal["pass", "fail", "not checked"]
Progress = Callable[[int], None]

# Values this far off, as a share of the donor's, are not the donor's: 1.4 is another matrix, 1 none at all, and IQ1_S,
# the coarsest type, is 0.6 off.
UNRELATED: Final = 0.75
# So much further off than a plain conversion may importance make it (measured on the fixtures' heads with weights over
# six decades: 1.2 at most).
WORSE: Final = 1.5
# Why bytes of a head are not made again.
_WEIGHTED: Final = "quantized in a way that is not repeated here (importance, or another build of ggml)"
_OTHERWISE: Final = "in an encoding that this tool rounds otherwise (another library made them, or calibration)"
_UNKNOWN: Final = "in an encoding that is read here and not written"
# Rows that are looked at together.
RUN: Final = 64


@dataclass(frozen=True)
class Lineage:
    """One comparison: against what, the verdict, and the facts behind it."""

    against: str
    verdict: Verdict
    what: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def lineage(
    ckpt: Checkpoint,
    trunk: Checkpoint | None = None,
    donor: Checkpoint | None = None,
    progress: Progress = lambda n: None,
) -> list[Lineage]:
    """Compare a checkpoint with its receipts and, where given, with its trunk and its donor. Reads every byte."""
    out = [_beside(ckpt, progress) or _inside(ckpt)]
    if trunk is not None and is_sidecar(ckpt):
        out.append(Lineage("trunk", "not checked", "a sidecar: there is no trunk in it to compare"))
    elif trunk is not None:
        out.append(_trunk(ckpt, trunk, progress))
    if donor is not None:
        out.append(_donor(ckpt, donor, progress))
    holder = trunk if trunk is not None else donor
    if holder is not None and (differs := other_tokenizer(ckpt, holder)) is not None:
        out.append(Lineage("tokenizer", "fail", differs))
    return out


def _beside(ckpt: Checkpoint, progress: Progress) -> Lineage | None:
    record = load_beside(ckpt)
    if record is None:
        return None
    rows = record["tensors"]
    stated = {row["name"]: row["xxh3_128"] for row in rows if "xxh3_128" in row}
    linked = {row["name"] for row in rows} - set(stated)
    wrong = [name for name, value in stated.items() if name not in ckpt or digest(ckpt[name], progress) != value]
    wrong += sorted(linked - _as_linked(ckpt, record))
    wrong += [name for name in ckpt if name not in stated and name not in linked]
    if wrong:
        return Lineage(
            "receipt", "fail", f"{len(wrong)} tensor(s) are not what the receipt says: {', '.join(wrong[:4])}"
        )
    passed = sum(1 for row in rows if row["bytes_pass"] and row["name"] in stated)
    sources = ", ".join(f"{source['label']} {source['name']}" for source in record["sources"])
    what = f"{len(stated)} digests equal, {passed} tensors byte for byte from {sources}"
    if linked:
        what += f"; {len(linked)} tensors in linked files have no digest, the files' sizes and headers are as they were"
    return Lineage("receipt", "pass", what)


def _as_linked(ckpt: Checkpoint, record: dict[str, Any]) -> set[str]:
    """Tensors of the files whose size and header are those of a file that was linked, under whatever name."""
    known = {(file["bytes"], file["header_sha256"]) for file in record["linked"]}
    return {name for file in ckpt.files if known and identity(file) in known for name in file.names}


def _inside(ckpt: Checkpoint) -> Lineage:
    record = load_inside(ckpt)
    if record is None:
        return Lineage("receipt", "not checked", "no receipt beside it or inside it")
    stated: dict[str, str] = record["head_sha256"]
    wrong = [name for name, value in stated.items() if name not in ckpt or _sha256(ckpt, name) != value]
    if wrong:
        return Lineage("receipt inside", "fail", f"head tensors differ from the receipt: {', '.join(wrong[:4])}")
    return Lineage("receipt inside", "pass", f"{len(stated)} head digests equal; the trunk is not covered by it")


def _sha256(ckpt: Checkpoint, name: str) -> str:
    state = hashlib.sha256()
    for blob in ckpt[name].chunks():
        state.update(read_blob(blob, name))
    return state.hexdigest()


def _trunk(ckpt: Checkpoint, trunk: Checkpoint, progress: Progress) -> Lineage:
    head = {*head_names(ckpt), *head_names(trunk), *map_names(ckpt), *map_names(trunk)}
    ours, theirs = [n for n in ckpt if n not in head], [n for n in trunk if n not in head]
    wrong = list({*ours} ^ {*theirs})
    files = {file.path: _inode(file.path) for one in (ckpt, trunk) for file in one.files}
    for name in ours:
        if name not in trunk or _same_place(ckpt[name], trunk[name], files):
            continue
        if trunk[name].nbytes != ckpt[name].nbytes or digest(trunk[name], progress) != digest(ckpt[name], progress):
            wrong.append(name)
    if wrong:
        return Lineage("trunk", "fail", f"{len(wrong)} trunk tensor(s) differ: {', '.join(sorted(wrong)[:4])}")
    return Lineage("trunk", "pass", f"{len(ours)} trunk tensors byte for byte those of {trunk.path.name}")


def _inode(path: Path) -> tuple[int, int]:
    """What two names of one file have in common."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino


def _same_place(left: Tensor, right: Tensor, inodes: Mapping[Path, tuple[int, int]]) -> bool:
    """Are these the same bytes of the same file, linked? They need not be read to be equal."""
    one, other = ([(inodes[b.path], b.offset, b.nbytes) for b in tensor.blobs] for tensor in (left, right))
    return one == other and left.codec == right.codec


def _donor(ckpt: Checkpoint, donor: Checkpoint, progress: Progress) -> Lineage:
    """Head tensors against the donor's: the same bytes, or the bytes that the same conversion gives again."""
    vocabulary = draft_vocabulary(ckpt)
    as_stored = None if vocabulary is not None else _by_stored_names(ckpt, donor, progress)
    if as_stored is not None:
        return as_stored
    same, made, apart = 0, 0, dict[str, list[float]]()
    layers = range(max(len(layers_of(ckpt)), len(layers_of(donor)), 1))
    heads = [[head for n in layers if (head := find_head(one, n)) is not None] for one in (ckpt, donor)]
    again = Again(ckpt, donor, *heads)
    for layer in layers:
        ours, theirs = find_head(ckpt, layer), find_head(donor, layer)
        if ours is None or theirs is None:
            return Lineage("donor", "fail", f"no head in {(ckpt if ours is None else donor).path.name}")
        if vocabulary is not None:
            ours, theirs = to_same_roles(ckpt, donor, ours, theirs, vocabulary)
        own = {OUTPUT: base} if (base := _output(ckpt)) is not None and OUTPUT not in theirs.roles else {}
        missing = sorted(set(ours.roles) ^ {*theirs.roles, *(own if OUTPUT in ours.roles else ())})
        if missing:
            return Lineage("donor", "fail", f"roles that only one of them has: {', '.join(missing[:4])}")
        for name, found in ours.roles.items():
            base = own.get(name)
            left, right = found.tensor, theirs.roles[name].tensor if base is None else base
            stored = (donor if base is None else ckpt).dialect
            values = (found.role.convention(stored), found.role.convention(ckpt.dialect))
            as_it_is = left.codec == right.codec and values[0] == values[1] and left.stored and right.stored
            if as_it_is and digest(left, progress) == digest(right, progress):
                same += 1
            elif not as_it_is and _is_made_of(left, right, values, progress):
                made += 1
            elif not as_it_is and again.knows(found) and (off := _encoded_apart(again, found, progress)) is not None:
                if off:
                    apart.setdefault(_OTHERWISE, []).append(off)
                else:
                    made += 1
            elif not (as_it_is or again.knows(found)) and (off := _quantized_apart(found, right, values)) is not None:
                apart.setdefault(_UNKNOWN if found.scaled else _WEIGHTED, []).append(off)
            else:
                whose = donor.path.name if base is None else "the trunk"
                return Lineage("donor", "fail", f"{name} is not {whose}'s, converted or not")
    what = f"{same} head tensors byte for byte those of {donor.path.name}"
    what += f", {made} as converting them again gives" if made else ""
    if apart:
        what += "".join(f"; {len(o)} {why}, at most {max(o):.1%} away in root mean square" for why, o in apart.items())
        return Lineage("donor", "not checked", what)
    return Lineage("donor", "pass", what)


def _output(ckpt: Checkpoint) -> Tensor | None:
    """The trunk's output matrix, from which a head's own is made (`mtptools.ops.own_output`)."""
    found = {role.name: one for role, layer, one in find_trunk(ckpt) if layer is None and one is not None}
    one = found.get("output.weight") or found.get("token_embd.weight")
    return None if one is None else one.tensor


def _encoded_apart(again: Again, found: Found, progress: Progress) -> float | None:
    """How far a role in encodings of safetensors is from the donor's: 0 where these give the same bytes again.

    None where it is further off than rounding or, with care, calibration makes it.
    """
    worst = 0.0
    for one in again.apart(found, progress):
        off = _errors(one.donor, ("plain", "plain"), one.stored)
        if not (off <= WORSE * _errors(one.donor, ("plain", "plain"), one.again)).all():
            return None
        worst = max(worst, float(off.max(initial=0)), float(np.finfo(np.float32).tiny))
    return worst


def _quantized_apart(found: Found, right: Tensor, values: tuple[str, str]) -> float | None:
    """How far quantized values are from the donor's; None where no way to quantize the donor's gives them.

    Importance moves codes, and so do fused multiply-adds in ggml as it is commonly built: what cannot be repeated bit
    for bit has to be about as near as a plain conversion.
    """
    left = found.tensor
    if left.shape != right.shape or not (
        found.scaled or (CODECS[left.codec].kind == "block" and left.codec not in EXACT)
    ):
        return None
    off = _errors(right, values, left)
    plain = np.full(len(off), UNRELATED)
    if not found.scaled and left.codec in ENCODABLE and left.codec not in NEEDS_IMPORTANCE:
        plain = WORSE * _errors(right, values, left.codec)
    return float(off.max(initial=0)) if (off <= plain).all() else None


def _errors(right: Tensor, values: tuple[str, str], other: Tensor | str) -> NDArray[np.float64]:
    """Root mean squares between the donor's values and a tensor, or themselves in a type, as shares of them.

    One for every run of a few rows of a matrix: two experts that changed places, or a few rows, must not hide in many.
    """
    out = []
    size = right.shape[-2] if len(right.shape) > 1 else 1
    for first in range(0, right.n_rows, size):
        for start in range(first, first + size, RUN):
            stop = min(start + RUN, first + size)
            there = convert_values(decode(right, start, stop), *values)
            if isinstance(other, str):
                ours = decode_bytes(encode(there, other), other, right.shape[-1])
            else:
                ours = decode(other, start, stop)
            off, norm = (float(np.square(each, dtype=np.float64).sum()) for each in (ours - there, there))
            out.append((off / norm) ** 0.5 if norm else off)
    return np.array(out)


def _by_stored_names(ckpt: Checkpoint, donor: Checkpoint, progress: Progress) -> Lineage | None:
    """Within one dialect of safetensors: the same tensors, scales included. None when they are stored otherwise."""
    if ckpt.dialect == "gguf" or ckpt.dialect != donor.dialect:
        return None
    ours, theirs = ({within_head(c, name): c[name] for name in head_names(c)} for c in (ckpt, donor))
    if {k: (t.shape, t.codec) for k, t in ours.items()} != {k: (t.shape, t.codec) for k, t in theirs.items()}:
        return None
    for (layer, rest), tensor in ours.items():
        if digest(tensor, progress) != digest(theirs[layer, rest], progress):
            return Lineage("donor", "fail", f"{rest} of layer {layer} is not {donor.path.name}'s")
    return Lineage("donor", "pass", f"{len(ours)} head tensors byte for byte those of {donor.path.name}")


def _is_made_of(left: Tensor, right: Tensor, values: tuple[str, str], progress: Progress) -> bool:
    """Does the donor's tensor, in our type and convention, have our bytes? False when there is no encoder for it."""
    try:
        ours = digest(left, progress) if left.stored else _digest_as(left, left.codec, None)
        return _digest_as(right, left.codec, values) == ours
    except (CodecError, MissingExtraError):
        return False


def _digest_as(source: Tensor, codec: str, values: tuple[str, str] | None) -> str:
    state = xxhash.xxh3_128()
    for data in recoded(source, codec, values):
        state.update(data)
    return str(state.hexdigest())
