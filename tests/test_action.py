"""action.yml and the workflows of docs/ci.md, run: the scripts of the steps in bash, as a runner would run them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bad_artifacts import BAD, FULL
from tests.cli.conftest import run  # noqa: F401  a fixture
from tests.conftest import FIXTURES
from tests.junit_rules import read

yaml = pytest.importorskip("yaml", reason="PyYAML (it comes with huggingface_hub) reads action.yml")

ROOT = Path(__file__).parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
STEPS = {step["id"]: step for step in ACTION["runs"]["steps"] if "id" in step}
WRITTEN = {"exit-code", "line", "junit", "report", "reports"}  # outputs of the check step
EXPRESSION = re.compile(r"\$\{\{\s*(.+?)\s*\}\}")

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash to run the steps with")


class Runner:
    """The check step, as GitHub runs it: environment, files for outputs and summary."""

    def __init__(self, place: Path) -> None:
        self.place, self.temp = place, place / "temp"
        self.temp.mkdir()
        self.output, self.summary = place / "output", place / "summary"

    def run(self, **inputs: str) -> subprocess.CompletedProcess[str]:
        given = {name: spec.get("default", "") for name, spec in ACTION["inputs"].items()} | inputs
        known = {f"inputs.{name}": value for name, value in given.items()}
        known |= {"steps.install.outputs.python": sys.executable}
        step = STEPS["check"]
        declared = {name: EXPRESSION.sub(lambda found: known[found[1]], value) for name, value in step["env"].items()}
        environment = os.environ | declared | {
            "PYTHONPATH": str(ROOT),
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(self.place),
            "GITHUB_OUTPUT": str(self.output),
            "GITHUB_STEP_SUMMARY": str(self.summary),
        }  # fmt: skip
        script = self.place / "step.sh"
        script.write_text(step["run"])
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
        return subprocess.run(command, cwd=self.place, env=environment, capture_output=True, text=True, check=False)

    @property
    def outputs(self) -> dict[str, str]:
        lines = self.output.read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


@needs_bash
def test_a_bad_artifact(runner: Runner) -> None:
    """Exit code, outputs, annotation, summary and reports of a step that fails."""
    BAD["declared but missing"](runner.place / "bad one.gguf")
    shutil.copy(FULL, runner.place / "good.gguf")
    done = runner.run(path="good.gguf\nbad one.gguf\n", args="--static")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("FAIL  1 of 2: bad one.gguf: declared but missing: ")
    assert "::error file=bad one.gguf,title=bad one.gguf%3A declared but missing::" in done.stderr
    assert runner.summary.read_text(encoding="utf-8").startswith(
        "## ❌ FAIL: 1 of 2: bad one.gguf: declared but missing"
    )
    found = runner.outputs
    assert set(found) == WRITTEN
    assert found["exit-code"] == "1"
    assert found["line"] == done.stdout.splitlines()[0]
    assert len(read(Path(found["junit"]).read_text())) == 2
    assert json.loads(Path(found["report"]).read_text())["exit_code"] == 1
    assert sorted(path.name for path in Path(found["reports"]).iterdir()) == [
        "bad one.gguf.html", "check.json", "check.xml", "good.gguf.html",
    ]  # fmt: skip


@needs_bash
def test_settings_and_words(runner: Runner) -> None:
    """A pass; settings by name; flags quoted as for a shell."""
    shutil.copy(FULL, runner.place / "x.gguf")
    (runner.place / "my settings.toml").write_text('static = true\n[[artifact]]\npath = "x.gguf"\n')
    done = runner.run(config="my settings.toml", args=f"--trunk {shlex.quote(str(FULL))}\n  -v")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("PASS  ")
    assert runner.outputs["exit-code"] == "0"
    runner.output.unlink()
    assert runner.run(path="x.gguf", args="--static --k").returncode == 2
    assert runner.outputs == {"exit-code": "2"}, "what the step before it found is not its verdict"


@needs_bash
def test_nothing_in_an_input_is_run(runner: Runner) -> None:
    """What would be code in a script stays a word. There is no verdict, and the step fails."""
    evil = '"; touch pwned; $(touch pwned) `touch pwned` ${IFS}'
    done = runner.run(path=evil, config=evil, args="'$(touch pwned)' \";touch pwned\" --static")
    assert done.returncode in (2, 3), done.stderr
    assert not list(runner.place.rglob("pwned"))
    assert runner.outputs == {"exit-code": str(done.returncode)}
    assert runner.run(path="x", args="'unbalanced").returncode == 1, "an argument that cannot be read is not left out"


def test_no_expression_is_in_a_script() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
        assert "shell" in step or "run" not in step, "a composite action needs one"


def test_expressions_name_what_there_is() -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    used = {name for found in EXPRESSION.findall(text) for name in re.findall(r"[a-z]+(?:\.[a-z_-]+)+", found)}
    written = {"steps.install.outputs.python", *(f"steps.check.outputs.{name}" for name in WRITTEN)}
    inputs = {f"inputs.{name}" for name in ACTION["inputs"]}
    assert used - inputs - written == {"github.action_path"}
    assert inputs <= used, "an input that nothing reads"
    assert {value["value"] for value in ACTION["outputs"].values()} <= {f"${{{{ {name} }}}}" for name in written}


@needs_bash
def test_scripts_parse() -> None:
    """The step that needs a network, too."""
    for step in STEPS.values():
        assert subprocess.run(["bash", "-n", "-c", step["run"]], check=False).returncode == 0


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_workflow_uses_inputs_that_there_are() -> None:
    workflow = yaml.safe_load(blocks("yaml")[0])
    (step,) = [step for step in workflow["jobs"]["check"]["steps"] if "mtptools@" in step["uses"]]
    assert set(step["with"]) <= set(ACTION["inputs"])


def test_commands_of_the_page(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The settings of the page, and every command of its workflows, on a release made of a fixture."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    shutil.copy(FIXTURES / "qwen35" / "gguf" / "trunk-Q8_0.gguf", "trunk.gguf")
    shutil.copy(FULL, "donor.gguf")
    Path("release").mkdir()
    (settings,) = blocks("toml")
    Path("release/mtptools.toml").write_text(settings, encoding="utf-8")
    for name in ("Model-Q4_K_M.gguf", "Model-Q8_0.gguf"):
        assert run("graft", "trunk.gguf", "donor.gguf", "-o", f"release/{name}", "-q")[0] == 0
    commands = re.findall(r"^[ -]*(mtptools check .*)$", "\n".join(blocks("yaml")), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        words = [word for word in shlex.split(command)[1:] if word not in ("--limit", "4")]
        code, out, err = run(*words, "--static")
        assert code == 0, out + err
        assert out.startswith("PASS  2 of 2")
    assert len(read(Path("check.xml").read_text())) == 2
    assert Path("release/reports/Model-Q8_0.gguf.html").is_file()
