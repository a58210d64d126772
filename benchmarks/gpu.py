"""What decoding costs on a GPU: each kernel, whole models, drafts, and what exactness costs.

    python benchmarks/gpu.py [--only products,decode,drafts,costs,offload] [--models 27B,35B-A3B] [--quick]
                             [--kinds all]

    products  the device's copy; each kind of packed matrix at the shapes of the models at 1, 4 and 16 rows, as bytes of
              packed weights a second, as a share of the copy, and against cuBLAS on bfloat16 values
    decode    plain decoding of Q4_K models of random values against the floor: bytes of weights that a token reads by
              the copy's bandwidth; launches a token, the time outside of kernels, and the kernels that take most
    drafts    speculative over plain decoding: drafts that are right at a rate that is chosen, and the fixture's own
    costs     exact arithmetic against the same code with cuBLAS free, and against transformers' generate, on as many
              layers as fit in the device's memory in all of these forms
    offload   layers in pinned memory, copied ahead of their use and copied at their use, against the floor: bytes that
              a token copies by the bandwidth from pinned memory to the device; as many layers as the host has room for

All arms of a table take turns in one process; numbers are medians over rounds, ± half the range of the middle half.
Products are timed on the device, replayed as a CUDA graph (`--eager`: without), each call on another copy of the matrix
where the device's cache would hold one. Everything else is by the clock on the wall.

`--device cpu` is for trying this script out: toy sizes, kernels by triton's interpreter. Its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # as it stands, where it is not installed

PARTS = ("products", "decode", "drafts", "costs", "offload")


def main() -> int:
    args = _arguments()
    if args.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are imported
        torch.set_num_threads(1)
    from mtptools.decoder.devices import parse
    from mtptools.decoder.kernels import unavailable
    from mtptools.errors import MtpToolsError

    try:
        device = parse(args.device)[0]
    except MtpToolsError as error:
        print(f"error: {error}\n{error.hint}; --device cpu tries this script out", file=sys.stderr)
        return 7
    if reason := unavailable(device):
        print(f"error: the kernels do not run on {device}: {reason}", file=sys.stderr)
        return 7
    warnings.simplefilter("ignore")
    return _run(args, device)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 …; cpu: to try the script out")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run")
    parser.add_argument("--models", default="27B,35B-A3B", help="shapes")
    parser.add_argument("--kinds", default="", help="kinds of packed matrices for products, or all")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="fewer shapes, rows, tokens, and 3 rounds")
    parser.add_argument("--eager", action="store_true", help="time products without CUDA graphs")
    args = parser.parse_args()
    from gpu_models import MODELS

    for what, given, known in (("--only", args.only, PARTS), ("--models", args.models, tuple(MODELS))):
        strange = sorted({*given.split(",")} - {*known})
        if strange:
            parser.error(f"{what}: {', '.join(strange)} is none of {', '.join(known)}")
    return args


def _run(args: argparse.Namespace, device: torch.device) -> int:
    """1 where a part failed: the others are run all the same, so that one fault does not cost the whole run."""
    from gpu_decode import costs, decode, drafts
    from gpu_offload import offload
    from gpu_products import KINDS_OF_USE, Bench, products

    toy = device.type == "cpu"
    chosen = ("Q4_0", "BF16") if toy else KINDS_OF_USE
    kinds = _every() if args.kinds == "all" else tuple(args.kinds.split(",")) if args.kinds else chosen
    bench = Bench(
        device,
        1 if toy else 3 if args.quick else args.rounds,
        toy,
        args.quick or toy,
        not args.eager,
        kinds,
        tuple(args.models.split(",")),
    )
    parts = {"products": products, "decode": decode, "drafts": drafts, "costs": costs, "offload": offload}
    print(f"# Decoding on {_name(device)}")
    failed = bench.failed
    for part in args.only.split(","):
        try:
            with torch.inference_mode():
                parts[part](bench)
        except Exception:
            failed.append(part)
            print(f"\n{part} failed:\n\n```\n{traceback.format_exc()}```", flush=True)
            if not toy:
                torch.cuda.empty_cache()
    print(f"\n## Ran on\n\n```\n{json.dumps(_fingerprint(device), indent=1)}\n```")
    if failed:
        print(f"error: {', '.join(failed)} did not run to the end", file=sys.stderr)
    return 1 if failed else 0


def _every() -> tuple[str, ...]:
    from mtptools.decoder.kernels.layouts import KINDS

    return tuple(KINDS)


def _name(device: torch.device) -> str:
    if device.type == "cpu":
        return "a CPU, by triton's interpreter, toy sizes: these numbers mean nothing"
    return f"{torch.cuda.get_device_name(device)} ({device}), nothing else measured beside it"


def _fingerprint(device: torch.device) -> dict[str, object]:
    """That of a report of the decoder, of a tiny model."""
    from gpu_models import config_of, model_of, packed

    from mtptools.decoder.report import fingerprint

    return fingerprint(model_of(config_of("27B", toy=True), device, packed("BF16", device)))


if __name__ == "__main__":
    sys.exit(main())
