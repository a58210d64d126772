"""MiMo-7B: Qwen2's layer, and a fusion of [hidden, embedding] under names of its own."""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import attention, dense_ffn, fusion, globals_of, private, sandwich
from mtptools.families.fields import GQA
from mtptools.families.spec import Family, Wiring

__all__ = ["FAMILY"]

FAMILY: Final = Family(
    name="mimo",
    title="MiMo-7B",
    gguf_arch="",
    hf_types=("mimo",),
    hf_prefixes=("model.",),
    hf_depth=("num_nextn_predict_layers",),
    hf_head="^mtp_layers.{d}.",
    fields=GQA,
    mlx="drops",
    gguf_head=False,
    wiring=Wiring(
        concat="he",
        tap="pre",
        recycle="post",
        mask_first=True,
        evidence="order, recycle, position 0: vLLM 0.33 and SGLang 0.5.23 mimo_mtp. Tap: vLLM takes the state before "
        "the final norm, and exllamav3 PR 238 measured that it works; SGLang takes the state after it. llama.cpp has "
        "no architecture for it",
    ),
    trunk={"all": globals_of()},
    head=(
        *sandwich("~", second="ffn_norm.weight"),
        *attention("~", biases=True),
        *dense_ffn("~"),
        # Columns stay in the order of the release: `concat` says which half is which.
        *fusion("~input_proj.weight", "~token_layernorm.weight", "~hidden_layernorm.weight", "~final_layernorm.weight"),
        *private(),
    ),
)
