"""Which repo, which revision, which files; and what the hub refuses."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants

from mtptools.errors import CorruptError, InputError, MtpToolsError, NotACheckpointError, SystemFailure
from mtptools.hub import Address, mirror, parse, shown
from mtptools.hub.remote import Remote
from mtptools.tensors import PARTIAL
from tests.hub.contents import Bytes, Content, shard
from tests.hub.server import TOKEN, Hub

CONFIG = Bytes(b'{"model_type": "x"}')


def address(text: str) -> Address:
    found = parse(text)
    assert found is not None
    return found


def names(files: list[str], size: int = 3_000_000) -> dict[str, Content]:
    return {name: shard({name: size}) for name in files}


def test_a_revision_is_its_commit(hub: Hub) -> None:
    first = hub.add("user/repo", {"config.json": CONFIG, **names(["model.safetensors"])}, ref="v1")
    second = hub.add("user/repo", {"config.json": Bytes(b"{}"), **names(["model.safetensors"])})
    old, origin = mirror(address("user/repo@v1"))
    assert (origin.revision, origin.commit, origin.repo) == ("v1", first, "user/repo")
    assert origin.url == f"{hub.url}/user/repo"
    new, origin = mirror(address("user/repo"))
    assert (origin.revision, origin.commit) == (None, second)
    assert old.name == new.name == "repo"
    assert (old / "config.json").read_bytes() != (new / "config.json").read_bytes()
    assert shown(f"{old}/config.json: bad") == "hf://user/repo@v1/config.json: bad"
    asked = len(hub.asked("hub", "/api/"))
    mirror(address(f"user/repo@{first}"))
    assert len(hub.asked("hub", "/api/")) == asked, "a commit that is known is not asked for again"


def test_a_revision_with_slashes(hub: Hub) -> None:
    hub.add("user/repo", {"config.json": CONFIG, **names(["model.safetensors"])}, ref="refs/pr/3")
    assert mirror(address("user/repo@refs/pr/3"))[1].revision == "refs/pr/3"
    assert mirror(address("hf://user/repo@refs%2Fpr%2F3/model.safetensors"))[0].name == "model.safetensors"


def test_what_is_fetched_at_once(hub: Hub) -> None:
    """What a checkpoint uses; no pictures, no other frameworks' weights, no folders."""
    wanted = ["config.json", "generation_config.json", "tokenizer_config.json", "merges.txt", "chat_template.jinja"]
    other = ["README.md", "logo.png", "pytorch_model.bin", "onnx/config.json", "original/consolidated.safetensors"]
    files: dict[str, Content] = {name: Bytes(name.encode()) for name in wanted + other}
    files |= {"tokenizer.json": Bytes(b"t" * 2_000_000), **names(["model.safetensors"])}
    hub.add("user/repo", files)
    folder, _ = mirror(address("user/repo"))
    assert {path.name for path in folder.iterdir()} == {*wanted, "tokenizer.json", "model.safetensors"}
    assert set(PARTIAL) == {folder / "tokenizer.json", folder / "model.safetensors"}
    assert hub.sent < 200_000, "a large tokenizer comes when it is read"
    PARTIAL[folder / "tokenizer.json"].need(0, 2_000_000)
    assert (folder / "tokenizer.json").read_bytes() == b"t" * 2_000_000


def test_long_headers_come_whole(hub: Hub) -> None:
    content = shard({f"model.layers.{i}.mlp.experts.gate_up_proj.weight": 1000 for i in range(4000)})
    hub.add("user/repo", {"config.json": CONFIG, "model.safetensors": content})
    folder, _ = mirror(address("user/repo"))
    assert len(content.head) > 131_072
    assert PARTIAL[folder / "model.safetensors"].missing(0, len(content.head)) == 0


