"""The model of bytes read: numbers worked out by hand, and what must hold whatever they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from mtptools.checkpoint import open_checkpoint
from mtptools.errors import MissingRoleError
from mtptools.ops.extract import extract
from mtptools.ops.quantize import quantize
from mtptools.ops.roofline import Part, Traffic, distinct_experts, traffic
from mtptools.ops.style import Style
from mtptools.preview import preview
from mtptools.writer import write
from tests.conftest import FIXTURES

H, VOCAB, BF16, F32 = 256, 2048, 2, 4
MLP = 3 * 512 * H * BF16
NORM = H * F32
# q with its gate, k, v, output, and two norms of 64
QWEN35 = (2 * 4 * 64 * H + 2 * 2 * 64 * H + 4 * 64 * H) * BF16 + 2 * 64 * F32
LINEAR = (512 + 256 + 4 + 4 + 256) * H * BF16 + (512 * 4 + 4 + 4 + 64) * F32
EMBED = VOCAB * H * BF16


def model(family: str) -> Path:
    return FIXTURES / family / "gguf" / "model-BF16.gguf"


def planned(family: str, **style: object) -> Traffic:
    source = open_checkpoint(model(family))
    return traffic(preview(quantize(source, "out.gguf", Style.asked(option="--head", **style)), source))  # type: ignore[arg-type]


def test_dense_by_hand() -> None:
    found = traffic(open_checkpoint(model("qwen35")))
    trunk = 3 * LINEAR + QWEN35 + 4 * (MLP + 2 * NORM) + NORM + EMBED  # tied: the embedding is the output matrix
    head = H * 2 * H * BF16 + QWEN35 + MLP + 5 * NORM
    row = H * BF16
    assert found.trunk == Part(trunk, 0, row)
    assert (found.layers, found.outputs, found.head) == ((Part(head, 0, row),), (EMBED,), head)
    assert found.plain == trunk + row == 6_339_424
    assert found.drafts(1) == head + EMBED + row == 2_627_584
    assert found.step(3) == trunk + 4 * row + 3 * 2_627_584
    assert found.output_share(3) == pytest.approx(EMBED / 2_627_584)
    assert found.speedup(2.5, 3) == pytest.approx(2.5 * 6_339_424 / (6_338_912 + 2048 + 7_882_752))


def test_experts_by_hand() -> None:
    """Four experts of 256, two of them a token: a token reads half, four rows at random 4 (1 - 1/2^4)."""
    found = traffic(open_checkpoint(model("qwen35moe")))
    experts = 4 * 3 * 256 * H * BF16
    assert (found.trunk.experts, found.layers[0].experts) == (3 * experts, experts)
    assert found.plain == found.trunk.always + 3 * experts / 2 + 512
    assert found.drafts(2) == 2 * (found.layers[0].always + experts / 2 + EMBED + 512)
    verify = found.trunk.always + 3 * experts * 15 / 16 + 4 * 512
    assert found.step(3) == pytest.approx(verify + found.drafts(3))


@pytest.mark.parametrize("family", ["deepseekv3", "deepseekv4", "glm4moe", "qwen3next", "qwen35moe"])
def test_every_byte_is_somewhere(family: str) -> None:
    """Another reader's sizes: all but tables of rows, and copies a head brings, is counted once."""
    path = FIXTURES / family / "hf"
    config = json.loads((path / "config.json").read_text())
    config = config.get("text_config", config)
    found, vocab = traffic(open_checkpoint(path)), config["vocab_size"]
    with safe_open(path / "model.safetensors", "np") as file:
        sizes = {name: len(file.get_slice(name).get_shape()) and _size(file, name) for name in file.keys()}  # noqa: SIM118
    trunk = found.trunk.always + found.trunk.experts + found.trunk.row * vocab
    assert trunk + found.head == sum(sizes.values())
    n = config.get("num_experts") or config["n_routed_experts"]
    assert (found.experts, found.used) == (n, config["num_experts_per_tok"])
    each = n * 3 * config["hidden_size"] * config["moe_intermediate_size"] * BF16
    layers = config["num_hidden_layers"] - config.get("first_k_dense_replace", 0)
    assert found.trunk.experts == layers * each
    assert {part.experts for part in found.layers} == {each}
    assert set(found.outputs) == {vocab * config["hidden_size"] * BF16}


def _size(file: object, name: str) -> int:
    part = file.get_slice(name)  # type: ignore[attr-defined]
    size = {"BF16": 2, "F32": 4, "I64": 8, "I32": 4}[part.get_dtype()]
    for length in part.get_shape():
        size *= length
    return size


