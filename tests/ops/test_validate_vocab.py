"""validate on reduced heads made by hand: right ones pass, every fault put in is named, and only it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from mtptools.checkpoint import open_checkpoint
from mtptools.cli.inspect import command
from mtptools.containers.gguf_values import array_value
from mtptools.errors import CorruptError
from mtptools.ops.donor import require_shapes
from mtptools.ops.extract import extract
from mtptools.ops.inspect import inspect
from mtptools.ops.prune_vocab import prune_vocab
from mtptools.ops.validate import Result, validate
from mtptools.ops.validate_vocab import SIZE_KEY
from mtptools.tokens import tokenizer_facts
from mtptools.vocab.maps import Absolute, DraftVocabulary
from mtptools.vocab.stored import draft_vocabulary
from mtptools.writer import write
from tests import rewrite
from tests.ops.quantized_trunks import mlx
from tests.vocab import reduced

SIZE, N = 2048, 8
IDS = np.array([0, 1, 2, 9, 100, 101, 400, 2047], dtype=np.int64)
OFFSETS = IDS - np.arange(N)
MASK = np.isin(np.arange(SIZE), IDS)
D2T = "d2t"
Make = Callable[..., Path]


def check(path: Path) -> Result:
    return validate(open_checkpoint(path))


def found(path: Path) -> set[str]:
    return {finding.check for finding in check(path).findings}


def said(path: Path, of: str = "draft-map") -> str:
    return "\n".join(f"{one.what} ({one.evidence})" for one in check(path).findings if one.check == of)


@pytest.fixture
def bundled(full: Path, tmp_path: Path) -> Make:
    n = open_checkpoint(full).hparams.n_layers

    def make(rows: np.ndarray | None = IDS, **put: np.ndarray) -> Path:
        cut = {} if rows is None else {f"blk.{n}.nextn.shared_head_head.weight": ("output.weight", rows)}
        return reduced.gguf(full, tmp_path / "bundled.gguf", cut=cut, put=put)

    return make


@pytest.fixture
def sidecar(full: Path, tmp_path: Path) -> Make:
    whole = tmp_path / "whole.gguf"
    write(extract(open_checkpoint(full), whole.name), whole)

    def make(rows: np.ndarray | None = IDS, **put: np.ndarray) -> Path:
        cut = {} if rows is None else {"output.weight": ("output.weight", rows)}
        return reduced.gguf(whole, tmp_path / "sidecar.gguf", cut=cut, put=put)

    return make


@pytest.fixture
def folder(hf: Path, tmp_path: Path) -> Make:
    whole = tmp_path / "whole"
    write(extract(open_checkpoint(hf), "whole"), whole)

    def make(
        rows: np.ndarray | None = IDS, says: Any = N, config: Callable[[dict[str, Any]], None] | None = None, **put: Any
    ) -> Path:
        def tensors(there: dict[str, torch.Tensor]) -> None:
            if "lm_head.weight" not in there:  # tied: the embeddings are the output matrix
                name = next(name for name in there if name.endswith("embed_tokens.weight"))
                there["lm_head.weight"] = there[name].clone()
            if rows is not None:
                there["lm_head.weight"] = there["lm_head.weight"][torch.tensor(rows)]
            there.update({name: torch.from_numpy(one) for name, one in put.items()})

        def edit(tree: dict[str, Any]) -> None:
            for one in (tree, tree.get("text_config", {})):
                if "tie_word_embeddings" in one:
                    one["tie_word_embeddings"] = False
            if says is not None:
                tree["draft_vocab_size"] = says
            if config is not None:
                config(tree)

        return reduced.folder(whole, tmp_path / "reduced", tensors=tensors, config=edit)

    return make


RIGHT = {"bundled": {D2T: IDS}, "sidecar": {D2T: IDS}, "folder": {D2T: OFFSETS, "t2d": MASK}}


@pytest.fixture(params=RIGHT)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(kind: str, bundled: Make, sidecar: Make, folder: Make) -> Make:
    maker = {"bundled": bundled, "sidecar": sidecar, "folder": folder}[kind]

    def right(rows: np.ndarray | None = IDS, **changes: Any) -> Path:
        return maker(rows, **{name: one for name, one in (RIGHT[kind] | changes).items() if one is not None})

    return right


def test_right_ones_pass(make: Make) -> None:
    """But for the warning that no released runtime loads them."""
    result = check(make())
    assert {one.check for one in result.findings} == {"draft-map-runtime"}
    assert result.ok
    assert {"draft-map", "tensor-shape", "tensor-unknown", "tensor-missing"} <= set(result.passed)


def test_what_the_warning_says(make: Make, kind: str) -> None:
    (finding,) = check(make()).findings
    assert {"bundled": "#29143", "sidecar": "#29143", "folder": "vLLM"}[kind] in finding.what
    wanted = "--restore" if kind == "folder" else "--own-output"
    assert (finding.severity, wanted in finding.fix) == ("warning", True)


def test_whole_heads_have_nothing_to_say(full: Path, hf: Path) -> None:
    for path in (full, hf):
        assert not {"draft-map", "draft-map-runtime"} & found(path)
        assert {"draft-map", "draft-map-runtime"} <= set(check(path).passed)


def test_a_matrix_with_a_row_less(make: Make) -> None:
    path = make(IDS[:-1])
    assert found(path) == {"draft-map", "draft-map-runtime"}
    assert re.search(r"has shape \[7, \d+\], d2t and the config say \[8, \d+\]", said(path))


def test_a_matrix_that_is_whole(make: Make, kind: str) -> None:
    """In a bundled file the trunk's stays; the head's own is what must be reduced."""
    path = make(np.arange(SIZE))
    assert found(path) == {"draft-map", "draft-map-runtime"}
    assert "has shape [2048, " in said(path)


def test_refused_as_an_input_too(sidecar: Make, bundled: Make) -> None:
    require_shapes(open_checkpoint(bundled(d2t=IDS)))
    with pytest.raises(CorruptError, match="d2t and the config say"):
        require_shapes(open_checkpoint(bundled(IDS[1:], d2t=IDS)))


def test_a_map_without_a_matrix(make: Make) -> None:
    """A head beside which the whole matrix stands, or, where it is tied, none."""
    text = said(make(None))
    assert "head layer 0 has no reduced matrix to draft with" in text or "has shape [2048, " in text


def test_a_matrix_without_a_map(make: Make) -> None:
    path = make(**{D2T: None, "t2d": None})
    assert found(path) == {"draft-map", "tensor-shape"}
    assert "has 8 of 2048 rows, and no d2t says of which tokens" in said(path)


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [
        (IDS[::-1].copy(), "not in ascending order"),
        (np.where(IDS == 400, 101, IDS), "more than once"),
        (np.where(IDS == 2047, 2048, IDS), "out of range"),
        (np.where(IDS == 0, -1, IDS), "out of range"),
        (OFFSETS, "these are offsets, absolute ids belong here"),
        (IDS.astype(np.int32), "d2t is I32"),
    ],
)
def test_wrong_ids_in_gguf(ids: np.ndarray, wanted: str, bundled: Make, sidecar: Make) -> None:
    for path in (bundled(d2t=ids), sidecar(d2t=ids)):
        assert found(path) == {"draft-map", "draft-map-runtime"}
        assert wanted in said(path)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"d2t": IDS}, "these are absolute ids, offsets belong here"),
        ({"d2t": np.where(OFFSETS[-1] == OFFSETS, 2041, OFFSETS)}, "out of range"),
        ({"d2t": OFFSETS, "t2d": ~MASK}, "t2d disagrees with d2t on 2048 tokens"),
        ({"d2t": OFFSETS, "t2d": np.roll(MASK, 1)}, "t2d disagrees with d2t on"),
        ({"d2t": OFFSETS, "t2d": MASK[:-1]}, "t2d is BOOL [2047]"),
        ({"d2t": OFFSETS.astype(np.float32)}, "d2t is F32"),
        ({"d2t": OFFSETS, "says": 9}, "config.json says draft_vocab_size 9, d2t has 8 rows"),
        ({"d2t": OFFSETS, "says": "8"}, "config.json says draft_vocab_size '8'"),
        ({"d2t": OFFSETS, "says": None}, "config.json does not say draft_vocab_size"),
        (
            {"d2t": OFFSETS, "config": lambda tree: tree.update(tie_word_embeddings=True)},
            "config.json ties the output matrix to the embedding",
        ),
        (
            {
                "d2t": OFFSETS,
                "config": lambda tree: tree.update(text_config={**tree.get("text_config", tree), SIZE_KEY: 3}),
            },
            "config.json says text_config.draft_vocab_size 3, d2t has 8 rows",
        ),
    ],
)
def test_faults_in_a_folder(folder: Make, changes: dict[str, Any], wanted: str) -> None:
    path = folder(**({"t2d": MASK} | changes))
    assert found(path) == {"draft-map", "draft-map-runtime"}
    assert wanted in said(path)


def test_declared_and_no_map(folder: Make) -> None:
    path = folder(None)
    assert "config.json says draft_vocab_size 8, and there is no d2t" in said(path)


def test_a_mask_alone(folder: Make) -> None:
    assert "t2d stands without d2t" in said(folder(t2d=MASK))


def test_a_t2d_in_a_gguf(sidecar: Make) -> None:
    assert "a GGUF holds t2d" in said(sidecar(d2t=IDS, t2d=MASK.astype(np.int8)))


def test_of_another_tokenizer(sidecar: Make, tmp_path: Path) -> None:
    """The ids fit, and name other tokens: the receipt inside knows the tokenizer they are of."""
    path = sidecar(d2t=IDS)
    ckpt = open_checkpoint(path)
    facts = tokenizer_facts(ckpt)
    record = json.loads(ckpt.metadata["mtptools.receipt"])
    assert facts is not None
    assert record["tokenizer_sha256"] == facts.digest
    tokens = list(ckpt.metadata["tokenizer.ggml.tokens"])
    tokens[7], tokens[8] = tokens[8], tokens[7]
    other = rewrite.gguf(path, tmp_path / "o.gguf", metadata={"tokenizer.ggml.tokens": array_value("string", tokens)})
    assert found(other) == {"tokenizer-hash", "draft-map-runtime"}


@pytest.mark.parametrize("alone", [False, True])
def test_what_prune_vocab_writes(alone: bool, full: Path, hf: Path, tmp_path: Path) -> None:
    made = DraftVocabulary.of(Absolute(IDS), SIZE)
    for number, source in enumerate((full, hf)):
        out = tmp_path / f"{number}{source.suffix}"
        write(prune_vocab(open_checkpoint(source), made, out.name, sidecar=alone), out)
        assert found(out) == {"draft-map-runtime"}
        assert draft_vocabulary(open_checkpoint(out)) == made


def test_inspect_shows_it(make: Make, kind: str) -> None:
    path = make()
    shown = inspect(open_checkpoint(path))["draft_vocabulary"]
    row = 2 * open_checkpoint(path).hparams.hidden_size  # BF16
    assert shown == {
        "tokens": N,
        "of": SIZE,
        "share": N / SIZE,
        "written_as": "offsets" if kind == "folder" else "absolute",
        "first": 0,
        "last": 2047,
        "bytes": N * row,
        "whole_bytes": SIZE * row,
        "damaged": False,
    }
    text = CliRunner().invoke(command, [str(path)]).output
    written = "offsets" if kind == "folder" else "absolute ids"
    assert f"8 of 2048 tokens (0.4%), 0 to 2047, written as {written}: 4.1 kB of output matrix for 1.0 MB" in text


def test_inspect_of_others(full: Path, sidecar: Make) -> None:
    assert inspect(open_checkpoint(full))["draft_vocabulary"] is None
    damaged = sidecar(d2t=IDS.astype(np.float32))
    shown = inspect(open_checkpoint(damaged))["draft_vocabulary"]
    assert (shown["damaged"], shown["first"]) == (True, None)
    assert "mtptools validate says how" in CliRunner().invoke(command, [str(damaged)]).output


@pytest.mark.parametrize("part", ["weight", "scales", "biases"])
def test_mlx_codes_and_scales(part: str, tmp_path: Path) -> None:
    """Of a quantized matrix each part has the rows of d2t."""

    base = mlx("qwen35moe", tmp_path / "base", bits=4, group_size=64)
    head = next(name for name in base if name.endswith("lm_head.weight")).removesuffix(".weight")

    def quantized(there: dict[str, torch.Tensor]) -> None:
        rows, columns = there[f"{head}.weight"].shape
        words = np.random.default_rng(0).integers(0, 2**32, (rows, columns // 8), dtype=np.uint32)
        there[f"{head}.weight"] = torch.from_numpy(words)
        there.update({f"{head}.{one}": torch.ones(rows, columns // 64) for one in ("scales", "biases")})

    source = reduced.folder(base.path, tmp_path / "in", tensors=quantized)
    made, out = DraftVocabulary.of(Absolute(IDS), SIZE), tmp_path / "out"
    write(prune_vocab(open_checkpoint(source), made, out.name), out)
    assert not {"draft-map", "tensor-shape", "tensor-unknown"} & found(out)
    shown = inspect(open_checkpoint(out))["draft_vocabulary"]
    assert (shown["bytes"], shown["whole_bytes"]) == (N * (128 + 2 * 4 * 4), SIZE * (128 + 2 * 4 * 4))

    def cut(there: dict[str, torch.Tensor]) -> None:
        there[f"{head}.{part}"] = there[f"{head}.{part}"][:-1]

    path = reduced.folder(out, tmp_path / "cut", tensors=cut)
    assert "lm_head" in said(path) or "output.weight" in said(path)
