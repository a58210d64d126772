"""Sending files to a repo of the hub, as one commit: readers see the old state or the new one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mtptools.errors import UsageError
from mtptools.hub import client
from mtptools.hub.address import Address, endpoint
from mtptools.hub.failures import failure
from mtptools.hub.outgoing import Outgoing

__all__ = ["Pushed", "push"]


@dataclass(frozen=True)
class Pushed:
    """The commit that holds what was sent; `pull_request` is its address where one was asked for."""

    commit: str
    url: str
    pull_request: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def push(outgoing: Outgoing, to: Address, *, message: str, private: bool, pull_request: bool, bars: bool) -> Pushed:
    """Send to `to.repo` at `to.revision` (its main branch). Makes what there is none of: the repo, `private` if asked,
    and the branch.

    What a run that broke off had sent is not sent again. Raises UsageError where `private` meets a public repo, and
    the errors of `mtptools.hub.failures`.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars  # type: ignore[attr-defined]

    api = HfApi(endpoint=endpoint(), library_name="mtptools")
    (enable_progress_bars if bars else disable_progress_bars)()
    try:
        _repo(api, to, private, may_make=not pull_request)
        commit = api.create_commit(
            str(to.repo),
            [CommitOperationAdd(name, str(path)) for name, path in outgoing.files.items()],
            commit_message=message,
            revision=to.revision,
            create_pr=pull_request,
        )
    except (client.transport_error(), OSError, ValueError, RuntimeError) as error:
        cause = error.__cause__ if isinstance(error, RuntimeError) else None  # one file of several failed
        raise failure(cause if isinstance(cause, Exception) else error, str(to)) from error
    return Pushed(str(commit.oid), str(commit.commit_url), commit.pr_url)


def _repo(api: Any, to: Address, private: bool, *, may_make: bool) -> None:
    """See that the repo and its branch are there, and as private as it was asked for."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        info = api.model_info(to.repo)
    except GatedRepoError:
        raise
    except RepositoryNotFoundError:
        if not may_make:
            raise
        api.create_repo(to.repo, private=private, exist_ok=True)
    else:
        if private and not info.private:
            raise UsageError("the repo is there already, and public", where=to.repo, hint="leave --private out")
    if may_make and to.revision is not None and not to.revision.startswith("refs/"):
        api.create_branch(to.repo, branch=to.revision, exist_ok=True)
