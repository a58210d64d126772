"""mtptools.toml: the flags of check beside the model; a mistake in it is said with its line and what was meant."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mtptools.cli.check_asked import SHARED, Asked, artifacts
from mtptools.cli.check_settings import Settings, read_settings
from mtptools.cli.checking import _words
from tests.bad_artifacts import BAD, FULL
from tests.cli.conftest import Run
from tests.conftest import FIXTURES

TRUNK = FIXTURES / "qwen35" / "gguf" / "trunk-Q8_0.gguf"
OPTIONS = {max(option.opts, key=len).removeprefix("--"): option for option in SHARED}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(FULL, tmp_path / "good.gguf")
    return tmp_path


def settings(folder: Path, text: str) -> Settings:
    path = folder / "mtptools.toml"
    path.write_text(text, encoding="utf-8")
    return read_settings(path, OPTIONS, ("junit",))


def words(path: str, told: Settings, **flags: object) -> list[str]:
    """The command line of verify for one artifact."""
    (asked,), _ = artifacts([path], flags, told, lambda file: Settings())  # type: ignore[arg-type]
    return _words(asked)


def test_values(folder: Path) -> None:
    """What TOML has types for, and how each flag takes it."""
    told = settings(
        folder,
        """
        against = "donor.gguf"      # from this folder
        baseline = "/reports/donor.json"
        trunk = "hf://user/repo@main/x.gguf"
        k = [1, 2]
        tokens = 32
        min-acceptance = 0.5
        dtype = "float32"
        mask-first = false
        serial = true
        generic = false
        text = ["a.txt", "sub/b.txt"]
        top-p = 1
        device = ["cuda:0", "cuda:1"]
        """,
    )
    assert told.common == {
        "against": str(folder / "donor.gguf"),
        "baseline": "/reports/donor.json",
        "trunk": "hf://user/repo@main/x.gguf",
        "k": "1,2",
        "tokens": "32",
        "min_acceptance": "0.5",
        "dtype": "float32",
        "mask_first": False,
        "serial": True,
        "text": [str(folder / "a.txt"), str(folder / "sub" / "b.txt")],
        "top_p": "1",
        "device": "cuda:0,cuda:1",
    }


@pytest.mark.parametrize(
    ("text", "line", "says", "hint"),
    [
        ("k = 1\nagaints = 'x'", 2, "againts is no setting", "did you mean against?"),
        ("min_acceptance = 0.5", 1, "min_acceptance is no setting", "did you mean min-acceptance?"),
        ("zzz = 1", 1, "zzz is no setting", "keys are flags: "),
        ("[verify]\nk = 1", 1, "verify is no setting", ""),
        ("json = true", 1, "json is no setting", ""),
        ("k = 1\n\ntokens = '32'", 3, "tokens is '32': not a whole number", "tokens = 16"),
        ("tokens = true", 1, "tokens is True", ""),
        ("tokens = [1, 2]", 1, "tokens is a list", ""),
        ("tokens = 1.5", 1, "tokens is 1.5", ""),
        ("serial = 1", 1, "serial is 1, not true or false", "serial = true"),
        ("against = 5", 1, "against is 5: not a path", ""),
        ("against = ''", 1, "against is ''", ""),
        ("text = [1]", 1, "text is [1]", ""),
        ("text = []", 1, "text is []", ""),
        ("k = { a = 1 }", 1, "k is {'a': 1}", ""),
        ("k = 2026-01-01", 1, "k is datetime.date(2026, 1, 1)", ""),
        ("dtype = 5", 1, "dtype is 5: not one of float32, bfloat16, float16", 'dtype = "float32"'),
        ("artifact = 5", 1, "artifact is no list of tables", "[[artifact]]"),
        ("[artifact]\npath = 'x'", 1, "artifact is no list of tables", ""),
        ("[[artifact]]\nk = 1", 1, "artifact has no path", ""),
        ("[[artifact]]\npath = 'x'\njunit = 'j.xml'", 3, "junit is no setting here", ""),
        ("[[artifact]]\npath = 'x'\nkk = 1", 3, "kk is no setting", ""),
        ("k = ", None, "not TOML: ", "a setting is a line"),
        ("k = 1\nk = 2", None, "not TOML: ", ""),
        ("k = " + "[" * 9999, None, "not TOML: ", ""),
        ("k = '\udcff'", None, "not TOML: ", ""),
        ('against = "a\\u0000b"', 1, "against is 'a\\x00b': not a path", ""),
        ('runtime = "a\\u0000b"', 1, "runtime is ", ""),
        ('[[artifact]]\npath = "a\\u0000b"', 1, "artifact has no path", ""),
        ('"a\\n::error::b" = 1', None, "a⏎::error::b is no setting", ""),
        ("k = 1\n[[artifact]]\npath = 'x'\nk = {a = 1}", None, "k is {'a': 1}", ""),  # line 1 is right
        ("[[artifact]]\npath = 'x'\n[[artifact]]\npath = './x'", None, "path is './x' twice", ""),
    ],
)
def test_mistakes(run: Run, folder: Path, text: str, line: int | None, says: str, hint: str) -> None:
    path = folder / "mtptools.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    code, out, err = run("check", folder / "good.gguf", "--static")
    assert code == 2, out + err
    assert f"{path}, line {line}: {says}" in err if line else f"{path}: {says}" in err, err
    assert f"hint: {hint}" in err


def test_a_mark_at_the_beginning(folder: Path) -> None:
    """As Notepad saves UTF-8."""
    assert settings(folder, "\ufeffk = 2").common == {"k": "2"}


def test_static_and_what_decodes(run: Run, folder: Path) -> None:
    """In one breath it is a mistake: neither is dropped unsaid. A flag goes before the file's way."""
    told = settings(folder, 'runtime = "llama.cpp"')
    assert words("x.gguf", told, static=True) == ["--", "x.gguf"]
    assert words("x.gguf", Settings(None, {"static": True}), runtime="y") == ["--runtime=y", "--parity", "--", "x.gguf"]
    (folder / "mtptools.toml").write_text('static = true\nruntime = "llama.cpp"')
    assert run("check", folder / "good.gguf")[:2] == (2, "")
    for way in ("--parity", "--stream", "--runtime=llama.cpp"):
        code, out, err = run("check", FULL, "--static", way)
        assert (code, out) == (2, "")
        assert "--static decodes nothing" in err


