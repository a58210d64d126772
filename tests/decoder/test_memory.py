"""What is said of memory before loading is what loading and decoding take, and what does not fit says what would."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from fixtures import permutation, random_models, releases
from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.decoder import hold, kernels, load, memory
from mtptools.decoder.ahead import Ahead
from mtptools.decoder.cache import Cache
from mtptools.decoder.estimate import cache_bytes, estimate, unread
from mtptools.decoder.kernels.layouts import KINDS
from mtptools.decoder.load import load_model
from mtptools.decoder.memory import MemoryPlan, plan_memory
from mtptools.decoder.model import Model
from mtptools.decoder.packed import Packed
from mtptools.decoder.packing import resident
from mtptools.decoder.parts import CHUNK_VALUES
from mtptools.decoder.speculate import prefill
from mtptools.errors import SystemFailure, UsageError
from tests.decoder import large_models
from tests.decoder import quantizers as q
from tests.decoder.quantized_models import model_of, quantized
from tests.decoder.test_quantized_trunks import METHODS
from tests.random_checkpoints import Checkpoints

FIXTURES = Path(__file__).parents[2] / "fixtures"
CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
GIB = 1 << 30

STORED = {
    "qwen35": "Q4_K",
    "qwen35moe": "Q8_0",
    "qwen3next": "hf-F32",
    "glm4moe": "Q4_K",
    "deepseekv3": "hf-FP8",
    "deepseekv3full": "hf-BF16",
    "mimo": "hf-BF16",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """Each family's tiny model, in one of the ways they are stored."""
    made = Checkpoints(tmp_path_factory.mktemp("memory"))

    @cache
    def get(kind: str) -> Checkpoint:
        if kind in STORED:
            return open_checkpoint(made.get(kind, STORED[kind], depth=2 if kind == "glm4moe" else 1))
        return open_checkpoint(FIXTURES / kind)

    return get


def reachable(kinds: type | tuple[type, ...], *roots: object) -> Iterator[Any]:
    """Whatever of these types the garbage collector finds, code apart."""
    seen: set[int] = set()
    stack: list[object] = list(roots)
    while stack:
        one = stack.pop()
        if id(one) in seen or isinstance(one, type | types.ModuleType | types.FunctionType):
            continue
        seen.add(id(one))
        if isinstance(one, kinds):
            yield one
        else:
            stack += gc.get_referents(one)


def held(*roots: object) -> int:
    return sum(tensor.nbytes for tensor in reachable(torch.Tensor, *roots))


EVERY = (*STORED, "deepseekv4/hf", "qwen35/gguf/trunk-Q4_K.gguf", "qwen35moe/gguf/model-BF16.gguf")


def test_every_family_is_here() -> None:
    assert set(random_models.KINDS) - set(STORED) <= {"glm4air", "glm4bare", "glm4lite", "deepseekv3halves"}


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("weights", ["loaded", "stored"])
def test_weights(kind: str, dtype: str, weights: str, models: Callable[[str], Checkpoint]) -> None:
    """To the byte."""
    ckpt = models(kind)
    model = load_model(ckpt, dtype=dtype, weights=weights, check=False)
    assert held(model.trunk, model.head) == estimate(ckpt, None, model.dtype).whole.of(weights)


