"""docs/settings.md, from the settings that engines have: `python -m kvrooms.cli.settings_doc > docs/settings.md`."""

from __future__ import annotations

import ast
import inspect

from ..engine import settings as source
from ..engine.settings import _ORDER, PREFIX, EngineSettings

_HEAD = """# Settings

<!-- Written by kvrooms.cli.settings_doc; `make docs-spec` does it anew. -->

Every figure an engine goes by. An argument of the engine goes before the environment, and that before the default:
`DecodeEngine(memory, moving_timeout_s=5)`, or `KVROOMS_MOVING_TIMEOUT_S=5` for every engine of the process. A variable
`KVROOMS_...` that is no setting is an error that names the nearest one, and a value out of range is one too: a misspelt
deadline is found when the engine starts, not when it should have struck. `open()` takes the deadlines of one room that
its side has: on decode `bootstrap_timeout_s`, `waiting_timeout_s`, `moving_timeout_s` and `cap_timeout_s`; on prefill
`queued_timeout_s`, `moving_timeout_s` and `cap_timeout_s`; those of the other side, of no effect there, are refused.
Durations are in seconds, sizes in bytes.

Who is let in is set by `KVROOMS_SECRET` and its like: see [security.md](security.md).

| setting | variable | default | meaning |
|---|---|---|---|
"""


def meanings() -> dict[str, str]:
    """What each setting means, in the order of the class, on one line each."""
    (found,) = [node for node in ast.parse(inspect.getsource(source)).body if _is_settings(node)]
    assert isinstance(found, ast.ClassDef)
    said: dict[str, str] = {}
    name = ""
    for node in found.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            said[name] = " ".join(str(node.value.value).split())
    return said


def _is_settings(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == EngineSettings.__name__


def markdown() -> str:
    """The whole document."""
    defaults = EngineSettings()
    rows = [
        f"| `{name}` | `{PREFIX}{name.upper()}` | {_shown(getattr(defaults, name))} | {meaning} |"
        for name, meaning in meanings().items()
    ]
    pairs = ", ".join(f"`{low}` and `{high}`" for low, high in _ORDER)
    return _HEAD + "\n".join(rows) + f"\n\nOf each of these pairs the first must not exceed the second: {pairs}.\n"


def _shown(value: float) -> str:
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value >> 20} MiB"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


if __name__ == "__main__":
    print(markdown(), end="")
