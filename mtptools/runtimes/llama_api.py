"""llama-server's own API: prompts as token ids, tokens back as ids, drafts counted per request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from mtptools.errors import SystemFailure
from mtptools.runtimes.client import Client
from mtptools.runtimes.generation import TOP, Drafts, Generation
from mtptools.runtimes.metrics import counters, difference
from mtptools.runtimes.values import count, dict_of, drafts, entry_logprobs, ids, number, strange

__all__ = ["LlamaServer"]

ENDING: Final = 64
"""Tokens that end a text, at most: a server that bars more of them from a text chooses what it is compared on."""

_TOKENIZER = "does it serve this model? its tokenizer must be the checkpoint's"


class LlamaServer:
    """vocabulary: number of token ids; decode: ids to text, to compare with what the server read."""

    name = "llama.cpp"

    def __init__(self, client: Client, how: str, vocabulary: int, decode: Callable[[Sequence[int]], str]) -> None:
        self.client, self.how, self.vocabulary, self.decode = client, how, vocabulary, decode
        props = client.maybe("/props")
        self.version = str(props.get("build_info", "?")) if isinstance(props, dict) else "?"
        self.model = str(props.get("model_path", "")) if isinstance(props, dict) else ""

    def generate(self, prompt: Sequence[int], n: int) -> Generation:
        """See `Engine`. Raises SystemFailure."""
        client = self.client
        before = client.text("/metrics")
        body = {
            "prompt": list(prompt),
            "n_predict": n,
            "temperature": 0,
            "ignore_eos": True,
            "return_tokens": True,
            "cache_prompt": False,
            "n_probs": TOP,
        }
        started = time.perf_counter()
        answer = client.post("/completion", body)
        seconds = time.perf_counter() - started
        where = client.base + "/completion"
        if not isinstance(answer, dict):
            raise strange(where, "an answer that is no object")
        self._same_prompt(prompt, answer, where)
        tokens = ids(answer.get("tokens"), self.vocabulary, where, "tokens")
        timings = dict_of(answer.get("timings"))
        found = Generation(
            tuple(prompt),
            tokens,
            _top(answer.get("completion_probabilities"), tokens, self.vocabulary, where),
            banned=_banned(answer, self.vocabulary, where),
            seconds=stated / 1000 if (stated := number(timings.get("predicted_ms"))) and stated > 0 else seconds,
        )
        return replace(found, drafts=self._drafts(timings, before, len(tokens)))

    def _drafts(self, timings: Mapping[str, Any], before: str | None, tokens: int) -> Drafts:
        """The request's own counts; /metrics, where it is on, knows positions and steps too. Nothing counted: none."""
        drafted = count(timings.get("draft_n", 0), self.client.base, "draft_n")
        accepted = count(timings.get("draft_n_accepted", 0), self.client.base, "draft_n_accepted")
        after = self.client.text("/metrics") if before is not None else None
        if before is not None and after is not None:
            told = difference(counters(before), counters(after), tokens)
            if told is not None and (told.drafted, told.accepted) == (drafted, accepted):
                return told
        return drafts(drafted, accepted, self.client.base)

    def _same_prompt(self, prompt: Sequence[int], answer: Mapping[str, Any], where: str) -> None:
        """The server tells the prompt as text: with another tokenizer the same ids are another text."""
        read = answer.get("tokens_evaluated", len(prompt))
        if read != len(prompt):
            what = f"the server read {read} tokens of a prompt of {len(prompt)}"
            raise SystemFailure(what, where=where, hint="a larger context on the server, or shorter --prompts")
        echo, ours = answer.get("prompt"), self.decode(prompt)
        if isinstance(echo, str) and "\ufffd" not in echo + ours and echo.strip() != ours.strip():
            what = f"the prompt reads {echo[:40]!r} there and {ours[:40]!r} here: another tokenizer"
            raise SystemFailure(what, where=where, hint=_TOKENIZER)


def _banned(answer: Mapping[str, Any], vocabulary: int, where: str) -> frozenset[int]:
    """Tokens that end a text: the server lists them with a bias of no number, that is minus infinity."""
    biases = dict_of(answer.get("generation_settings")).get("logit_bias")
    entries = biases if isinstance(biases, list) else []
    barred = [entry.get("token") for entry in map(dict_of, entries) if entry.get("bias", 0) is None]
    found = frozenset(token for token in barred if isinstance(token, int) and 0 <= token < vocabulary)
    if len(found) > ENDING:
        raise strange(where, f"{len(found)} tokens that cannot come out")
    return found


def _top(entries: Any, tokens: Sequence[int], vocabulary: int, where: str) -> tuple[Mapping[int, float], ...]:
    """Per token; accepted drafts come without, and so do tokens whose text is part of a character."""
    out: list[Mapping[int, float]] = [{} for _ in tokens]
    at = 0
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            raise strange(where, "probabilities that are no objects")
        while at < len(out) and tokens[at] != entry.get("id"):
            at += 1
        if at == len(out):
            break
        out[at] = entry_logprobs(entry, vocabulary)
        at += 1
    return tuple(out)
