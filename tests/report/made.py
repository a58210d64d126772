"""Reports to render: a real verification of a fixture, a runtime's part beside it, and both damaged on purpose."""

from __future__ import annotations

import copy
import io
import json
from contextlib import redirect_stdout
from functools import cache
from typing import Any

import numpy as np
import pytest

from mtptools.cli.main import main
from mtptools.runtimes.generation import Drafts, Generation
from mtptools.runtimes.grades import Comparison, Divergence
from mtptools.runtimes.noise import Noise
from mtptools.runtimes.report import Row, RuntimeReport
from tests.conftest import FIXTURES

GGUF = FIXTURES / "qwen35" / "gguf"
HOSTILE = "</script><script>alert(1)</script>|`*_[x](y)<!--\x1b[31m\u202e\u200b\ud800\x00\n&amp;\"'"


def said(*arguments: object) -> dict[str, Any]:
    """What a verb prints with --json."""
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit):
        main([*map(str, arguments), "--json"])
    data: dict[str, Any] = json.loads(out.getvalue())
    return data


@cache
def _verified() -> str:
    full = GGUF / "model-BF16.gguf"
    brief = ("--parity", "--k", "1,2", "--tokens", "10", "--limit", "3", "--probe")
    return json.dumps(said("verify", full, "--against", full, *brief))


def verification() -> dict[str, Any]:
    """All sections but one pass and the runtime."""
    data: dict[str, Any] = json.loads(_verified())
    return data


def runtime() -> dict[str, Any]:
    """As a runtime's report says it: two prompts, two comparisons, one of each grade."""

    def generation(drafts: Drafts | None, seconds: float) -> Generation:
        return Generation((1, 2), (3, 4, 5, 6), (), drafts=drafts, seconds=seconds)

    rows = [
        Row("code", generation(None, 2.0), generation(Drafts(6, 5, 3, (3, 2)), 1.0), (6, 4)),
        Row("prose", generation(None, 2.0), generation(Drafts(6, 3, 3, (2, 1)), 1.0), (6, 3)),
    ]
    noise = Noise(np.array([0.01, 0.02]), "plain and with MTP, where they agree")
    grades = ("near-tie", "router-tie", "defect", "unknown")
    places = [
        Divergence(1, at, 0.5, 0.02, grade, "before\nit", " the", " a", (7, 8)) for at, grade in enumerate(grades)
    ]
    report = RuntimeReport("llama.cpp", "build 1", "llama-server --spec-type draft-mtp", "llama-server", 2, 4, rows)
    report.comparisons = [
        Comparison("with MTP", "plain", True, noise, 8, 0.1, places),
        Comparison("plain", "our decoder", False, noise, 8, 0.1, []),
    ]
    report.notes = ["one note"]
    said: dict[str, Any] = json.loads(json.dumps(report.to_json()))  # tuples become lists
    return said


def whole() -> dict[str, Any]:
    """With a runtime's part, and with one arm of parity that differs."""
    data = verification()
    data["runtime"] = runtime()
    arm = data["decoder"]["parity"]["arms"][0]
    context = {"before": [1, 2], "plain": [3], "other": [4], "text": ["Once upon\n", " a time", " the"]}
    arm.update(equal=False, first_difference=3, same_tokens=False, margin=0.01, max_difference=1e-6, context=context)
    data["decoder"]["parity"]["equal"] = False
    data["failures"] = ["L2 parity: prompt 1 differs", *data["runtime"]["failures"]]
    data["ok"] = False
    return data


def hostile(data: dict[str, Any]) -> dict[str, Any]:
    """Every text of strangers and every name in it is one that tries to be markup. Words that are looked up stay."""
    kept = {"verdict", "severity", "grade", "device", "dtype", "dialect"}

    def changed(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            names = key in ("categories", "types", "actions", "drafts")
            return {(HOSTILE + str(k) if names else k): changed(v, str(k)) for k, v in value.items()}
        if isinstance(value, list):
            return [changed(one, "") for one in value]
        return HOSTILE + value if isinstance(value, str) and key not in kept else value

    out: dict[str, Any] = changed(copy.deepcopy(data), "")
    for arm, known in zip(out["decoder"]["parity"]["arms"], data["decoder"]["parity"]["arms"], strict=True):
        arm["arm"] = known["arm"] + HOSTILE
    return out
