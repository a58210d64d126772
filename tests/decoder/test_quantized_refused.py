"""What is not read of quantized trunks is refused by name, with what to do."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fixtures import permutation
from mtptools.checkpoint import open_checkpoint
from mtptools.cli.main import main
from mtptools.decoder.load import load_model
from mtptools.errors import CodecError, CorruptError
from tests.decoder import quantizers as q
from tests.decoder.quantized_models import plain
from tests.decoder.quantizers import Quantizer

KIND, PROJECTION = "glm4moe", "model.layers.1.self_attn.o_proj"
Made = dict[str, tuple[str, np.ndarray]]


def bits4(a: np.ndarray, axis: int) -> np.ndarray:
    """Eight of anything to a word of 32, along an axis."""
    shape = list(a.shape)
    shape[axis] //= 8
    return np.zeros(shape, np.int32)


def gptq(a: np.ndarray) -> Made:
    rows, columns = a.shape
    scales = np.ones((columns // 128, rows), np.float16)
    return {
        ".qweight": ("I32", bits4(a.T, 0)),
        ".qzeros": ("I32", bits4(scales, 1)),
        ".scales": ("F16", scales),
        ".g_idx": ("I32", (np.arange(columns) // 128).astype(np.int32)),
    }


def awq(a: np.ndarray) -> Made:
    scales = np.ones((a.shape[1] // 128, a.shape[0]), np.float16)
    return {
        ".qweight": ("I32", bits4(a.T, 1)),
        ".qzeros": ("I32", bits4(scales, 1)),
        ".scales": ("F16", scales),
    }


def nf4(a: np.ndarray) -> Made:
    return {
        ".weight": ("U8", np.zeros((a.size // 2, 1), np.uint8)),
        ".weight.absmax": ("U8", np.zeros(a.size // 64, np.uint8)),
        ".weight.quant_map": ("F32", np.zeros(16, np.float32)),
        ".weight.quant_state.bitsandbytes__nf4": ("U8", np.zeros(100, np.uint8)),
    }


def llm_int8(a: np.ndarray) -> Made:
    return {".weight": ("I8", np.zeros(a.shape, np.int8)), ".SCB": ("F32", np.ones(len(a), np.float32))}


REFUSED = {"GPTQ": gptq, "AWQ": awq, "bitsandbytes 4-bit": nf4, "bitsandbytes 8-bit": llm_int8}


def release_with(folder: Path, made: Made) -> Path:
    """A release whose one projection is stored otherwise."""
    stored = plain(permutation.tensors(KIND))
    del stored[f"{PROJECTION}.weight"]
    stored |= {f"{PROJECTION}{part}": pair for part, pair in made.items()}
    return q.write(folder, stored, permutation.config(KIND))


@pytest.mark.parametrize("method", REFUSED)
def test_a_method_that_is_not_read_is_named(method: str, tmp_path: Path) -> None:
    made = REFUSED[method](permutation.tensors(KIND)[f"{PROJECTION}.weight"])
    with pytest.raises(CodecError, match=f"quantized by {method}, which is not read") as error:
        load_model(open_checkpoint(release_with(tmp_path / "m", made)), check=False)
    assert str(error.value.where).startswith(PROJECTION)
    assert error.value.exit_code == 5
    assert "use a BF16 or FP8 release of this model" in str(error.value.hint)


def test_the_command_line_says_so_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = release_with(tmp_path / "m", gptq(permutation.tensors(KIND)[f"{PROJECTION}.weight"]))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((permutation.TOKENIZER / name).read_bytes())
    with pytest.raises(SystemExit) as stopped:
        main(["generate", str(folder), "-p", "hello"])
    said = capfd.readouterr().err
    assert stopped.value.code == 5, said
    assert f"{PROJECTION}.qweight: quantized by GPTQ, which is not read" in said
    assert "use a BF16 or FP8 release of this model" in said


@pytest.mark.parametrize(
    ("quantizer", "part"),
    [
        (q.fp8, ".weight_scale_inv"),
        (q.fp8_channel, ".weight_scale"),
        (q.fp4, ".scale"),
        (partial(q.nvfp4, library="modelopt"), ".weight_scale"),
        (partial(q.integers, group=32), ".weight_scale"),
        (partial(q.integers, group=32), ".weight_shape"),
        (partial(q.integers, group=32, symmetric=False), ".weight_zero_point"),
        (partial(q.integers, group=32, reorder=True), ".weight_g_idx"),
        (q.int8, ".weight_scale"),
        (q.mlx_affine, ".scales"),
        (q.mlx_affine, ".biases"),
    ],
)
def test_a_companion_of_a_wrong_shape_is_named(quantizer: Quantizer, part: str, tmp_path: Path) -> None:
    a = permutation.tensors(KIND)[f"{PROJECTION}.weight"]
    made = {f".weight{tail}" if not tail.startswith(".") else tail: pair for tail, pair in quantizer(a)[0].items()}
    codec, array = made[part]
    made[part] = (codec, array[:-1].copy())
    folder = release_with(tmp_path / "m", made)
    if codec == "BF16" and part in (".scales", ".biases"):
        config = permutation.config(KIND) | {"quantization": {"group_size": 64, "bits": 4}}
        (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CorruptError) as error:
        load_model(open_checkpoint(folder), check=False)
    assert f"{PROJECTION}{part}" in str(error.value)
    assert error.value.exit_code == 3
    assert error.value.hint
