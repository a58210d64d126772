"""A server that speaks llama-server's, vLLM's or SGLang's API about a model of one line; it can go wrong."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCABULARY = 97
K = 3
Top = dict[int, float]
Teller = Callable[[list[int]], Top]
"""Tokens so far -> log-probabilities of the most probable ones, the best first."""


def cycle(text: list[int]) -> Top:
    """After t comes 7t + 3, and what is a little less probable is known too."""
    best = (7 * text[-1] + 3) % VOCABULARY
    return {(best + step) % VOCABULARY: -0.1 - step for step in range(10)}


def decode(ids: Sequence[int]) -> str:
    return "".join(f"<{one}>" for one in ids)


class Fake:
    """dialect    "llamacpp", "vllm" or "sglang"
    teller     what comes next
    drafts     (drafted, accepted) of every prompt, None for a server without MTP
    change     takes an answer as it would be, and gives it as it is sent
    page       path -> (status, type, body) in place of any answer
    """

    def __init__(
        self,
        dialect: str = "llamacpp",
        teller: Teller = cycle,
        drafts: tuple[int, int] | None = (12, 8),
        change: Callable[[dict[str, Any]], Any] = lambda answer: answer,
        page: dict[str, tuple[int, str, bytes]] | None = None,
        *,
        hang: float = 0.0,
        cut: bool = False,
        names: tuple[str, ...] = ("it",),
        vocabulary: int = VOCABULARY,
        metrics: bool = True,
        decode: Callable[[Sequence[int]], str] = decode,
    ) -> None:
        self.dialect, self.teller, self.drafts, self.change, self.page = dialect, teller, drafts, change, page or {}
        self.hang, self.cut, self.names, self.vocabulary, self.metrics = hang, cut, names, vocabulary, metrics
        self.decode = decode
        self.counted = {"draft_tokens": 0, "accepted_tokens": 0, "drafts": 0}
        self.emitted = 0
        self.strangers = 0  # tokens served to somebody else meanwhile
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.answer(self, None)

            def do_POST(self) -> None:
                fake.answer(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """Clients that gave up are what is tested."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Fake:
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any] | None) -> None:
        self.keys.append(handler.headers.get("Authorization"))
        if body is not None:
            self.asked.append(body)
            time.sleep(self.hang)
        status, kind, data = self.page.get(handler.path) or self._made(handler.path, body)
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        if status in (301, 302):
            handler.send_header("Location", "http://elsewhere.example/")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data[: len(data) // 2] if self.cut and body is not None else data)

    def _made(self, path: str, body: dict[str, Any] | None) -> tuple[int, str, bytes]:
        if path == "/v1/models":
            told: Any = {"data": [{"id": n, "owned_by": self.dialect, "meta": self._meta()} for n in self.names]}
        elif path == "/metrics" and self.metrics:
            return 200, "text/plain", self._metrics().encode()
        elif path in self._pages():
            told = self._pages()[path]
        elif body is not None and path == {"llamacpp": "/completion", "sglang": "/generate"}.get(
            self.dialect, "/v1/completions"
        ):
            told = self.change(getattr(self, f"_{self.dialect}")(body))
        else:
            return 404, "application/json", b'{"detail": "Not Found"}'
        return 200, "application/json", told if isinstance(told, bytes) else json.dumps(told).encode()

    def _meta(self) -> dict[str, int]:
        return {"n_vocab": self.vocabulary}

    def _pages(self) -> dict[str, Any]:
        return {
            "llamacpp": {"/props": {"build_info": "b9999-abc", "model_path": "it.gguf"}},
            "vllm": {"/version": {"version": "0.33.0"}},
            "sglang": {"/get_server_info": {"version": "0.5.23"}},
        }[self.dialect]

    def _text(self, prompt: list[int], n: int) -> tuple[list[int], list[Top]]:
        text, rows = list(prompt), []
        for _ in range(n):
            rows.append(self.teller(text))
            text.append(next(iter(rows[-1])))
        self.emitted += n + self.strangers
        if self.drafts is not None and n > 1:
            self.counted["draft_tokens"] += self.drafts[0]
            self.counted["accepted_tokens"] += self.drafts[1]
            self.counted["drafts"] += self.drafts[0] // K
        return text[len(prompt) :], rows

    def _llamacpp(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens, rows = self._text(body["prompt"], body["n_predict"])
        timings: dict[str, Any] = {"predicted_ms": 10.0 * len(tokens)}
        if self.drafts is not None and len(tokens) > 1:
            timings |= {"draft_n": self.drafts[0], "draft_n_accepted": self.drafts[1]}
        entries = [
            {"id": token, "top_logprobs": [{"id": one, "logprob": value} for one, value in row.items()]}
            for token, row in zip(tokens, rows, strict=True)
        ]
        return {
            "tokens": tokens,
            "prompt": self.decode(body["prompt"]),
            "tokens_evaluated": len(body["prompt"]),
            "timings": timings,
            "completion_probabilities": entries,
            "generation_settings": {"logit_bias": [{"bias": None, "token": 96}]},
        }

    def _vllm(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens, rows = self._text(body["prompt"], body["max_tokens"])
        told = {
            "tokens": [f"token_id:{token}" for token in tokens],
            "top_logprobs": [{f"token_id:{one}": value for one, value in row.items()} for row in rows],
        }
        choice = {"text": "x", "token_ids": tokens, "prompt_token_ids": body["prompt"], "logprobs": told}
        return {"choices": [choice], "usage": {"prompt_tokens": len(body["prompt"])}}

    def _sglang(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens, rows = self._text(body["input_ids"], body["sampling_params"]["max_new_tokens"])
        meta: dict[str, Any] = {
            "prompt_tokens": len(body["input_ids"]),
            "output_token_logprobs": [
                [next(iter(row.values())), one, None] for one, row in zip(tokens, rows, strict=True)
            ],
            "output_top_logprobs": [[[value, one, None] for one, value in row.items()] for row in rows],
        }
        if self.drafts is not None:
            drafted, accepted = self.drafts
            meta |= {"spec_verify_ct": drafted // K}
            meta |= {"spec_num_proposed_drafts": drafted, "spec_num_correct_drafts": accepted}
        return {"text": "x", "output_ids": tokens, "meta_info": meta}

    def _metrics(self) -> str:
        prefix, emitted = (
            ("llamacpp", "tokens_predicted") if self.dialect == "llamacpp" else ("vllm", "generation_tokens")
        )
        lines = [f"# TYPE {prefix}:{emitted}_total counter", f"{prefix}:{emitted}_total {float(self.emitted)}"]
        if self.drafts is not None:
            lines += [f'{prefix}:spec_decode_num_{k}_total{{engine="0"}} {v}' for k, v in self.counted.items()]
        return "\n".join(lines) + "\n"
