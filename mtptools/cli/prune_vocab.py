"""mtptools prune-vocab"""

from __future__ import annotations

from pathlib import Path

import click

from mtptools.cli.options import NO_OUTPUT, PATH, Writing, examples, link_option, may_write_options
from mtptools.cli.prune_options import Keeping, Trying, keep_options, require_used, trial_options
from mtptools.errors import UsageError

__all__ = ["command"]


@click.command(
    epilog=examples(
        "mtptools prune-vocab model.gguf --corpus code=src --corpus zh=zh.txt --plot coverage.svg",
        "mtptools prune-vocab model.gguf -o head.gguf --sidecar --size auto --corpus code=src --corpus en=books.jsonl",
        "mtptools prune-vocab model.gguf -o out.gguf --size 64k --from-model prompts.jsonl --max-loss 2",
        "mtptools prune-vocab ./Qwen3.6-27B -o hot.pt --map-only --to sglang --size 64k --corpus chats.jsonl",
        "mtptools prune-vocab ./Qwen3.6-27B -o ids.txt --map-only --to ids --ids pruned.gguf --as-given",
        "mtptools prune-vocab pruned.gguf -o whole.gguf --restore model.gguf",
    )
)
@click.argument("source", metavar="SRC", type=PATH)
@keep_options
@click.option("--sidecar", is_flag=True, help="Of a GGUF with its trunk, write the head alone.")
@click.option("--keep-embeddings", is_flag=True, help="Keep the head's embedding though it is a copy of the trunk's.")
@click.option("--map-only", is_flag=True, help="Write the list of tokens, no checkpoint.")
@click.option(
    "--to",
    "to",
    type=click.Choice(["ids", "json", "npy", "sglang", "eagle3"]),
    help="Format of --map-only. [default: by the suffix of -o]",
)
@click.option("--restore", type=PATH, metavar="DONOR", help="Undo: give a pruned SRC back what DONOR drafts with.")
@trial_options
@link_option
@may_write_options
def command(
    source: Path,
    keeping: Keeping,
    trying: Trying,
    sidecar: bool,
    keep_embeddings: bool,
    map_only: bool,
    to: str | None,
    restore: Path | None,
    link: bool,
    writing: Writing,
) -> int:
    """Let the head of SRC draft over some tokens only: a smaller, faster head, and the same output.

    Without -o it says what a vocabulary would cover. Coverage is of held-out text, domain by domain; what decides is
    acceptance: --measure, or --max-loss. Released runtimes load few of the results: each says which.
    """
    from mtptools.cli.pruning import prune, restored, write_map

    if writing.out == NO_OUTPUT and (writing.verify or writing.dry_run or map_only or restore is not None):
        raise UsageError("no output was given", where="-o", hint="-o OUT; coverage and acceptance can do without")
    require_used(keeping, trying, restore=restore is not None, map_only=map_only)
    if restore is not None:
        return restored(source, restore, writing, link=link)
    if map_only:
        return write_map(source, keeping, trying, to, writing)
    return prune(source, keeping, trying, writing, sidecar=sidecar, keep_embeddings=keep_embeddings, link=link)
