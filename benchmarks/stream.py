"""`verify --stream` over a file of Qwen3.5-0.8B's shapes, against what could limit it, side by side in one run.

    python -m benchmarks.stream [--types Q8_0,Q4_K_M] [--positions 16,128,1024] [--runs 3] [--threads 1] [--profile]

disk        the file read from start to end; cold where the system lets its pages go (what is below it may still cache)
decoding    every tensor that the pass reads turned into float32, from a file that is cached
arithmetic  products of the same shapes with the same number of rows, drafts' too, on matrices that are in memory
pass        `verify --stream` itself, from a file as cold as the disk's arm

The lowest of the first three limits the pass, which does all at once: a line says which, and what share is reached.

The pass tries no controls (--controls: it does), which are more passes over the head.
The arms take turns, each on --threads; the pass has a thread beside them that reads and decodes. GB are of the file,
10**9 bytes; a rate is the median of the runs, with the least and the most. "others" are cores that other processes used
meanwhile, at most: with more than a few hundredths the pass had no core of its own for each thread. The first line says
how fast products of float32 matrices can be, and each line how fast those of the arithmetic's arm are.
Weights are random; norms are 1. Files are written to --folder (a temporary one) and deleted.
"""

from __future__ import annotations

import argparse
import cProfile
import ctypes
import json
import mmap
import os
import platform
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch

from benchmarks import synthetic
from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.codecs import CODECS, decode, encode
from mtptools.containers.gguf import Metadata, header_bytes, padded
from mtptools.containers.gguf_values import scalar_value, string_value
from mtptools.decoder.stream.arithmetic import Blockwise
from mtptools.decoder.stream.model import Streamed
from mtptools.decoder.stream.outline import Stage
from mtptools.decoder.stream.passages import Passage, Passages
from mtptools.decoder.stream.run import stream
from mtptools.decoder.stream.trunk_pass import MIX_ROWS
from mtptools.tensors import Blob, Tensor

RELEASE = Path(__file__).parents[1] / "fixtures" / "releases" / "qwen3.5-0.8b-base.json"
PART = 1 << 20
"""Values that are decoded at a time."""


