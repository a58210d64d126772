"""What prune-vocab and the verbs after it refuse, and what they say to do instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.errors import CorruptError, IncompatibleError, InputError, UsageError
from mtptools.ops.convert import convert_head
from mtptools.ops.extract import extract, strip
from mtptools.ops.graft import graft
from mtptools.ops.prune_vocab import prune_vocab
from mtptools.ops.quantize import quantize
from mtptools.ops.restore_vocab import restore_vocab
from mtptools.ops.style import Style
from mtptools.vocab.maps import Absolute, DraftVocabulary
from tests import rewrite
from tests.conftest import FIXTURES
from tests.ops.test_prune_vocab import GGUF, OWN, every_third, made, some


def test_a_map_without_its_matrix_is_refused_by_every_verb(tmp_path: Path) -> None:
    """Else the whole matrix would be taken for the reduced one, and its first rows for those of the tokens."""
    source = open_checkpoint(GGUF)
    keep = some(source, 512)
    for sidecar, lost in ((False, f"blk.4.{OWN}"), (True, "output.weight")):
        right = made(prune_vocab(source, keep, f"{sidecar}.gguf", sidecar=sidecar), tmp_path / f"{sidecar}.gguf")
        wrong = open_checkpoint(rewrite.gguf(right.path, tmp_path / f"lost{sidecar}.gguf", drop=(lost,)))
        trunk = open_checkpoint(FIXTURES / "qwen35" / "gguf" / "trunk-Q8_0.gguf")
        for verb in (
            lambda one=wrong: prune_vocab(one, every_third(keep), "x.gguf"),
            lambda one=wrong: restore_vocab(one, source, "x.gguf"),
            lambda one=wrong: quantize(one, "x.gguf", Style.asked("Q8_0")),
            lambda one=wrong: extract(one, "x.gguf"),
            lambda one=wrong, onto=trunk: graft(onto, one, "x.gguf"),
        ):
            with pytest.raises(CorruptError, match="no reduced matrix to draft with"):
                verb()


def test_restoring_from_another_head_is_refused(tmp_path: Path) -> None:
    source = open_checkpoint(GGUF)
    out = made(prune_vocab(source, some(source, 512), "b.gguf"), tmp_path / "b.gguf")
    data = bytearray(GGUF.read_bytes())
    blob = source["token_embd.weight"].blobs[0]
    data[blob.offset + 1 : blob.offset + blob.nbytes : 2] = bytes(64 for _ in range(blob.nbytes // 2))
    (tmp_path / "other.gguf").write_bytes(data)
    with pytest.raises(IncompatibleError) as caught:
        restore_vocab(out, open_checkpoint(tmp_path / "other.gguf"), "x.gguf")
    assert "are not those of the donor's matrix" in caught.value.findings[0]


def test_what_cannot_be_pruned_is_refused() -> None:
    source = open_checkpoint(GGUF)
    size = source.hparams.vocab_size
    everything = DraftVocabulary.of(Absolute(np.arange(size, dtype=np.int64)), size)
    with pytest.raises(UsageError, match="nothing is pruned"):
        prune_vocab(source, everything, "x.gguf")
    with pytest.raises(InputError, match=f"{size + 1} tokens, the model has {size}"):
        prune_vocab(source, DraftVocabulary.of(Absolute(np.arange(3)), size + 1), "x.gguf")
    with pytest.raises(InputError, match="nothing to restore"):
        restore_vocab(source, source, "x.gguf")


def test_what_a_reduced_head_cannot_do_says_what_to_do(tmp_path: Path) -> None:
    source = open_checkpoint(GGUF)
    keep = some(source, 300)
    out = made(prune_vocab(source, keep, "b.gguf"), tmp_path / "b.gguf")
    with pytest.raises(InputError, match="cannot draft") as caught:
        prune_vocab(out, some(source, 300, seed=1), "x.gguf")
    assert "--restore" in str(caught.value.hint)
    with pytest.raises(InputError, match="another dialect") as caught:
        convert_head(out, "x", "hf", Style())
    assert "--restore" in str(caught.value.hint)
    with pytest.raises(InputError, match="no place for its matrix"):
        graft(made(strip(open_checkpoint(FIXTURES / "qwen35" / "hf"), "t"), tmp_path / "t"), out, "x")
    with pytest.raises(InputError, match="reduced too"):
        restore_vocab(out, out, "x.gguf")
    with pytest.raises(UsageError, match="dialect"):
        restore_vocab(out, open_checkpoint(FIXTURES / "qwen35" / "hf"), "x.gguf")
    with pytest.raises(IncompatibleError):
        restore_vocab(out, open_checkpoint(FIXTURES / "qwen35moe" / "gguf" / "model-BF16.gguf"), "x.gguf")
