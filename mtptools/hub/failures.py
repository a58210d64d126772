"""What huggingface_hub and the network raise, as errors that say what to type next."""

from __future__ import annotations

from typing import Any, Final

from mtptools.errors import InputError, MtpToolsError, NotACheckpointError, SystemFailure
from mtptools.hub import client
from mtptools.hub.address import endpoint

__all__ = ["AGAIN", "failure", "raise_for", "unwritable"]

AGAIN: Final = "run the same command again: what has arrived is kept"
LOGIN: Final = "hf auth login, or set HF_TOKEN"


def raise_for(response: Any, address: str) -> None:
    """Raise the error that a response of the hub is. Its body must not have been read."""
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    try:
        response.read()
        hf_raise_for_status(response)
    except Exception as error:
        raise failure(error, address) from error


def failure(error: Exception, address: str) -> MtpToolsError:
    """The error of ours that one of huggingface_hub's, or of its client's, stands for."""
    from huggingface_hub import errors

    if isinstance(error, MtpToolsError):
        return error
    repo = address.removeprefix("hf://").split("@")[0].split(":")[0]
    repo = "/".join(repo.split("/")[:2])
    status = getattr(getattr(error, "response", None), "status_code", None)
    if address.startswith(("http:", "https:")) and status in (401, 403):
        return SystemFailure(
            f"the server refuses the file ({status})", where=address, hint="give an address that opens without a login"
        )
    if isinstance(error, errors.OfflineModeIsEnabled):
        return SystemFailure(
            "not in the cache, and HF_HUB_OFFLINE is set", where=address, hint="unset HF_HUB_OFFLINE, then try again"
        )
    if isinstance(error, errors.GatedRepoError):
        return InputError(
            "the repo is gated: its owner lets in who accepts the conditions",
            where=address,
            hint=f"accept them at {endpoint()}/{repo}, then {LOGIN}",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return NotACheckpointError(
            "the repo has no such revision", where=address, hint="give a branch, a tag or a commit: user/repo@REVISION"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return NotACheckpointError(
            "no such path here, and no such repo on the hub (or it is private)",
            where=address,
            hint=f"check the name; for a private repo: {LOGIN}",
        )
    if isinstance(error, errors.EntryNotFoundError):
        return NotACheckpointError("the repo has no such file", where=address, hint="mtptools inspect user/repo")
    if isinstance(error, errors.HFValidationError):
        return NotACheckpointError("neither a path here nor a repo's name", where=address, hint="user/repo")
    if isinstance(error, errors.LocalTokenNotFoundError) or status == 401:
        return SystemFailure("the hub refuses the token, or wants one", where=address, hint=LOGIN)
    if status == 403:
        return SystemFailure("the token may not do this", where=address, hint=f"take one that may: {LOGIN}")
    if status == 404:
        return NotACheckpointError("not found on the server", where=address, hint="check the address")
    if status == 429:
        return SystemFailure("the server refuses more requests for now", where=address, hint=f"wait, then {AGAIN}")
    if status is not None:
        return SystemFailure(f"the server answers {status}", where=address, hint=AGAIN)
    if not isinstance(error, (client.transport_error(), OSError)):  # a page of a proxy in place of an answer
        return SystemFailure(
            f"huggingface_hub fails: {type(error).__name__}, {_short(error)}", where=address, hint="check HF_ENDPOINT"
        )
    if isinstance(error, OSError) and error.filename:  # of a file that is sent
        return SystemFailure(f"cannot read: {error.strerror}", where=error.filename)
    return SystemFailure(f"the network fails: {_short(error)}", where=address, hint=AGAIN)


def unwritable(error: OSError, where: object) -> SystemFailure:
    """The cache cannot be written."""
    return SystemFailure(
        f"cannot write: {error.strerror or error}",
        where=error.filename or where,
        hint="MTPTOOLS_CACHE=/another/disk mtptools …",
    )


def _short(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