GGUFS = [
    "model-Q4_K_M.gguf",
    "model-UD-Q4_K_M.gguf",
    "model-Q4_K_S.gguf",
    "mtp-model-Q8_0.gguf",
    "model-Q8_0.gguf",
    "mmproj-F16.gguf",
    "BF16/model-BF16-00001-of-00002.gguf",
    "BF16/model-BF16-00002-of-00002.gguf",
]


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("user/repo:Q4_K_M", "model-Q4_K_M.gguf"),
        ("user/repo:q4_k_s", "model-Q4_K_S.gguf"),
        ("user/repo:UD-Q4_K_M", "model-UD-Q4_K_M.gguf"),
        ("user/repo:Q8_0", "model-Q8_0.gguf"),
        ("user/repo:BF16", "BF16/model-BF16-00001-of-00002.gguf"),
        ("hf://user/repo/BF16", "BF16/model-BF16-00001-of-00002.gguf"),
        ("hf://user/repo/mmproj-F16.gguf", "mmproj-F16.gguf"),
        ("hf://user/repo/BF16/model-BF16-00002-of-00002.gguf", "BF16/model-BF16-00002-of-00002.gguf"),
    ],
)
def test_one_gguf_of_many(hub: Hub, text: str, file: str) -> None:
    hub.add("user/repo", names(GGUFS))
    path, _ = mirror(address(text))
    assert path.as_posix().endswith("/repo/" + file)
    shards = [name for name in GGUFS if "BF16" in name] if "BF16" in file else [file]
    assert {p.name for p in path.parent.iterdir() if p.is_file()} == {name.split("/")[-1] for name in shards}
    assert all(PARTIAL[path.parent / name.split("/")[-1]].missing(0, 1 << 20) == 0 for name in shards)


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("user/repo", r"holds 6 GGUF files: BF16/model-BF16-00001-of-00002.gguf \(0.006 GB\), ", "user/repo:BF16"),
        ("user/repo:Q6_K", "no GGUF of this repo has Q6_K in its name; it holds BF16", "hf://user/repo/"),
        ("hf://user/repo/model-Q4_KM.gguf", "nearest are model-Q4_K_M.gguf", "hf://user/repo/model-Q4_K_M.gguf"),
    ],
)
def test_no_one_gguf(hub: Hub, text: str, what: str, hint: str) -> None:
    hub.add("user/repo", names(GGUFS))
    with pytest.raises(NotACheckpointError, match=what) as caught:
        mirror(address(text))
    assert hint in str(caught.value.hint)


def test_no_weights_at_all(hub: Hub) -> None:
    hub.add("user/repo", {"README.md": Bytes(b"x")})
    with pytest.raises(NotACheckpointError, match="no safetensors and no GGUF"):
        mirror(address("user/repo"))


def test_names_that_lead_out_of_the_folder(hub: Hub, tmp_path: Path) -> None:
    """No git repo has them; a server that is not the hub may."""
    hub.add("user/repo", names(["../../../../../up-Q4_0.gguf", "/abs-Q4_0.gguf", "a/./b-Q4_0.gguf", "c-Q8_0.gguf"]))
    assert mirror(address("user/repo"))[0].name == "c-Q8_0.gguf"
    with pytest.raises(NotACheckpointError, match=r"has Q4_0 in its name; it holds c-Q8_0\.gguf"):
        mirror(address("user/repo:Q4_0"))
    assert not list(tmp_path.rglob("*Q4_0*"))


@dataclass(frozen=True)
class Odd:
    """A file of which the listing says what no file has."""

    size: Any
    sha256: str = "0" * 64

    def read(self, offset: int, n: int) -> bytes:
        return b""


@pytest.mark.parametrize("size", ["12", -5, 1.5, 10**30, None, True])
def test_a_listing_that_is_none(hub: Hub, size: Any) -> None:
    hub.add("user/repo", {"m.gguf": Odd(size)})
    with pytest.raises(SystemFailure, match=r"the server lists 'm\.gguf' of .* bytes") as caught:
        mirror(address("user/repo"))
    assert "HF_ENDPOINT" in str(caught.value.hint)


def test_names_that_no_disk_takes(hub: Hub) -> None:
    hub.add("user/repo", {**names(["c-Q8_0.gguf"]), "a\0-Q4_0.gguf": Bytes(b""), "b\n-Q4_0.gguf": Bytes(b"")})
    assert mirror(address("user/repo"))[0].name == "c-Q8_0.gguf"


@pytest.mark.parametrize("text", ["[]", '{"files": [{"name": 5, "size": 1, "sha256": null, "blob": null}]}'])
def test_a_remembered_listing_that_is_damaged(hub: Hub, text: str) -> None:
    commit = hub.add("user/repo", names(["model.safetensors"]))
    folder, _ = mirror(address("user/repo"))
    (folder.parent / ".ranges" / "listing.json").write_text(text)
    asked = len(hub.asked("hub", "/api/"))
    assert mirror(address(f"user/repo@{commit}"))[0] == folder
    assert len(hub.asked("hub", "/api/")) == asked + 1