def test_links(run: Run, folder: Path) -> None:
    """Two names of one file are two artifacts, each with its own settings; a loop is an artifact that is not there."""
    (folder / "link.gguf").symlink_to("good.gguf")
    (folder / "loop.gguf").symlink_to("loop.gguf")
    told = settings(folder, '[[artifact]]\npath = "good.gguf"\nk = 1\n[[artifact]]\npath = "link.gguf"\nk = 2')
    assert told.of(folder / "link.gguf") == {"k": "2"}
    code, out, _ = run("check", folder / "loop.gguf", "--static")
    assert (code, out.splitlines()[0]) == (3, "ERROR  not a checkpoint: no such file or folder")


def test_values_that_verify_refuses(run: Run, folder: Path) -> None:
    """What only the flag itself can judge is said with the file it stands in."""
    settings(folder, "tokens = 1")
    code, _, err = run("check", folder / "good.gguf")
    assert code == 2
    assert "mtptools.toml" in err
    assert "--tokens" in err


@pytest.mark.parametrize("wrong", ["tokens = 1", "k = 0", "min-acceptance = 'most'"])
def test_before_the_first_is_checked(run: Run, folder: Path, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in the last artifact's table does not cost what the others took."""
    monkeypatch.setattr("mtptools.cli.check.check", lambda asked: pytest.fail("one was checked"))
    text = f'[[artifact]]\npath = "good.gguf"\n[[artifact]]\npath = "b.gguf"\n{wrong}'
    (folder / "mtptools.toml").write_text(text)
    code, out, err = run("check", folder)
    assert (code, out) == (2, "")
    assert wrong.partition(" ")[0] in err


def test_flags_go_before(folder: Path) -> None:
    told = settings(folder, 'k = 1\nbaseline = "b.json"\n[[artifact]]\npath = "good.gguf"\nk = 2\ntokens = 8')
    good, other = str(folder / "good.gguf"), str(folder / "other.gguf")
    baseline = f"--baseline={folder / 'b.json'}"
    assert words(other, told) == ["--k=1", baseline, "--parity", "--", other]
    assert words(good, told) == ["--k=2", baseline, "--tokens=8", "--parity", "--", good]
    assert words(good, told, k="3") == ["--k=3", baseline, "--tokens=8", "--parity", "--", good]
    rival = words(good, told, against="d.gguf")
    assert rival == ["--k=2", "--tokens=8", "--against=d.gguf", "--parity", "--", good]


def test_settings_of_another_way_of_running(folder: Path) -> None:
    """They stay aside: one file serves --static, --stream and decoding. What is typed is kept, and judged."""
    text = 'k = 1\nserial = true\ntext = "t.txt"\ntrunk = "x.gguf"\nmask-first = false'
    told, path = settings(folder, text), str(folder / "good.gguf")
    trunk, lines = f"--trunk={folder / 'x.gguf'}", f"--text={folder / 't.txt'}"
    assert words(path, told) == ["--k=1", "--serial", trunk, "--no-mask-first", "--parity", "--", path]
    assert words(path, told, stream=True) == ["--k=1", lines, trunk, "--no-mask-first", "--stream", "--", path]
    assert words(path, told, static=True) == [trunk, "--", path]
    assert words(path, told, static=True, k="1") == ["--k=1", trunk, "--", path]
    run = settings(folder, 'runtime = "./llama-server"\nruntime-timeout = 9')
    real = [f"--runtime={folder / 'llama-server'}", "--runtime-timeout=9"]
    assert words(path, run) == [*real, "--parity", "--", path]
    assert words(path, run, stream=True) == ["--stream", "--", path]
    assert words(path, run, static=True) == ["--", path]
    streamed = settings(folder, "stream = true")
    assert words(path, streamed) == ["--stream", "--", path]
    assert words(path, streamed, parity=True) == ["--parity", "--", path]


def test_files_of_each_artifact(run: Run, folder: Path) -> None:
    told = settings(folder, 'html = "report-{name}.html"')
    found, _ = artifacts(["a.gguf", "b.gguf"], {}, told, lambda file: Settings())
    assert [Path(str(one.told["html"])).name for one in found] == ["report-a.gguf.html", "report-b.gguf.html"]
    found, _ = artifacts(["a/x.gguf", "b/x.gguf"], {}, told, lambda file: Settings())
    assert [Path(str(one.told["html"])).name for one in found] == ["report-x.gguf.html", "report-x.gguf-2.html"]
    code, _, err = run("check", FULL, folder / "good.gguf", "--static", "--html", folder / "one.html")
    assert code == 2
    assert "several artifacts would write" in err
    assert "{name}" in err


def test_a_folder_of_several(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[[artifact]] tables: all of them by the folder, each by itself; paths and reports are the folder's."""
    BAD["declared but missing"](folder / "bad.gguf")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    run_wide = 'report = "out/check.json"\nhtml = "pages/{name}.html"\nstatic = true\n'
    text = run_wide + '[[artifact]]\npath = "good.gguf"\n[[artifact]]\npath = "bad.gguf"\n'
    (folder / "mtptools.toml").write_text(text)
    code, out, _ = run("check", folder)
    assert code == 1
    assert out.startswith("FAIL  1 of 2: bad.gguf: declared but missing")
    assert len(json.loads((folder / "out" / "check.json").read_text())["artifacts"]) == 2
    assert sorted(path.name for path in (folder / "pages").iterdir()) == ["bad.gguf.html", "good.gguf.html"]
    assert run("check", folder / "good.gguf", "-q")[0] == 0
    monkeypatch.chdir(folder)
    assert run("check", "-q")[0] == 1
    monkeypatch.chdir(folder / "out")
    assert run("check", "--config", "../mtptools.toml", "-q")[0] == 1
    assert run("check", "--config", "../mtptools.toml", "../good.gguf", "-q")[0] == 0
    code, _, err = run("check")
    assert code == 2
    assert "no PATH, and no mtptools.toml in this folder" in err


def test_a_folder_that_is_one(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings beside the weights of a folder; `.` is called what it is."""
    folder = shutil.copytree(FIXTURES / "qwen35" / "hf", tmp_path / "my-model")
    (folder / "mtptools.toml").write_text('static = true\nmarkdown = "../{name}.md"')
    monkeypatch.chdir(folder)
    assert run("check", "-q")[0] == 0
    assert (tmp_path / "my-model.md").is_file()


def test_addresses_have_no_settings_beside_them() -> None:
    asked, _ = artifacts(["hf://user/repo/x.gguf"], {}, None, lambda file: pytest.fail(f"read {file}"))
    assert asked == [Asked("hf://user/repo/x.gguf", {}, None)]


def test_addresses_in_settings(folder: Path) -> None:
    """No paths of the folder; pathlib makes one slash of two, and opening knows that."""
    told = settings(folder, '[[artifact]]\npath = "hf://user/repo@main/x.gguf"\nagainst = "hf://user/donor"')
    (asked,), _ = artifacts([str(folder)], {}, told, lambda file: Settings())
    assert (asked.path, asked.name) == ("hf:/user/repo@main/x.gguf", "x.gguf")
    assert asked.told == {"against": "hf://user/donor"}
