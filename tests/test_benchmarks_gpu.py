"""The GPU's benchmark runs from end to end on a machine without one, and what it counts is what is there."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if any(find_spec(name) is None for name in ("torch", "triton", "transformers")):
    pytest.skip("torch, triton and transformers are not all installed: nothing is benchmarked", allow_module_level=True)

import torch

from benchmarks import gpu_clock, gpu_models
from benchmarks.forced_drafts import Forced
from mtptools.decoder.kernels.layouts import KINDS
from mtptools.decoder.offload import offloaded
from mtptools.decoder.packed import how_held
from tests.decoder import large_models
from tests.kernels.samples import sample

CPU = torch.device("cpu")
SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


def test_all_parts() -> None:
    done = run("--device", "cpu", "--models", "35B-A3B")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "failed" not in done.stdout
    assert "these numbers mean nothing" in done.stdout.splitlines()[0]
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    said = {row[0].removeprefix("| ").split(",")[0] for row in rows}
    assert said >= {"mixer input 392 x 128", "expert gate and up 256 x 128", "output 256 x 128"}
    assert said >= {"35B-A3B", "fixture qwen35"}
    arms = {row[1].split(",")[0].split(" 5")[0] for row in rows if "layers" in row[0]}
    assert "from pinned memory to the device: " in done.stdout
    assert done.stdout.index("| copied ahead |") < done.stdout.rindex("| 35B-A3B | 2 |")
    assert arms >= {"free: cuBLAS on all rows", "exact: torch alone", "exact: kernels", "transformers"}
    assert '"interpreted": true' in done.stdout
    assert '"tiles_digest"' in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu() -> None:
    done = run("--quick")
    assert done.returncode == 7
    assert "--device cpu tries this script out" in done.stderr
    assert not done.stdout


def test_unknown_parts() -> None:
    done = run("--device", "cpu", "--only", "products,speed")
    assert done.returncode == 2
    assert "speed is none of products, decode, drafts, costs" in done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_random_planes_are_a_slabs(kind: str) -> None:
    """The sizes and types of what is made of a file's bytes."""
    real, _ = sample(kind, 3, 512)
    made = gpu_models._planes(kind, 3, 512, CPU)
    assert [plane.shape for plane in made] == [plane.shape for plane in real.planes]
    assert [plane.is_contiguous() for plane in made] == [True] * len(made)
    if kind != "MLX_8":  # the sample's scales are of another type
        assert [plane.dtype for plane in made] == [plane.dtype for plane in real.planes]


def on_meta(name: str) -> int:
    """Values that a token reads: two bytes each."""
    made = gpu_models.model_of(gpu_models.config_of(name), CPU, gpu_models.nowhere)
    return gpu_models.bytes_per_token(made) // 2


def test_a_token_reads_every_matrix_of_27b() -> None:
    """Against the listing of the release's GGUF; a head and the embedding are not read."""
    listed = dict(large_models._qwen35_tensors())
    skipped = ("token_embd", "blk.64.")
    wanted = sum(
        shape[0] * shape[1]
        for name, (_, shape) in listed.items()
        if len(shape) == 2 and "conv1d" not in name and not name.startswith(skipped)
    )
    assert on_meta("27B") == wanted


def test_a_token_reads_what_is_active_of_35b() -> None:
    """By its name 3 billion, with embeddings, of which a token reads a row."""
    assert 2.3e9 < on_meta("35B-A3B") < 3.2e9


def test_weights_are_shared() -> None:
    config = gpu_models.config_of("27B", toy=True)
    start = gpu_models.remembered(gpu_models.loaded(CPU))
    one, other = (gpu_models.model_of(config, CPU, start()) for _ in range(2))
    assert one.trunk.output is other.trunk.output
    pairs = zip(one.trunk.blocks[-1].matrices(), other.trunk.blocks[-1].matrices(), strict=True)
    assert all(a is b for (_, a), (_, b) in pairs)


def test_what_is_copied_is_what_a_layer_reads() -> None:
    """All but routers, which are on the device, and the output matrix."""
    config = gpu_models.config_of("35B-A3B", toy=True)
    make = gpu_models.loaded(CPU)
    model = gpu_models.model_of(config, CPU, make, layers=lambda shape: offloaded(make(shape), CPU))  # type: ignore[arg-type]
    routers = [weight for block in model.trunk.blocks for what, weight in block.matrices() if what == "router"]
    here = [model.trunk.output, *routers]
    assert {how_held(one) for one in here} == {"loaded"}
    wanted = gpu_models.bytes_per_token(model) - sum(one.nbytes for one in here)  # type: ignore[union-attr]
    assert gpu_models.copied_per_token(model) == wanted > 0


def test_turns() -> None:
    """Every arm leads a round, and the first round is not counted."""
    order: list[str] = []
    seconds = iter(range(100))

    def arm(name: str) -> float:
        order.append(name)
        return float(next(seconds))

    found = gpu_clock.take_turns({name: (lambda name=name: arm(name)) for name in "abc"}, 3)  # type: ignore[misc]
    assert "".join(order) == "abcbcacababc"
    assert found["a"].seconds == (5, 7, 9)
    assert found["a"].middle == 7
    assert gpu_clock.Times((1.0, 2.0, 3.0, 4.0, 5.0)).spread == pytest.approx(1 / 3)
    assert str(gpu_clock.Times((0.002, 0.002))) == "2 ms ± 0%"


def test_forced_drafts() -> None:
    """They are the text's own where they are right, and another token where not, in the share that is asked for."""
    text = list(range(1000))
    forced = Forced(text, 0.8, 1000)
    right = 0
    for at in range(900):
        drafts = forced.corrupt([0, 0, 0], at)
        right += sum(a == b for a, b in zip(drafts, text[at:], strict=False))
        assert all(0 <= token < 1000 for token in drafts)
        forced.on_tokens([text[at]])
    assert right / 2700 == pytest.approx(0.8, abs=0.03)
    assert Forced(text, 1.0, 1000).corrupt([9, 9], 0) == [0, 1]
    assert Forced(text, 0.0, 1000).corrupt([9], 0) == [1]
