"""What is said of a device that cannot be used. The messages of torch are its own, of 2.x: c10/cuda/CUDAFunctions.cpp,
torch/cuda/__init__.py, c10/cuda/CUDACachingAllocator.cpp, c10/core/impl/alloc_cpu.cpp."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from mtptools.decoder import devices
from mtptools.decoder.devices import describing, parse, require_dtype
from mtptools.errors import InputError, MtpToolsError, SystemFailure, UsageError

NO_DRIVER = (
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from "
    "http://www.nvidia.com/Download/index.aspx"
)
OLD_DRIVER = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: "
    "https://pytorch.org to install a PyTorch version that has been compiled with your version of the CUDA driver."
)
NO_GPU = "No CUDA GPUs are available"
OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 576.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which 370.69 MiB is "
    "free. Including non-PyTorch memory, this process has 23.28 GiB memory in use."
)
UNKNOWN = "CUDA unknown error - this may be due to an incorrectly set up environment"
GIB = 1 << 30

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A torch with CUDA on a machine with so many GPUs, as far as `parse` asks."""

    def make(
        count: int = 1,
        capability: tuple[int, int] = (9, 0),
        codes: tuple[str, ...] = ("sm_75", "sm_80", "sm_90", "sm_120", "compute_120"),
        error: Exception | None = None,
        full: Exception | None = None,
    ) -> None:
        def init() -> None:
            if error is not None:
                raise error

        def empty(n: int, device: torch.device) -> None:
            if full is not None:
                raise full

        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "init", init)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Thing")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr("mtptools.decoder.kernels.launcher_missing", lambda: None)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(codes))
        monkeypatch.setattr(devices.torch, "empty", empty)

    return make


def refused(text: str) -> MtpToolsError:
    with pytest.raises(MtpToolsError) as caught:
        parse(text)
    assert caught.value.where == "--device"
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("text", ["cpu", "cpu:0", " cpu "])
def test_the_cpu(text: str) -> None:
    assert parse(text) == (torch.device("cpu"),)


def test_two_cpus_are_a_simulation() -> None:
    assert parse("cpu,cpu") == (torch.device("cpu"), torch.device("cpu"))


