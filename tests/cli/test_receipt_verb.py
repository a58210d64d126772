"""mtptools receipt: what an output was made from, every digest again, its sources, a signature."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mtptools.checkpoint import open_checkpoint
from tests import rewrite
from tests.conftest import FIXTURES

GGUF = FIXTURES / "qwen35" / "gguf"
TRUNK, FULL = GGUF / "trunk-Q8_0.gguf", GGUF / "model-BF16.gguf"
NAME = "blk.1.attn_norm.weight"


@pytest.fixture
def out(run: Any, tmp_path: Path) -> Path:
    path = tmp_path / "out.gguf"
    assert run("graft", TRUNK, FULL, "-o", path, "-q")[0] == 0
    return path


def test_what_it_was_made_from(run: Any, out: Path) -> None:
    code, text, _ = run("receipt", out)
    assert code == 0
    for word in ("graft", TRUNK.name, FULL.name, "70 tensors", "versions", "python"):
        assert word in text
    assert str(TRUNK.parent) not in text


def test_every_digest(run: Any, out: Path) -> None:
    code, text, _ = run("receipt", out, "--verify", "--json")
    data = json.loads(text)
    assert (code, data["ok"], data["counts"]) == (0, True, {"tensor same": 70})


def test_one_byte(run: Any, out: Path) -> None:
    """A single bit of a single tensor: that one is named, and no other."""
    blob = open_checkpoint(out)[NAME].blobs[0]
    with open(out, "r+b") as file:
        file.seek(blob.offset + 5)
        byte = file.read(1)[0]
        file.seek(blob.offset + 5)
        file.write(bytes([byte ^ 1]))
    code, text, _ = run("receipt", out, "--verify", "--json")
    data = json.loads(text)
    assert (code, data["ok"]) == (1, False)
    assert [one["name"] for one in data["findings"] if one["state"] != "same"] == [NAME]
    assert "xxh3_128" in data["failures"][0]
    code, text, _ = run("receipt", out, "--verify")
    assert (code, f"changed  tensor {NAME}" in text) == (1, True)


@pytest.mark.parametrize(
    ("edit", "state"), [({"drop": (NAME,)}, "missing"), ({"add": {"new.weight": np.zeros(32, np.float32)}}, "extra")]
)
def test_missing_and_extra(run: Any, out: Path, tmp_path: Path, edit: dict[str, Any], state: str) -> None:
    other = rewrite.gguf(out, tmp_path / "other.gguf", **edit)
    shutil.copy(f"{out}.receipt.json", f"{other}.receipt.json")
    code, text, _ = run("receipt", other, "--verify", "--json")
    wrong = [one for one in json.loads(text)["findings"] if one["state"] != "same"]
    assert (code, [one["state"] for one in wrong]) == (1, [state])


def test_inside_alone(run: Any, out: Path) -> None:
    """Without the file beside it the head is checked, and that the rest is not is said."""
    Path(f"{out}.receipt.json").unlink()
    code, text, _ = run("receipt", out, "--verify", "--json")
    data = json.loads(text)
    assert (code, data["form"]) == (0, "inside")
    assert data["counts"] == {"tensor same": 15, "tensor not checked": 55}
    assert "digests of the head alone" in run("receipt", out)[1]


def test_no_receipt(run: Any) -> None:
    code, _, err = run("receipt", TRUNK)
    assert code == 3
    assert "no receipt" in err
    assert "hint: " in err


def test_sources(run: Any, out: Path, tmp_path: Path) -> None:
    renamed = shutil.copy(FULL, tmp_path / "renamed.gguf")
    code, text, _ = run("receipt", out, "--sources", TRUNK, "--sources", renamed)
    assert code == 0
    assert "2 source same" in text
    changed = rewrite.gguf(FULL, tmp_path / "model-BF16.gguf", drop=("output_norm.weight",))
    code, text, _ = run("receipt", out, "--sources", changed, "--json")
    states = {one["name"]: one["state"] for one in json.loads(text)["findings"]}
    assert code == 1
    assert states == {f"trunk {TRUNK.name}": "not checked", f"donor {FULL.name}": "changed"}


def test_a_folder(run: Any, tmp_path: Path) -> None:
    """A file that is gone is found; one that came, such as a README, is no fault."""
    out = tmp_path / "out"
    assert run("strip", FIXTURES / "qwen35" / "hf", "-o", out, "-q")[0] == 0
    (out / "README.md").write_text("mine")
    assert run("receipt", out, "--verify")[0] == 0
    (out / "tokenizer.json").unlink()
    code, text, _ = run("receipt", out, "--verify")
    assert (code, "missing  file tokenizer.json" in text) == (1, True)


class Recorded(ModuleType):
    """Stands in for model_signing: notes what is called, with its arguments, and fails a signature on demand."""

    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]
    fails: bool

    def Config(self) -> Recorded:
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **named: Any) -> Recorded:
            self.calls.append((name, args, named))
            if name == "verify" and self.fails:
                raise ValueError("Signature mismatch")
            if name == "sign":
                Path(args[1]).write_text("{}")
            return self

        return call


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    fake = Recorded("model_signing")
    fake.calls, fake.fails = [], False
    fake.hashing = fake.signing = fake.verifying = fake
    for name in ("", ".hashing", ".signing", ".verifying"):
        monkeypatch.setitem(sys.modules, f"model_signing{name}", fake)
    return fake


def test_signature(run: Any, out: Path, package: Recorded, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("key")
    assert run("receipt", out, "--sign", "--key", key)[0] == 0
    signature = out.with_name("out.gguf.sig")
    assert package.calls == [("use_elliptic_key_signer", (), {"private_key": key}), ("sign", (out, signature), {})]
    package.calls.clear()
    assert run("receipt", out, "--verify-signature", "--public-key", key)[0] == 0
    assert package.calls == [("use_elliptic_key_verifier", (), {"public_key": key}), ("verify", (out, signature), {})]
    package.fails = True
    code, text, _ = run("receipt", out, "--verify-signature", "--public-key", key)
    assert (code, "does not hold" in text) == (1, True)
    signature.unlink()
    assert run("receipt", out, "--verify-signature", "--public-key", key)[0] == 3, "no signature"


def test_signing_needs_its_package_and_a_key(run: Any, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("receipt", out, "--sign")[0] == 2
    assert run("receipt", out, "--key", out)[0] == 2
    for name in ("", ".hashing", ".signing", ".verifying"):
        monkeypatch.setitem(sys.modules, f"model_signing{name}", None)
    code, _, err = run("receipt", out, "--sign", "--key", out)
    assert (code, "pip install" in err) == (7, True)


def test_signature_by_the_package_itself(run: Any, out: Path, tmp_path: Path) -> None:
    """A real key: the signature holds, and no longer after one more byte."""
    pytest.importorskip("model_signing", reason="model-signing is not installed: pip install model-signing")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    key, public = tmp_path / "key.pem", tmp_path / "public.pem"
    kinds = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(private.private_bytes(*kinds))
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(private.public_key().public_bytes(serialization.Encoding.PEM, spki))
    assert run("receipt", out, "--sign", "--key", key, "--verify-signature", "--public-key", public)[0] == 0
    with open(out, "ab") as file:
        file.write(b"\0")
    code, text, _ = run("receipt", out, "--verify-signature", "--public-key", public)
    assert (code, "does not hold" in text) == (1, True)


@pytest.mark.parametrize(
    ("edit", "part"),
    [
        (lambda record: record["sources"][0].update(files=5), "sources"),
        (lambda record: record["sources"][0].update(files=[{"name": "x"}]), "sources"),
        (lambda record: record["sources"][0]["files"][0].update(bytes=10**400), "sources"),
        (lambda record: record["sources"][0]["files"][0].update(header_sha256=[]), "sources"),
        (lambda record: record["sources"][0].update(origin="main"), "sources"),
        (lambda record: record.update(facts=5), "facts"),
        (lambda record: record.update(files=[{}]), "files"),
        (lambda record: record.update(verification={"failures": True}), "verification"),
        (lambda record: record.update(verification=7), "verification"),
    ],
)
def test_a_damaged_receipt(run: Any, out: Path, edit: Callable[[dict[str, Any]], None], part: str) -> None:
    """Said as what it is, by whoever reads it."""
    path = Path(f"{out}.receipt.json")
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))
    for arguments in ((), ("--verify", "--sources", TRUNK)):
        code, _, err = run("receipt", out, *arguments)
        assert (code, f"{part} is not what it should be" in err) == (3, True), err
    code, text, err = run("card", out)
    assert (code, "is not recorded" in text) == (0, True), err
