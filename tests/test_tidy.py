"""The taste of the house as a test: what linters do not check."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OPERATOR = ROOT / "operator" / "forebay"
SOURCES = sorted(
    path
    for base in ("operator", "replica_image", "e2e")
    for path in (ROOT / base).rglob("*.py")
    if "build" not in path.parts
)
PURE = sorted(path for room in ("core", "routing", "engine_model") for path in (OPERATOR / room).rglob("*.py"))

# What the judgement may import from outside of Forebay: nothing that knows the time, rolls dice, or touches the world.
PURE_IMPORTS = {
    "__future__", "base64", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "heapq",
    "itertools",
    "math", "numpy", "operator", "orjson", "types", "typing", "zlib",
}  # fmt: skip
PURE_HOME = {"core", "routing", "engine_model", "wire"}

# In core every number is an exact int64, so that equal inputs give equal bytes on every machine.
INEXACT = {"exp", "log", "log2", "log10", "sqrt", "dot", "matmul", "einsum", "mean", "std", "var", "float64", "float32"}

MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 400


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def identifier(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_are_sources_to_check() -> None:
    assert len(SOURCES) > 50
    assert len(PURE) > 10


@pytest.mark.parametrize("path", SOURCES, ids=identifier)
def test_a_function_fits_on_a_screen_and_a_file_can_be_read(path: Path) -> None:
    text = path.read_text()
    long = [f.name for f in functions(ast.parse(text)) if (f.end_lineno or 0) - f.lineno + 1 > MAX_FUNCTION_LINES]
    assert long == []
    assert len(text.splitlines()) <= MAX_FILE_LINES


@pytest.mark.parametrize("path", PURE, ids=identifier)
def test_the_judgement_imports_no_clock_no_dice_and_no_world(path: Path) -> None:
    for name in imported(ast.parse(path.read_text())):
        top, _, rest = name.partition(".")
        if top == "forebay":
            assert rest.partition(".")[0] in PURE_HOME, name
        else:
            assert top in PURE_IMPORTS, name


@pytest.mark.parametrize("path", sorted((OPERATOR / "core").rglob("*.py")), ids=identifier)
def test_core_computes_in_exact_integers(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), f"line {node.lineno}: a float"
        assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)), f"line {node.lineno}: true division"
        assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)), (
            f"line {node.lineno}: a dot product"
        )
        if isinstance(node, ast.Attribute):
            assert node.attr not in INEXACT, f"line {node.lineno}: {node.attr}"


def test_the_whole_judgement_reads_in_one_short_file() -> None:
    assert len((OPERATOR / "core" / "step.py").read_text().splitlines()) <= 100


def test_operator_is_a_source_root_and_never_a_package() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_every_package_says_what_it_is() -> None:
    for path in OPERATOR.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
