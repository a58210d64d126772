"""What drafting could gain, as a model of bytes read.

One request, decoded where memory is what takes the time: a pass reads each matrix it multiplies with once, however many
rows it has, and nothing else counts. Left out are activations, the KV cache and recurrent states, sampling, and what
launching and waiting cost; and that the first draft of a step also reads the head for the tokens that were accepted
before, which costs nothing but where each of them has experts of its own. So the figure is what types of a head do to
one another, not a promise of seconds.

    plain token    the trunk
    step           the trunk for k + 1 rows, and k times the head with the output matrix it drafts with
    speed-up       tokens a step emits x plain token / step

Of experts a row reads `used` of `experts`; of those that several rows read, as many differ as routing at random gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mtptools.checkpoint import Checkpoint
from mtptools.errors import MissingRoleError
from mtptools.head import find_head, find_trunk, head_names, layers_of
from mtptools.vocab.stored import map_names

__all__ = ["LEFT_OUT", "Part", "Traffic", "distinct_experts", "traffic"]

LEFT_OUT: Final = "activations, the KV cache, sampling, launching, and the head's experts of tokens it catches up on"

# Routed experts, stacked or one by one: GGUF, Hugging Face, MLX. Shared ones are read by every row.
_EXPERTS: Final = re.compile(r"_exps\.|\.experts\.|\.switch_mlp\.")
# Tables of which a token reads one row (DeepSeek-V4's experts by token).
_TABLES: Final = re.compile(r"tid2eid")


def distinct_experts(experts: int, used: int, rows: int) -> float:
    """How many of `experts` are read by `rows` rows that each choose `used` at random: E (1 - (1 - u/E)^rows)."""
    return experts * (1 - (1 - used / experts) ** rows) if experts else 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of some layers.

    always   read by every pass;  experts  all routed experts;  row  what one token looks up
    """

    always: int = 0
    experts: int = 0
    row: float = 0.0

    def read(self, share: float, rows: int = 1) -> float:
        """Bytes of a pass of `rows` rows that reads this share of the experts."""
        return self.always + self.experts * share + self.row * rows


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one model reads.

    trunk    with its output matrix
    layers   per MTP layer, the output matrix it drafts with not among them
    outputs  per MTP layer, bytes of that matrix
    head     bytes of all tensors of the head, as the file has them
    """

    trunk: Part
    layers: tuple[Part, ...]
    outputs: tuple[int, ...]
    head: int
    experts: int
    used: int

    def _share(self, rows: int) -> float:
        return distinct_experts(self.experts, self.used, rows) / self.experts if self.experts else 0.0

    @property
    def plain(self) -> float:
        """Bytes of a token without drafts."""
        return self.trunk.read(self._share(1))

    def drafts(self, k: int) -> float:
        """Bytes of k drafts: layers take turns."""
        turns = (n % len(self.layers) for n in range(k))
        return sum(self.layers[n].read(self._share(1)) + self.outputs[n] for n in turns)

    def step(self, k: int) -> float:
        """Bytes of k drafts and the pass that verifies them."""
        return self.trunk.read(self._share(k + 1), k + 1) + self.drafts(k)

    def output_share(self, k: int) -> float:
        """The output matrix's share of k drafts."""
        return sum(self.outputs[n % len(self.outputs)] for n in range(k)) / self.drafts(k)

    def speedup(self, mean_length: float, k: int) -> float:
        """Tokens a second by those of plain decoding, when a step of k drafts emits `mean_length` tokens."""
        return mean_length * self.plain / self.step(k)


def traffic(ckpt: Checkpoint) -> Traffic:
    """Of a checkpoint with trunk and head, or of a plan (`mtptools.preview`): only sizes are read.

    What stands beside the text model (a vision tower) does not count. Raises MissingRoleError for a sidecar that has
    no embedding.
    """
    shared = {role.name: found for role, layer, found in find_trunk(ckpt) if layer is None and found is not None}
    if "token_embd.weight" not in shared:
        raise MissingRoleError("no embedding: what a trunk reads is not known", where=ckpt.path)
    head = {*head_names(ckpt), *map_names(ckpt)}
    embed = shared["token_embd.weight"].names
    output = shared["output.weight"].names if "output.weight" in shared else embed
    looked_up = set(embed)
    ignored = tuple(ckpt.family.hf_ignored) if ckpt.dialect != "gguf" else ()
    names = [name for name in ckpt if name not in head and not (ignored and name.startswith(ignored))]
    trunk = _part(ckpt, names, looked_up)
    if output == embed:
        trunk = Part(trunk.always + _bytes(ckpt, embed), trunk.experts, trunk.row)
    layers, outputs = [], []
    for layer in layers_of(ckpt):
        found = find_head(ckpt, layer)
        if found is None:
            continue
        kinds = {
            kind: [one for one in found.roles.values() if one.role.kind == kind] for kind in ("embedding", "output")
        }
        own = {name for one in kinds["output"] for name in one.names}
        rows = {name for one in kinds["embedding"] for name in one.names}
        part = _part(ckpt, [name for name in found.names if name not in own], rows)
        if not rows:
            part = Part(part.always, part.experts, part.row + _bytes(ckpt, embed) / ckpt.hparams.vocab_size)
        layers.append(part)
        outputs.append(_bytes(ckpt, own or output))
    h = ckpt.hparams
    return Traffic(trunk, tuple(layers), tuple(outputs), _bytes(ckpt, head), h.n_experts, h.n_experts_used)


def _bytes(ckpt: Checkpoint, names: Iterable[str]) -> int:
    return sum(ckpt[name].nbytes for name in names)


def _part(ckpt: Checkpoint, names: Iterable[str], looked_up: Iterable[str]) -> Part:
    """Tensors by how they are read; of those in `looked_up`, and of tables, a row."""
    rows = set(looked_up)
    always, experts, row = 0, 0, 0.0
    for name in names:
        size = ckpt[name].nbytes
        if name in rows or _TABLES.search(name):
            row += size / ckpt.hparams.vocab_size
        elif _EXPERTS.search(name):
            experts += size
        else:
            always += size
    return Part(always, experts, row)
