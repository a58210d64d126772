"""mtptools check"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mtptools.cli.check_asked import RUN, SHARED, artifacts, given
from mtptools.cli.check_outputs import prepare, publish
from mtptools.cli.check_settings import FILE_NAME, Settings, read_settings
from mtptools.cli.checking import check, judge
from mtptools.cli.options import PATH, examples, output_options
from mtptools.cli.output import emit, note, on_terminal
from mtptools.errors import SystemFailure, UsageError
from mtptools.report.escape import visible
from mtptools.report.gate import Gate

__all__ = ["command"]


@click.command(
    epilog=examples(
        "mtptools check out.gguf --against donor.gguf",
        "mtptools check out.gguf --trunk trunk.gguf --baseline donor.json --min-acceptance 95%",
        "mtptools check ./release            # what release/mtptools.toml says",
        "mtptools check a-Q4_K_M.gguf a-Q8_0.gguf --against donor.gguf --junit check.xml",
        "mtptools check huge.gguf --stream --text wiki.txt",
        "mtptools check out.gguf --static    # headers and digests alone",
    ),
)
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=PATH)
@click.option("--config", type=PATH, help=f"Settings. [default: {FILE_NAME} beside each PATH, if it is there]")
@click.option("--static", is_flag=True, help="L0 and L1 alone: nothing is decoded.")
@click.option("--junit", type=PATH, help="Write JUnit XML here, one test suite an artifact.")
@click.option("--report", type=PATH, help="Write what --json prints here.")
@output_options
def command(
    paths: tuple[Path, ...], config: Path | None, as_json: bool, quiet: bool, verbose: bool, **shared: Any
) -> int:
    """Gate a publish: one verdict on one artifact or several, in its first line. Exit code 0, 1, 8 or an error's.

    Runs `verify --parity` on every PATH, or --stream, or --static: lineage, static checks, parity, acceptance against
    --against or --baseline, controls, and with --runtime a real runtime. Flags are those of verify; mtptools.toml
    keeps them, key by key, and [[artifact]] tables what is one file's own. Without a PATH, the current folder's.

    In GitHub Actions faults become annotations, and the step gets a summary.
    """
    flags = given(click.get_current_context())
    told = _read(config) if config is not None else None
    asked, files = artifacts(_places(paths, told), flags, told, _beside)
    places = {key: Path(str(value)) for key, value in {**files, **flags}.items() if key in RUN}
    for one in asked:
        judge(one)
    prepare(places, [path for one in asked for path in one.files])
    checked = []
    for number, one in enumerate(asked, 1):
        note(f"{number} of {len(asked)}: {one.path}", quiet=quiet or not on_terminal())
        checked.append(check(one))
    gate = Gate(checked)
    emit(gate.to_json(), gate.render(verbose=verbose), as_json=as_json, quiet=quiet)
    unwritten = publish(gate, junit=places.get("junit"), report=places.get("report"))
    for error in unwritten:
        note(f"error: {visible(error)}\nhint: {error.hint}")
    return gate.exit_code or (SystemFailure.exit_code if unwritten else 0)


def _read(file: Path) -> Settings:
    own = [param for param in command.params if isinstance(param, click.Option) and param.name in ("static", *RUN)]
    return read_settings(file, {max(one.opts, key=len).removeprefix("--"): one for one in (*SHARED, *own)}, RUN)


def _beside(file: Path) -> Settings:
    return _read(file) if file.is_file() else Settings()


def _places(paths: tuple[Path, ...], told: Settings | None) -> list[str]:
    """Every PATH, or the folder of the settings. Raises UsageError when there is neither."""
    if not paths and told is None and not Path(FILE_NAME).is_file():
        hint = "mtptools check out.gguf --against donor.gguf"
        raise UsageError(f"no PATH, and no {FILE_NAME} in this folder", hint=hint)
    own = told.file.parent if told is not None and told.file is not None else Path()
    return [str(path) for path in paths or (own,)]


command.params += SHARED
