"""L5 with a real llama.cpp: in a process of its own, as a llama-server by its flags, and over HTTP by both APIs."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.cli.options import Running
from mtptools.cli.running_runtime import ask_runtime, judge_runtime, run_runtime
from mtptools.cli.runtime_options import Asked
from mtptools.errors import InputError, SystemFailure
from mtptools.ops.extract import extract
from mtptools.runtimes.asking import Watched
from mtptools.runtimes.client import Client
from mtptools.runtimes.connect import connect
from mtptools.runtimes.generation import Drafts
from mtptools.runtimes.llama_server import Start, embedded
from mtptools.runtimes.openai_api import OpenAiServer
from mtptools.runtimes.report import RuntimeReport
from mtptools.writer import write
from tests import rewrite
from tests.conftest import FIXTURES

pytest.importorskip("xllamacpp", reason="needs llama.cpp: pip install 'mtptools[llama]'")
torch = pytest.importorskip("torch", reason="needs the decoder: pip install 'mtptools[decoder]'")
pytestmark = pytest.mark.interop

TOKENS, K = 20, 3
RUNNING = Running("cpu", "float32", 1, offload=False, context=None, graphs=False)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def full(family: str = "qwen35") -> Path:
    return FIXTURES / family / "gguf" / "model-BF16.gguf"


def run(path: Path, asked: Asked, head: Path | None = None) -> RuntimeReport:
    beside = None if head is None else open_checkpoint(head)
    told: dict[str, Any] = {"prompts": None, "limit": 2, "tokens": TOKENS, "k": K, "running": RUNNING, "quiet": True}
    return run_runtime(open_checkpoint(path), beside, asked, **told)


def start(model: Path, k: int, draft: Path | None = None) -> Start:
    return Start(model, draft, k, 512, 1, 0, (), 60.0)


def good(report: RuntimeReport) -> None:
    """It passes, all was compared, and its acceptance is our decoder's, for what 40 tokens tell."""
    assert report.failures() == []
    assert [(one.found, one.expected) for one in report.comparisons][:2] == [
        ("with MTP", "without MTP"),
        ("without MTP", "our decoder"),
    ]
    assert [one.positions for one in report.comparisons][1] == 2 * TOKENS
    noise = report.comparisons[1].noise
    assert noise is not None
    assert noise.measured
    assert noise.samples.size > 40 * TOKENS
    drafts, ours = report.drafts, report.ours
    assert drafts is not None
    assert ours is not None
    assert drafts.steps
    assert abs(drafts.rate - ours.rate) < 0.1


def test_embedded() -> None:
    report = run(full(), Asked("llama.cpp", runtime_timeout=60))
    good(report)
    assert (report.name, report.version[:6]) == ("llama.cpp", "build ")


def test_over_http() -> None:
    model = full("qwen35moe")
    with ExitStack() as stack:
        mtp, plain = (stack.enter_context(embedded(start(model, k)))[1] for k in (K, 0))
        report = run(model, Asked(mtp + "/v1", plain, runtime_timeout=60))
        good(report)
        assert (report.how, report.how_plain) == (mtp, plain)
        with pytest.raises(SystemFailure, match="another tokenizer"):
            _other_model(mtp)
        size = open_checkpoint(model).hparams.vocab_size
        row = report.rows[0]
        for url, before in ((mtp, row.mtp), (plain, row.plain)):
            made = OpenAiServer(Client(url, 60), url, size, "it").generate(row.mtp.prompt, TOKENS)
            assert before is not None
            assert made.tokens == before.tokens
            assert (made.drafts or Drafts(0, 0)) == before.drafts
            assert made.top[0] == pytest.approx(before.top[0], abs=0.1)  # a cached prompt is read in other passes


def _other_model(url: str) -> None:
    connect(Client(url, 60), vocabulary=2048, decode=lambda ids: "another text", k=K).generate([1, 2, 3], 2)