@pytest.mark.parametrize(
    ("text", "expected"), [("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("cuda:1, cuda", "cuda:1,cuda:0")]
)
def test_gpus(text: str, expected: str, machine: Machine) -> None:
    machine(2)
    assert ",".join(map(str, parse(text))) == expected


@pytest.mark.parametrize("name", ["mps", "xpu", "abacus", "cuda:x", "cuda:-1", "", "cpu,", "CUDA"])
def test_other_names(name: str) -> None:
    error = refused(name)
    assert isinstance(error, UsageError)
    assert "does not run on" in error.what


def test_a_mixture(machine: Machine) -> None:
    machine()
    error = refused("cpu,cuda:0")
    assert isinstance(error, UsageError)
    assert "--offload" in str(error.hint)


def test_the_same_twice(machine: Machine) -> None:
    machine(2)
    error = refused("cuda:0,cuda:1,cuda")
    assert "cuda:0 is named twice" in error.what
    assert error.hint == "--device cuda:0,cuda:1"


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built with CUDA")
def test_a_torch_without_cuda() -> None:
    error = refused("cuda")
    assert isinstance(error, SystemFailure)
    assert f"torch {torch.__version__} is built without CUDA" in error.what


@pytest.mark.parametrize(
    ("error", "what", "hint"),
    [
        (RuntimeError(NO_DRIVER), "there is no NVIDIA driver", "--device cpu"),
        (RuntimeError(OLD_DRIVER), r"too old for this torch \(it knows CUDA 11.4, torch wants 13.0\)", "update"),
        (RuntimeError(NO_GPU), "no GPU is there", "CUDA_VISIBLE_DEVICES|nvidia-smi"),
        (RuntimeError(UNKNOWN), "CUDA unknown error", "--device cpu"),
        (AssertionError("Torch not compiled with CUDA enabled"), "not compiled with CUDA", "--device cpu"),
    ],
)
def test_a_cuda_that_does_not_start(error: Exception, what: str, hint: str, machine: Machine) -> None:
    machine(error=error)
    found = refused("cuda")
    assert isinstance(found, SystemFailure)
    assert re.search(what, found.what)
    assert re.search(hint, str(found.hint))


@pytest.mark.parametrize(("count", "there"), [(1, "cuda:0 alone"), (4, "cuda:0 to cuda:3")])
def test_no_such_gpu(count: int, there: str, machine: Machine) -> None:
    machine(count)
    error = refused("cuda:7")
    assert f"'cuda:7' cannot be used: this machine has {there}" in error.what
    assert error.hint == f"--device cuda:{count - 1}"


@pytest.mark.parametrize(
    ("capability", "codes", "able"),
    [
        ((6, 1), ("sm_75", "sm_80"), False),  # older than all
        ((8, 9), ("sm_75", "sm_80"), True),  # cubins run within a major version
        ((8, 0), ("sm_86",), False),  # but not backwards
        ((12, 0), ("sm_80", "sm_90"), False),  # nor in the next one
        ((12, 0), ("sm_80", "compute_90"), True),  # where PTX does
        ((9, 0), ("sm_90a",), True),
        ((6, 1), (), True),  # nothing is said
    ],
)
def test_code_for_the_gpu(capability: tuple[int, int], codes: tuple[str, ...], able: bool, machine: Machine) -> None:
    machine(capability=capability, codes=codes)
    if able:
        assert parse("cuda")
    else:
        assert f"compute capability {capability[0]}.{capability[1]}" in refused("cuda").what


@pytest.mark.parametrize(("capability", "dtype", "able"), [((7, 5), "bfloat16", False), ((7, 5), "float32", True)])
def test_bfloat16_on_an_old_gpu(capability: tuple[int, int], dtype: str, able: bool, machine: Machine) -> None:
    machine(capability=capability)
    if able:
        require_dtype(parse("cuda"), dtype)
        return
    with pytest.raises(SystemFailure, match=r"takes compute capability 8\.0") as found:
        require_dtype(parse("cuda"), dtype)
    assert found.value.hint == "--dtype float32, or --device cpu"


@pytest.mark.parametrize(
    ("full", "what"), [(torch.OutOfMemoryError(OUT_OF_MEMORY), "memory is full"), (RuntimeError(UNKNOWN), "unknown")]
)
def test_a_gpu_that_does_not_answer(full: Exception, what: str, machine: Machine) -> None:
    machine(full=full)
    assert what in refused("cuda").what


def test_out_of_memory_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (370 << 20, 24 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 100 << 20)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 70 << 20)
    with (
        pytest.raises(
            SystemFailure, match="out of memory, 576 MiB more were needed; 400 MiB are free on cuda:0"
        ) as found,
        describing(torch.device("cuda:0"), hint="--offload"),
    ):
        raise torch.OutOfMemoryError(OUT_OF_MEMORY)
    assert found.value.hint == "--offload"
    assert found.value.exit_code == 7


def test_the_hint_of_whoever_has_one() -> None:
    cpu = torch.device("cpu")
    for hints in (("--offload", ""), ("", "--offload"), ("other", "--offload")):
        with pytest.raises(SystemFailure) as found, describing(cpu, hint=hints[0]), describing(cpu, hint=hints[1]):
            torch.empty(1 << 50)
        assert found.value.hint == "--offload"


def test_a_gpu_that_is_lost_does_not_hide_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(device: torch.device) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "memory_reserved", lost)
    with pytest.raises(SystemFailure, match=r"out of memory$"), describing(torch.device("cuda:0")):
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


@pytest.mark.parametrize(
    "exhaust", [lambda: torch.empty(1 << 50), lambda: np.empty(1 << 50), lambda: bytearray(1 << 62)]
)
def test_out_of_memory_on_the_cpu(exhaust: Callable[[], object]) -> None:
    """The real errors of torch, numpy and Python."""
    with (
        pytest.raises(SystemFailure, match=r"^out of memory(, \d+\.\d GiB more were needed)?; .* free on cpu$"),
        describing(),
    ):
        exhaust()


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), InputError("damaged"), KeyboardInterrupt()])
def test_other_errors_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as found, describing():
        raise error
    assert found.value is error
