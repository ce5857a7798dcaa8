"""Only `protocol/manifest.py` looks inside `state_indices`: everywhere else the name is passed on, and nothing else."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import pytest

NAME = "state_indices"
ROOT = Path(__file__).parents[1]
FOLDERS = ("kvrooms", "protocol", "statemachine", "transport")
HOME = ROOT / "protocol" / "manifest.py"
JUDGE = ROOT / "kvrooms" / "harness"
"""It spells for others and must know by itself what a spelling means: an oracle shares no code with what it judges."""


def is_function(tree: ast.Module) -> bool:
    """Whether the name is a function here, by import or definition at the top: then it may be called."""
    return any(
        (isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == NAME for alias in node.names))
        or (isinstance(node, ast.FunctionDef) and node.name == NAME)
        for node in tree.body
    )


def passes_on(use: ast.expr, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether `use` is a whole argument of a call of something that is no builtin (len, list, any ... look inside)."""
    parent = parents[use]
    if isinstance(parent, ast.keyword):
        return parent.arg is not None and isinstance(parents[parent], ast.Call)
    if not isinstance(parent, ast.Call) or use not in parent.args:
        return False
    return not (isinstance(parent.func, ast.Name) and hasattr(builtins, parent.func.id))


def looks_inside(source: str) -> list[str]:
    """The uses of the name that are neither a parameter, nor an annotation, nor a whole argument."""
    if NAME not in source:
        return []
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    callable_here = is_function(tree)

    def allowed(use: ast.Name | ast.Attribute) -> bool:
        parent = parents[use]
        if isinstance(parent, ast.Call) and parent.func is use:
            if isinstance(use, ast.Attribute):  # manifest.state_indices(...)
                return isinstance(use.value, ast.Name) and use.value.id == "manifest"
            return callable_here
        if isinstance(parent, ast.AnnAssign) and parent.target is use:  # a field of a class
            return parent.value is None
        return isinstance(use.ctx, ast.Load) and passes_on(use, parents)

    return [
        f"line {node.lineno}: {ast.unparse(parents[node])}"
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id == NAME) or (isinstance(node, ast.Attribute) and node.attr == NAME)
        if not allowed(node)
    ]


def modules() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_no_module_but_the_manifest_looks_inside() -> None:
    found = {
        str(path.relative_to(ROOT)): uses
        for path in modules()
        if path != HOME and JUDGE not in path.parents and (uses := looks_inside(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_the_walk_sees_the_manifest() -> None:
    seen = list(modules())
    assert HOME in seen
    assert len(seen) > 20


FORBIDDEN = [
    "if state_indices: pass",
    "if state_indices is None: pass",
    "if not state_indices: pass",
    "x = state_indices or []",
    "x = state_indices",
    "state_indices = []",
    "f([state_indices])",
    "f(x=(state_indices,))",
    "f(*state_indices)",
    "f(**state_indices)",
    "f(state_indices[0])",
    "f(state_indices == [])",
    "f(i for i in state_indices)",
    "for i in state_indices: pass",
    "len(state_indices)",
    "any(state_indices)",
    "list(state_indices)",
    "isinstance(state_indices, list)",
    "state_indices.get('conv')",
    "room.state_indices[0]",
    "len(room.state_indices)",
    "room.state_indices(1)",
    "state_indices(1)",
    "f'{state_indices}'",
    "def f(state_indices): return state_indices",
    "match state_indices:\n    case []: pass",
    "class C:\n    state_indices: object = ()",
    "f(0 if state_indices else 1)",
    "f(lambda: state_indices)",
]
ALLOWED = [
    "def f(state_indices: object = None) -> None: g(state_indices)",
    "def f(self, *, state_indices: Mapping[str, Sequence[int]] | None = None): self.g(1, state_indices)",
    "f(state_indices=state_indices)",
    "f(state_indices={'conv': [1]})",
    "f(room.state_indices)",
    "class C:\n    state_indices: object",
    "from .manifest import state_indices\nx = state_indices(layout, value, items)",
    "from ..protocol import manifest\nx = manifest.state_indices(layout, state_indices, items)",
]


@pytest.mark.parametrize("source", FORBIDDEN)
def test_a_look_inside_is_found(source: str) -> None:
    assert looks_inside(source)


@pytest.mark.parametrize("source", ALLOWED)
def test_passing_on_is_allowed(source: str) -> None:
    assert looks_inside(source) == []
