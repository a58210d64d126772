"""How each quantization method names the modules it leaves out, and what runtimes build as they like: data only.

A head is loaded module by module. A float module that a list does not name is built quantized, and its weights do not
fit or are dropped without a word; a quantized one that a list names is built float. Every row has its source.
Placeholders of entries: `{name}` a module or a tree of modules as the checkpoint spells it, `{tail}` the same from
`mtp` or `layers.N` on, escaped for a regular expression, `{stem}` the same with `model.layers.N` in plain text (which
runtimes that rename layers replace in the lists), `{plain}` not escaped, `{at}` what stands before ("^" or ".*").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

__all__ = [
    "ALIASES", "BUILT", "FUSED", "LITERALS", "METHODS", "SPELLINGS", "SWITCHES", "UNLOADABLE", "Built", "Fused",
    "Literally", "Method", "Only", "Reader", "Spelling", "Switch", "Unloadable",
]  # fmt: skip

Syntax = Literal[
    "exact", "path", "path_experts", "regex", "suffix", "glob", "parts", "substring", "prefix", "dynamic",
    "dynamic_mtp", "layers", "quark",
]  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """One way in which a runtime asks a list about a module; float modules must be out for all, quantized for none.

    experts  the names it asks for an expert's matrix: that of the fused experts, its own, "either" one, or "both"
    """

    syntax: Syntax
    experts: Literal["fused", "either", "both"] = "either"


@dataclass(frozen=True)
class Only:
    """A list of what *is* quantized: a module outside is float. `start`: an entry or below it; `within`: a part."""

    key: str
    syntax: Literal["start", "within", "targets"]


@dataclass(frozen=True)
class Method:
    """keys     the lists; the first is written when there is none, and all that are there must agree
    readers  how runtimes read them
    tree     entries that leave out everything below a name; (): each module by its name
    leaf     entries that leave out one module
    value    what stands behind an entry, in a method whose list is a table
    first    an entry counts before those after it
    fused    a fused matrix must be named too: it is not looked up by its parts
    experts  what names the experts beside an entry that takes them in with others
    """

    keys: tuple[str, ...]
    readers: tuple[Reader, ...]
    source: str
    tree: tuple[str, ...] = ()
    leaf: tuple[str, ...] = ("{name}",)
    value: Mapping[str, Any] | None = None
    first: bool = False
    only: tuple[Only, ...] = ()
    fused: bool = False
    experts: str = ""

    @property
    def key(self) -> str:
        return self.keys[0]


METHODS: Final[Mapping[str, Method]] = {
    "compressed-tensors": Method(
        ("ignore",),
        (Reader("regex", "both"), Reader("suffix", "fused")),
        tree=(r"re:{at}{stem}\..*",),
        leaf=("re:{at}{stem}$",),
        only=(Only("config_groups", "targets"),),
        fused=True,
        source="compressed-tensors 0.20 match_name: equal, or re.match behind re:. vLLM 0.33 asks for the first expert "
        "of fused experts and wants all parts of a fused matrix alike; SGLang 0.5.23 asks for the fused names, a plain "
        "entry may be the end of one (sglang#35797, #36786; experts vllm#41994; mtp.fc vllm#53387)",
    ),
    "fp8": Method(
        ("modules_to_not_convert", "ignored_layers"),
        (Reader("exact", "fused"), Reader("path_experts", "fused")),
        source="vLLM Fp8Config: ignored_layers, else modules_to_not_convert; is_layer_skipped compares whole names, "
        "those of fused experts as a part. SGLang: whole components of the path (sglang#23467)",
    ),
    "modelopt": Method(
        ("ignore", "exclude_modules"),
        (Reader("glob"), Reader("parts")),
        tree=("{name}*",),
        only=(Only("quantized_layers", "start"),),
        source="vLLM ModelOptQuantConfigBase.is_layer_excluded: equal, part, fnmatch; config.json says ignore, "
        "hf_quant_config.json exclude_modules. SGLang 0.5.23: * in a full match, of the name or one "
        "of its parts. quantized_layers: MIXED_PRECISION",
    ),
    "gptq": Method(
        ("dynamic",),
        (Reader("dynamic"), Reader("dynamic_mtp")),
        tree=(r"-:.*{tail}\..*",),
        leaf=("-:.*{tail}$",),
        value={},
        first=True,
        only=(Only("modules_in_block_to_quantize", "within"),),
        source="GPTQModel dynamic, re.match, the first that matches; Qwen GPTQ-Int4 releases say -:.*mtp.*, and any "
        "key -: with mtp in it makes the whole head float in vLLM qwen3_5_mtp",
    ),
    "awq": Method(
        ("modules_to_not_convert",),
        (Reader("substring"),),
        tree=("{name}.",),
        fused=True,
        source="AutoAWQ config; vLLM and SGLang awq: the entry is a part of the name",
    ),
    "auto-round": Method(
        ("extra_config",),
        (Reader("layers"),),
        tree=(r".*{tail}\..*",),
        leaf=(".*{tail}",),
        value={"bits": 16, "data_type": "float"},
        only=(Only("block_name_to_quantize", "start"), Only("to_quant_block_names", "start")),
        source="vLLM AutoRound (INC) get_layer_config: a name, then the blocks, then a full match of an expression; "
        "16 bits are float",
    ),
    "quark": Method(
        ("exclude",),
        (Reader("quark"),),
        tree=("{name}.*", r"re:{at}{stem}\..*"),
        leaf=("{name}", "re:{at}{stem}$"),
        experts="{name}.*",
        fused=True,
        source="AMD Quark export: fnmatch; vLLM: equal or re:, experts by any of their names (vllm#48226); SGLang "
        "takes the head as float when mtp.* or its experts are excluded (sglang#36158, #38870, #39317)",
    ),
    "bitsandbytes": Method(
        ("llm_int8_skip_modules",),
        (Reader("prefix"),),
        tree=("{name}",),
        fused=True,
        source="vLLM is_layer_skipped_bnb: one component, or the first ones",
    ),
    "torchao": Method(
        ("modules_to_not_convert",),
        (Reader("path"),),
        tree=("{name}",),
        fused=True,
        source="transformers TorchAoConfig; vLLM torchao should_skip: whole components of the path",
    ),
}  # fmt: skip

# Other spellings of a method's name.
ALIASES: Final[Mapping[str, str]] = {
    "compressed_tensors": "compressed-tensors",
    "modelopt_fp4": "modelopt",
    "modelopt_fp8": "modelopt",
    "modelopt_mixed": "modelopt",
    "auto_round": "auto-round",
    "intel/auto-round": "auto-round",
    "gptqmodel": "gptq",
}


@dataclass(frozen=True)
class Fused:
    """Matrices that runtimes join to one: all quantized alike, or none."""

    name: str
    parts: tuple[str, ...]
    source: str


_PACKED: Final = "vLLM and SGLang packed_modules_mapping"
FUSED: Final = (
    Fused("qkv_proj", ("q_proj", "k_proj", "v_proj"), _PACKED),
    Fused("gate_up_proj", ("gate_proj", "up_proj"), _PACKED),
    Fused("gate_up_proj", ("w1", "w3"), "DeepSeek-V4 shared experts"),
    Fused("fused_qkv_a_proj_with_mqa", ("q_a_proj", "kv_a_proj_with_mqa"), "SGLang and vLLM deepseek_v2"),
    Fused("fused_wqa_wkv", ("wq_a", "wkv"), "vLLM deepseek_v4"),
    Fused("wk_weights_proj", ("wk", "weights_proj"), "DSA indexer, vLLM deepseek_v2"),
)


@dataclass(frozen=True)
class Built:
    """A module that runtimes build float whatever a list says.

    pattern  of the whole name
    methods  only under these; () all
    algo     only when quant_algo says so
    types    model types it holds for, or with `unless` the ones it does not hold for; () all
    everywhere  True: vLLM and SGLang; False: one of them, so that the other still goes by the list
    silent   releases leave it unlisted as a rule: nothing to report
    """

    pattern: str
    source: str
    methods: tuple[str, ...] = ()
    algo: str = ""
    types: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    everywhere: bool = True
    silent: bool = True


BUILT: Final = (
    Built(
        r"(.*\.)?layers\.\d+\.eh_proj",
        "nn.Linear in vLLM and SGLang for DeepSeek-V3 and GLM; float and unlisted in their FP8 releases",
        unless=("bailing", "longcat", "nemotron"),
    ),
    Built(
        r"model\.mtp\.layers\.\d+\.eh_proj",
        "float in MiMo-V2-Flash (FP8), whose recorded configuration does not list it",
        types=("mimo",),
    ),
    Built(
        r".*\.indexer\.weights_proj",
        "DSA indexer: float in vLLM and SGLang, unlisted in the FP8 release of DeepSeek-V3.2",
        methods=("fp8",),
    ),
    Built(
        r"mtp\.fc",
        "missing from the list of Qwen3.5 NVFP4 releases, so that vLLM builds it float under modelopt_fp4 (vllm#38650)",
        methods=("modelopt",),
        algo="NVFP4",
        silent=False,
    ),
    Built(r"mtp\.fc", "nn.Linear in SGLang, a quantized linear layer in vLLM", everywhere=False),
    Built(
        r"(.*\.)?(mtp|layers\.\d+)\..*",
        "SGLang builds the whole head float under modelopt_fp4",
        methods=("modelopt",),
        algo="NVFP4",
        everywhere=False,
    ),
)


@dataclass(frozen=True)
class Spelling:
    """Under which other name a runtime looks a module up, and whether it rewrites the lists with it.

    pattern  of the name; `becomes` the other one
    rewrite  text in entries that the runtime replaces, "" for none; `start` only where an entry begins with it
    """

    pattern: str
    becomes: str
    source: str
    types: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    rewrite: tuple[str, str] | None = None
    start: bool = False


SPELLINGS: Final = (
    Spelling(
        r"(.*layers\.\d+)\.((?:self_attn|mlp|moe|share_expert)\b.*)",
        r"\1.mtp_block.\2",
        "vLLM step3p5_mtp looks for mtp_block (vllm#44087)",
        types=("step3",),
    ),
    Spelling(
        r"model\.language_model\.(.*)",
        r"language_model.model.\1",
        "vLLM renames the plain entries of a multimodal wrapper, not its expressions",
        rewrite=("model.language_model.", "language_model.model."),
        start=True,
    ),
    Spelling(
        r"(.*)model\.layers\.61\.((?:self_attn|mlp)\b.*)",
        r"\1model.decoder.\2",
        "SGLang 0.5.23 deepseek_nextn replaces the text model.layers.61 by model.decoder, in the lists as well",
        types=("deepseek_v3", "kimi_k2"),
        methods=("compressed-tensors", "fp8", "modelopt", "quark"),
        rewrite=("model.layers.61", "model.decoder"),
    ),
)


@dataclass(frozen=True)
class Literally:
    """An entry that must be there word for word for a tree, beside the method's own, in one of the lists `keys`."""

    entry: str
    types: tuple[str, ...]
    keys: tuple[str, ...]
    source: str


