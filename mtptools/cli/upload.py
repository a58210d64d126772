"""mtptools upload"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mtptools.cli.options import PATH, examples, output_options
from mtptools.cli.output import emit, note, on_terminal, table

if TYPE_CHECKING:
    from mtptools.hub import Address
    from mtptools.hub.outgoing import Outgoing

__all__ = ["command"]


@click.command(
    epilog=examples(
        "mtptools upload ./grafted user/repo --dry-run",
        "mtptools upload model-MTP.gguf user/repo --private",
        "mtptools upload ./grafted user/repo@v2 --message 'MTP head of the base model' --yes",
    )
)
@click.argument("out", type=PATH)
@click.argument("repo")
@click.option("--private", is_flag=True, help="Make the repo private, where it is not there yet.")
@click.option("--message", default="Upload by mtptools", show_default=True, help="What the commit says.")
@click.option("--create-pr", is_flag=True, help="Propose the files as a pull request.")
@click.option("--dry-run", is_flag=True, help="List files and bytes, and send nothing.")
@click.option("--yes", is_flag=True, help="Send without asking; needed where nobody can be asked.")
@output_options
def command(
    out: Path,
    repo: str,
    private: bool,
    message: str,
    create_pr: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Send an output to a hub, as one commit.

    OUT is a folder, or a weight file: its shards and its receipt go along. REPO is user/repo or user/repo@branch;
    both are made where there are none. What is there under other names stays. A run that broke off goes on.
    """
    from mtptools.errors import UsageError
    from mtptools.hub.outgoing import gather

    to = _repo_of(repo)
    if not message.strip():
        raise UsageError("the commit's message is empty", hint="--message 'MTP head of the base model'")
    outgoing = gather(out)
    record = {"repo": to.repo, "revision": to.revision, **outgoing.to_json()}
    if dry_run:
        emit(
            {**record, "sent": None},
            f"{_listed(outgoing, to)}\ndry run: nothing was sent",
            as_json=as_json,
            quiet=quiet,
        )
        return 0
    note(_listed(outgoing, to), quiet=quiet and yes)
    _ask(to, outgoing, yes)
    from mtptools.hub.push import push

    bars = on_terminal() and not quiet
    sent = push(outgoing, to, message=message, private=private, pull_request=create_pr, bars=bars)
    where = sent.pull_request or sent.url
    emit({**record, "sent": sent.to_json()}, f"sent: {where}", as_json=as_json, quiet=quiet)
    if verbose:
        note(f"commit {sent.commit}; check it: mtptools inspect {to.repo}@{sent.commit}")
    return 0


def _repo_of(text: str) -> Address:
    from mtptools.errors import UsageError
    from mtptools.hub import parse
    from mtptools.hub.repo import COMMIT

    to = parse(text if ":/" in text else f"hf://{text}")  # a folder of that name may be here as well
    if to is None or to.repo is None or to.file or to.tag:
        raise UsageError("not the name of a repo", where=text, hint="user/repo, or user/repo@branch")
    if to.revision is not None and COMMIT.fullmatch(to.revision):
        raise UsageError("a commit stays as it is", where=text, hint=f"{to.repo}, or {to.repo}@branch")
    return to


def _listed(outgoing: Outgoing, to: Address) -> str:
    from mtptools.plan import human_bytes

    rows = [(name, human_bytes(size)) for name, size in outgoing.sizes.items()]
    total = f"{len(rows)} files, {human_bytes(outgoing.nbytes)}, to {to}"
    return f"{table(rows, indent='  ')}\n{total}"


def _ask(to: Address, outgoing: Outgoing, yes: bool) -> None:
    """Nothing leaves this machine unless somebody said so."""
    from mtptools.errors import UsageError

    if yes:
        return
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise UsageError("nobody to ask: nothing was sent", where=to, hint="look with --dry-run, then add --yes")
    click.confirm(f"send {len(outgoing.files)} files to {to}?", abort=True, err=True)
