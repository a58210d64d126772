"""mtptools completion"""

from __future__ import annotations

from typing import Any, Final

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from mtptools.cli.options import examples, output_options
from mtptools.cli.output import emit, stream

__all__ = ["command"]

# Each asks for the answers to the words before the cursor, one a line: what kind, what, and what it is for.
# "checkpoint" is a model file or a folder; "file" any file.
_BASH: Final = r"""%(complete_func)s() {
    local kind value help word="${COMP_WORDS[COMP_CWORD]}"
    COMPREPLY=()
    while IFS=$'\t' read -r kind value help; do
        case $kind in
            plain) COMPREPLY+=("$value") ;;
            dir) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
            file) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
            checkpoint)
                compopt -o filenames
                mapfile -t COMPREPLY < <(
                    compgen -d -- "$word"
                    compgen -f -X '!*.gguf' -- "$word"
                    compgen -f -X '!*.safetensors' -- "$word"
                ) ;;
        esac
    done < <(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD "$1" completion bash --answer 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""
_ZSH: Final = r"""#compdef %(prog_name)s
%(complete_func)s() {
    local line kind value help
    local -a answers plain described
    answers=("${(@f)$(
        COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) $words[1] completion zsh --answer 2>/dev/null
    )}")
    for line in $answers; do
        kind=${line%%%%$'\t'*} value=${${line#*$'\t'}%%%%$'\t'*} help=${line##*$'\t'}
        case $kind in
            plain) if [[ -n $help ]]; then described+=("${value//:/\\:}:$help"); else plain+=("$value"); fi ;;
            dir) _path_files -/ ;;
            file) _path_files -f ;;
            checkpoint) _path_files -g '*.(gguf|safetensors)(-.)'; _path_files -/ ;;
        esac
    done
    (( $#described )) && _describe -V unsorted described -U
    (( $#plain )) && compadd -U -V unsorted -a plain
    return 0
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""
_FISH: Final = r"""function %(complete_func)s
    set -l word (commandline -ct)
    for line in (COMP_WORDS=(commandline -cp) COMP_CWORD=$word %(prog_name)s completion fish --answer 2>/dev/null)
        set -l part (string split \t -- $line)
        switch $part[1]
            case plain
                printf '%%s\t%%s\n' $part[2] $part[3]
            case dir
                __fish_complete_directories $word
            case file
                __fish_complete_path $word
            case checkpoint
                __fish_complete_directories $word
                for path in (__fish_complete_path $word)
                    string match -rq '\.(gguf|safetensors)(\t|$)' -- $path; and echo $path
                end
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class _Tabbed(ShellComplete):
    def format_completion(self, item: CompletionItem[Any]) -> str:
        return f"{item.type}\t{item.value}\t{' '.join((item.help or '').split())}"


class _Bash(_Tabbed, BashComplete):
    source_template = _BASH


class _Zsh(_Tabbed, ZshComplete):
    source_template = _ZSH


class _Fish(_Tabbed, FishComplete):
    source_template = _FISH


SHELLS: Final[dict[str, type[ShellComplete]]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


@click.command(
    epilog=examples(
        "mtptools completion bash > ~/.local/share/bash-completion/completions/mtptools",
        'mtptools completion zsh > "${fpath[1]}/_mtptools"',
        "mtptools completion fish > ~/.config/fish/completions/mtptools.fish",
    )
)
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.option("--answer", is_flag=True, hidden=True)
@output_options
def command(shell: str, answer: bool, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Print the script that completes verbs, options, their values, and model files in a shell.

    Save it where the shell looks for such scripts, as below, and start a new shell.
    """
    from mtptools.cli.main import cli

    asked = SHELLS[shell](cli, {}, "mtptools", "_MTPTOOLS_COMPLETE")
    if answer:  # what the script itself calls; the words before the cursor stand in the environment
        stream(f"{asked.complete()}\n")
        return
    script = asked.source_template % asked.source_vars()
    emit({"shell": shell, "script": script}, script.removesuffix("\n"), as_json=as_json, quiet=quiet)
