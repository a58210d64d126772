"""Every family's tables: well-formed, in llama.cpp's words, and resolving a checkpoint made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fixtures import releases
from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.conventions import LAYOUTS, VALUES
from mtptools.families import Family, Role, Source, known_families
from mtptools.head import find_head, find_trunk, head_layers, head_names, head_prefix, hf_prefix, present
from mtptools.hparams import HParams, declared_depth

FAMILIES = known_families()
HEADED = [family for family in FAMILIES if family.ships]
EVERY = pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
WITH_HEAD = pytest.mark.parametrize("family", HEADED, ids=lambda f: f.name)
NUMBERS = {field.name for field in fields(HParams) if field.type == "int"}
NAME = re.compile(r"^[a-z0-9_]+(\.[a-z0-9_]+)*$")
PLACEHOLDER = re.compile(r"\{(\w+)\}")
GGUF_NAMES = Path(releases.__file__).with_name("gguf_names.json")
LAYERS = 2
OPEN = 5  # length of a dimension that a table leaves open

ROLES = [
    (family, at, role)
    for family in FAMILIES
    for at, table in (("head", family.head), *family.trunk.items())
    for role in table
]


def sources(role: Role) -> tuple[Source, ...]:
    return (*role.hf, *role.mlx)


def names_in(expression: str | int) -> list[str]:
    return [name for name in re.split(r"[*+]", str(expression)) if name and not name.isdigit()]


# --- the tables ------------------------------------------------------------------------------------------------------


@EVERY
def test_no_role_twice(family: Family) -> None:
    """Nor two with one condition that end in the same place."""
    for table in (family.head, *family.trunk.values()):
        names = [role.name for role in table]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(("family", "at", "role"), ROLES, ids=lambda x: getattr(x, "name", x))
def test_role(family: Family, at: str, role: Role) -> None:
    assert NAME.match(role.name)
    assert not role.name.startswith("blk.")
    for dimension in role.shape:
        assert set(names_in(dimension)) <= NUMBERS
    assert set(names_in(role.when.removeprefix("!"))) <= NUMBERS
    assert set(role.values.values()) <= set(VALUES)
    if role.borrows:
        assert not role.required
        assert role.borrows in {one.name for one in family.trunk.get("all", ())} or not family.trunk
    for source in sources(role):
        layout = LAYOUTS[source.layout]
        for pattern in (source.pattern, *source.also):
            stated = set(PLACEHOLDER.findall(pattern))
            if at == "head":
                assert pattern.startswith("~"), "head names stand under the head's prefix"
                stated |= set(PLACEHOLDER.findall(family.hf_head))
            assert stated <= {"d", "n", "e"}
            assert ("e" in stated) == layout.per_expert
            if at not in ("head", "all"):
                assert pattern.startswith("^")
                assert "n" in stated
            elif at == "all":
                assert not stated
        if source.layout != "qkv_of_ranks":  # three sizes within one tensor
            assert len(source.sizes) in (0, 1 + len(source.also))
        assert {name for size in source.sizes for name in names_in(size)} <= NUMBERS


@WITH_HEAD
def test_a_head_is_whole(family: Family) -> None:
    """A fusion, two norms and a block; named so that layers of a head can be told apart."""
    names = {role.name for role in family.head}
    assert {"nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight"} <= names
    assert names & {"attn_output.weight", "attn_output_b.weight"}
    assert names & {"ffn_down.weight", "ffn_down_exps.weight"}
    last = {"nextn.shared_head_norm.weight", "layer_output_norm.weight"} & names
    assert len(last) == (0 if family.wiring.recycle == "none" else 1)
    assert family.wiring.evidence
    if family.gguf_arch:
        assert family.wiring.concat != "he", "GGUF knows [embedding, hidden] alone"


def test_model_types_and_architectures_are_of_one_family() -> None:
    types = [name for family in FAMILIES for name in family.hf_types]
    assert len(types) == len(set(types))
    archs = [family.gguf_arch for family in FAMILIES if family.gguf_arch]
    assert len(archs) == len(set(archs))


@EVERY
def test_fields(family: Family) -> None:
    known = {field.name for field in fields(HParams)} | {"partial_rotary", "ssm_inner", "full_attention_interval"}
    assert set(family.fields) <= known
    used = {name for role in family.head for dimension in role.shape for name in names_in(dimension)}
    used |= {name for role in family.head for s in sources(role) for size in s.sizes for name in names_in(size)}
    used |= {role.when.removeprefix("!") for role in family.head if role.when}
    derived = {"vocab_size", "linear_v_head_dim"}
    assert used - derived <= set(family.fields), "a size that nothing reads would be 0"


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.gguf_arch and f.head], ids=lambda f: f.name)
def test_gguf_names_are_llama_cpps(family: Family) -> None:
    """Every role is among the names that llama.cpp lists for the architecture (fixtures/gguf_names.py)."""
    listed = json.loads(GGUF_NAMES.read_text())["architectures"][family.gguf_arch]
    stems = {role.name.removesuffix(".weight").removesuffix(".bias") for role in family.head}
    assert stems <= set(listed)


# --- a checkpoint made of the tables ----------------------------------------------------------------------------------


def put(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *path, last = dotted.split(".")
    for part in path:
        tree = tree.setdefault(part, {})
    tree.setdefault(last, value)


def tiny_config(family: Family, depth: int, zero: frozenset[str] = frozenset()) -> dict[str, Any]:
    """config.json with every field where the table looks first; sizes distinct enough for a mix-up to show."""
    config: dict[str, Any] = {
        "model_type": family.hf_types[0],
        "num_hidden_layers": LAYERS,
        "vocab_size": 48,
        **family.expected,
    }
    sizes = {"n_experts": 3, "n_experts_used": 2, "hidden_size": 16, "context_length": 64, "first_dense": 1}
    for at, (name, field) in enumerate(family.fields.items()):
        if not field.hf or field.kind == "layers":
            continue
        value: float = sizes.get(name, 2 + at % 5)
        put(config, field.hf[0], 0 if name in zero else 1.0 if field.kind == "real" else value)
    if family.hf_depth:
        put(config, family.hf_depth[0], depth)
    return config


def lengths(hparams: HParams, role: Role) -> list[int]:
    return [OPEN if size == "" else hparams.size(size) for size in role.shape]


def shapes_of(hparams: HParams, role: Role, source: Source) -> Iterator[tuple[str, list[int]]]:
    """(pattern, shape) of each tensor that a role's source stores; `{e}` is filled in."""
    shape = lengths(hparams, role)
    if source.layout == "stack_experts":
        for e in range(hparams.n_experts):
            yield source.pattern.replace("{e}", str(e)), shape[1:]
    elif source.layout in ("gate_half", "up_half"):
        yield source.pattern, [shape[0], 2 * shape[1], shape[2]]
    elif source.layout in ("k_of_kv_b", "v_of_kv_b"):
        rows = hparams.n_heads * (hparams.qk_nope_head_dim + hparams.v_head_dim)
        yield source.pattern, [rows, hparams.kv_lora_rank]
    elif source.layout in ("rows", "columns"):
        for pattern, size in zip((source.pattern, *source.also), source.sizes, strict=True):
            n = hparams.size(size)
            yield pattern, [n, *shape[1:]] if source.layout == "rows" else [*shape[:-1], n]
    else:
        assert source.layout in ("whole", "qkv_of_ranks")
        yield source.pattern, shape


