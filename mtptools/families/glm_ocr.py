"""GLM-OCR: GLM-4's dense layer with four norms, and a head that its configuration may deny."""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import attention, globals_of, matrix, norm, v3_fusion
from mtptools.families.fields import GQA
from mtptools.families.spec import Family, Wiring

__all__ = ["FAMILY"]

H: Final = "hidden_size"

FAMILY: Final = Family(
    name="glm_ocr",
    title="GLM-OCR",
    # llama.cpp has glm4, keeps the head there without a graph, and reorders q and k by what the config says of M-RoPE:
    # not the values of the release, and no layout here makes them.
    gguf_arch="",
    gguf_head=False,
    hf_types=("glm_ocr", "glm_ocr_text"),
    hf_prefixes=("model.language_model.", "model."),
    hf_ignored=("model.visual.", "visual."),
    hf_depth=("num_nextn_predict_layers",),
    depth_stated=False,
    hf_head="^layers.{n}.",
    fields=GQA,
    wiring=Wiring(
        concat="eh",
        tap="post",
        recycle="post",
        mask_first=True,
        evidence="order, tap: vLLM 0.33 glm_ocr_mtp, SGLang 0.5.23 glm_ocr_nextn. Recycle: SGLang after the norm, vLLM "
        "before it. Position 0: vLLM zeroes it, SGLang does not. Depth 0 with weights there: vLLM#34888",
    ),
    trunk={"all": globals_of()},
    head=(
        norm("attn_norm.weight", (H,), "~input_layernorm.weight"),
        norm("post_attention_norm.weight", (H,), "~post_self_attn_layernorm.weight"),
        norm("ffn_norm.weight", (H,), "~post_attention_layernorm.weight"),
        norm("post_ffw_norm.weight", (H,), "~post_mlp_layernorm.weight"),
        *attention("~"),
        # Gate above up in one matrix, in HF as in GGUF.
        matrix("ffn_up.weight", ("2*intermediate_size", H), "~mlp.gate_up_proj.weight"),
        matrix("ffn_down.weight", (H, "intermediate_size"), "~mlp.down_proj.weight"),
        *v3_fusion("~", embed="~embed_tokens.weight", output="~shared_head.head.weight"),
    ),
)
