"""Which engine runs a search: numpy, or its twin compiled by numba, which gives the same bytes."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Literal

__all__ = ["Engine", "twin"]

Engine = Literal["numpy", "numba"]


@cache
def twin(name: str, engine: Engine | None) -> ModuleType | None:
    """The compiled twin of a module of this package; None where numpy is asked for, or numba cannot be had.

    engine  None: numba where it can be imported. Raises ImportError where it was asked for and cannot.
    """
    if engine == "numpy":
        return None
    try:
        return import_module(f"mtptools.codecs.{name}")
    except ImportError:  # not installed, or not for this numpy
        if engine == "numba":
            raise
        return None
