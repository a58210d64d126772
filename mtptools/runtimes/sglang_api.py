"""SGLang's own /generate: ids in and out, log-probabilities by id, and the drafts of each request."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mtptools.runtimes.client import Client
from mtptools.runtimes.generation import TOP, Drafts, Generation
from mtptools.runtimes.values import count, drafts, ids, logprobs, strange

__all__ = ["SglangServer"]

_DRAFTED: Final = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
_ACCEPTED: Final = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
"""Names of the counts in `meta_info`, newest first."""


class SglangServer:
    """vocabulary: number of token ids; k: drafts a step, for versions that count steps alone."""

    name = "SGLang"

    def __init__(self, client: Client, how: str, vocabulary: int, k: int) -> None:
        self.client, self.how, self.vocabulary, self.k = client, how, vocabulary, k
        info = client.maybe("/get_server_info") or client.maybe("/server_info")
        self.version = str(info.get("version", "?")) if isinstance(info, dict) else "?"

    def generate(self, prompt: Sequence[int], n: int) -> Generation:
        """See `Engine`. Raises SystemFailure."""
        body = {
            "input_ids": list(prompt),
            "sampling_params": {"temperature": 0, "max_new_tokens": n, "ignore_eos": True},
            "return_logprob": True,
            "top_logprobs_num": TOP,
        }
        started = time.perf_counter()
        answer = self.client.post("/generate", body)
        seconds = time.perf_counter() - started
        where = self.client.base + "/generate"
        meta = answer.get("meta_info") if isinstance(answer, dict) else None
        if not isinstance(meta, dict):
            raise strange(where, "no meta_info")
        if meta.get("prompt_tokens", len(prompt)) != len(prompt):
            what = f"the server read {meta['prompt_tokens']} tokens of a prompt of {len(prompt)}"
            raise self.client.failure("/generate", what, "a larger context on the server")
        named = answer.get("output_ids") or [row[1] for row in _rows(meta.get("output_token_logprobs"))]
        tokens = ids(named, self.vocabulary, where, "output_ids")
        told = _list(meta.get("output_top_logprobs"))
        top = [logprobs(((one[1], one[0]) for one in _rows(row)), self.vocabulary) for row in told]
        return Generation(
            tuple(prompt),
            tokens,
            tuple((top + [{}] * len(tokens))[: len(tokens)]),
            drafts=self._drafts(meta, len(tokens), where),
            seconds=seconds,
        )

    def _drafts(self, meta: Mapping[str, Any], tokens: int, where: str) -> Drafts | None:
        """None where it says nothing of steps: it drafts nothing then, or is too old to tell."""
        if meta.get("spec_verify_ct") is None:
            return None
        steps = count(meta["spec_verify_ct"], where, "spec_verify_ct")
        drafted = next((count(meta[name], where, name) for name in _DRAFTED if meta.get(name) is not None), None)
        accepted = next((count(meta[name], where, name) for name in _ACCEPTED if meta.get(name) is not None), None)
        if drafted is None or accepted is None:
            drafted, accepted = steps * self.k, max(0, tokens - 1 - steps)
        return drafts(drafted, accepted, where, steps)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _rows(value: Any) -> list[list[Any]]:
    """[[log-probability, id, text], …]: those of it that are so long."""
    return [one for one in _list(value) if isinstance(one, list) and len(one) > 1]