@pytest.mark.parametrize("kind", EVERY)
def test_arenas(kind: str, models: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of off-loaded layers every matrix has its place; planes begin on boundaries, and there is nothing else."""
    for module in (hold, load, kernels):
        monkeypatch.setattr(module, "unavailable", lambda device: "none are to be used")
    ckpt = models(kind)
    model, layers = load_model(ckpt, weights="offloaded", check=False), estimate(ckpt, None, torch.float32).layers
    belts = {id(block.belt): block.belt for block in model.trunk.blocks if isinstance(block, Ahead)}
    (belt,) = belts.values()
    found = [sum(source.nbytes for _, source in one.pairs) for one in belt.loads]
    assert found == [one.packed - one.stacks for one in layers]
    room = [one.memory.nbytes for one in belt.arenas]
    slack = 256 * max(len(one.pairs) for one in belt.loads)
    assert max(found) <= max(room) < max(found) + slack
    plan = plan_memory(ckpt, None, (CPU,), "float32", weights="offloaded", context=64)
    assert sum(room) < dict(plan.devices[0].lines)["weights at work"]


def test_a_sidecars_weights() -> None:
    trunk, head = (open_checkpoint(FIXTURES / f"qwen35/gguf/{name}.gguf") for name in ("trunk-Q8_0", "model-BF16"))
    model = load_model(trunk, head=head, check=False)
    assert held(model.trunk, model.head) == estimate(trunk, head, model.dtype).whole.of("loaded")


def made(ckpt: Checkpoint, dtype: torch.dtype) -> int:
    """Bytes of the trunk's matrices as `packing` lays them out: every plane of every slab."""
    weights = reachable(Packed, unread(ckpt, dtype).trunk())
    return sum(resident(one.parts, one.shape, dtype, CPU, one.where).nbytes for one in weights)


@pytest.mark.parametrize("kind", ["qwen35/gguf/trunk-Q4_K.gguf", "qwen35moe/gguf/trunk-Q8_0.gguf", "glm4moe", "qwen35"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_weights(kind: str, dtype: torch.dtype, models: Callable[[str], Checkpoint]) -> None:
    ckpt = models(kind)
    sizes = estimate(ckpt, None, dtype, KINDS)
    whole = sum(sizes.layers, sizes.embed + sizes.output)
    assert whole.packed == made(ckpt, dtype) < whole.loaded


@pytest.mark.parametrize("method", ["fp8 F32"])
def test_packed_codes_and_scales(method: str, tmp_path: Path) -> None:
    stored, _ = quantized(model_of("glm4moe"), METHODS[method])
    ckpt = open_checkpoint(q.write(tmp_path / "m", stored, permutation.config("glm4moe")))
    sizes = estimate(ckpt, None, torch.float32, KINDS)
    whole = sum(sizes.layers, sizes.embed + sizes.output)
    assert whole.packed == made(ckpt, torch.float32) < whole.loaded


def read(model: Model, n: int) -> Cache:
    """What the trunk remembers of n tokens."""
    ids = torch.randint(0, model.hparams.vocab_size, (n,), generator=torch.Generator().manual_seed(n)).tolist()
    cache = model.trunk.new_cache()
    with torch.inference_mode():
        prefill(model, ids, cache)
    return cache


@pytest.mark.parametrize("kind", ["qwen35", "glm4moe", "deepseekv3full", "mimo", "deepseekv4/hf"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_caches(kind: str, dtype: str, models: Callable[[str], Checkpoint]) -> None:
    """After texts that end before, on and after the edges of chunks and windows."""
    ckpt = models(kind)
    sizes = estimate(ckpt, None, memory.DTYPES[dtype])
    model = load_model(ckpt, dtype=dtype, check=False)
    for n in (1, 3, 64, 65, 129, 131):
        assert held(read(model, n)) == sum(cache_bytes(one, n) for one in sizes.caches), n


def test_rotary_tables(models: Callable[[str], Checkpoint]) -> None:
    ckpt = models("glm4moe")
    model, sizes = load_model(ckpt, check=False), estimate(ckpt, None, torch.float32)
    before = held(model.trunk)
    read(model, 131)
    assert held(model.trunk) - before == sizes.tables(131)


def test_snapshots(models: Callable[[str], Checkpoint]) -> None:
    """A pass over k drafts leaves the states before it and after each of its k + 1 tokens."""
    ckpt, k = models("qwen35"), 3
    sizes, model = estimate(ckpt, None, torch.float32), load_model(ckpt, check=False)
    text = read(model, 3)
    with torch.inference_mode():
        text.start()
        model.trunk.forward([8, 9, 10, 11], text)
    assert held(text) == sum(sizes.layer_cache(n, 7, k) for n in range(len(sizes.layers)))


def test_an_unknown_cache_is_not_counted_as_nothing() -> None:
    with pytest.raises(TypeError, match="size of a str"):
        cache_bytes("", 1)


# Real shapes: nothing is read but headers.


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    root = tmp_path_factory.mktemp("large")

    @cache
    def get(name: str) -> Checkpoint:
        path = root / f"{name}.gguf"
        made = {"27B": large_models.qwen35_27b, "671B": large_models.deepseek_671b}
        write = made.get(name) or (lambda to: releases.write_gguf(name, to))
        return open_checkpoint(write(path))

    return get


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Free bytes of each GPU, and of the CPU."""

    def make(*gpus: float, cpu: float = 64, missing: str | None = None) -> None:
        free = {torch.device("cuda", number): int(size * GIB) for number, size in enumerate(gpus)}
        monkeypatch.setattr(memory, "free_memory", lambda device: free.get(device, int(cpu * GIB)))
        monkeypatch.setattr(memory, "_kernels", lambda devices: ((), missing) if missing else (tuple(KINDS), None))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))

    return make


def matrix_bytes(ckpt: Checkpoint) -> int:
    """Of a file's matrices; not of the fusion, which is always decoded, and of what is always float32."""
    kept = ("norm", "ffn_gate_inp", "ssm_conv1d", ".ssm_dt", "eh_proj")
    names = [name for name in ckpt if not name.endswith(".ssm_a") and not any(part in name for part in kept)]
    return sum(ckpt[name].nbytes for name in names)


@pytest.mark.parametrize("name", ["27B", "qwen3.6-35b-a3b"])
def test_real_shapes(name: str, large: Callable[[str], Checkpoint]) -> None:
    """Packed is what the header says; loaded is two bytes a value."""
    ckpt = large(name)
    sizes = estimate(ckpt, None, torch.bfloat16, KINDS).whole
    assert sizes.packed == matrix_bytes(ckpt)
    values = sum(tensor.n_values for tensor in ckpt.values())
    assert sizes.of("loaded") == pytest.approx(2 * values, rel=0.003)


def plan(ckpt: Checkpoint, *devices: torch.device, **options: object) -> MemoryPlan:
    return plan_memory(ckpt, None, devices or (CUDA,), str(options.pop("dtype", "bfloat16")), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_27b_in_24_gb(dtype: str, large: Callable[[str], Checkpoint], machine: Callable[..., None]) -> None:
    """The claim: a 16.5 GB Q4_K_M and its head, 8k tokens, on a card with 24 GB, of which a desktop has taken some."""
    machine(23.0)
    ckpt = large("27B")
    assert 16.4e9 < ckpt.nbytes < 17.2e9
    found = plan(ckpt, dtype=dtype, context=8192)
    assert found.mode == "resident"
    assert 17 * GIB < found.devices[0].needed < 21 * GIB


FLAGS = ("--offload", "--stream")


@pytest.mark.parametrize(
    ("gpus", "options", "hint"),
    [
        ((24,), {"context": 131072}, "--context 32768"),
        ((18.5,), {"context": 131072}, "--context 8192"),
        ((18.5,), {"context": 131072, "least": 20000}, "--offload"),
        ((18.5,), {"context": 8192, "dtype": "float32"}, "--context 4096"),
        ((40,), {"dtype": "float32", "weights": "loaded"}, "--offload"),
        ((60,), {"dtype": "float32", "weights": "loaded"}, "--dtype bfloat16"),
        ((16,), {}, "--offload"),
        ((16, 16), {}, "--device cuda:0,cuda:1"),
        ((8, 8, 8), {}, "--device cuda:0,cuda:1,cuda:2"),
        ((2,), {}, "--stream"),
        ((2,), {"flags": ("--offload",)}, "use a machine with more memory"),
    ],
)
def test_the_first_flag_that_fits(
    gpus: tuple[float, ...],
    options: dict[str, object],
    hint: str,
    large: Callable[[str], Checkpoint],
    machine: Callable[..., None],
) -> None:
    machine(*gpus)
    with pytest.raises(SystemFailure, match=r"does not fit: .* GiB on cuda:0 of .* free \(weights") as found:
        plan(large("27B"), **{"flags": FLAGS, **options})
    assert found.value.hint == hint


def test_a_flag_that_is_named_fits(large: Callable[[str], Checkpoint], machine: Callable[..., None]) -> None:
    machine(18.5)
    assert plan(large("27B"), context=8192).fits
    machine(16)
    found = plan(large("27B"), weights="offloaded")
    assert found.host is not None
    assert found.host.needed > 14 * GIB
    assert found.devices[0].needed < 8 * GIB


@pytest.mark.parametrize(
    ("name", "least", "most"), [("27B", 2 * 190 << 20, 2 * 290 << 20), ("qwen3.6-35b-a3b", 2 * 12 << 20, 400 << 20)]
)
def test_what_offloading_keeps_on_the_gpu(
    name: str, least: int, most: int, large: Callable[[str], Checkpoint], machine: Callable[..., None]
) -> None:
    """Two layers of 17 GB's 64; of experts a batch, and not the 400 MB of a layer."""
    machine(16)
    found = dict(plan(large(name), weights="offloaded").devices[0].lines)["weights at work"] - 4 * CHUNK_VALUES
    assert least < found < most


def test_offloading_needs_the_hosts_memory(large: Callable[[str], Checkpoint], machine: Callable[..., None]) -> None:
    machine(16, cpu=8)
    with pytest.raises(SystemFailure, match=r"GiB on cpu of 8\.0 GiB free") as found:
        plan(large("27B"), weights="offloaded", flags=FLAGS)
    assert found.value.hint == "--stream"


def test_layers_over_several_gpus(large: Callable[[str], Checkpoint], machine: Callable[..., None]) -> None:
    machine(139, 139, 139, 70)
    ckpt = large("671B")
    found = plan(ckpt, *(torch.device("cuda", number) for number in range(4)))
    assert found.fits
    ranges = found.placement.ranges
    assert [layer for some in ranges for layer in some] == list(range(61))
    assert len(ranges[3]) < min(len(some) for some in ranges[:3])
    together = estimate(ckpt, None, torch.bfloat16, KINDS).whole.of("resident")
    assert sum(dict(one.lines)["weights, packed"] for one in found.devices) == together
    assert "caches of the head" in dict(found.devices[3].lines)
    assert "caches of the head" not in dict(found.devices[0].lines)


@pytest.mark.parametrize(("capability", "able"), [((9, 0), True), ((7, 5), False)])
def test_what_the_kernels_read(capability: tuple[int, int], able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr("mtptools.decoder.kernels.launcher_missing", lambda: None)
    kinds, missing = memory._kernels([CUDA])
    if find_spec("triton") is None:
        assert (kinds, missing) == ((), "triton is not installed")
    else:
        assert ("Q4_K" in kinds, missing is None) == (able, able)


def test_without_kernels_weights_are_decoded(large: Callable[[str], Checkpoint], machine: Callable[..., None]) -> None:
    machine(139, missing="triton is not installed")
    found = plan(large("27B"))
    assert found.mode == "loaded"
    assert "triton is not installed" in str(found)
    assert found.devices[0].needed > 50 * GIB


def test_the_cpu_loads_what_fits_and_else_reads_the_file(
    models: Callable[[str], Checkpoint], machine: Callable[..., None]
) -> None:
    ckpt = models("qwen35")
    machine()
    needed = {mode: plan(ckpt, CPU, context=64, weights=mode).devices[0].needed for mode in ("loaded", "stored")}
    assert needed["stored"] < needed["loaded"]
    for free, mode in ((needed["loaded"], "loaded"), (needed["loaded"] - 1, "stored"), (needed["stored"], "stored")):
        machine(cpu=free / GIB)
        assert plan(ckpt, CPU, context=64).mode == mode
    machine(cpu=(needed["stored"] - 1) / GIB)
    with pytest.raises(SystemFailure, match="does not fit") as found:
        plan(ckpt, CPU, context=64, flags=FLAGS, dtype="float32")
    assert found.value.hint in ("--dtype bfloat16", "--stream")


def test_two_cpus_are_one_memory(models: Callable[[str], Checkpoint], machine: Callable[..., None]) -> None:
    ckpt = models("qwen35")
    machine()
    needed = sum(one.needed for one in plan(ckpt, CPU, CPU, weights="loaded").devices)
    machine(cpu=(needed - 1) / GIB)
    with pytest.raises(SystemFailure):
        plan(ckpt, CPU, CPU, weights="loaded")


def test_memory_that_nobody_counts_is_enough(
    models: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: None)
    found = plan(models("qwen35"), CPU)
    assert found.mode == "loaded"
    assert ("cpu", "free", "unknown") in found.rows()


def test_what_cannot_be_asked_for(models: Callable[[str], Checkpoint]) -> None:
    with pytest.raises(UsageError, match="take 300 tokens") as found:
        plan(models("qwen35"), CPU, context=100, least=300)
    assert found.value.hint == "--context 300"
    with pytest.raises(UsageError, match="cannot be held 'somewhere'"):
        plan(models("qwen35"), CPU, weights="somewhere")


def test_the_report(models: Callable[[str], Checkpoint]) -> None:
    found = plan(models("qwen35"), CPU, CPU, context=100)
    data = found.to_json()
    assert [one["layers"] for one in data["devices"]] == [[some.start, some.stop] for some in found.placement.ranges]
    assert all(one["needed"] == sum(one["parts"].values()) for one in data["devices"])
    assert (data["weights"], data["dtype"], data["context"]) == ("loaded", "bfloat16", 100)
    assert str(found).startswith("memory: ")
    assert plan(models("qwen35"), CPU).next_flag == "--context 2048"
