"""The checks see faults: one is put into a tile's source at a time, and each must be noticed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from mtptools.decoder.kernels import launch, programs, table, tiles, tiles_codes, tiles_grid, tiles_k
from tests.kernels.checks import grouped_is_product, product_is_near, values_are_exact
from tests.kernels.samples import block_of

Mutant = Callable[[ModuleType, str, str], ModuleType]


@pytest.fixture
def mutant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mutant:
    """A module with one piece of its source replaced."""

    def make(module: ModuleType, old: str, new: str) -> ModuleType:
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        assert old in source
        path = tmp_path / "mutant.py"
        path.write_text(source.replace(old, new), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("mutant", path)
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        spec.loader.exec_module(made)
        return made

    return make


FAULTS = [
    (
        "Q4_K",
        tiles_k,
        "codes(octets, -(part % 2 * 4), 15, 0)",
        "codes(octets, part % 2 * 4 - 4, 15, 0)",
    ),  # halves swapped
    ("Q4_K", tiles_k, "15, 0), d[:, None], low[:, None])", "15, 0), d[:, None], 0.0)"),  # no minimum
    ("Q4_K", tiles_k, "((scales >> 2) & 0x30303030)", "((scales >> 2) & 0x10101010)"),  # one bit of the last scales
    ("Q4_K", tiles_k, "* -1.0 * minimum", "* (0.0 - minimum)"),  # a zero of the other sign
    ("Q5_K", tiles_k, "fifths, 4 - part, 16, 0)", "fifths, 3 - part, 8, 0)"),
    ("Q6_K", tiles_k, "step * 16, part, 16)", "step * 16, part ^ 1, 16)"),  # scales swapped
    ("Q3_K", tiles_k, ") - 32)", ") - 31)"),
    ("Q8_0", tiles, "rows, k, (first + number) * 32, 32)", "rows, k, (first + number) * 32 ^ 32, 32)"),
    ("Q4_1", tiles, "+ low[:, None]", "- low[:, None]"),
    ("BF16", tiles, "<< 16", "<< 15"),
    ("TQ1_0", tiles, "3 ** (part // 2)", "3 ** (part % 5)"),
    ("MXFP4", tiles_codes, "e < 2, 0x200000 << e", "e < 1, 0x200000 << e"),  # one exponent that is subnormal
    (
        "MXFP4",
        tiles_codes,
        "tl.fma(value, 1.7014118346046923e38, 0.0)",
        "(value * 1.7014118346046923e38)",
    ),  # minus zero
    ("FP4_E8M0", tiles_codes, "-0x7E400000", "0x01C00000"),  # no sign
    ("F8_BLOCK", tiles_codes, "-0x78100000", "-0x78200000"),  # one bit of mantissa
    ("MLX_4", tiles_codes, "narrow(q * scale[:, None], dtype).to(tl.float32)", "q * scale[:, None]"),
    ("IQ4_XS", tiles_codes, "0x7159453526190D01", "0x7159453526190D02"),
    ("IQ2_XXS", tiles_grid, "fold ^ (fold >> 2)", "fold ^ (fold >> 3)"),  # the eighth sign
    ("IQ1_S", tiles_grid, "0.125, -0.125", "-0.125, 0.125"),
]


@pytest.mark.parametrize(("kind", "module", "old", "new"), FAULTS)
def test_a_wrong_tile_is_seen(
    kind: str, module: ModuleType, old: str, new: str, mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = mutant(module, old, new)
    monkeypatch.setitem(table.FUNCTIONS, kind, getattr(wrong, table.FUNCTIONS[kind].__name__))
    with pytest.raises(AssertionError):
        values_are_exact(kind, 40, 2 * block_of(kind))


PRODUCT_FAULTS = [
    ("static_range(steps * parts)", "static_range(steps * parts - 1)"),  # the last columns left out
    ("a, tl.trans(w), acc", "a, tl.trans(w), acc * 0"),  # only the last columns
    ("piece // parts, piece % parts, steps", "piece // parts, 0, steps"),  # one part over and over
    ("mask=mask, other=0.0), dtype)", "mask=mask, other=0.0) * 1.001, dtype)"),
]


@pytest.mark.parametrize(("old", "new"), PRODUCT_FAULTS)
def test_a_wrong_product_is_seen(old: str, new: str, mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "programs", mutant(programs, old, new))
    with pytest.raises(AssertionError):
        product_is_near("NVFP4", 3, 40, 128, torch.bfloat16)


@pytest.mark.parametrize(
    ("old", "new"), [(".to(tl.int64) * n", ".to(tl.int64) * 16"), ("(experts + tl.program_id(0))", "(experts)")]
)
def test_a_wrong_expert_is_seen(old: str, new: str, mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "programs", mutant(programs, old, new))
    with pytest.raises(AssertionError):
        grouped_is_product("Q8_0", 17, 64, [1, 0], 2, torch.bfloat16)