def test_a_heads_own_matrices() -> None:
    """Both layers of this one bring an embedding, of which a draft reads a row, and an output matrix of their own."""
    found = traffic(open_checkpoint(FIXTURES / "deepseekv3" / "hf"))
    embed = 1024 * H * BF16
    assert found.head == sum(part.always + part.experts + embed for part in found.layers) + sum(found.outputs)
    assert found.drafts(3) == pytest.approx(3 * found.drafts(1))


def test_layers_take_turns() -> None:
    deep = Traffic(Part(100), (Part(10), Part(30)), (5, 1), 46, 0, 0)
    assert [deep.drafts(k) for k in (1, 2, 3)] == [15, 46, 61]


def test_mlx_by_hand(tmp_path: Path) -> None:
    """Four bits, and a BF16 scale and bias for 64 values: 36 bytes. Experts under `switch_mlp`, scales with them."""
    pytest.importorskip("torch", reason="the writer of MLX checkpoints is the decoder tests'")
    from fixtures import permutation
    from tests.decoder import quantizers as q
    from tests.decoder.quantized_models import quantized
    from tests.decoder.test_quantized_mlx import mlx_arrays

    config = permutation.config("qwen35moe")
    matrices = mlx_arrays("qwen35moe", permutation.tensors("qwen35moe"), config)
    stored, _ = quantized(matrices, lambda name, a: q.mlx_affine if a.ndim > 1 and "conv1d" not in name else None)
    stated = config | {"quantization": {"group_size": 64, "bits": 4}}
    ckpt = open_checkpoint(q.write(tmp_path / "mlx", stored, stated, "mlx"))
    assert ckpt.dialect == "mlx"
    found, text = traffic(ckpt), config.get("text_config", config)
    layer = text["num_experts"] * 3 * text["hidden_size"] * text["moe_intermediate_size"] // 64 * 36
    assert (found.trunk.experts, found.layers[0].experts) == (text["num_hidden_layers"] * layer, layer)
    assert found.outputs == (text["vocab_size"] * text["hidden_size"] // 64 * 36,)
    assert found.trunk.row == text["hidden_size"] // 64 * 36


def test_a_plan_is_as_its_file(tmp_path: Path) -> None:
    source = open_checkpoint(model("qwen35moe"))
    plan = quantize(source, "out.gguf", Style.asked("Q4_K_M", own_output="Q6_K"))
    write(plan, tmp_path / "out.gguf")
    assert traffic(preview(plan, source)) == traffic(open_checkpoint(tmp_path / "out.gguf"))


def test_types_by_hand() -> None:
    """Q8_0 takes 34 bytes of 32 values, norms stay."""
    before, after = traffic(open_checkpoint(model("qwen35"))), planned("qwen35", matrices="Q8_0")
    floats = 5 * NORM + 2 * 64 * F32
    assert after.layers[0].always == (before.layers[0].always - floats) // 2 * 34 // 32 + floats
    assert (after.trunk, after.outputs) == (before.trunk, before.outputs)


def test_own_output() -> None:
    shared, own = planned("qwen35", matrices="Q8_0"), planned("qwen35", matrices="Q8_0", own_output="Q4_K")
    assert own.outputs == (VOCAB * H // 256 * 144,)
    assert own.trunk == shared.trunk, "the trunk still reads its own"
    assert own.speedup(2.0, 3) > shared.speedup(2.0, 3)
    assert own.head == shared.head + own.outputs[0], "the file is larger for it"
    assert own.output_share(3) < shared.output_share(3)


@pytest.mark.parametrize("family", ["qwen35/gguf/model-BF16.gguf", "qwen35moe/hf", "deepseekv3/hf", "deepseekv4/hf"])
def test_drafts_that_are_never_right_never_gain(family: str) -> None:
    found = traffic(open_checkpoint(FIXTURES / family))
    costs = [found.step(k) for k in range(9)]
    assert costs[0] == pytest.approx(found.plain), "no draft is plain decoding"
    assert costs == sorted(costs)
    for k in range(1, 9):
        assert found.speedup(1.0, k) < 1
        assert found.speedup(k + 1.0, k) < k + 1


def test_distinct_experts() -> None:
    assert distinct_experts(0, 0, 5) == 0
    assert distinct_experts(256, 8, 1) == pytest.approx(8)
    assert distinct_experts(4, 4, 3) == 4
    assert distinct_experts(128, 8, 2) == pytest.approx(8 + 8 * (1 - 8 / 128))
    assert distinct_experts(128, 8, 10_000) == pytest.approx(128)


def test_a_sidecar_has_no_trunk_to_read(tmp_path: Path) -> None:
    write(extract(open_checkpoint(model("qwen35")), "head.gguf", bare=True), tmp_path / "head.gguf")
    with pytest.raises(MissingRoleError, match="no embedding"):
        traffic(open_checkpoint(tmp_path / "head.gguf"))
