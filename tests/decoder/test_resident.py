"""Weights that stay packed on a device, by the kernels in triton's interpreter: the values of loading, exact rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from tests.interpreted import HAVE, import_kernels

if not HAVE:
    pytest.skip("triton is not installed: there are no kernels", allow_module_level=True)
if torch.cuda.is_available():
    pytest.skip("kernels are compiled where a GPU is, and not interpreted: pytest -m gpu", allow_module_level=True)

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.decoder import packing, selftest
from mtptools.decoder.codes import codes_of
from mtptools.decoder.kernels.layouts import Slab
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.packing import check_finite, resident
from mtptools.decoder.parts import Part, loaded
from mtptools.decoder.resident import Resident, floats, kernels
from mtptools.decoder.runs import Runs
from mtptools.errors import CorruptError, SystemFailure
from mtptools.quantized import values_of
from mtptools.tensors import Blob, Tensor
from tests.decoder import quantizers as q
from tests.decoder.quantizers import Quantizer

import_kernels()
launch = kernels()

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Checkpoint]:
    """name -> (type, values) to the tensors of a GGUF."""

    def write(**tensors: tuple[str, np.ndarray]) -> Checkpoint:
        path = tmp_path_factory.mktemp("mixed") / "a.gguf"
        writer = gguf.GGUFWriter(path, "qwen35")
        for name, (kind, values) in tensors.items():
            qtype = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, gguf.quants.quantize(values, qtype), raw_dtype=qtype)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return open_checkpoint(path)

    return write


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def test_types_one_under_the_other(mixed: Callable[..., Checkpoint]) -> None:
    """One slab for each run of a type; rows and columns that stand in another order; what floats hold in less bytes."""
    found = mixed(a=("Q8_0", values(40, 64)), b=("Q4_0", values(24, 64)), c=("F32", values(8, 64)))
    order, rows = np.random.default_rng(1).permutation(64), np.random.default_rng(2).permutation(24)
    a, b, c = (replace(Part.whole(found[name]), take=order) for name in "abc")
    parts = [replace(a, stop=16), replace(a, start=16), replace(b, to_row=rows), c]
    ours = resident(parts, (72, 64), torch.bfloat16, CPU, "here")
    assert [slab.kind for slab in ours.slabs] == ["Q8_0", "Q4_0", "BF16"]
    theirs = loaded(parts, (72, 64), torch.bfloat16, CPU, "here")
    assert torch.equal(ours.dense(), theirs)
    ids = torch.tensor([70, 3, 41])
    assert torch.equal(ours[ids], theirs[ids])
    assert torch.equal(ours[30:66], theirs[30:66])
    assert torch.equal(ours.picked([(2, 5), (38, 44)]).dense(), torch.cat((theirs[2:5], theirs[38:44])))
    x = torch.randn((5, 64), generator=torch.Generator().manual_seed(3))
    wanted = (x.bfloat16().double() @ theirs.double().T).float()
    torch.testing.assert_close(Arithmetic.on(CPU).linear(x, ours), wanted, rtol=0, atol=1e-4)
    assert not torch.allclose(replace(ours, order=None).product(x, torch.bfloat16), wanted, atol=1e-1)


def test_stacks(mixed: Callable[..., Checkpoint]) -> None:
    """Matrices with the same types in the same places; others are held as floats."""
    found = mixed(a=("Q8_0", values(6, 32)), b=("Q4_0", values(9, 32)), c=("Q8_0", values(3, 32)))
    a, b, c = (Part.whole(found[name]) for name in "abc")
    alike = [one for e in range(3) for one in (a.rows(2 * e, 2 * e + 2), b.rows(3 * e, 3 * e + 3))]
    unlike = [*alike[:2], a.rows(2, 4), c, *alike[4:]]
    for parts, kinds in ((alike, ["Q8_0", "Q4_0"]), (unlike, ["F32"])):
        ours = resident(parts, (3, 5, 32), torch.float32, CPU, "here")
        assert [slab.kind for slab in ours.slabs] == kinds
        theirs = loaded(parts, (3, 5, 32), torch.float32, CPU, "here")
        assert torch.equal(ours.dense(), theirs)
        assert torch.equal(ours[1], theirs[1])
        x, runs = torch.randn((20, 32)), Runs((2, 0), (17, 3), CPU)
        ops = Arithmetic.on(CPU)
        apart = torch.cat([ops.linear(x[:17], ours, 2), ops.linear(x[17:], ours, 0)])
        assert torch.equal(ops.grouped(x, ours, runs), apart)


def test_an_output_matrix_keeps_its_precision(mixed: Callable[..., Checkpoint]) -> None:
    """Logits are of the stored values, whatever the model's dtype."""
    part = Part.whole(mixed(a=("Q8_0", values(48, 64)))["a"])
    ours = resident([part], (48, 64), torch.bfloat16, CPU, "here")
    x = torch.randn((3, 64), generator=torch.Generator().manual_seed(3))
    exact = (x.double() @ loaded([part], (48, 64), torch.float32, CPU, "here").double().T).float()
    torch.testing.assert_close(Arithmetic.on(CPU).logits(x, ours), exact, rtol=0, atol=1e-5)
    assert not torch.allclose(Arithmetic.on(CPU).linear(x, ours), exact, rtol=0, atol=1e-3)


