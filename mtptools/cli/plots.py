"""Where a picture goes, found out before the work and not after it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from mtptools.errors import SystemFailure

__all__ = ["check_plot_place"]


def check_plot_place(path: Path) -> None:
    """Raises UsageError (no such kind of picture), MissingExtraError, SystemFailure (it cannot be written there)."""
    from mtptools.report.plot import check_plot

    check_plot(path)
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise SystemFailure(
            f"a plot cannot be written there: {error.strerror or error}",
            where=path,
            hint=f"--plot {path.stem or 'plot'}{path.suffix}",
        ) from error