LLAMA_SERVER = """
import sys
from pathlib import Path
import xllamacpp

flags = dict(zip(sys.argv[1:], sys.argv[2:]))
known = {"-m", "-c", "-np", "-t", "-ngl", "-md", "--spec-type", "--spec-draft-n-max", "--host", "--port"}
strange = {flag for flag in sys.argv[1:] if flag.startswith("-")} - known - {"--metrics", "--no-warmup"}
assert not strange, strange
p = xllamacpp.CommonParams()
p.model.path, p.n_ctx, p.n_parallel, p.port = flags["-m"], int(flags["-c"]), int(flags["-np"]), int(flags["--port"])
p.n_gpu_layers, p.warmup, p.fit_params, p.endpoint_metrics, p.verbosity = int(flags["-ngl"]), False, False, True, 2
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(flags["-t"])
if "--spec-type" in flags:
    assert flags["--spec-type"] == "draft-mtp"
    p.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
    p.speculative.draft.n_max = int(flags["--spec-draft-n-max"])
    if "-md" in flags:
        p.speculative.draft.mparams.path = flags["-md"]
server = xllamacpp.Server(p)
__import__("threading").Event().wait()
"""


def test_a_llama_server_with_a_sidecar(tmp_path: Path) -> None:
    """The wheel's server behind the flags of a llama-server: a Q8_0 trunk, and the head in a file of its own."""
    binary, sidecar = tmp_path / "llama-server", tmp_path / "head.gguf"
    binary.write_text(f"#!{sys.executable}{LLAMA_SERVER}")
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    write(extract(open_checkpoint(full()), sidecar.name), sidecar)
    asked = Asked(str(binary), runtime_timeout=60, runtime_arg=("-ngl", "0"))
    report = run(FIXTURES / "qwen35" / "gguf" / "trunk-Q8_0.gguf", asked, sidecar)
    good(report)
    assert report.how == "llama-server, --spec-type draft-mtp --spec-draft-n-max 3", "no folder of this machine"


def test_a_dead_head_fails(tmp_path: Path) -> None:
    """Halves of eh_proj swapped: the text stays right, llama.cpp accepts next to nothing, and L5 says so."""
    source = open_checkpoint(full())
    name = next(name for name in source if name.endswith("nextn.eh_proj.weight"))
    half = source[name].shape[1] // 2
    broken = rewrite.gguf(full(), tmp_path / "b.gguf", edit={name: lambda rows: np.roll(rows, half, axis=1)})
    with embedded(start(broken, K)) as (_, url):
        report = run(broken, Asked(url, runtime_timeout=60, runtime_alone=True))
    (failure,) = report.failures()
    assert "the head is dead there" in failure


def test_a_refused_model(tmp_path: Path) -> None:
    source = open_checkpoint(full())
    name = next(name for name in source if name.endswith("nextn.eh_proj.weight"))
    broken = rewrite.gguf(full(), tmp_path / "b.gguf", drop=(name,))
    with pytest.raises(InputError, match=r"MTP block missing nextn\.eh_proj") as failed, embedded(start(broken, K)):
        pass
    assert failed.value.exit_code == 3
    assert "mtptools validate" in (failed.value.hint or "")


def test_it_dies_while_it_decodes() -> None:
    with embedded(start(full(), 0)) as (child, url):
        size = open_checkpoint(full()).hparams.vocab_size
        inner = connect(Client(url, 60), vocabulary=size, decode=lambda ids: "\ufffd", k=0)
        engine = Watched(inner, child)
        assert len(engine.generate([1, 2, 3], 2).tokens) == 2
        child.process.kill()
        with pytest.raises(SystemFailure, match=r"died while it decoded \(SIGKILL\)"):
            engine.generate([1, 2, 3], 2)


def test_deepseek_v4(tmp_path: Path) -> None:
    """Head in a file of its own; random weights in F32, so that a text is the decoder's but for near-ties."""
    from mtptools.decoder.load import load_model
    from tests.decoder import toy_v4 as toy

    arrays = toy.weights(cycle=True)
    trunk = open_checkpoint(toy.write_gguf(tmp_path / "trunk.gguf", arrays))
    head = open_checkpoint(toy.write_gguf(tmp_path / "head.gguf", arrays, head=True))
    ids = torch.randint(2, toy.VOCAB, (2, 40), generator=torch.Generator().manual_seed(3)).tolist()
    no_text: Any = SimpleNamespace(decode=lambda ids: "\ufffd")
    answers = ask_runtime(trunk, head, Asked("llama.cpp", runtime_timeout=60), no_text, ids, TOKENS, K, threads=1)
    report = judge_runtime(answers, load_model(trunk, head=head, check=False), no_text)
    good(report)