@dataclass(frozen=True)
class Shapes:
    """Of the release; `layers` and `vocab` can be fewer."""

    layers: int
    vocab: int

    @property
    def text(self) -> dict[str, int]:
        return dict(json.loads(RELEASE.read_text(encoding="utf-8"))["config"]["text_config"])

    def matrices(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of a GGUF: embedding (tied), layers, and a head of one."""
        c = self.text
        hidden, inner, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
        values = c["linear_num_value_heads"] * c["linear_value_head_dim"]
        channels = values + 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"]
        yield "token_embd.weight", (self.vocab, hidden)
        yield "output_norm.weight", (hidden,)
        for n in range(self.layers + 1):
            block = {"attn_norm": (hidden,), "post_attention_norm": (hidden,)}
            block |= {"ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
            if n == self.layers or (n + 1) % c["full_attention_interval"] == 0:
                keys = c["num_key_value_heads"] * dim
                block |= {"attn_q": (2 * c["num_attention_heads"] * dim, hidden), "attn_k": (keys, hidden)}
                block |= {"attn_v": (keys, hidden), "attn_output": (hidden, c["num_attention_heads"] * dim)}
                block |= {"attn_q_norm": (dim,), "attn_k_norm": (dim,)}
            else:
                heads = c["linear_num_value_heads"]
                block |= {"attn_qkv": (channels, hidden), "attn_gate": (values, hidden), "ssm_out": (hidden, values)}
                block |= {"ssm_alpha": (heads, hidden), "ssm_beta": (heads, hidden)}
                block |= {"ssm_conv1d": (channels, c["linear_conv_kernel_dim"])}
                block |= {"ssm_norm": (c["linear_value_head_dim"],)}
                yield f"blk.{n}.ssm_a", (heads,)
                yield f"blk.{n}.ssm_dt.bias", (heads,)
            if n == self.layers:
                block |= {"nextn.eh_proj": (hidden, 2 * hidden)}
                block |= dict.fromkeys(("nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"), (hidden,))
            yield from ((f"blk.{n}.{name}.weight", shape) for name, shape in block.items())

    def metadata(self) -> Metadata:
        c = self.text
        sizes = {
            "block_count": self.layers + 1, "nextn_predict_layers": 1, "context_length": c["max_position_embeddings"],
            "embedding_length": c["hidden_size"], "feed_forward_length": c["intermediate_size"],
            "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": c["num_key_value_heads"],
            "attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"],
            "rope.dimension_count": c["head_dim"] // 4, "ssm.conv_kernel": c["linear_conv_kernel_dim"],
            "ssm.state_size": c["linear_key_head_dim"], "ssm.group_count": c["linear_num_key_heads"],
            "ssm.time_step_rank": c["linear_num_value_heads"],
            "ssm.inner_size": c["linear_num_value_heads"] * c["linear_value_head_dim"],
            "full_attention_interval": c["full_attention_interval"],
        }  # fmt: skip
        values = {"general.architecture": string_value("qwen35")}
        values |= {f"qwen35.{key}": scalar_value("u32", value) for key, value in sizes.items()}
        values["qwen35.attention.layer_norm_rms_epsilon"] = scalar_value("f32", c["rms_norm_eps"])
        values["qwen35.rope.freq_base"] = scalar_value("f32", 1e7)
        return Metadata(values)


def codec_of(name: str, shape: tuple[int, ...], kind: str, layers: int) -> str:
    """Q8_0 throughout, or a mix as llama.cpp's Q4_K_M has it for this architecture."""
    if len(shape) == 1 or "conv1d" in name:
        return "F32"
    if kind != "Q4_K_M" or any(part in name for part in ("alpha", "beta", "eh_proj")):
        return "Q8_0" if kind == "Q4_K_M" else kind
    if name == "token_embd.weight":
        return "Q6_K"
    if "attn_qkv" in name or "ssm_out" in name:
        return "Q5_K"
    n = int(name.split(".")[1])
    more = n < layers // 8 or n >= 7 * layers // 8 or (n - layers // 8) % 3 == 2
    return "Q6_K" if more and ("ffn_down" in name or "attn_v" in name) else "Q4_K"


def write(path: Path, kind: str, shapes: Shapes) -> int:
    """The file's size. A matrix is one encoded piece of noise, again and again."""
    rng = np.random.default_rng(0)
    listed = []
    for name, shape in shapes.matrices():
        codec = codec_of(name, shape, kind, shapes.layers)
        nbytes = prod(shape[:-1]) * CODECS[codec].row_bytes(shape[-1])
        listed.append(Tensor(name, shape, codec, (Blob(Path(), 0, nbytes),)))
    noise: dict[str, bytes] = {}
    with open(path, "wb") as file:
        file.write(header_bytes(shapes.metadata(), listed, synthetic.ALIGNMENT))
        for tensor in listed:
            if tensor.codec == "F32":
                value = -1.0 if tensor.name.endswith("ssm_a") else 0.0 if tensor.name.endswith("bias") else 1.0
                data = np.full(tensor.shape, value / (4 if "conv1d" in tensor.name else 1), "<f4").tobytes()
            else:
                if tensor.codec not in noise:
                    values = (rng.standard_normal((256, 7168)) * 0.02).astype(np.float32)
                    noise[tensor.codec] = encode(values, tensor.codec)
                piece = noise[tensor.codec]
                data = (piece * (tensor.nbytes // len(piece) + 1))[: tensor.nbytes]
            file.write(data + bytes(padded(tensor.nbytes, synthetic.ALIGNMENT) - tensor.nbytes))
        file.flush()
        os.fsync(file.fileno())
    return path.stat().st_size


def forget(path: Path) -> float:
    """Ask the system to let go of the file's pages; the share of them that it still holds (1 where it does not say)."""
    if not hasattr(os, "posix_fadvise"):
        return 1.0
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as view:
            pages = -(-len(view) // mmap.PAGESIZE)
            held = (ctypes.c_ubyte * pages)()
            start = ctypes.c_char.from_buffer(view)
            failed = ctypes.CDLL(None).mincore(ctypes.byref(start), ctypes.c_size_t(len(view)), held)
            del start
    return 1.0 if failed else sum(page & 1 for page in bytes(held)) / pages


def read(path: Path) -> None:
    buffer = bytearray(8 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def decode_all(ckpt: Checkpoint) -> None:
    for tensor in ckpt.values():
        step = max(1, PART // (tensor.shape[-1] if tensor.shape else 1))
        for start in range(0, tensor.n_rows, step):
            decode(tensor, start, min(start + step, tensor.n_rows))


def multiplied(stages: list[Stage]) -> Iterator[tuple[int, int]]:
    """Heights and widths of the matrices."""
    for stage in stages:
        for tensor in stage.tensors:
            if len(tensor.shape) == 2 and "conv1d" not in tensor.name:
                yield tensor.shape[0], tensor.shape[1]


def multiply(stages: list[Stage], rows: int) -> None:
    """Every matrix once, by so many rows at a time and in blocks as the pass does; matrices of a width share memory."""
    ops = Blockwise.on(torch.device("cpu"))
    widths = {width for _, width in multiplied(stages)}
    weights = {width: torch.ones(8192, width) for width in widths}
    inputs = {width: torch.ones(rows, width) for width in widths}
    for height, width in multiplied(stages):
        for at in range(0, rows, MIX_ROWS):
            for start in range(0, height, 8192):
                ops.linear(inputs[width][at : at + MIX_ROWS], weights[width][: height - start])


def peak() -> float:
    """FLOP/s of a product of matrices that the cache holds: the best of many."""
    a, b = torch.ones(512, 1024), torch.ones(1024, 1024)
    return 2 * a.numel() * 1024 / min(taken(lambda: a @ b) for _ in range(100))


def busy() -> float:
    """Seconds that all cores together have worked; 0 where the system does not tell."""
    try:
        told_by = Path("/proc/stat").read_text().split(None, 9)[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, soft, steal = map(int, told_by)
    return float(user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


@dataclass
class Others:
    """Cores that other processes use while this is entered."""

    cores: float = 0.0

    def __enter__(self) -> Others:
        self._start = (time.perf_counter(), busy() - time.process_time())
        return self

    def __exit__(self, *_: object) -> None:
        start, before = self._start
        now = (busy() - time.process_time() - before) / (time.perf_counter() - start)
        self.cores = max(self.cores, now)


def passages(rows: int, vocab: int) -> Passages:
    return Passages((Passage(tuple((7919 * n + 13) % vocab for n in range(rows))),))


def taken(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def told(nbytes: int, seconds: list[float]) -> str:
    rates = sorted(nbytes / second / 1e9 for second in seconds)
    return f"{statistics.median(rates):.2f} ({rates[0]:.2f} to {rates[-1]:.2f})"


def measure(path: Path, rows: int, runs: int, k: int, controls: bool) -> None:
    """One line, and what its products reach."""
    ckpt = open_checkpoint(path)
    texts = passages(rows, ckpt.hparams.vocab_size)

    def model() -> Streamed:
        return Streamed(ckpt, texts, device=torch.device("cpu"))

    outline = model().outline
    output = Stage((ckpt["token_embd.weight"],))  # tied: the embedding looked up is no product, this is one
    stages = [outline.ends, *outline.layers, outline.head, *[output] * k]  # each draft passes it too
    times: dict[str, list[float]] = {"disk": [], "decoding": [], "arithmetic": [], "pass": []}
    left, others = 0.0, Others()
    for _ in range(runs):
        with others:
            left = max(left, forget(path))
            times["disk"].append(taken(lambda: read(path)))
            times["decoding"].append(taken(lambda: decode_all(ckpt)))
            times["arithmetic"].append(taken(lambda: multiply(stages, rows)))
            left = max(left, forget(path))
            times["pass"].append(taken(lambda: stream(model(), k, controls=controls)))
    middle = {name: statistics.median(seconds) for name, seconds in times.items()}
    lowest = max(("disk", "decoding", "arithmetic"), key=lambda name: middle[name])
    cells = "".join(f"{told(outline.nbytes, seconds):>22}" for seconds in times.values())
    state = "cold" if left < 0.05 else f"warm: {left:.0%} of the file stayed in memory"
    share = middle[lowest] / middle["pass"]
    flops = 2 * rows * sum(height * width for height, width in multiplied(stages))
    print(
        f"{path.stem:<8}{rows:>9}{cells}  lowest limit: {lowest}, the pass at {share:.0%} of it; {state}; "
        f"others {others.cores:.2f} cores; products {flops / middle['arithmetic'] / 1e9:.0f} GFLOP/s",
        flush=True,
    )


def profiled(path: Path, rows: int, k: int, controls: bool, lines: int = 18) -> None:
    ckpt = open_checkpoint(path)
    profile = cProfile.Profile()
    texts = passages(rows, ckpt.hparams.vocab_size)
    profile.runcall(lambda: stream(Streamed(ckpt, texts, device=torch.device("cpu")), k, controls=controls))
    print(f"{path.stem}, {rows} positions")
    pstats.Stats(profile).sort_stats("tottime").print_stats(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default="Q8_0,Q4_K_M")
    parser.add_argument("--positions", default="16,128,1024")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--k", type=int, default=1, help="drafts of each position")
    parser.add_argument("--controls", action="store_true", help="try every control, as verify does")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocab", type=int, default=248320)
    parser.add_argument("--folder", type=Path, help="where the files are written for a while")
    parser.add_argument("--profile", action="store_true", help="where the pass spends its time, instead of rates")
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    positions = [int(rows) for rows in args.positions.split(",")]
    print(
        f"{platform.machine()}, torch {torch.__version__}, {args.threads} thread(s) of {os.cpu_count()}, medians of "
        f"{args.runs}; GB/s; products of float32 reach {peak() / 1e9:.0f} GFLOP/s"
    )
    names = ("disk", "decoding", "arithmetic", "pass")
    print(f"{'':<8}{'positions':>9}" + "".join(f"{name:>22}" for name in names))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for kind in args.types.split(","):
            path = Path(folder) / f"{kind}.gguf"
            write(path, kind, Shapes(args.layers, args.vocab))
            for rows in positions:
                if args.profile:
                    profiled(path, rows, args.k, args.controls)
                else:
                    measure(path, rows, args.runs, args.k, args.controls)
            path.unlink()


if __name__ == "__main__":
    main()
