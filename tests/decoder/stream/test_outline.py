"""What layers are made of is known before anything is decoded, and what they take is what they then take."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.moe import Moe
from mtptools.decoder.packed import Packed
from mtptools.decoder.stream import outline as module
from mtptools.decoder.stream.outline import Stage, same_bytes
from mtptools.decoder.stream.passages import Passage, Passages
from mtptools.decoder.trunk import Block
from mtptools.errors import InputError, MissingRoleError, MtpToolsError
from tests import rewrite
from tests.conftest import FIXTURES
from tests.decoder.stream import large
from tests.decoder.stream.given import TRAINED, opened, streamed

TEXT = Passages((Passage((1, 2, 3)),))
PLACES = (
    *(f"{name}/hf" for name in TRAINED),
    *(f"{name}/gguf/{file}.gguf" for name in TRAINED[:2] for file in ("model-BF16", "trunk-Q8_0", "trunk-Q4_K")),
)


@pytest.mark.parametrize("place", PLACES)
def test_every_tensor_is_in_one_stage(place: str) -> None:
    ckpt = opened(place)
    outline = streamed(ckpt, TEXT).outline
    stages = (outline.ends, *outline.layers, outline.head)
    names = sorted(tensor.name for stage in stages for tensor in stage.tensors)
    assert names == sorted(ckpt)
    assert outline.nbytes == sum(stage.nbytes for stage in stages) == sum(tensor.nbytes for tensor in ckpt.values())
    assert len(outline.layers) == ckpt.hparams.n_layers
    assert bool(outline.head.tensors) == ("trunk-" not in place)
    for n, stage in enumerate(outline.layers):
        numbers = {re.search(r"(?:layers|blk)\.(\d+)\.", tensor.name) for tensor in stage.tensors}
        assert {int(found[1]) for found in numbers if found} == {n}
        held = stage.size.fixed + stage.size.loaded - stage.size.stacked
        assert held >= 4 * sum(tensor.n_values for tensor in stage.tensors if "exp" not in tensor.name)


def test_a_head_beside() -> None:
    head = opened("qwen35/gguf/model-BF16.gguf")
    outline = streamed("qwen35/gguf/trunk-Q8_0.gguf", TEXT, head=head).outline
    assert {tensor.name.split(".")[1] for tensor in outline.head.tensors} == {"4"}
    assert {tensor.blobs[0].path.name for tensor in outline.head.tensors} == {"model-BF16.gguf"}
    assert outline.head.nbytes == streamed(head, TEXT).outline.head.nbytes


def test_what_is_wrong_is_said_before_anything_is_read(tmp_path: Path) -> None:
    """A tensor that is missing in the last layer, one of another shape, and one that nothing knows."""
    source = opened("qwen35/gguf/model-BF16.gguf").path
    missing = rewrite.gguf(source, tmp_path / "missing.gguf", drop=("blk.3.ffn_down.weight",))
    with pytest.raises(MissingRoleError):
        streamed(missing, TEXT)
    added = rewrite.gguf(source, tmp_path / "added.gguf", add={"blk.2.attn_q.bias": np.zeros(8, np.float32)})
    with pytest.raises(InputError, match=r"blk\.2\.attn_q\.bias"):
        streamed(added, TEXT)
    other = rewrite.gguf(
        source,
        tmp_path / "other.gguf",
        drop=("blk.3.ffn_down.weight",),
        add={"blk.3.ffn_down.weight": np.zeros((8, 8), np.float32)},
    )
    with pytest.raises(MtpToolsError, match="ffn_down"):
        streamed(other, TEXT)


def test_experts_stay_in_the_file() -> None:
    """Of a layer with experts, what every token needs is decoded; of the experts, one matrix at a time."""
    model = streamed("qwen35moe/hf", TEXT)
    stage, hp = model.outline.layers[0], model.ckpt.hparams
    block = model.builder.block(("layer", 0), model.builder.settings.layers[0])
    assert isinstance(block, Block)
    assert isinstance(block.ffn, Moe)
    assert isinstance(block.ffn.weights.gate_up, Packed)
    assert isinstance(block.ffn.weights.down, Packed)
    assert isinstance(model.trunk.embed, Packed)
    assert isinstance(model.trunk.output, Packed)
    experts = hp.n_experts * 3 * hp.moe_intermediate_size * hp.hidden_size
    every = sum(tensor.n_values for tensor in stage.tensors)
    assert 0 <= stage.size.fixed + stage.size.loaded - 4 * every < 1024  # and a few indices
    assert stage.size.stacked == 4 * experts
    assert model.outline.most(packed=False) < 4 * every


def test_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By place in one file, by reading in two, a part at a time; a bit, a name or a type more is another."""
    monkeypatch.setattr(module, "COMPARED", 5000)
    source = opened("qwen35/gguf/model-BF16.gguf")
    copy = tmp_path / "copy.gguf"
    data = bytearray(source.path.read_bytes())
    last = source["blk.1.ffn_up.weight"].blobs[0]
    copy.write_bytes(data)
    data[last.offset + last.nbytes - 1] ^= 1
    changed = tmp_path / "changed.gguf"
    changed.write_bytes(data)
    link = tmp_path / "link.gguf"
    link.symlink_to(source.path)

    def stages(path: Path) -> tuple[Stage, ...]:
        return streamed(open_checkpoint(path), TEXT).outline.layers

    ours = stages(source.path)
    assert all(same_bytes(a, b) for a, b in zip(ours, stages(source.path), strict=True))
    assert all(same_bytes(a, b) for a, b in zip(ours, stages(link), strict=True))
    assert all(same_bytes(a, b) for a, b in zip(ours, stages(copy), strict=True))
    assert [same_bytes(a, b) for a, b in zip(ours, stages(changed), strict=True)] == [True, False, True, True]
    assert not same_bytes(ours[0], ours[1])
    assert not any(
        same_bytes(a, b) for a, b in zip(ours, stages(FIXTURES / "qwen35/gguf/trunk-Q8_0.gguf"), strict=True)
    )


MEASURED = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.stream.model import Streamed
from mtptools.decoder.stream.passages import Passage, Passages
from mtptools.decoder.stream.run import stream

def status(name):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024

texts = Passages((Passage(tuple(range(int(sys.argv[2])))),))
model = Streamed(open_checkpoint(Path(sys.argv[1])), texts, device=torch.device("cpu"))
torch.ones(64, 64) @ torch.ones(64, 64)
before = status("VmHWM")
stream(model, 1, controls=False)
print(json.dumps([model.memory, status("VmHWM") - before]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the most memory held")
def test_memory_is_what_is_then_taken(tmp_path: Path) -> None:
    """Of a file with layers of 64 MB when decoded: the estimate is not below the peak, and not far above."""
    path = large.write(tmp_path / "large.gguf", large.Sizes(hidden=512, inner=10240, layers=2, vocab=8192))
    command = [sys.executable, "-c", MEASURED, str(path), "400"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    estimate, peak = json.loads(done.stdout)
    assert peak > 64 << 20, "a layer is decoded at least"
    assert peak < estimate * 1.15 + (24 << 20), f"{estimate >> 20} MB were announced, {peak >> 20} MB taken"
    assert estimate < 3 * peak
