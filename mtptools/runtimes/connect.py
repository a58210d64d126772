"""Which kind of server is at an address, and does it serve what was asked for?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mtptools.errors import SystemFailure
from mtptools.runtimes.client import Client
from mtptools.runtimes.generation import Engine
from mtptools.runtimes.llama_api import LlamaServer
from mtptools.runtimes.openai_api import OpenAiServer
from mtptools.runtimes.sglang_api import SglangServer

__all__ = ["connect"]


def connect(
    client: Client,
    *,
    vocabulary: int,
    decode: Callable[[Sequence[int]], str],
    k: int,
    model: str | None = None,
    how: str | None = None,
) -> Engine:
    """The server at an address: llama-server and SGLang by their own API, whatever else by OpenAI's.

    vocabulary  number of token ids of the checkpoint;  decode  its tokenizer
    model       the name it must serve; None: the one it serves

    Raises SystemFailure: no server, none of these, another model, another vocabulary.
    """
    listed = client.get("/v1/models")
    models = listed.get("data") if isinstance(listed, dict) else None
    models = [one for one in models if isinstance(one, dict)] if isinstance(models, list) else []
    if not models:
        raise client.failure("/v1/models", "the server lists no model", "is this the address of its API?")
    served = _served(models, model, client)
    how = how or client.base
    owner = str(served.get("owned_by", ""))
    if owner == "llamacpp":
        meta = served.get("meta")
        _same_size(meta.get("n_vocab") if isinstance(meta, dict) else None, vocabulary, client)
        return LlamaServer(client, how, vocabulary, decode)
    if owner == "sglang":
        return SglangServer(client, how, vocabulary, k)
    name = "vLLM" if owner == "vllm" else "OpenAI-compatible"
    return OpenAiServer(client, how, vocabulary, str(served["id"]), name)


def _served(models: list[dict[str, Any]], asked: str | None, client: Client) -> dict[str, Any]:
    names = [str(one.get("id")) for one in models]
    shown = ", ".join(names[:8])
    if asked is None and len(models) > 1:
        raise SystemFailure(f"it serves {shown}", where=client.base, hint=f"--runtime-model {names[0]}")
    if asked is not None and asked not in names:
        raise SystemFailure(
            f"it does not serve {asked} but {shown}", where=client.base, hint=f"--runtime-model {names[0]}"
        )
    found = models[0 if asked is None else names.index(asked)]
    if not isinstance(found.get("id"), str):
        raise SystemFailure("it serves a model without a name", where=client.base, hint="see the server's log")
    return found


def _same_size(told: Any, vocabulary: int, client: Client) -> None:
    if isinstance(told, int) and told != vocabulary:
        raise SystemFailure(
            f"it serves a model of {told} tokens, the checkpoint has {vocabulary}: another model",
            where=client.base,
            hint="start it with this checkpoint, or give the checkpoint that it serves",
        )
