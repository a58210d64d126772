"""extract, strip and graft. The oracle is llama.cpp's converter, which wrote the GGUF fixtures from the HF ones."""

from __future__ import annotations

from pathlib import Path

import gguf as gguf_py
import numpy as np
import pytest

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.codecs import decode, encode
from mtptools.containers.gguf_values import array_value, scalar_value
from mtptools.errors import (
    CodecError,
    ConventionError,
    IncompatibleError,
    InputError,
    MissingHeadError,
    MissingRoleError,
    UsageError,
)
from mtptools.head import head_names
from mtptools.ops.compatible import FINDINGS
from mtptools.ops.diff import diff
from mtptools.ops.extract import extract, strip
from mtptools.ops.graft import graft
from mtptools.ops.lineage import lineage
from mtptools.ops.validate import validate
from mtptools.plan import Plan
from mtptools.receipt import load_inside
from mtptools.writer import write
from tests import rewrite
from tests.conftest import FIXTURES


def made(plan: Plan, path: Path) -> Checkpoint:
    write(plan, path)
    return open_checkpoint(path)


@pytest.fixture
def trunk(full: Path, tmp_path: Path) -> Checkpoint:
    return made(strip(open_checkpoint(full), "trunk.gguf"), tmp_path / "trunk.gguf")


def test_strip_then_graft_is_the_converters_file(full: Path, trunk: Checkpoint, tmp_path: Path) -> None:
    donor = open_checkpoint(full)
    out = made(graft(trunk, donor, "out.gguf"), tmp_path / "out.gguf")
    result = diff(donor, out)
    assert result.equal, result
    assert len(result.kept) == len(donor)


def test_hf_donor_gives_the_converters_head(full: Path, hf: Path, trunk: Checkpoint, tmp_path: Path) -> None:
    """Names, 1 + w norms, expert stacking, the gate/up split: byte for byte what llama.cpp's converter writes."""
    out = made(graft(trunk, open_checkpoint(hf), "out.gguf"), tmp_path / "out.gguf")
    assert diff(open_checkpoint(full), out).equal


def test_per_expert_donor_gives_the_same(hf_per_expert: Path, tmp_path: Path) -> None:
    full = open_checkpoint(FIXTURES / "qwen35moe" / "gguf" / "model-BF16.gguf")
    trunk = made(strip(full, "trunk.gguf"), tmp_path / "trunk.gguf")
    donor = open_checkpoint(hf_per_expert)
    assert any(".experts.3.up_proj" in name for name in donor)
    assert diff(full, made(graft(trunk, donor, "out.gguf"), tmp_path / "out.gguf")).equal


def test_strip_declares_what_the_converter_declares_without_head(trunk_q8: Path, trunk: Checkpoint) -> None:
    """The committed trunk was converted with --no-mtp: apart from its file type and label, the same metadata."""
    ours, theirs = trunk.metadata, open_checkpoint(trunk_q8).metadata
    # The converter also states a size label; what it counts is not ours to change.
    skip = {"general.file_type", "mtptools.receipt", "general.quantization_version", "general.size_label"}
    assert {k: ours[k] for k in ours if k not in skip} == {k: theirs[k] for k in theirs if k not in skip}


