"""Imports go one way; surgery never imports torch; the command line starts fast."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "mtptools"

# A module may import from its own layer and from the ones before it.
LAYERS = (
    ("errors", "sequential", "threshold"),
    ("tensors",),
    ("hub",),
    ("codecs",),
    ("views",),
    ("conventions", "quantized", "ranks"),
    ("recode",),
    ("containers",),
    ("families", "importance"),
    ("hparams",),
    ("checkpoint",),
    ("gguf_blocks",),
    ("head", "tokens", "prompts"),
    ("vocab",),
    ("plan",),
    ("receipt",),
    ("placing", "preview"),
    ("ops", "writer"),
    ("decoder",),
    ("runtimes",),
    ("report",),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.name not in ("__main__.py",) and path.parent != ROOT) + [
    path for path in sorted(ROOT.glob("*.py")) if path.stem not in ("__init__", "__main__")
]


def layer(module: str) -> str:
    return module.split(".")[1] if "." in module else "mtptools"


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mtptools"):
            names = [f"mtptools.{alias.name}" for alias in node.names] if node.module == "mtptools" else [node.module]
            found |= {name for name in names if name.split(".")[1] in RANK}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("mtptools.")}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_one_way(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for name in imported(path):
        assert RANK[layer(name)] <= RANK[own], f"{path.relative_to(ROOT)} imports {name}, a later layer"


def test_every_module_has_a_layer() -> None:
    assert {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in MODULES} <= set(RANK)


def test_decoder_has_its_own_names() -> None:
    """The decoder must not share the converter's name map or conventions: one mistake would hide the other."""
    for path in (ROOT / "decoder").glob("*.py"):
        assert not {layer(name) for name in imported(path)} & {"conventions", "families", "head"}, path.name


def test_surgery_without_torch() -> None:
    code = (
        "import sys, mtptools.writer, mtptools.ops.graft, mtptools.ops.extract, mtptools.ops.diff, "
        "mtptools.ops.validate, mtptools.ops.inspect, mtptools.report.verification, mtptools.cli.main; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_files_stay_small() -> None:
    long = {p.name: n for p in ROOT.rglob("*.py") if (n := len(p.read_text(encoding="utf-8").splitlines())) > 400}
    assert not long
