"""The report's JSON object inside its page, and out of it again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["embed", "read_embedded"]

_OPEN: Final = '<script type="application/json" id="mtptools-report">'
_HELD: Final = re.compile(re.escape(_OPEN) + r"(.*?)</script>", re.DOTALL)
# What could end the element, or begin another: `<` as JSON may spell it, too.
_UNSAFE: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def embed(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, ensure_ascii=True, default=str, separators=(",", ":"))
    for sign, spelled in _UNSAFE.items():
        text = text.replace(sign, spelled)
    return f"{_OPEN}{text}</script>"


def read_embedded(page: str) -> Any:
    """The object of a page that `embed` is in; None when there is none. Raises ValueError when it is damaged."""
    found = _HELD.findall(page)
    return json.loads(found[-1]) if found else None
