"""DeepSeek-V4 against transformers, part by part and whole.

transformers reads the same files, release names and all, so the tables of names are held as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.compressed import CompressedAttention
from mtptools.decoder.drafter import Drafter
from mtptools.decoder.hyper import HyperBlock
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.decoder.mtp_head import HeadWiring
from mtptools.errors import CorruptError, InputError
from tests.decoder import toy_v4 as toy

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("default")]

IDS = torch.randint(0, toy.VOCAB, (1, 272), generator=torch.Generator().manual_seed(4))  # two windows of 128 close
TEXT = IDS[0].tolist()
WIRING = HeadWiring("eh", "streams", "streams")
LAYERS = pytest.mark.parametrize("n", range(toy.LAYERS), ids=["near", "sparse", "heavy", "sparse2"])


PARTS = ("self_attn", "compressor", "indexer", "mlp", "_hc", "hc_head")
"""Of transformers' modules, by the ends of their names, those whose inputs and outputs are kept."""


def from_pretrained(folder: Path) -> nn.Module:
    options = {"dtype": torch.float32, "attn_implementation": "eager", "experts_implementation": "eager"}
    model: nn.Module = transformers.DeepseekV4ForCausalLM.from_pretrained(folder, **options)
    return model.eval()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """ "hf"; of GGUF "F32" (the trunk) and "head" """
    root = tmp_path_factory.mktemp("v4")

    @cache
    def make(kind: str) -> Path:
        if kind == "hf":
            return toy.write_hf(root / kind, toy.weights())
        return toy.write_gguf(root / f"{kind}.gguf", toy.weights(), head=kind == "head")

    return make


@pytest.fixture(scope="module")
def load(path: Callable[..., Path]) -> Callable[..., Model]:
    @cache
    def get(kind: str = "hf") -> Model:
        return load_model(open_checkpoint(path(kind)), wiring=WIRING)

    return get


@pytest.fixture(scope="module")
def theirs(path: Callable[..., Path]) -> nn.Module:
    return from_pretrained(path("hf"))


