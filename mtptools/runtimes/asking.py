"""The same prompts through a runtime without MTP and with it, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from mtptools.errors import SystemFailure
from mtptools.runtimes.child import Child
from mtptools.runtimes.generation import Engine, Generation

__all__ = ["Answer", "Answers", "Watched", "ask"]

REREAD: Final = 64
"""Positions that are read again, over all prompts, and at least LEAST a prompt."""
LEAST: Final = 2
WARMING: Final = 16  # tokens, several steps of drafts: what is paid once is paid then

Say = Callable[[str], None]
Open = Callable[[], AbstractContextManager[Engine]]


@dataclass(frozen=True)
class Answer:
    """Of one prompt. plain: None where there was no run without MTP
    again: position -> log-probabilities of the runtime where it reads all before it at once
    """

    mtp: Generation
    plain: Generation | None
    again: Mapping[int, Mapping[int, float]]


@dataclass
class Answers:
    """What a runtime made of the prompts. how: of the run with MTP; how_plain: of the other, None without one."""

    name: str
    version: str
    how: str
    how_plain: str | None
    k: int
    tokens: int
    prompts: list[Answer]


class Watched:
    """An engine whose process is ours: when it dies, its last words are the error."""

    def __init__(self, engine: Engine, child: Child) -> None:
        self.inner, self.child = engine, child
        self.name, self.version, self.how = engine.name, engine.version, engine.how

    def generate(self, prompt: Sequence[int], n: int) -> Generation:
        """See `Engine`."""
        try:
            return self.inner.generate(prompt, n)
        except SystemFailure as error:
            if self.child.ended_soon():
                raise self.child.death() from error
            raise


def ask(plain: Open | None, mtp: Open, prompts: Sequence[Sequence[int]], n: int, k: int, say: Say) -> Answers:
    """n greedy tokens after each prompt (token ids), without MTP where `plain` is there, then with it.

    One run of each prompt is timed, after a warm-up. Only one of the two is open at a time. Raises what they raise, and
    SystemFailure for an answer of more tokens than were asked for.
    """
    if plain is None:
        with mtp() as engine:
            made = _all(engine, prompts, n, "with MTP", say)
            again = [_again(engine, one, len(prompts), say) for one in made]
            found = [Answer(one, None, rows) for one, rows in zip(made, again, strict=True)]
            return Answers(engine.name, engine.version, engine.how, None, k, n, found)
    with plain() as engine:
        how_plain = engine.how
        without = _all(engine, prompts, n, "without MTP", say)
        again = [_again(engine, one, len(prompts), say) for one in without]
    with mtp() as engine:
        made = _all(engine, prompts, n, "with MTP", say)
        found = [Answer(*one) for one in zip(made, without, again, strict=True)]
        return Answers(engine.name, engine.version, engine.how, how_plain, k, n, found)


def _all(engine: Engine, prompts: Sequence[Sequence[int]], n: int, which: str, say: Say) -> list[Generation]:
    engine.generate(prompts[0], min(n, WARMING))
    found = []
    for number, prompt in enumerate(prompts, 1):
        say(f"{engine.name} {which}, prompt {number} of {len(prompts)}")
        found.append(engine.generate(prompt, n))
        if len(found[-1].tokens) > n:
            raise SystemFailure(
                f"the server answers with {len(found[-1].tokens)} tokens, {n} were asked for",
                where=engine.how,
                hint="see its version and its log",
            )
    return found


def _again(engine: Engine, made: Generation, prompts: int, say: Say) -> dict[int, Mapping[int, float]]:
    """Read prefixes of its own text in one pass: other kernels than for one token, as when it verifies drafts."""
    if not any(made.top):
        return {}
    say(f"{engine.name} reads again")
    wanted = max(LEAST, REREAD // prompts)
    places = range(1, len(made.tokens), max(1, (len(made.tokens) - 1) // wanted))
    rows = {at: engine.generate([*made.prompt, *made.tokens[:at]], 1).top[0] for at in list(places)[:wanted]}
    return {at: row for at, row in rows.items() if row}
