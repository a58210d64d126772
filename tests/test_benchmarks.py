"""What the benchmarks measure on is a checkpoint like any other."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks import synthetic, tiktoken_vocab
from mtptools.checkpoint import open_checkpoint
from mtptools.ops.validate import validate
from tests.vocab.tokenizers_of_kinds import SAMPLE, tokenizer


def test_synthetic_file_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "s.gguf"
    synthetic.write(path, 4, 1, "Q8_0", n_tokens=64, vocab=64)
    result = validate(open_checkpoint(path))
    assert {finding.check for finding in result.findings} <= {"tokenizer-missing"}, result.findings


def test_ranks_make_the_same_tokenizer(tmp_path: Path) -> None:
    """A trained tokenizer, reduced to tiktoken's ranks, comes back with its merges, and encodes as before."""
    trained = tokenizer("qwen35")
    vocabulary = trained.get_vocab(with_added_tokens=False)
    back = {char: byte for byte, char in tiktoken_vocab.printable().items()}
    ordered = sorted(vocabulary.items(), key=lambda one: one[1])
    rows = (base64.b64encode(bytes(back[char] for char in token)).decode() for token, _ in ordered)
    path = tmp_path / "ranks.tiktoken"
    path.write_text("".join(f"{row} {rank}\n" for rank, row in enumerate(rows)), encoding="utf-8")
    made = Tokenizer.from_str(tiktoken_vocab.tokenizer_json(path))
    merges = [json.loads(one.to_str())["model"]["merges"] for one in (trained, made)]
    assert merges[0] == merges[1]
    names = dict(enumerate(token for token, _ in ordered))
    for text in [*SAMPLE, "camelCase, it's 12 e\u0301"]:
        assert [names[i] for i in made.encode(text).ids] == trained.encode(text).tokens
