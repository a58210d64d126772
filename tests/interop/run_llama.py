"""Run one GGUF in llama.cpp (the xllamacpp wheel) and print what it did, as JSON.

    python tests/interop/run_llama.py '{"model": "m.gguf", "draft": null, "mtp": true, "prompts": [[1, 2]], ...}'

A process of its own: llama.cpp aborts on files it cannot load, and must not take the tests with it.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any

import xllamacpp


def run(job: dict[str, Any]) -> list[dict[str, Any]]:
    """One record per prompt: token ids, drafts made, drafts accepted."""
    params = xllamacpp.CommonParams()
    params.model.path = job["model"]
    params.n_ctx, params.n_parallel, params.n_gpu_layers = 1024, 1, 0
    params.warmup = params.fit_params = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.verbosity = -1
    params.port = 0
    if job["mtp"]:
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
        params.speculative.draft.n_max = job["n_max"]
        if job["draft"]:
            params.speculative.draft.mparams.path = job["draft"]
    server = xllamacpp.Server(params)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    out = []
    for ids in job["prompts"]:
        body = {
            "prompt": ids,
            "n_predict": job["tokens"],
            "temperature": 0,
            "ignore_eos": True,
            "return_tokens": True,
            "cache_prompt": False,
        }
        request = urllib.request.Request(
            server.listening_address + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with opener.open(request, timeout=300) as answer:
            reply = json.load(answer)
        times = reply["timings"]
        out.append(
            {
                "tokens": reply["tokens"],
                "drafted": times.get("draft_n", 0),
                "accepted": times.get("draft_n_accepted", 0),
            }
        )
    return out


if __name__ == "__main__":
    sys.stdout.write("RESULT " + json.dumps(run(json.loads(sys.argv[1]))) + "\n")
    sys.stdout.flush()
