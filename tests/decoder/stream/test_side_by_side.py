"""Two checkpoints on one text: what is the same is computed once, what differs is measured."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.stream.model import Streamed
from mtptools.decoder.stream.passages import Passage, Passages
from mtptools.decoder.stream.report import StreamReport
from mtptools.decoder.stream.run import stream
from mtptools.decoder.trunk import States
from mtptools.errors import MtpToolsError
from tests import rewrite
from tests.decoder import reduced_heads, toy
from tests.decoder.stream.given import opened, own_texts, streamed, through

FULL = "qwen35/gguf/model-BF16.gguf"
Q8 = "qwen35/gguf/trunk-Q8_0.gguf"
Q4 = "qwen35/gguf/trunk-Q4_K.gguf"


@cache
def texts() -> Passages:
    first, second, *_ = own_texts("qwen35")
    return Passages((Passage(first.ids[:64], 28), Passage(second.ids[:20])))


def pair(other: Path | str, *, ours: str = FULL, exact: bool = True) -> tuple[StreamReport, Streamed, Streamed]:
    one, twin = (streamed(place, texts(), exact=exact) for place in (ours, other))
    return stream(one, 3, other=twin, controls=False), one, twin


def counted() -> list[int]:
    """Rows whose next token counts."""
    return [row for p, first, stop in texts().bounds() for row in range(first + p.start - 1, stop - 1)]


def log_shares(model: Streamed, states: States) -> np.ndarray:
    """Log-probabilities [counted rows, vocab] in float64, from whole logits."""
    with torch.inference_mode():
        logits = model.arithmetic.logits(states.post, model.trunk.output).double()
    return logits.log_softmax(1).numpy()[counted()]


def test_against_itself() -> None:
    report, one, twin = pair(FULL)
    found = report.compared
    assert found is not None
    assert found.shared == one.n_layers == twin.done
    assert found.drift == (0, 0, 0, 0)
    assert (found.flips, found.flip_median, found.flip_most) == (0, 0, 0)
    assert abs(found.divergence) < 1e-12
    assert abs(found.largest) < 1e-12
    assert found.trunk == report.trunk
    assert found.rates == report.rates


def test_against_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes in another file: the copy's layers are never computed."""
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(opened(FULL).path.read_bytes())
    computed = []
    layer = Streamed.layer
    monkeypatch.setattr(
        Streamed, "layer", lambda self, *, last: (computed.append(self.ckpt.path.name), layer(self, last=last))[1]
    )
    report, *_ = pair(copy)
    assert report.compared is not None
    assert report.compared.name == "copy.gguf"
    assert report.compared.shared == 4
    assert computed == ["model-BF16.gguf"] * 4


@pytest.mark.parametrize("n", [0, 2, 3])
def test_one_tensor_is_another(n: int, tmp_path: Path) -> None:
    """Shared up to its layer, drifting from there on; everything else is what each gives alone."""
    other = rewrite.gguf(opened(FULL).path, tmp_path / "b.gguf", edit={f"blk.{n}.ffn_down.weight": lambda a: a * 1.25})
    report, one, twin = pair(other)
    found = report.compared
    assert found is not None
    assert found.shared == n
    assert found.drift[:n] == (0,) * n
    assert all(x > 0 for x in found.drift[n:])
    a, b = through(streamed(FULL, texts())), through(streamed(other, texts()))
    rms = ((b.pre - a.pre).double().square().mean() / a.pre.double().square().mean()).sqrt()
    assert found.drift[-1] == pytest.approx(float(rms), rel=1e-9)
    alone = stream(streamed(other, texts()), 3, controls=False)
    assert found.trunk == alone.trunk
    assert found.rates == alone.rates
    assert report.trunk == stream(streamed(FULL, texts()), 3, controls=False).trunk
    agree(report, log_shares(one, a), log_shares(twin, b))