@pytest.fixture(scope="module")
def seen(theirs: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Module of transformers -> (its input, its output) in a pass over IDS, without the batch dimension."""
    found: dict[str, tuple[Any, Any]] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            given = args[0] if args else kwargs["hidden_states"]
            first = out if isinstance(out, Tensor) else out[0]
            found[name] = (given[0], out if name.endswith("_hc") else first[0])

        return hook

    hooks = [m.register_forward_hook(keep(n), with_kwargs=True) for n, m in theirs.named_modules() if n.endswith(PARTS)]
    with torch.inference_mode():
        theirs(IDS)
    for hook in hooks:
        hook.remove()
    return found


def close(ours: Tensor, wanted: Tensor, atol: float = 2e-5) -> None:
    torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=atol)


def block(model: Model, n: int) -> HyperBlock:
    found = model.trunk.blocks[n]
    assert isinstance(found, HyperBlock)
    return found


def attention(model: Model, n: int) -> CompressedAttention:
    mixer = block(model, n).mixer
    assert isinstance(mixer, CompressedAttention)
    return mixer


@torch.inference_mode()
@LAYERS
def test_streams(n: int, load: Callable[..., Model], seen: dict[str, tuple[Any, Any]]) -> None:
    for name, part in (("attn_hc", block(load(), n).around_mixer), ("ffn_hc", block(load(), n).around_ffn)):
        x, (post, comb, collapsed) = seen[f"model.layers.{n}.{name}"]
        inner, mixing = part.enter(x.flatten(1))
        close(inner, collapsed[0])
        close(mixing.out, post[0])
        close(mixing.kept, comb[0])
    x, wanted = seen["model.hc_head"]
    collapse = load().trunk.collapse
    assert collapse is not None
    close(collapse(x.flatten(1)), wanted)


@torch.inference_mode()
@LAYERS
def test_attention(n: int, load: Callable[..., Model], seen: dict[str, tuple[Any, Any]]) -> None:
    x, wanted = seen[f"model.layers.{n}.self_attn"]
    mixer = attention(load(), n)
    cache_ = mixer.new_cache()
    close(mixer.forward(x, cache_, 0), wanted, 1e-4)
    name = f"model.layers.{n}.self_attn.compressor"
    if name in seen:
        assert cache_.windows is not None
        keys = torch.cat([cache_.windows.keys.read(i)[0][0] for i in range(len(cache_.windows.keys.chunks))])
        close(keys[: cache_.windows.keys.length], seen[name][1][0], 1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("n", [1, 3])
def test_indexer(n: int, load: Callable[..., Model], seen: dict[str, tuple[Any, Any]]) -> None:
    """Of up to 68 compressed keys the same 8 are looked at."""
    mixer = attention(load(), n)
    chosen: list[Tensor] = []

    def keep(*args: Any) -> Tensor:
        chosen.append(type(mixer.indexer).choose(mixer.indexer, *args))  # type: ignore[arg-type]
        return chosen[0]

    class Spy:
        def __getattr__(self, name: str) -> Any:
            return keep if name == "choose" else getattr(mixer.indexer, name)

    spied = replace(mixer, indexer=Spy())  # type: ignore[arg-type]
    spied.forward(seen[f"model.layers.{n}.self_attn"][0], spied.new_cache(), 0)
    wanted = seen[f"model.layers.{n}.self_attn.compressor.indexer"][1]
    for row, theirs_ in zip(chosen[0], wanted.tolist(), strict=True):
        assert set(row.nonzero().flatten().tolist()) == set(theirs_) - {-1}


@torch.inference_mode()
@LAYERS
def test_experts(n: int, load: Callable[..., Model], seen: dict[str, tuple[Any, Any]]) -> None:
    """Layer 0 looks its experts up by token, the others choose by score and bias; gates are cut in both."""
    x, wanted = seen[f"model.layers.{n}.mlp"]
    close(block(load(), n).ffn.forward(x, TEXT), wanted, 1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["hf", "F32"])
def test_trunk(kind: str, load: Callable[..., Model], seen: dict[str, tuple[Any, Any]], theirs: nn.Module) -> None:
    model = load(kind)
    states = model.trunk.forward(TEXT, model.trunk.new_cache())
    close(states.pre, seen["model.hc_head"][0].flatten(1), 1e-4)
    got = model.trunk.logits(states)
    wanted = theirs(IDS).logits[0]
    close(got, wanted, 1e-4)
    assert torch.equal(got.argmax(-1), wanted.argmax(-1))


@torch.inference_mode()
def test_stepwise(load: Callable[..., Model], theirs: nn.Module) -> None:
    model = load()
    cache_ = model.trunk.new_cache()
    rows = [model.trunk.logits(model.trunk.forward(TEXT[:120], cache_))]
    rows += [model.trunk.logits(model.trunk.forward([token], cache_)) for token in TEXT[120:140]]
    close(torch.cat(rows), theirs(IDS[:, :140]).logits[0], 1e-4)


FAULTS: dict[str, Callable[[CompressedAttention], CompressedAttention]] = {
    "window": lambda m: replace(m, window=m.window + 1),
    "sink": lambda m: replace(m, weights=replace(m.weights, sinks=m.weights.sinks - 1e9)),
    "rope": lambda m: replace(m, rope=type(m.rope)(replace(m.rope.settings, yarn=None), m.arithmetic.device)),
    "overlap": lambda m: replace(m, compressor=replace(m.compressor, bias=m.compressor.bias.roll(1, 0))),  # type: ignore[type-var, union-attr]
    "top": lambda m: replace(m, indexer=replace(m.indexer, top=m.indexer.top - 1)),  # type: ignore[type-var, union-attr]
}


@torch.inference_mode()
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_show(fault: str, load: Callable[..., Model], seen: dict[str, tuple[Any, Any]]) -> None:
    """The comparison with transformers sees each of these."""
    x, wanted = seen["model.layers.1.self_attn"]
    mixer = FAULTS[fault](attention(load(), 1))
    assert (mixer.forward(x, mixer.new_cache(), 0) - wanted).abs().max() > 1e-3


class TheirHead(nn.Module):
    """A head of transformers' parts, which has none of its own: a model of one layer, loaded by its own loading."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        stored = toy.weights()
        self.stored = {k.removeprefix("mtp.0."): torch.from_numpy(v) for k, v in stored.items() if k.startswith("mtp.")}
        own = ("e_proj", "h_proj", "enorm", "hnorm", "norm.", "hc_head")
        alone = {name: stored[name] for name in ("embed.weight", "head.weight")}
        for name, value in self.stored.items():
            if name.startswith(("norm.", "hc_head")) or not name.startswith(own):
                alone[name if name.startswith(own) else f"layers.0.{name}"] = value.numpy()
        changes = {"num_hidden_layers": 1, "compress_ratios": [0], "num_hash_layers": 0}
        self.made = from_pretrained(toy.write_hf(folder, alone, **changes))

    def normed(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.stored[f"{name}.weight"]

    def forward(self, streams: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        model = self.made.model
        embedded = self.normed(model.embed_tokens(tokens), "enorm") @ self.stored["e_proj.weight"].T
        x = embedded[:, :, None] + self.normed(streams, "hnorm") @ self.stored["h_proj.weight"].T
        places = torch.arange(tokens.shape[1])
        apart = places[:, None] - places
        mask = torch.zeros(apart.shape).masked_fill((apart < 0) | (apart >= toy.WINDOW), float("-inf"))
        x = model.layers[0](
            x,
            position_embeddings={"main": model.rotary_emb(embedded, places[None], layer_type="main")},
            position_ids=places[None],
            attention_mask=mask[None, None],
        )
        return self.made.lm_head(model.norm(model.hc_head(x))), x


@torch.inference_mode()
def test_head(load: Callable[..., Model], seen: dict[str, tuple[Any, Any]], tmp_path: Path) -> None:
    """First drafts at every slot, and a second one from the streams of the first."""
    model, head = load(), TheirHead(tmp_path / "hf")
    streams = seen["model.hc_head"][0][None]
    wanted, going_on = head(streams[:, :-1], IDS[:, 1:])
    states = model.trunk.forward(TEXT[:-1], model.trunk.new_cache())
    ours = model.require_head()
    cache_ = ours.layers[0].block.new_cache()
    post, state = ours.step(0, states.tap("streams"), TEXT[1:], cache_, 0)
    close(ours.logits(post), wanted[0], 1e-4)
    close(state, going_on[0].flatten(1), 1e-4)
    again, _ = head(torch.cat((streams[:, :-1], going_on[:, -1:]), 1), torch.cat((IDS[:, 1:], IDS[:, :1]), 1))
    post, _ = ours.step(0, state[-1:], TEXT[:1], cache_, len(TEXT) - 1)
    close(ours.logits(post), again[0, -1:], 1e-4)


@torch.inference_mode()
def test_head_of_gguf(path: Callable[..., Path], load: Callable[..., Model]) -> None:
    """The same bits from the two files that llama.cpp's converter makes as from the release."""
    both = [load(), load_model(open_checkpoint(path("F32")), head=open_checkpoint(path("head")), wiring=WIRING)]
    rows = []
    for model in both:
        states = model.trunk.forward(TEXT[:40], model.trunk.new_cache())
        drafter = Drafter(model.require_head())
        drafter.observe(states.tap("streams"), TEXT[1:41])
        rows.append(torch.cat((model.trunk.logits(states), drafter.head.logits(drafter.ready[0]))))
    assert torch.equal(*rows)


@torch.inference_mode()
def test_released_types(tmp_path: Path) -> None:
    """FP8 blocks and FP4 experts give the bits of the values they stand for, loaded or left packed."""
    toy.write_released(tmp_path / "released", tmp_path / "plain", toy.weights(1))
    rows = []
    for name, how in (("released", "loaded"), ("released", "stored"), ("plain", "loaded")):
        model = load_model(open_checkpoint(tmp_path / name), wiring=WIRING, weights=how)
        states = model.trunk.forward(TEXT[:40], model.trunk.new_cache())
        drafter = Drafter(model.require_head())
        drafter.observe(states.tap("streams"), TEXT[1:41])
        rows.append(torch.cat((model.trunk.logits(states), drafter.head.logits(drafter.ready[0]))))
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"compress_ratios": [0, 4]}, CorruptError),
        ({"compress_ratios": [0, 8, 128, 4, 0]}, InputError),
        ({"compress_ratios": [0, 4, 128, 4, 4]}, InputError),
        ({"rope_scaling": {"type": "longrope", "factor": 4}}, InputError),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, CorruptError),
        ({"n_routed_experts": 5}, InputError),
    ],
)
def test_refused(changes: dict[str, object], error: type[Exception], tmp_path: Path) -> None:
    toy.write_hf(tmp_path / "hf", toy.weights(), **changes)
    with pytest.raises(error) as found:
        load_model(open_checkpoint(tmp_path / "hf"))
    assert found.value.hint  # type: ignore[attr-defined]


def test_experts_that_are_not_there(tmp_path: Path) -> None:
    arrays = toy.weights()
    arrays["layers.0.ffn.gate.tid2eid"][5, 0] = toy.EXPERTS
    with pytest.raises(CorruptError, match="tid2eid names experts that are not there"):
        load_model(open_checkpoint(toy.write_hf(tmp_path / "hf", arrays)))