LITERALS: Final = (
    Literally("model.{plain}.*", ("glm5_next",), ("ignore",), "SGLang 0.5.23 glm5_next_nextn compares with ignore"),
)


@dataclass(frozen=True)
class Switch:
    """A key of the model's own configuration that takes the whole head out, whatever the method.

    off     values that do; of a list: the member that does
    """

    key: str
    off: tuple[str, ...]
    types: tuple[str, ...]
    source: str
    member: bool = False


SWITCHES: Final = (
    Switch(
        "mtp_quant_algo",
        ("BF16", "FP16"),
        ("hy_v4", "hyv4", "hunyuan_v4"),
        "vLLM hy_v4_mtp: absent or NONE is the trunk's method",
    ),
    Switch("disable_quant_module", ("mtp",), ("longcat",), "vLLM and SGLang longcat_flash_mtp", member=True),
)


@dataclass(frozen=True)
class Unloadable:
    """What no released runtime loads."""

    types: tuple[str, ...]
    methods: tuple[str, ...]
    what: str
    source: str


UNLOADABLE: Final = (
    Unloadable(
        ("deepseek_v4",),
        ("fp8",),
        "no released runtime loads a float head of DeepSeek-V4 on a quantized trunk",
        "vllm#43319, #43893, #44847",
    ),
)
