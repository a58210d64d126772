"""HTTP as huggingface_hub does it: its client (proxies, certificates, offline mode), its token, its errors."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from mtptools import __version__
from mtptools.hub.address import endpoint

__all__ = ["TIMEOUT", "headers", "offline", "origin", "session", "transport_error"]

TIMEOUT: Final = (10.0, 30.0, 30.0, None)  # seconds to connect, to read, to write, and to wait for a free connection


def session() -> Any:
    """huggingface_hub's client: an `httpx.Client`, of whichever package it uses."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    return get_session()


def transport_error() -> type[Exception]:
    """The base of what that client raises when the network fails."""
    from huggingface_hub import errors

    return errors.HTTPError  # type: ignore[attr-defined]


def offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def headers(url: str) -> dict[str, str]:
    """Headers for a request to `url`. The token goes to the hub's endpoint and to nobody else."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    ours = origin(url) == origin(endpoint())
    made = build_hf_headers(token=None if ours else False, library_name="mtptools", library_version=__version__)
    return {**made, "Accept-Encoding": "identity"}  # the bytes that are stored, not a compressed form of them
