"""/v1/completions with token ids in and out, as vLLM serves it and others after it; drafts from /metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from mtptools.runtimes.client import Client
from mtptools.runtimes.generation import TOP, Drafts, Generation
from mtptools.runtimes.metrics import counters, difference
from mtptools.runtimes.values import dict_of, entry_logprobs, ids, logprobs, strange

__all__ = ["OpenAiServer"]

_ID = "token_id:"


class OpenAiServer:
    """model: the name to ask for; vocabulary: number of token ids."""

    def __init__(self, client: Client, how: str, vocabulary: int, model: str, name: str = "OpenAI-compatible") -> None:
        self.client, self.how, self.vocabulary, self.model, self.name = client, how, vocabulary, model, name
        told = client.maybe("/version")
        self.version = str(told.get("version", "?")) if isinstance(told, dict) else "?"

    def generate(self, prompt: Sequence[int], n: int) -> Generation:
        """See `Engine`. Raises SystemFailure."""
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": n,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": TOP,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        before = self.client.text("/metrics")
        started = time.perf_counter()
        answer = self.client.post("/v1/completions", body)
        seconds = time.perf_counter() - started
        where = self.client.base + "/v1/completions"
        choice = _choice(answer, where)
        self._same_prompt(prompt, answer, choice, where)
        told = dict_of(choice.get("logprobs"))
        entries = told.get("content")
        if isinstance(entries, list):  # llama.cpp behind a proxy: entries with ids
            named: Any = [dict_of(entry).get("id") for entry in entries]
            top: list[Mapping[int, float]] = [entry_logprobs(entry, self.vocabulary) for entry in entries]
        else:
            named, top = _named(choice, told), _tops(told, self.vocabulary)
        tokens = ids(None if isinstance(named, list) and None in named else named, self.vocabulary, where, "token_ids")
        rows = tuple((top + [{}] * len(tokens))[: len(tokens)])
        return Generation(tuple(prompt), tokens, rows, drafts=self._drafts(before, len(tokens)), seconds=seconds)

    def _drafts(self, before: str | None, tokens: int) -> Drafts | None:
        after = self.client.text("/metrics") if before is not None else None
        if before is None or after is None:
            return None
        return difference(counters(before), counters(after), tokens)

    def _same_prompt(self, prompt: Sequence[int], answer: Any, choice: Mapping[str, Any], where: str) -> None:
        read = dict_of(answer.get("usage")).get("prompt_tokens", len(prompt))
        echo = choice.get("prompt_token_ids")
        if read != len(prompt) or (echo is not None and echo != list(prompt)):
            raise self.client.failure(
                "/v1/completions",
                f"the server read another prompt ({read} tokens for {len(prompt)})",
                "a server that takes prompts as token ids, and a context that is large enough",
            )


def _choice(answer: Any, where: str) -> Mapping[str, Any]:
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise strange(where, "no choices")
    found: Mapping[str, Any] = choices[0]
    return found


def _id(text: Any) -> int | None:
    """The id in "token_id:5", None where the server writes texts all the same."""
    number = text.removeprefix(_ID) if isinstance(text, str) and text.startswith(_ID) else ""
    return int(number) if number.isdecimal() else None


def _named(choice: Mapping[str, Any], told: Mapping[str, Any]) -> Any:
    """The token ids; before vLLM 0.10.2 they stood only beside log-probabilities."""
    texts = told.get("tokens")
    beside = [_id(one) for one in texts] if isinstance(texts, list) else None
    return choice.get("token_ids", beside)


def _tops(told: Mapping[str, Any], vocabulary: int) -> list[Mapping[int, float]]:
    rows = told.get("top_logprobs")
    return [
        logprobs(((_id(key), value) for key, value in dict_of(row).items()), vocabulary)
        for row in (rows if isinstance(rows, list) else [])
    ]
