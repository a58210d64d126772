"""Every family's tables against the facts of real releases, which come from elsewhere (fixtures/releases)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fixtures import releases
from mtptools.checkpoint import open_checkpoint, open_declared
from mtptools.families import Role, family_named, known_families
from mtptools.families.blocks import GGUF_FUSED
from mtptools.head import find_head, head_layers, head_names, not_a_head
from mtptools.hparams import declared_depth, hf_hparams
from mtptools.ops.validate_tensors import head_shapes

# A name of a release's own that a family of ours stands for.
ALIASES = {"glm4_moe_lite": "deepseek_v3"}
# llama.cpp's converter leaves the router of these as the release has it, and makes all others F32.
ROUTER_AS_IT_IS = {"deepseek4"}
KNOWN = {family.name for family in known_families()}
RELEASES = [key for key in releases.names() if releases.load(key).family in KNOWN | set(ALIASES)]
SHIPPING = [key for key in RELEASES if releases.load(key).head and not releases.load(key).facts.get("refuse")]


def expected_family(key: str) -> str:
    family = releases.load(key).family
    return ALIASES.get(family, family)


def test_only_a_family_without_heads_is_not_known() -> None:
    assert set(releases.names()) - set(RELEASES) == {"qwen3-32b"}


@pytest.mark.parametrize("key", RELEASES)
def test_release_is_understood(key: str, tmp_path: Path) -> None:
    """Its family, and the depth it declares or is silent about."""
    release = releases.load(key)
    ckpt = open_declared(releases.write_folder(key, tmp_path / key))
    assert ckpt.family.name == expected_family(key)
    assert declared_depth(ckpt.family, ckpt.config) == release.facts["declares"]
    assert ckpt.hparams.depth == (release.facts["declares"] or 0)
    assert ckpt.family.ships or not release.head
    refused = not_a_head(ckpt)
    assert (refused is not None) == bool(release.facts.get("refuse"))
    if refused is not None:
        assert release.facts["refuse"] in refused.what


@pytest.mark.parametrize("key", SHIPPING)
def test_release_resolves(key: str, tmp_path: Path) -> None:
    """No leftovers, nothing missing, every shape as the config says, in every layer that is there."""
    release = releases.load(key)
    ckpt = open_checkpoint(releases.write_folder(key, tmp_path / key))
    assert set(head_names(ckpt)) == set(release.head)
    layers = head_layers(ckpt)
    assert layers == tuple(range(len(layers)))
    assert len(layers) == (release.facts["declares"] or len(layers))
    for layer in layers:
        head = find_head(ckpt, layer)
        assert head is not None
        assert head.missing == ()
        assert head.unknown == ()
        for name, found in head.roles.items():
            wanted = [ckpt.hparams.size(size) if size != "" else 0 for size in found.role.shape]
            shape = list(found.tensor.shape)
            squeezed = [n for n in shape if n != 1], [n for n in wanted if n != 1]
            assert len(squeezed[0]) == len(squeezed[1]), name
            assert all(b in (0, a) for a, b in zip(*squeezed, strict=True)), (name, shape, wanted)
    assert list(head_shapes(ckpt)) == []


def role_shape(role: Role, spec: releases.Spec) -> list[str | int]:
    """The role's dimensions, without those of 1 that older files leave out."""
    return [size for size in role.shape if size != 1] if len(role.shape) != len(spec.shape) else list(role.shape)


def wiring_values(stated: Any) -> set[Any]:
    """What the facts' sources say of one field of the wiring: one value, or one for each runtime."""
    value = stated[0]
    return set(value.values()) if isinstance(value, dict) else {value}


@pytest.mark.parametrize("key", [key for key in SHIPPING if "wiring" in releases.load(key).facts])
def test_wiring_is_one_that_somebody_reports(key: str) -> None:
    stated = releases.load(key).facts["wiring"]
    family = family_named(expected_family(key))
    for name in ("concat", "tap", "recycle", "mask_first"):
        said = {str(value).split(":")[0].split(",")[0] for value in wiring_values(stated[name])}
        ours = str(getattr(family.wiring, name))
        assert any(ours == value or ours in value.split() for value in said), (name, ours, said)
    norms = {role.convention("hf") for role in family.head if role.kind == "norm"}
    assert norms == {stated["norm"][0]}
    private = [role for role in family.head if role.name == "nextn.shared_head_head.weight"]
    assert any(role.required for role in private) is stated["own_output"][0]


@pytest.mark.parametrize("key", [key for key in SHIPPING if any(".nextn." in n for n in releases.load(key).gguf)])
def test_gguf_of_a_release_has_our_roles(key: str) -> None:
    """The block as llama.cpp's loader asks for it: every tensor a role of ours, in the shape its release implies."""
    release = releases.load(key)
    family = family_named(expected_family(key))
    assert release.facts["gguf_arch"] == family.gguf_arch
    hparams = hf_hparams(family, release.config, key)
    roles = {role.name: role for role in family.head}
    blocks: dict[int, set[str]] = {}
    for name in release.gguf:
        if match := re.match(r"blk\.(\d+)\.(.+)", name):
            blocks.setdefault(int(match[1]), set()).add(match[2])
    heads = {n: names for n, names in blocks.items() if "nextn.eh_proj.weight" in names}
    assert heads
    for number, names in heads.items():
        covered = {part for fused in names for part in GGUF_FUSED.get(fused, ())}
        assert names - set(GGUF_FUSED) <= set(roles), number
        conditional = {name for name, role in roles.items() if role.when or not role.required or role.root}
        assert set(roles) - conditional <= names | covered, number
        for name in names & set(roles):
            spec = release.gguf[f"blk.{number}.{name}"]
            wanted = [
                hparams.size(size) if size != "" else n
                for size, n in zip(role_shape(roles[name], spec), spec.shape, strict=True)
            ]
            assert list(spec.shape) == wanted, name
            if roles[name].kind in {"norm", "router", "vector"} and not (
                roles[name].kind == "router" and family.name in ROUTER_AS_IT_IS
            ):
                assert spec.dtype == "F32", name
