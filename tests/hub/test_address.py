from __future__ import annotations

from pathlib import Path

import pytest

from mtptools.errors import UsageError
from mtptools.hub import Address, parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("user/repo", Address("user/repo")),
        ("user/repo@v1.0", Address("user/repo", "v1.0")),
        ("user/repo@feature%2Fx", Address("user/repo", "feature/x")),
        ("user/repo@refs/pr/3", Address("user/repo", "refs/pr/3")),
        ("user/repo:Q4_K_M", Address("user/repo", tag="Q4_K_M")),
        ("user/repo@v1:UD-Q4_K_XL", Address("user/repo", "v1", tag="UD-Q4_K_XL")),
        ("hf://user/repo", Address("user/repo")),
        ("hf:/user/repo", Address("user/repo")),
        ("hf://user/repo/", Address("user/repo")),
        ("hf://user/repo@main/sub/a.gguf", Address("user/repo", "main", "sub/a.gguf")),
        ("hf://user/repo@refs/pr/3/a.gguf", Address("user/repo", "refs/pr/3", "a.gguf")),
        ("hf://user/repo@refs%2Fpr%2F3/a.gguf", Address("user/repo", "refs/pr/3", "a.gguf")),
        (f"hf://user/repo@{COMMIT}/a.gguf", Address("user/repo", COMMIT, "a.gguf")),
        ("https://huggingface.co/user/repo", Address("user/repo")),
        ("https://hf.co/user/repo/tree/main", Address("user/repo", "main")),
        ("https://huggingface.co/user/repo/tree/main/Q4_K_M", Address("user/repo", "main", "Q4_K_M")),
        ("https://huggingface.co/user/repo/blob/main/a%20b.gguf", Address("user/repo", "main", "a b.gguf")),
        ("https:/huggingface.co/user/repo/resolve/v1/a.gguf?download=true", Address("user/repo", "v1", "a.gguf")),
        ("https://huggingface.co/user/repo/blob/refs%2Fpr%2F3/a.gguf", Address("user/repo", "refs/pr/3", "a.gguf")),
        ("http:/127.0.0.1:1/x/a.gguf?sig=1", Address(url="http://127.0.0.1:1/x/a.gguf?sig=1")),
        ("/abs/path", None),
        ("./user/repo", None),
        ("../repo", None),
        ("folder/missing.gguf", None),
        ("model.gguf", None),
        ("a/b/c", None),
        ("repo", None),
    ],
)
def test_parse(text: str, address: Address | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert parse(text) == address
    if address is not None and address.url is None:
        assert parse(str(address)) == address
        assert parse(Path(str(address))) == address


def test_a_file_with_a_percent_sign() -> None:
    address = Address("user/repo", None, "100%25.gguf")
    assert parse(str(address)) == address


def test_what_exists_is_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user" / "repo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse("user/repo") is None


def test_a_mirror_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example:8000/")
    assert parse("https://hub.example:8000/user/repo/blob/main/a.gguf") == Address("user/repo", "main", "a.gguf")


def test_secrets_are_not_shown() -> None:
    assert str(parse("https://me:pass@host/x/a.gguf?X-Signature=1#f")) == "https://host/x/a.gguf"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("hf://datasets/user/data", "only model repos"),
        ("https://huggingface.co/datasets/user/data/resolve/main/a.json", "only model repos"),
        ("https://huggingface.co/spaces/user/app", "only model repos"),
        ("hf://user", "not an address of a model repo"),
        ("https://huggingface.co/", "not an address of a model repo"),
        ("hf://user/repo/../x", "not a path in a repo"),
        ("https://host/folder/", "must name a file"),
        ("https://", "without a host"),
        ("http://[::1/x.gguf", "not an address"),
        ("http://host:abc/x.gguf", "not an address"),
        ("hf://user/repo@../x.gguf", "not a revision"),
        ("user/repo@..%2F..%2Fx", "not a revision"),
    ],
)
def test_refused(text: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    with pytest.raises(UsageError, match=what):
        parse(text)
