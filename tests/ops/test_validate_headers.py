"""validate on config.json and the index alone, on facts of real releases; and the defects real releases have had."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures import releases
from mtptools.checkpoint import open_declared
from mtptools.errors import CorruptError, NotACheckpointError, UnknownFamilyError
from mtptools.ops.validate import CHECKS, Result, validate

Config = dict[str, Any]


@pytest.fixture
def headers(tmp_path: Path) -> Callable[..., Path]:
    """A folder with config.json and an index of the head's names, no weights: (release, names kept, edit) -> folder."""

    def make(
        key: str, *, names: list[str] | None = None, edit: Callable[[Config], None] | None = None, size: int = 1
    ) -> Path:
        release = releases.load(key)
        config = json.loads(json.dumps(release.config))
        if edit is not None:
            edit(config)
        (tmp_path / "config.json").write_text(json.dumps(config))
        listed = list(release.head) if names is None else names
        index = {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(listed, "model-00001.safetensors")}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        return tmp_path

    return make


def judged(path: Path) -> Result:
    return validate(open_declared(path))


def errors(result: Result) -> set[str]:
    # The index here lists the head alone: the trunk's absence is no news.
    return {f.check for f in result.findings if f.severity == "error"} - {"tensor-missing"}


def test_needs_levels_are_told(headers: Callable[..., Path]) -> None:
    result = judged(headers("deepseek-v3"))
    assert not errors(result)
    assert set(result.passed) | {f.check for f in result.findings} | set(result.skipped) == {c.id for c in CHECKS}
    assert {"tensor-shape", "trunk-norms", "head-values"} <= set(result.skipped)
    assert "1 MTP layer(s) declared, 1 there" in result.head


def test_no_head_is_no_error(headers: Callable[..., Path]) -> None:
    result = judged(headers("qwen3-32b", names=["model.embed_tokens.weight"]))
    assert result.ok
    assert result.head.startswith("no head")


def test_unknown_architecture_with_a_head_is_an_error(headers: Callable[..., Path]) -> None:
    with pytest.raises(UnknownFamilyError):
        judged(headers("qwen3-32b", names=["mtp.fc.weight"]))
    with pytest.raises(UnknownFamilyError):
        judged(headers("qwen3-32b", names=[], edit=lambda c: c.update(num_nextn_predict_layers=1)))


@pytest.mark.parametrize("key", ["deepseek-v3", "glm-4.5-air", "qwen3.5-27b", "deepseek-v4-flash"])
def test_declares_one_ships_none(headers: Callable[..., Path], key: str) -> None:
    result = judged(headers(key, names=["lm_head.weight"]))
    assert errors(result) == {"head-declared-missing"}


def test_never_shipped(headers: Callable[..., Path]) -> None:
    result = judged(headers("minimax-m2.5", names=["lm_head.weight"]))
    finding = next(f for f in result.findings if f.check == "head-declared-missing")
    assert "no release of" in finding.evidence


@pytest.mark.parametrize("value", [0, None, ...])
def test_weights_without_a_declaration(headers: Callable[..., Path], value: Any) -> None:
    """0 (GLM-OCR), null, and no word at all."""

    def edit(config: Config) -> None:
        del config["num_nextn_predict_layers"]
        if value is not ...:
            config["num_nextn_predict_layers"] = value

    result = judged(headers("deepseek-v3", edit=edit))
    assert errors(result) == {"head-undeclared"}
    assert "0, null or absent" in next(f.evidence for f in result.findings if f.check == "head-undeclared")


def test_a_family_that_never_declares(headers: Callable[..., Path]) -> None:
    result = judged(headers("qwen3-next-80b-a3b"))
    assert not errors(result)


def test_depth_at_the_wrong_level(headers: Callable[..., Path]) -> None:
    def outside(config: Config) -> None:
        config["mtp_num_hidden_layers"] = config["text_config"].pop("mtp_num_hidden_layers")

    finding = next(f for f in judged(headers("qwen3.5-27b", edit=outside)).findings if f.check == "depth-place")
    assert "text_config.mtp_num_hidden_layers = 1" in finding.fix

    def both(config: Config) -> None:
        config["mtp_num_hidden_layers"] = 3

    assert errors(judged(headers("qwen3.5-27b", edit=both))) == {"depth-place"}


def test_total_size_zero(headers: Callable[..., Path]) -> None:
    assert errors(judged(headers("deepseek-v3", size=0))) == {"index-size"}


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("deepseek-v4-flash", "compress_ratios"),
        ("mimo-v2-flash", "hybrid_layer_pattern"),
        ("qwen3.5-27b", "layer_types"),
    ],
)
def test_a_list_one_short(headers: Callable[..., Path], key: str, name: str) -> None:
    """A sliding-window pattern one short silently turns the last layer into full attention."""

    def edit(config: Config) -> None:
        text = config.get("text_config", config)
        text[name] = text[name][:-1]

    if name == "layer_types":  # nothing can be said of a trunk whose layers are not known
        with pytest.raises(CorruptError, match="63 of 64 layers"):
            judged(headers(key, edit=edit))
        return
    result = judged(headers(key, edit=edit))
    assert errors(result) == {"layer-lists"}, result.findings
    assert name in next(f.what for f in result.findings if f.check == "layer-lists")


def test_dspark_is_named(headers: Callable[..., Path]) -> None:
    result = judged(headers("deepseek-v4-flash-0731-dspark"))
    assert "head-not-mtp" in errors(result)
    assert "DSpark" in next(f.what for f in result.findings if f.check == "head-not-mtp")


def test_config_alone(headers: Callable[..., Path]) -> None:
    folder = headers("deepseek-v3")
    (folder / "model.safetensors.index.json").unlink()
    result = judged(folder / "config.json")
    assert result.ok
    assert "1 MTP layer(s) declared" in result.head
    assert "head-declared-missing" in result.skipped


def test_nothing_at_all(tmp_path: Path) -> None:
    with pytest.raises(NotACheckpointError):
        open_declared(tmp_path)
