"""GLM-5.3-Flash (GLM5-Next): sparse latent attention without positions, pooled keys in its indexer.

The trunk mixes hyper-connection streams and has linear layers; its head has neither.
"""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import dsa_indexer, globals_of, matrix, mla, moe, sandwich, v3_fusion
from mtptools.families.fields import INDEXER, MLA, SHARED_EXPERTS
from mtptools.families.spec import Family, Field, Wiring

__all__ = ["FAMILY"]

POOL: Final = "~self_attn.indexer.index_kpool_compress_"

FAMILY: Final = Family(
    name="glm5_next",
    title="GLM-5.3-Flash",
    gguf_arch="glm5-next",
    hf_types=("glm5_next", "glm5_next_text"),
    hf_prefixes=("model.language_model.", "model."),
    hf_ignored=("model.visual.",),
    hf_depth=("num_nextn_predict_layers",),
    hf_head="^layers.{n}.",
    # llama.cpp counts one key-value head where attention is latent, none where it is linear.
    fields={**MLA, **SHARED_EXPERTS, **INDEXER, "n_kv_heads": Field((), ("attention.head_count_kv",), 1)},
    mlx="drafts",
    gguf_head=False,
    wiring=Wiring(
        concat="eh",
        tap="post",
        recycle="post",
        mask_first=True,
        evidence="order, recycle, position 0: vLLM 0.33 (its DeepSeek head; #45895, #47448). Tap: inferred from GLM-5. "
        "Names: vLLM, llama.cpp glm5-next.cpp (loads the block; its graph throws) and transformers 5.23 for the "
        "indexer; no list of a released file was seen",
    ),
    trunk={"all": globals_of(tied=False)},
    head=(
        *sandwich("~", second="ffn_norm.weight"),
        *mla("~"),
        *dsa_indexer("~"),
        matrix("indexer_compressor_gate.weight", ("index_head_dim", "hidden_size"), f"{POOL}gate", kind="router"),
        matrix("indexer_compressor_ape.weight", ("", "index_head_dim"), f"{POOL}ape", kind="router"),
        *moe("~"),
        *v3_fusion("~", embed="~embed_tokens.weight", output="~shared_head.head.weight"),
    ),
)