def made(family: Family, folder: Path, depth: int, choice: int = 0, zero: frozenset[str] = frozenset()) -> Checkpoint:
    """A checkpoint of a head alone, each role in its source number `choice` (the last, where there are fewer)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny_config(family, depth, zero)))
    releases.write_safetensors(folder / "model.safetensors", {"unrelated.weight": releases.Spec("BF16", (1,))})
    empty = open_checkpoint(folder)
    listing: dict[str, releases.Spec] = {}
    for layer in range(depth):
        prefix = head_prefix(empty, layer)
        for role in family.head:
            if not role.hf or not present(empty, role):
                continue
            source = role.hf[min(choice, len(role.hf) - 1)]
            for pattern, shape in shapes_of(empty.hparams, role, source):
                name = prefix + pattern[1:].format(d=layer, n=LAYERS + layer)
                spec = releases.Spec("F32" if role.f32 else "BF16", tuple(shape))
                assert listing.setdefault(name, spec) == spec, f"{name} is needed in two shapes"
    releases.write_safetensors(folder / "model.safetensors", listing)
    return open_checkpoint(folder)


def resolved(ckpt: Checkpoint, depth: int) -> None:
    assert head_layers(ckpt) == tuple(range(depth))
    assert set(head_names(ckpt)) == set(ckpt)
    for layer in range(depth):
        head = find_head(ckpt, layer)
        assert head is not None
        assert head.block == LAYERS + layer
        assert head.missing == ()
        assert head.unknown == ()
        for name, found in head.roles.items():
            assert list(found.tensor.shape) == lengths(ckpt.hparams, found.role), name


@WITH_HEAD
@pytest.mark.parametrize("choice", [0, 1])
def test_resolves_what_it_names(family: Family, choice: int, tmp_path: Path) -> None:
    ckpt = made(family, tmp_path, 1, choice)
    assert ckpt.family is family
    assert declared_depth(family, ckpt.config) == 1
    resolved(ckpt, 1)
    written = {role.name for role in family.head if role.hf and present(ckpt, role)}
    head = find_head(ckpt)
    assert head is not None
    assert set(head.roles) == written


@WITH_HEAD
def test_resolves_three_layers(family: Family, tmp_path: Path) -> None:
    if not any(PLACEHOLDER.search((family.hf_head + s.pattern).replace("{e}", "")) for r in family.head for s in r.hf):
        pytest.skip("its names do not count heads: there is one (Nemotron-3)")
    resolved(made(family, tmp_path, 3), 3)


@pytest.mark.parametrize("family", [f for f in HEADED if any(r.when for r in f.head)], ids=lambda f: f.name)
def test_optional_parts_follow_the_config(family: Family, tmp_path: Path) -> None:
    """With the hyperparameters that `when` names at 0, other roles are wanted, and found."""
    names = frozenset(role.when.removeprefix("!") for role in family.head if role.when)
    ckpt = made(family, tmp_path, 1, zero=names)
    resolved(ckpt, 1)
    assert {role.name for role in family.head if present(ckpt, role)} != {role.name for role in family.head}


@WITH_HEAD
def test_a_lost_and_a_strange_tensor_are_told(family: Family, tmp_path: Path) -> None:
    ckpt = made(family, tmp_path, 1)
    lost = next(role for role in family.head if role.name == "nextn.eh_proj.weight")
    head = find_head(ckpt)
    assert head is not None
    gone = set(head.roles[lost.name].names)
    listing = {name: releases.Spec(ckpt[name].codec, ckpt[name].shape) for name in ckpt if name not in gone}
    strange = f"{head_prefix(ckpt, 0)}nothing.of.the.kind.weight"
    listing[strange] = releases.Spec("BF16", (1,))
    releases.write_safetensors(tmp_path / "model.safetensors", listing)
    head = find_head(open_checkpoint(tmp_path))
    assert head is not None
    assert head.missing == (lost.name,)
    assert head.unknown == (strange,)


@EVERY
def test_trunk_globals_resolve(family: Family, tmp_path: Path) -> None:
    """Embedding, final norm and output matrix under each of the family's prefixes: extract finds what it shares."""
    for at, prefix in enumerate(family.hf_prefixes):
        folder = tmp_path / str(at)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(tiny_config(family, 1)))
        if not (table := family.trunk.get("all")):
            pytest.skip("its trunk is not described")
        names = [role.hf[-1 if prefix == "model." else 0].pattern.replace("^", prefix) for role in table]
        listing = {name: releases.Spec("BF16", (1,)) for name in names} | {
            f"{prefix}layers.0.x": releases.Spec("BF16", (1,))
        }
        releases.write_safetensors(folder / "model.safetensors", listing)
        ckpt = open_checkpoint(folder)
        assert hf_prefix(ckpt) == prefix
        roles = {role.name: found for role, layer, found in find_trunk(ckpt) if layer is None}
        assert list(roles) == ["token_embd.weight", "output_norm.weight", "output.weight"]
        assert None not in roles.values()
