"""llama.cpp of the xllamacpp wheel as a server in a child process: `python -m mtptools.runtimes.embedded ADDRESS_FILE`.

Settings come as one line of JSON on stdin; the address is written to the file; the end of stdin ends the server, so
that it cannot outlive who started it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

__all__ = ["main"]

ERRORS = 2  # verbosity: warnings and errors, no progress


def _parameters(told: dict[str, Any]) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = told["model"]
    params.n_ctx, params.n_parallel, params.port = told["context"], 1, 0
    params.n_gpu_layers = told["gpu_layers"]
    params.endpoint_metrics = params.endpoint_props = True
    params.warmup = params.fit_params = False
    params.verbosity = ERRORS
    if told["threads"]:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = told["threads"]
    if told["k"]:
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
        params.speculative.draft.n_max = told["k"]
        if told["draft"]:
            params.speculative.draft.mparams.path = told["draft"]
    return params


def main() -> None:
    """Serve until stdin ends."""
    import xllamacpp

    server = xllamacpp.Server(_parameters(json.loads(sys.stdin.readline())))
    address, part = Path(sys.argv[1]), Path(sys.argv[1] + ".part")
    part.write_text(server.listening_address, encoding="utf-8")
    os.replace(part, address)
    sys.stdin.read()
    os._exit(0)  # the wheel's own way out may wait for requests


if __name__ == "__main__":
    main()