def test_gguf_py_reads_the_output(full: Path, trunk_q8: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    write(graft(open_checkpoint(trunk_q8), open_checkpoint(full), out.name), out)
    theirs, trunk = gguf_py.GGUFReader(out), gguf_py.GGUFReader(trunk_q8)
    before = {t.name: t.data.tobytes() for t in trunk.tensors}
    after = {t.name: t.data.tobytes() for t in theirs.tensors}
    assert {name: after[name] for name in before} == before
    arch = theirs.fields["general.architecture"].contents()
    assert theirs.fields[f"{arch}.nextn_predict_layers"].contents() == 1
    blocks = theirs.fields[f"{arch}.block_count"].contents()
    assert blocks == trunk.fields[f"{arch}.block_count"].contents() + 1
    assert len(theirs.fields[f"{arch}.attention.recurrent_layers"].contents()) == blocks
    assert theirs.fields[f"{arch}.rope.dimension_sections"].contents() == (
        trunk.fields[f"{arch}.rope.dimension_sections"].contents()
    )


@pytest.mark.parametrize(("kind", "expected"), [(None, "Q8_0"), ("BF16", "BF16"), ("Q4_0", "Q4_0"), ("f16", "F16")])
def test_head_type_of_an_hf_donor(kind: str | None, expected: str, hf: Path, trunk_q8: Path, tmp_path: Path) -> None:
    donor = open_checkpoint(hf)
    out = made(graft(open_checkpoint(trunk_q8), donor, "out.gguf", head_type=kind), tmp_path / "out.gguf")
    types = {name: out[name].codec for name in head_names(out)}
    assert {t for n, t in types.items() if "norm" not in n and "gate_inp" not in n} == {expected}
    assert {t for n, t in types.items() if "norm" in n or "gate_inp" in n} == {"F32"}
    from mtptools.codecs import decode

    name = next(n for n in out if n.endswith("nextn.eh_proj.weight"))
    assert out[name].read() == encode(decode(donor["mtp.fc.weight"]), expected)


def test_gguf_donor_keeps_its_types_unless_told(full: Path, trunk_q8: Path) -> None:
    donor, base = open_checkpoint(full), open_checkpoint(trunk_q8)
    head = [e for e in graft(base, donor, "o.gguf").entries if e.head]
    assert all(entry.passes for entry in head)
    recoded = [e for e in graft(base, donor, "o.gguf", head_type="Q8_0").entries if e.head]
    assert {e.codec for e in recoded if not e.passes} == {"Q8_0"}


def test_type_that_cannot_be_encoded(full: Path, trunk_q8: Path) -> None:
    with pytest.raises(CodecError) as caught:
        graft(open_checkpoint(trunk_q8), open_checkpoint(full), "o.gguf", head_type="TQ1_0")
    assert "Q8_0" in str(caught.value.hint)


def test_sidecar_is_what_llama_cpp_loads(full: Path, tmp_path: Path) -> None:
    source = open_checkpoint(full)
    out = made(extract(source, "mtp.gguf"), tmp_path / "mtp.gguf")
    extra = {name for name in ("token_embd.weight", "output.weight", "output_norm.weight") if name in source}
    assert set(out) == {*head_names(source), *extra}
    assert {k: v for k, v in out.metadata.items() if not k.startswith("mtptools.")} == dict(source.metadata)


@pytest.mark.parametrize("bare", [False, True])
def test_a_sidecar_is_a_donor(bare: bool, full: Path, trunk: Checkpoint, tmp_path: Path) -> None:
    source = open_checkpoint(full)
    sidecar = made(extract(source, "mtp.gguf", bare=bare), tmp_path / "mtp.gguf")
    assert diff(source, made(graft(trunk, sidecar, "out.gguf"), tmp_path / "out.gguf")).equal
    if bare:
        assert set(sidecar) == set(head_names(source))


def test_hf_strip_graft_round_trip(hf: Path, tmp_path: Path) -> None:
    source = open_checkpoint(hf)
    trunk = made(strip(source, "trunk"), tmp_path / "trunk")
    assert not head_names(trunk)
    assert trunk.hparams.depth == 0
    sidecar = made(extract(source, "head", bare=True), tmp_path / "head")
    for donor in (source, sidecar):
        plan = graft(trunk, donor, "out")
        out = made(plan, tmp_path / f"out-{donor.path.name}")
        assert diff(source, out).equal
        assert out.index is not None
        assert set(out.index["weight_map"]) == set(source)
        assert validate(out).ok
        assert not (out.path / "model.safetensors").exists()


def test_hf_sidecar_has_config_tokenizer_and_shared_roles(hf: Path, tmp_path: Path) -> None:
    source = open_checkpoint(hf)
    out = made(extract(source, "mtp"), tmp_path / "mtp")
    extra = [name for name in out if not name.startswith("mtp.")]
    assert extra
    assert all(name.endswith(("embed_tokens.weight", "lm_head.weight")) for name in extra)
    assert out.hparams == source.hparams
    assert (out.path / "tokenizer.json").is_file()


def test_same_command_same_bytes(full: Path, trunk: Checkpoint, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(graft(trunk, open_checkpoint(full), "out.gguf"), tmp_path / folder / "out.gguf")
    for name in ("out.gguf", "out.gguf.receipt.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def split_by_gguf_py(source: Path, stem: Path) -> Path:
    """The same file as shards, written by gguf-py."""
    reader = gguf_py.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf_py.GGUFWriter(stem, arch, split_max_tensors=max(10, len(reader.tensors) // 3))
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind = field.types[0]
            sub = field.types[-1] if kind == gguf_py.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, sub_type=sub)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(stem.parent.glob(f"{stem.stem}-0*.gguf"))[0]


def test_split_trunk(full: Path, trunk: Checkpoint, tmp_path: Path) -> None:
    first = split_by_gguf_py(trunk.path, tmp_path / "split.gguf")
    base = open_checkpoint(first)
    shards = len(base.files)
    assert shards > 2
    assert diff(trunk, base).kept == tuple(trunk)
    (tmp_path / "o").mkdir()
    written = write(graft(base, open_checkpoint(full), "out.gguf"), tmp_path / "o" / "out.gguf")
    out = open_checkpoint(written.path)
    assert len(out.files) == shards + 1
    assert [item.verdict for item in lineage(out, base, open_checkpoint(full))] == ["pass", "pass", "pass"]
    assert set(load_inside(out)["head_sha256"].values()) == {
        t["sha256"] for t in written.receipt["tensors"] if "sha256" in t
    }
    assert [f.metadata["split.no"] for f in out.files] == list(range(shards + 1))
    assert {f.metadata["split.count"] for f in out.files} == {shards + 1}
    assert {f.metadata["split.tensors.count"] for f in out.files} == {len(out)}
    assert diff(open_checkpoint(full), out).kept == tuple(open_checkpoint(full))
    (tmp_path / "s").mkdir()
    back = open_checkpoint(write(strip(out, "back.gguf"), tmp_path / "s" / "back.gguf").path)
    assert len(back.files) == shards
    assert diff(base, back).kept == tuple(base)
    sidecar = made(extract(out, "mtp.gguf"), tmp_path / "mtp.gguf")
    assert len(sidecar.files) == 1
    assert "split.count" not in sidecar.metadata


def test_declared_and_missing_is_mended(full: Path, trunk: Checkpoint, tmp_path: Path) -> None:
    source = open_checkpoint(full)
    broken = open_checkpoint(rewrite.gguf(full, tmp_path / "broken.gguf", drop=head_names(source)))
    assert broken.hparams.depth == 1
    assert diff(source, made(graft(broken, source, "a.gguf"), tmp_path / "a.gguf")).equal
    assert diff(trunk, made(strip(broken, "b.gguf"), tmp_path / "b.gguf")).equal


def test_scalar_and_older_metadata(full: Path, trunk: Checkpoint, tmp_path: Path) -> None:
    """Files from before attention.recurrent_layers, and per-layer counts as arrays."""
    arch = trunk.family.gguf_arch
    n = trunk.hparams.n_layers
    kv = array_value("u32", [0 if kind == "linear" else trunk.hparams.n_kv_heads for kind in trunk.hparams.layer_types])
    old = rewrite.gguf(
        trunk.path,
        tmp_path / "old.gguf",
        metadata={f"{arch}.attention.recurrent_layers": None, f"{arch}.attention.head_count_kv": kv},
    )
    out = made(graft(open_checkpoint(old), open_checkpoint(full), "out.gguf"), tmp_path / "out.gguf")
    assert f"{arch}.attention.recurrent_layers" not in out.metadata
    assert len(out.metadata[f"{arch}.attention.head_count_kv"]) == n + 1
    assert out.metadata[f"{arch}.attention.head_count_kv"][-1] == trunk.hparams.n_kv_heads
    assert out.hparams.layer_types == trunk.hparams.layer_types
    assert validate(out).ok


def test_refusals(full: Path, hf: Path, trunk: Checkpoint, tmp_path: Path) -> None:
    source = open_checkpoint(full)
    with pytest.raises(InputError, match="has a head already"):
        graft(source, source, "o.gguf")
    with pytest.raises(MissingHeadError, match="no MTP head"):
        graft(trunk, trunk, "o.gguf")
    empty = open_checkpoint(rewrite.gguf(full, tmp_path / "empty.gguf", drop=head_names(source)))
    with pytest.raises(MissingHeadError, match="declares 1 MTP layer"):
        graft(trunk, empty, "o.gguf")
    fusion = next(name for name in source if name.endswith("nextn.eh_proj.weight"))
    lame = open_checkpoint(rewrite.gguf(full, tmp_path / "lame.gguf", drop=(fusion,)))
    with pytest.raises(MissingRoleError, match=r"nextn\.eh_proj\.weight"):
        graft(trunk, lame, "o.gguf")
    with pytest.raises(MissingHeadError):
        strip(trunk, "o.gguf")
    with pytest.raises(MissingHeadError):
        extract(trunk, "o.gguf")


def test_gguf_donor_gives_the_released_head_back(full: Path, hf: Path, tmp_path: Path) -> None:
    """HF -> GGUF by llama.cpp's converter, GGUF -> HF by us: the release's own names and bytes."""
    release, trunk = open_checkpoint(hf), made(strip(open_checkpoint(hf), "t"), tmp_path / "t")
    out = made(graft(trunk, open_checkpoint(full), "o"), tmp_path / "o")
    names = head_names(release)
    assert head_names(out) == tuple(sorted(names, key=list(out).index))
    differ = [name for name in names if out[name].read() != release[name].read()]
    # 1 + w in float32 loses the last bits of a w below 2^-15: nothing else may differ, and no value by more than that.
    for name in differ:
        assert "norm" in name, name
        assert np.abs(decode(out[name]) - decode(release[name])).max() < 2**-23


def test_every_mismatch_at_once(full: Path, trunk: Checkpoint, tmp_path: Path) -> None:
    arch = trunk.family.gguf_arch
    tokens = list(trunk.metadata["tokenizer.ggml.tokens"])
    tokens[5], tokens[6] = tokens[6], tokens[5]
    other = rewrite.gguf(
        full,
        tmp_path / "other.gguf",
        metadata={
            f"{arch}.rope.freq_base": scalar_value("f32", 12345.0),
            f"{arch}.attention.head_count": scalar_value("u32", 1),
            "tokenizer.ggml.tokens": array_value("string", tokens),
        },
    )
    donor = open_checkpoint(other)
    with pytest.raises(IncompatibleError) as caught:
        graft(trunk, donor, "o.gguf")
    ids = [finding.split("]")[0].strip("[") for finding in caught.value.findings]
    assert list(dict.fromkeys(ids)) == ["heads", "rope", "tokenizer", "head-shape"]
    with pytest.raises(IncompatibleError) as caught:
        graft(trunk, donor, "o.gguf", allow=FINDINGS)
    assert not [f for f in caught.value.findings if "rope" in f]  # shapes depend on the others: nothing allows them
    milder = rewrite.gguf(full, tmp_path / "m.gguf", metadata={f"{arch}.rope.freq_base": scalar_value("f32", 2.0)})
    with pytest.raises(IncompatibleError) as caught:
        graft(trunk, open_checkpoint(milder), "o.gguf")
    assert "--allow-mismatch rope" in str(caught.value.hint)
    assert "rope" in graft(trunk, open_checkpoint(milder), "o.gguf", allow=("rope",)).facts[0]
    with pytest.raises(UsageError):
        graft(trunk, open_checkpoint(milder), "o.gguf", allow=("colour",))


FAULTS = {
    "head-norms": lambda rows: rows - 1,
    "head-values": lambda rows: np.full_like(rows, np.nan),
}


@pytest.mark.parametrize("finding", FAULTS)
def test_a_donor_whose_head_is_wrong(finding: str, full: Path, trunk: Checkpoint, tmp_path: Path) -> None:
    """The silent fault is refused before anything is written, and can be allowed by name."""
    names = [n for n in head_names(open_checkpoint(full)) if "norm" in n]
    donor = open_checkpoint(rewrite.gguf(full, tmp_path / "d.gguf", edit=dict.fromkeys(names, FAULTS[finding])))
    with pytest.raises(IncompatibleError) as caught:
        graft(trunk, donor, "o.gguf")
    assert any(f"[{finding}]" in found for found in caught.value.findings)
    assert f"--allow-mismatch {finding}" in str(caught.value.hint)
    assert graft(trunk, donor, "o.gguf", allow=("head-norms", "head-values")).facts


def test_a_head_of_the_wrong_shape(full: Path, trunk: Checkpoint, tmp_path: Path) -> None:
    name = next(n for n in head_names(open_checkpoint(full)) if n.endswith("nextn.eh_proj.weight"))
    half = np.zeros((128, 512), np.float32)
    donor = open_checkpoint(rewrite.gguf(full, tmp_path / "d.gguf", drop=(name,), add={name: half}))
    with pytest.raises(IncompatibleError) as caught:
        graft(trunk, donor, "o.gguf", allow=FINDINGS)
    assert any("head-shape" in found for found in caught.value.findings)


def test_value_that_does_not_fit_the_type(full: Path, trunk: Checkpoint, tmp_path: Path) -> None:
    name = next(n for n in head_names(open_checkpoint(full)) if n.endswith("nextn.eh_proj.weight"))
    donor = open_checkpoint(rewrite.gguf(full, tmp_path / "d.gguf", edit={name: lambda rows: rows * 1e8}))
    with pytest.raises(CodecError, match="does not fit F16"):
        write(graft(trunk, donor, "o.gguf", head_type="F16"), tmp_path / "o.gguf")
    assert not (tmp_path / "o.gguf").exists()


def test_trunks_that_are_not_whole(full: Path, trunk: Checkpoint, tmp_path: Path) -> None:
    """No real block is ever taken for a head, and no hole for the trunk's end."""
    source, arch, n = open_checkpoint(full), trunk.family.gguf_arch, trunk.hparams.n_layers
    hole = tuple(name for name in source if name.startswith("blk.1."))
    broken = open_checkpoint(rewrite.gguf(full, tmp_path / "hole.gguf", drop=hole))
    with pytest.raises(MissingRoleError, match=r"block\(s\) 1 of the trunk"):
        strip(broken, "o.gguf")
    declared = {f"{arch}.nextn_predict_layers": scalar_value("u32", 1)}
    unclear = open_checkpoint(rewrite.gguf(trunk.path, tmp_path / "unclear.gguf", metadata=declared))
    for call in (lambda: strip(unclear, "o.gguf"), lambda: graft(unclear, source, "o.gguf")):
        with pytest.raises(ConventionError, match=f"is block {n - 1} of the trunk"):
            call()
    sidecar = made(extract(source, "s.gguf"), tmp_path / "s.gguf")
    with pytest.raises(InputError, match="no trunk in it"):
        strip(sidecar, "o.gguf")


def test_undeclared_head_is_a_donor(full: Path, trunk: Checkpoint, tmp_path: Path) -> None:
    """Only the declaration is missing: blocks are counted, so the head is found where it stands."""
    key = f"{trunk.family.gguf_arch}.nextn_predict_layers"
    donor = open_checkpoint(rewrite.gguf(full, tmp_path / "d.gguf", metadata={key: None}))
    assert diff(open_checkpoint(full), made(graft(trunk, donor, "o.gguf"), tmp_path / "o.gguf")).equal


FP8_MODULE = "mtp.layers.0.self_attn.q_proj"


def fp8_head(source: Path, out: Path) -> np.ndarray:
    """The fixture with one matrix of its head in FP8, a scale for every 128x128 block; torch's own product of both."""
    import torch
    from safetensors.torch import load_file, save_file

    rewrite.hf(source, out)
    tensors = load_file(out / "model.safetensors")
    weight = tensors[f"{FP8_MODULE}.weight"].float()
    rows, columns = weight.shape
    blocks = weight.reshape(rows // 128, 128, columns // 128, 128)
    scale = blocks.abs().amax(dim=(1, 3)) / 448
    codes = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
    tensors[f"{FP8_MODULE}.weight"] = codes.reshape(rows, columns)
    tensors[f"{FP8_MODULE}.weight_scale_inv"] = scale
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return (codes.float() * scale[:, None, :, None]).reshape(rows, columns).numpy()


def test_fp8_head_is_dequantized_into_gguf(trunk_q8: Path, hf: Path, tmp_path: Path) -> None:
    wanted = fp8_head(hf, tmp_path / "m")
    donor = open_checkpoint(tmp_path / "m")
    out = made(graft(open_checkpoint(trunk_q8), donor, "out.gguf", head_type="F32"), tmp_path / "out.gguf")
    block = open_checkpoint(trunk_q8).hparams.n_layers
    assert np.array_equal(decode(out[f"blk.{block}.attn_q.weight"]), wanted)


def test_fp8_head_keeps_its_scales_in_hf(hf: Path, tmp_path: Path) -> None:
    fp8_head(hf, tmp_path / "m")
    donor = open_checkpoint(tmp_path / "m")
    out = made(extract(donor, "o"), tmp_path / "o")
    for name in (f"{FP8_MODULE}.weight", f"{FP8_MODULE}.weight_scale_inv"):
        assert out[name].read() == donor[name].read()


def test_unknown_quantization_is_named(trunk_q8: Path, hf: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    path = rewrite.hf(hf, tmp_path / "m")
    tensors = load_file(path / "model.safetensors")
    tensors[f"{FP8_MODULE}.qweight"] = torch.ones(32, 8, dtype=torch.int32)
    del tensors[f"{FP8_MODULE}.weight"]
    tensors[f"{FP8_MODULE}.qzeros"] = torch.ones(1, 8, dtype=torch.int32)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(IncompatibleError) as caught:
        graft(open_checkpoint(trunk_q8), open_checkpoint(path), "o.gguf")
    assert any("GPTQ" in finding for finding in caught.value.findings)
    with pytest.raises(CodecError, match="GPTQ"):
        graft(open_checkpoint(trunk_q8), open_checkpoint(path), "o.gguf", allow=("head-readable",))


def test_tokenizer_digest_is_one_for_gguf_and_hf(full: Path, hf: Path) -> None:
    from mtptools.tokens import tokenizer_facts

    ours, theirs = tokenizer_facts(open_checkpoint(full)), tokenizer_facts(open_checkpoint(hf))
    assert ours is not None
    assert theirs is not None
    assert (ours.size, ours.digest) == (theirs.size, theirs.digest)


def test_plan_is_total(full: Path, trunk: Checkpoint) -> None:
    plan = graft(trunk, open_checkpoint(full), "o.gguf")
    with pytest.raises(ValueError, match="says nothing of"):
        Plan(plan.verb, plan.inputs, plan.files)
    with pytest.raises(ValueError, match="planned twice"):
        Plan(plan.verb, plan.inputs, (*plan.files, plan.files[0]), dropped=plan.dropped)


def test_renders(full: Path, hf: Path, trunk: Checkpoint) -> None:
    text = graft(trunk, open_checkpoint(hf), "o.gguf").render()
    assert "nextn.eh_proj.weight" in text
    assert "unit_offset -> plain" in text
    assert "block_count" in text
