"""Does a prompt fit the model? Asked before weights are loaded, and again where something is decoded."""

from __future__ import annotations

from mtptools.errors import UsageError

__all__ = ["check_room"]


def check_room(prompt: int, more: int, longest: int) -> None:
    """Tokens of a prompt, and to be decoded after it, in a model's context; 0 where that is not stated.

    Raises UsageError.
    """
    if not prompt:
        raise UsageError("the prompt is empty: there is no token to go on from", hint="give a prompt of some text")
    if longest and prompt + more > longest:
        raise UsageError(
            f"a prompt of {prompt} tokens and {more} more do not fit the model's context of {longest}",
            hint="a shorter prompt, or fewer --tokens",
        )
