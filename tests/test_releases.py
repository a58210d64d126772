"""The compact facts in fixtures/releases: they expand to what real files list, and to nothing contradictory."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import pytest
from safetensors import safe_open

from fixtures import releases

KEYS: list[str] = releases.names()
REAL = Path(__file__).parents[2] / "shared" / "real"
real = pytest.mark.skipif(not REAL.is_dir(), reason="needs the shared folder of real configs and tensor lists")
EVIDENCE = {"real", "runtime", "inferred"}
DEPTH_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
UNORDERED = ("ignore", "exclude_modules")


def naming(field: str) -> list[str]:
    """The releases that say which real file they stand for."""
    return [key for key in KEYS if field in releases.load(key).facts]


def excerpt(whole: Any, part: Any) -> Any:
    """`whole`, reduced to the keys that `part` has."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return {key: excerpt(whole[key], value) for key, value in part.items()}
    return whole


def in_order(config: Any) -> Any:
    """`config` with its lists of quantization patterns sorted: their order means nothing."""
    if not isinstance(config, dict):
        return config
    return {key: sorted(value) if key in UNORDERED else in_order(value) for key, value in config.items()}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("plain", ["plain"]),
        ("a.{0..2}.b", ["a.0.b", "a.1.b", "a.2.b"]),
        ("{0..8..4,9}", ["0", "4", "8", "9"]),
        ("{0..1}.{x,y}", ["0.x", "0.y", "1.x", "1.y"]),
    ],
)
def test_patterns(pattern: str, expected: list[str]) -> None:
    assert releases.expand_name(pattern) == expected


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a\.1 is given twice"):
        releases.expand({"a.{0..2}": ["F32", [1]], "a.1": ["F32", [1]]})


@pytest.mark.parametrize("key", KEYS)
def test_fields(key: str) -> None:
    release = releases.load(key)
    facts = release.facts
    assert facts["evidence"] in EVIDENCE
    assert facts["sources"]
    assert facts["config_source"]
    assert facts["ships"] is bool(release.head)
    assert {spec.dtype for spec in (*release.head.values(), *release.trunk.values())} <= set(releases.SAFETENSORS_BYTES)
    assert not release.gguf or facts["gguf_sources"]
    places = (release.config, release.config.get("text_config", {}))
    declared = [place[name] for place in places for name in DEPTH_KEYS if name in place]
    assert declared == ([] if facts["declares"] is None else [facts["declares"]])


@pytest.mark.parametrize("key", KEYS)
def test_scales_fit_their_weights(key: str) -> None:
    """128x128 blocks, rows, or groups of 32: a scale that fits no rule is a slip of the pen."""
    head = releases.load(key).head
    for name, scale in head.items():
        if not (kind := re.search(r"\.(scale|weight_scale|weight_scale_inv)$", name)):
            continue
        stem = name[: kind.start()]
        weight = head.get(f"{stem}.weight") or head[f"{stem}.weight_packed"]
        rows, columns = weight.shape
        allowed = {
            "F8_E4M3": [(-(-rows // 128), -(-columns // 128)), (rows, 1)],
            "I8": [(rows, 2 * columns // 32)],
            "U8": [(rows, 2 * columns // 32)],
        }
        assert scale.shape in allowed[weight.dtype], name


@pytest.mark.parametrize("key", [key for key in KEYS if releases.load(key).head])
def test_folder_is_readable(key: str, tmp_path: Path) -> None:
    """The safetensors library reads the sparse file, and sees the listed shapes."""
    release = releases.load(key)
    folder = releases.write_folder(key, tmp_path / key)
    assert json.loads((folder / "config.json").read_text()) == release.config
    listed = {**release.trunk, **release.head}
    with safe_open(folder / "model.safetensors", "np") as file:
        assert {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()} == {  # noqa: SIM118
            name: spec.shape for name, spec in listed.items()
        }
    assert (folder / "model.safetensors").stat().st_blocks * 512 < 4_000_000, "not sparse"


@pytest.mark.parametrize("key", ["glm-4.5-air", "qwen3.6-35b-a3b"])
def test_gguf_is_readable(key: str, tmp_path: Path) -> None:
    release = releases.load(key)
    path = releases.write_gguf(key, tmp_path / "sparse.gguf")
    reader = gguf.GGUFReader(path)
    read = {t.name: (t.tensor_type.name, tuple(int(n) for n in reversed(t.shape))) for t in reader.tensors}
    assert read == {name: tuple(spec) for name, spec in release.gguf.items()}
    last = reader.tensors[-1]
    assert 0 <= path.stat().st_size - (last.data_offset + last.n_bytes) < 32


@real
@pytest.mark.parametrize("key", naming("tensor_file"))
def test_expands_to_the_real_list(key: str) -> None:
    release = releases.load(key)
    listed = json.loads((REAL / "tensors" / release.facts["tensor_file"]).read_text())
    expected = {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in listed.items()}
    assert {name: tuple(spec) for name, spec in {**release.trunk, **release.head}.items()} == expected


@real
@pytest.mark.parametrize("key", naming("gguf_file"))
def test_expands_to_the_real_gguf(key: str) -> None:
    release = releases.load(key)
    expected = {}
    for line in (REAL / "tensors" / release.facts["gguf_file"]).read_text().splitlines():
        match = re.fullmatch(r"(\S+?):shape=\((.*?)\):dtype=(\w+):elements=\d+:bytes=(\d+)", line)
        assert match is not None, line
        shape = tuple(int(n) for n in reversed(match[2].split(",")) if n)
        expected[match[1]] = (match[3].upper(), shape, int(match[4]))
    assert {name: (*spec, releases.gguf_bytes(spec)) for name, spec in release.gguf.items()} == expected


@real
@pytest.mark.parametrize("key", naming("config_file"))
def test_config_is_an_excerpt_of_the_real_one(key: str) -> None:
    release = releases.load(key)
    whole = json.loads((REAL / "configs" / release.facts["config_file"]).read_text())
    assert in_order(excerpt(whole, release.config)) == in_order(release.config)


@real
@pytest.mark.parametrize("key", naming("hf_quant_file"))
def test_quant_config_is_an_excerpt_of_the_real_one(key: str) -> None:
    release = releases.load(key)
    whole = json.loads((REAL / "configs" / release.facts["hf_quant_file"]).read_text())
    mine = releases.expand_config(release.facts["hf_quant_config"])
    assert in_order(excerpt(whole, mine)) == in_order(mine)


@real
def test_every_real_config_is_represented() -> None:
    named = {releases.load(key).facts.get(field) for key in KEYS for field in ("config_file", "hf_quant_file")}
    assert {path.name for path in (REAL / "configs").iterdir()} <= named