def test_another_commit_than_the_one_that_was_named(hub: Hub) -> None:
    hub.add("user/repo", names(["model.safetensors"]), ref="0" * 40)
    with pytest.raises(SystemFailure, match="answers with another commit"):
        mirror(address(f"user/repo@{'0' * 40}"))


def test_a_page_in_place_of_an_answer(hub: Hub) -> None:
    hub.faults.api = [(200, {})]
    with pytest.raises(SystemFailure, match="huggingface_hub fails") as caught:
        mirror(address("user/repo"))
    assert caught.value.hint == "check HF_ENDPOINT"


@pytest.mark.parametrize("fields", [{"x-linked-size": "abc"}, {"x-linked-size": "11"}])
def test_a_redirect_that_names_another_size(fields: dict[str, str]) -> None:
    remote = Remote("http://host/x", 12, "e", "hf://user/repo/x", hub=True)
    with pytest.raises(CorruptError, match="changed"):
        remote._linked(SimpleNamespace(headers=fields))


def test_the_hint_can_be_typed(hub: Hub) -> None:
    hub.add("user/repo", names(["a 100%25.gguf", "b.gguf"]))
    with pytest.raises(NotACheckpointError) as caught:
        mirror(address("user/repo"))
    typed = str(caught.value.hint).removeprefix("name one: ")
    assert mirror(address(shlex.split(typed)[0]))[0].name == "a 100%25.gguf"


def test_a_config_alone_is_a_folder(hub: Hub) -> None:
    hub.add("user/repo", {"config.json": CONFIG})
    assert [path.name for path in mirror(address("user/repo"))[0].iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("text", "token", "error", "what", "hint"),
    [
        ("user/nothing", None, NotACheckpointError, "no such repo on the hub", "hf auth login"),
        ("user/nothing", TOKEN, NotACheckpointError, "no such repo on the hub", "hf auth login"),
        ("user/private", None, NotACheckpointError, "or it is private", "hf auth login"),
        ("user/gated", None, InputError, "gated", "/user/gated, then hf auth login"),
        ("user/gated", "hf_other", InputError, "gated", "accept them at http"),
        ("user/repo@mian", None, NotACheckpointError, "no revision mian; it has main", "user/repo@main"),
    ],
)
def test_refused(
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    token: str | None,
    error: type[MtpToolsError],
    what: str,
    hint: str,
) -> None:
    files = {"config.json": CONFIG, **names(["model.safetensors"])}
    hub.add("user/repo", files)
    hub.add("user/private", files, private=True)
    hub.add("user/gated", files, gated=True)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(error, match=what) as caught:
        mirror(address(text))
    assert hint in str(caught.value.hint)
    assert text.split("@")[0] in str(caught.value.where)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_hub(hub: Hub, status: int) -> None:
    hub.add("user/repo", {"config.json": CONFIG, **names(["model.safetensors"])})
    hub.faults.api = [(status, {"Retry-After": "0"})] * 2
    assert mirror(address("user/repo"))[0].name == "repo"
    hub.faults.api = [(status, {})] * 20
    with pytest.raises(SystemFailure, match=f"gave up after 6 tries: the server answers {status}"):
        mirror(address("user/repo"))


def test_a_side_file_that_was_changed_on_the_way(hub: Hub) -> None:
    """Its digest is git's: the hub names it in the listing."""

    class Other(Bytes):
        def read(self, offset: int, n: int) -> bytes:
            data = super().read(offset, n)
            return data if n > 1_000_000 else data[::-1]

    hub.add("user/repo", {"config.json": Other(b"0123456789" * 120_000), **names(["model.safetensors"])})
    with pytest.raises(CorruptError, match="digest"):
        mirror(address("user/repo"))


def test_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.add("user/repo", {"config.json": CONFIG, **names(["model.safetensors"])})
    folder, _ = mirror(address("user/repo"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    PARTIAL.clear()
    asked = len(hub.log)
    again, origin = mirror(address("user/repo"))
    assert (again, origin.commit) == (folder, commit)
    with pytest.raises(SystemFailure, match="HF_HUB_OFFLINE is set"):
        PARTIAL[folder / "model.safetensors"].need(2_000_000, 100)
    with pytest.raises(SystemFailure, match="HF_HUB_OFFLINE is set"):
        mirror(address("user/other"))
    with pytest.raises(SystemFailure, match="HF_HUB_OFFLINE is set"):
        mirror(address(f"{hub.cdn}/x/a.gguf"))
    assert len(hub.log) == asked
