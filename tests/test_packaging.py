"""What an installation brings along, what an import loads, and that every package is listed."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import kvrooms

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = ("kvrooms", "protocol", "statemachine", "transport")


def name_of(requirement):
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def loaded_after(code):
    heavy = "{'torch', 'nixl', 'aiohttp', 'asyncio', 'numpy', 'msgspec', 'transitions'}"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sorted({heavy} & set(sys.modules)))"],
        capture_output=True, text=True, timeout=60, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_after("import kvrooms") == set()


@pytest.mark.parametrize("name", [name for name in kvrooms.__all__ if name != "__version__"])
def test_a_public_name_loads_neither_torch_nor_nixl(name):
    assert not loaded_after(f"from kvrooms import {name}") & {"torch", "nixl"}


def test_every_public_name_is_there_and_is_listed():
    for name in kvrooms.__all__:
        assert getattr(kvrooms, name) is getattr(kvrooms, name)
        assert name in dir(kvrooms)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = kvrooms.nonsense


def test_the_version_is_said_once():
    assert PROJECT["project"]["version"] == kvrooms.__version__ == metadata.version("kvrooms")


def test_core_dependencies_hold_no_test_framework_and_no_engine():
    core = {name_of(one) for one in PROJECT["project"]["dependencies"]}
    assert core >= {"nixl", "torch", "transitions", "msgspec", "numpy", "aiohttp", "typer", "rich"}
    assert not core & {"hypothesis", "pytest", "transformers", "sglang", "vllm", "pydantic-settings"}
    every = {name_of(one) for extra in PROJECT["project"]["optional-dependencies"].values() for one in extra}
    assert not every & {"sglang", "vllm"}


def imports_of(paths):
    found = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.split(".")[0])
    return {name.lower().replace("_", "-") for name in found - set(sys.stdlib_module_names) - {"kvrooms"}}


def test_core_dependencies_are_the_ones_the_code_imports():
    core = {name_of(one) for one in PROJECT["project"]["dependencies"]}
    optional = [path for path in sources() if path.relative_to(ROOT).parts[1] in {"demo", "harness"}]
    assert imports_of(set(sources()) - set(optional)) <= core, "imported, and not declared"
    assert core <= imports_of(sources()), "declared, and imported by nobody"


def test_every_package_on_disk_is_listed_with_its_folder():
    mapped = PROJECT["tool"]["setuptools"]["package-dir"]
    assert sorted(mapped) == sorted(PROJECT["tool"]["setuptools"]["packages"])
    on_disk = {
        str(path.parent.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("__init__.py")
    }
    assert on_disk == set(mapped.values())
    assert (ROOT / "kvrooms" / "py.typed").exists()


def test_the_lock_pins_everything_and_names_no_place_to_fetch_it_from():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", pin) for pin in pins)
    locked = {name_of(pin) for pin in pins}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *extras["demo"], *extras["harness"], *extras["dev"]]
    assert {name_of(one) for one in wanted} - {"kvrooms"} <= locked
    assert {"nixl-cu12", "nixl-cu13", "setuptools"} <= locked


def sources():
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_and_no_function_is_longer_than_one_can_read(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 50, node.name