def agree(report: StreamReport, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Flips, divergence, losses and noise as they follow from whole distributions."""
    found = report.compared
    assert found is not None
    divergence = (np.exp(ours) * (ours - theirs)).sum(1)
    assert found.divergence == pytest.approx(divergence.mean(), rel=1e-4, abs=1e-7)
    assert found.largest == pytest.approx(divergence.max(), rel=1e-4, abs=1e-7)
    flipped = ours.argmax(1) != theirs.argmax(1)
    assert found.flips == flipped.sum()
    best = np.sort(ours, 1)
    margins = best[:, -1] - best[:, -2]
    if not flipped.any():
        margins, flipped = np.zeros(1), np.ones(1, dtype=bool)
    assert found.flip_median == pytest.approx(np.median(margins[flipped]), rel=1e-3, abs=1e-5)
    assert found.flip_most == pytest.approx(margins[flipped].max(), rel=1e-3, abs=1e-5)
    wanted = np.array([*texts().ids[1:], 0])[counted()]
    rows = np.arange(len(wanted))
    assert report.trunk.loss == pytest.approx(-ours[rows, wanted].mean(), rel=1e-5)
    assert found.trunk.loss == pytest.approx(-theirs[rows, wanted].mean(), rel=1e-5)
    assert report.trunk.agreement == pytest.approx((ours.argmax(1) == wanted).mean())


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("other", [Q8, Q4])
def test_against_a_quantized_one(other: str, exact: bool) -> None:
    report, one, twin = pair(other, exact=exact)
    found = report.compared
    assert found is not None
    assert found.shared == 0
    assert found.rates is None, "it has no head"
    assert all(x > 0 for x in found.drift)
    agree(
        report,
        *(log_shares(model, through(streamed(p, texts(), exact=exact))) for model, p in ((one, FULL), (twin, other))),
    )


def test_a_coarser_type_is_further_away() -> None:
    eight, four = (pair(other, exact=False)[0].compared for other in (Q8, Q4))
    assert eight is not None
    assert four is not None
    assert 0 < 10 * eight.divergence < four.divergence
    assert 0 < eight.drift[-1] < four.drift[-1]


def test_another_final_norm(tmp_path: Path) -> None:
    """The layers are the same; what is made of their states is not."""
    other = rewrite.gguf(opened(FULL).path, tmp_path / "b.gguf", edit={"output_norm.weight": lambda a: a * 1.5})
    found = pair(other)[0].compared
    assert found is not None
    assert found.drift == (0, 0, 0, 0)
    assert found.divergence > 0.01


def test_a_sidecar(tmp_path: Path) -> None:
    """Its head is measured on this trunk, which is computed once."""
    path = reduced_heads.sidecar_of("qwen35", tmp_path / "side", reduced_heads.most(2048))
    one, twin = streamed("qwen35/hf", texts()), streamed("qwen35/hf", texts(), head=open_checkpoint(path))
    report = stream(one, 2, other=twin, controls=False)
    found = report.compared
    assert found is not None
    assert found.shared == 4
    assert found.flips == 0
    assert found.rates is not None
    assert report.rates is not None
    assert found.rates.right[0] < report.rates.right[0]
    assert found.rates == stream(streamed("qwen35/hf", texts(), head=open_checkpoint(path)), 2, controls=False).rates
    assert found.name == "side"


def test_another_trunk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other layers, and another vocabulary."""
    text = Passages((Passage((1, 2, 3)),))
    three = toy.write_hf(tmp_path / "three", toy.weights(False), False)
    with pytest.raises(MtpToolsError) as caught:
        stream(streamed(FULL, text), 1, other=streamed(three, text))
    assert caught.value.hint
    monkeypatch.setattr(toy, "VOCAB", 400)
    words = toy.write_hf(tmp_path / "words", toy.weights(False), False)
    with pytest.raises(MtpToolsError) as caught:
        stream(streamed(three, text), 1, other=streamed(words, text))
    assert caught.value.hint
