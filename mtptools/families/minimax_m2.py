"""MiniMax-M2 and M2.5: the configuration declares MTP modules, and no release ships one."""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import globals_of
from mtptools.families.fields import GQA, MOE
from mtptools.families.spec import Family, Field, Wiring

__all__ = ["FAMILY"]

FAMILY: Final = Family(
    name="minimax_m2",
    title="MiniMax-M2 / M2.5",
    gguf_arch="minimax-m2",
    gguf_head=False,
    hf_types=("minimax_m2",),
    hf_prefixes=("model.",),
    hf_depth=("num_mtp_modules",),
    ships=False,
    hf_head="^mtp.",
    # The experts' size is called as a dense layer's.
    fields={**GQA, **MOE, "moe_intermediate_size": Field(("intermediate_size",), ("expert_feed_forward_length",))},
    wiring=Wiring(
        concat="eh",
        tap="post",
        recycle="post",
        mask_first=False,
        evidence="not known, no head was ever released: use_mtp and num_mtp_modules in config.json, no weights "
        "(MiniMax-M2.5#8)",
    ),
    trunk={"all": globals_of()},
    head=(),
)