METHODS: dict[str, tuple[Quantizer, str]] = {
    "fp8": (partial(q.fp8, kind="BF16"), "F8_BLOCK"),
    "fp8, scales as exponents": (partial(q.fp8, kind="F8_E8M0"), "F8_BLOCK"),
    "fp8 by row": (q.fp8_channel, "F8_BLOCK"),
    "fp4": (q.fp4, "FP4_E8M0"),
    "mlx 4": (q.mlx_affine, "MLX_4"),
    "mlx 8": (partial(q.mlx_affine, bits=8, group=32, kind="F32"), "MLX_8"),
    "mlx mxfp4": (partial(q.mlx_floats, mode="mxfp4"), "F32"),
    "nvfp4": (partial(q.nvfp4, library="modelopt"), "F32"),
    "int8": (q.int8, "F32"),
}
"""What has no kernel is held as floats."""

MLX = {"mlx 4": (4, 64, "affine"), "mlx 8": (8, 32, "affine"), "mlx mxfp4": (4, 32, "mxfp4")}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(136, 256), (3, 40, 128)])
def test_codes_and_scales(method: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Matrices and stacks, cut where a block of scales is not at its end."""
    quantizer, kind = METHODS[method]
    stored, wanted = quantizer(values(*shape))
    tensors = {}
    for suffix, (codec, array) in stored.items():
        name = f"x{suffix}" if suffix.startswith(".") else f"x.weight{suffix}"
        (tmp_path / name).write_bytes(data := q.raw(codec, array))
        tensors[name] = Tensor(name, array.shape, codec, (Blob(tmp_path / name, 0, len(data)),))
    config = {}
    if method in MLX:
        config = {"quantization": dict(zip(("bits", "group_size", "mode"), MLX[method], strict=True))}
    part = replace(Part.whole(values_of("x.weight", tensors, config)), codes=codes_of("x.weight", tensors, config))
    parts = [part.rows(0, 37), part.rows(37, part.n_rows)]
    flat = torch.from_numpy(wanted).view(-1, shape[-1])
    ours = resident(parts, tuple(flat.shape), torch.float32, CPU, "here")
    assert {slab.kind for slab in ours.slabs} == {kind}
    assert torch.equal(ours.dense(), flat)
    assert torch.equal(ours[36:39], flat[36:39])


def test_shapes_that_do_not_fit(mixed: Callable[..., Checkpoint]) -> None:
    part = Part.whole(mixed(a=("Q8_0", values(4, 32)))["a"])
    for shape in ((5, 32), (3, 32), (4, 64)):
        with pytest.raises(CorruptError, match="does not fit"):
            resident([part], shape, torch.float32, CPU, "here")


def test_values_that_are_not_finite(mixed: Callable[..., Checkpoint]) -> None:
    bad = values(40, 32)
    found = mixed(good=("Q8_0", values(3, 32)), bad=("Q8_0", bad))
    parts = [Part.whole(found[name]) for name in ("good", "bad")]
    weight = resident(parts, (43, 32), torch.float32, CPU, "here")
    check_finite(weight, parts, CPU, "here")
    weight.slabs[0].planes[0][41] = torch.inf  # a scale
    with pytest.raises(CorruptError, match="not finite"):
        check_finite(weight, parts, CPU, "here")


def test_runs() -> None:
    runs = Runs.of([2] * 17 + [5] + [0] * 16, CPU)
    assert list(runs) == [(2, 0, 17), (5, 17, 18), (0, 18, 34)]
    tiles = runs.tiles
    assert tiles.experts.tolist() == [2, 2, 5, 0]
    assert tiles.source[tiles.back].tolist() == list(range(34))
    assert [tiles.experts[place // 16].item() for place in tiles.back] == [2] * 17 + [5] + [0] * 16


def test_self_test_tells_types_apart(mixed: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    """Products by kernels pass; a product that depends on the number of rows is refused, with its shape and type."""
    stack = resident([Part.whole(mixed(a=("Q4_0", values(3 * 8, 32)))["a"])], (3, 8, 32), torch.float32, CPU, "here")
    selftest._check_experts(Arithmetic.on(CPU), "experts", stack)
    monkeypatch.setattr(selftest, "_PASSED", set())
    grouped = Resident.grouped
    monkeypatch.setattr(Resident, "grouped", lambda self, x, runs: grouped(self, x, runs) * (1 + len(x) * 2**-20))
    with pytest.raises(SystemFailure, match=r"experts \[3, 8, 32\] Q4_0 as float32 on cpu: row"):
        selftest._check_experts(Arithmetic.on(CPU), "experts", stack)


def test_kernels_that_make_other_values(mixed: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit, in one row of the second type: nothing is decoded with such kernels. Rows that change places wait."""
    found = mixed(a=("Q8_0", values(40, 64)), b=("Q4_0", values(24, 64)))
    parts = [Part.whole(found[name]) for name in "ab"]
    weight = resident(parts, (64, 64), torch.float32, CPU, "here")
    monkeypatch.setattr(packing, "_DECODED", set())
    moved = [parts[0], replace(parts[1], to_row=np.arange(24))]
    packing.check_decoded(weight, moved, CPU, "here")
    assert [key[0] for key in packing._DECODED] == ["Q8_0"]
    own = launch.values

    def wrong(slab: Slab, dtype: torch.dtype) -> torch.Tensor:
        out = own(slab, dtype)
        out.view(torch.int32)[5, 3] ^= 1
        return out

    with monkeypatch.context() as patch:
        patch.setattr(launch, "values", wrong)
        with pytest.raises(SystemFailure, match="Q4_0"):
            packing.check_decoded(weight, parts, CPU, "here")
    packing.check_decoded(weight, parts, CPU, "here")
    assert {key[0] for key in packing._DECODED} == {"Q8_0", "Q4_0"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_floats_as_they_are(dtype: torch.dtype) -> None:
    """A tensor is multiplied where it is: near the exact product, of each head with its own matrix as of one alone."""
    weight = torch.from_numpy(values(3, 20, 100)).to(dtype)
    x = torch.from_numpy(values(18, 3, 100, seed=1))
    ops = Arithmetic(CPU, 16, kernels=True)
    assert floats(weight).slabs[0].planes[0].data_ptr() == weight.data_ptr()
    assert torch.equal(floats(weight).dense(), weight)
    each = ops.per_head(x, weight)
    exact = torch.einsum("rhk,hnk->rhn", x.to(dtype).double(), weight.double())
    assert (each - exact).abs().max() < 1e-4
    for head in range(3):
        assert torch.equal(each[:, head], ops.linear(x[:, head], weight[head]))
    for rows in (1, 16):
        assert torch.equal(ops.per_head(x[-rows:], weight), each[-rows:])
