"""Any JSON at all in the place of a config, a tokenizer or a receipt: a result, or one of the tool's own errors."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtptools.checkpoint import open_checkpoint
from mtptools.errors import MtpToolsError
from mtptools.ops.inspect import inspect
from mtptools.ops.lineage import lineage
from mtptools.ops.validate import validate
from mtptools.receipt import FOLDER_NAME, RECEIPT_KEY, load_beside, load_inside
from mtptools.tokens import tokenizer_facts
from tests.test_malformed import BESIDE, HF, INSIDE, LINEAR, MOE, bare, tokenizer

ANY: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", LINEAR, "\ud800", 64, 64.0, 10**30, -1])
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value of a JSON tree stands."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [at, *(place for key, value in items for place in places(value, (*at, key)))]


def replaced(tree: Any, at: tuple[Any, ...], value: Any) -> Any:
    if not at:
        return value
    copy = tree.copy()
    copy[at[0]] = replaced(tree[at[0]], at[1:], value)
    return copy


def spoiled(tree: Any, more: tuple[str, ...] = ()) -> Any:
    """Strategy: the tree with some of its values replaced by any JSON, or some of the keys `more` added."""
    once = st.tuples(st.sampled_from(places(tree)[1:]), ANY).map(lambda pair: replaced(tree, *pair))
    added = st.dictionaries(st.sampled_from(more or ("x",)), ANY, max_size=2)
    return st.tuples(once | ANY, added).map(lambda pair: pair[0] | pair[1] if isinstance(pair[0], dict) else pair[0])


def result_or_error(path: Path, *checks: Callable[[Any], Any]) -> None:
    """Each check gives a result or one of the tool's own errors; pytest shows anything else."""
    for check in checks:
        with contextlib.suppress(MtpToolsError):
            check(open_checkpoint(path))


OPTIONAL = ("text_config", "quantization_config", "rope_theta", "partial_rotary_factor", "model_type")


@pytest.fixture(scope="module")
def playgrounds(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    return {hf: shutil.copytree(hf, tmp_path_factory.mktemp("any") / "hf") for hf in (HF, MOE)}


@pytest.mark.parametrize("source", [HF, MOE], ids=["dense", "moe"])
def test_any_config(source: Path, playgrounds: dict[Path, Path]) -> None:
    folder = playgrounds[source]

    @FUZZ
    @given(tree=spoiled(json.loads((source / "config.json").read_text()), OPTIONAL))
    def check(tree: Any) -> None:
        (folder / "config.json").write_text(json.dumps(tree))
        result_or_error(folder, inspect, validate)

    check()


@FUZZ
@given(tree=spoiled(tokenizer(), ("model", "added_tokens")), number=st.uuids())
def test_any_tokenizer(tree: Any, number: object, tmp_path: Path) -> None:
    folder = tmp_path / str(number)
    folder.mkdir(exist_ok=True)
    shutil.copy(HF / "config.json", folder)
    bare(folder, "w")
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    result_or_error(folder, tokenizer_facts, inspect, validate)


@FUZZ
@given(inside=spoiled(INSIDE), beside=spoiled(BESIDE))
def test_any_receipt(inside: Any, beside: Any, tmp_path: Path) -> None:
    shutil.copy(HF / "config.json", tmp_path)
    bare(tmp_path, "w", {RECEIPT_KEY: json.dumps(inside)})
    result_or_error(tmp_path, load_inside, inspect, validate, lineage)
    (tmp_path / FOLDER_NAME).write_text(json.dumps(beside))
    result_or_error(tmp_path, load_beside, lineage)
