"""The mutants of a module as code objects, and the two ways to put one in the place of the original.

mutmut writes a source that holds every mutant of every function beside the original. That source is only compiled here,
never run: what is taken from it is the code of each mutant, and its default values. So decorators do not matter, and
functions under `@property`, `@cached_property` and `@lru_cache` have mutants like all others.
"""

from __future__ import annotations

import ast
import difflib
import functools
import gc
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

CACHED = type(functools.lru_cache(len))
DECORATOR = re.compile(r"^( *)@(.*)\n(?=(?: *@.*\n)* *(?:async )?def )", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """One changed function. `function` is its qualified name in `module`; `defaults` are set where they are changed."""

    module: str
    function: str
    number: int
    code: CodeType
    defaults: tuple[list[ast.expr], list[ast.expr | None]] | None
    original: str
    text: str

    @property
    def name(self) -> str:
        """What the mutant is called in reports."""
        return f"{self.module}.{self.function}#{self.number}"

    @property
    def key(self) -> str:
        """The same for the same change of the same function."""
        return hashlib.sha256(f"{self.module}\0{self.original}\0{self.text}".encode()).hexdigest()[:16]

    def diff(self) -> str:
        """The lines that differ."""
        lines = difflib.unified_diff(self.original.split("\n"), self.text.split("\n"), lineterm="", n=0)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def mutants_of(path: Path, module: str) -> list[Mutant]:
    """Every mutant that mutmut makes of the functions in a file."""
    from mutmut.mutation.file_mutation import mutate_file_contents

    made = mutate_file_contents(str(path), DECORATOR.sub(r"\1# \2\n", path.read_text()))
    lines = made.code.split("\n")
    codes = {code.co_name: code for code in _codes(compile(made.code, str(path), "exec", dont_inherit=True))}
    defaults = {
        node.name: (node.args.defaults, node.args.kw_defaults)
        for node in ast.walk(ast.parse(made.code))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    def text(name: str) -> str:
        at = made.line_span_by_function_name[name]
        return "\n".join(lines[at.start - 1 : at.end]).replace(name, name.partition("__mutmut_")[0], 1).strip("\n")

    found = []
    for name in made.mutant_names:
        plain, _, number = name.rpartition("__mutmut_")
        original = f"{plain}__mutmut_orig"
        changed = _shown(defaults[name]) != _shown(defaults[original])
        found.append(
            Mutant(
                module,
                plain[2:] if plain.startswith("x_") else plain[2:].replace("ǁ", "."),
                int(number),
                codes[name],
                defaults[name] if changed else None,
                text(original),
                text(name),
            )
        )
    return found


def _shown(defaults: tuple[list[ast.expr], list[ast.expr | None]]) -> list[str]:
    return [ast.dump(node) if node else "" for nodes in defaults for node in nodes]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _codes(const)


def functions_in(folder: str) -> dict[tuple[str, str], list[FunctionType]]:
    """The functions of this process that come from files under `folder`, by file and qualified name."""
    found: dict[tuple[str, str], list[FunctionType]] = {}
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith(folder):
            found.setdefault((thing.__code__.co_filename, thing.__code__.co_qualname), []).append(thing)
    return found


def put_in_place(mutant: Mutant, functions: list[FunctionType]) -> None:
    """Let functions that exist already run the mutant's code, whoever holds a reference to them."""
    for function in functions:
        function.__code__ = mutant.code
        set_defaults(mutant, function)


def set_defaults(mutant: Mutant, function: FunctionType) -> None:
    """Give the function the mutant's default values, where those are what is changed."""
    if mutant.defaults is None:
        return
    plain, by_name = mutant.defaults
    function.__defaults__ = tuple(_value(node, function) for node in plain) or None
    if function.__kwdefaults__:
        names = [name for name in mutant.code.co_varnames if name in function.__kwdefaults__]
        given = [node for node in by_name if node is not None]
        function.__kwdefaults__ = {n: _value(node, function) for n, node in zip(names, given, strict=True)}


def _value(node: ast.expr, function: FunctionType) -> object:
    return eval(compile(ast.Expression(node), "<default>", "eval"), function.__globals__)


def with_mutant(code: CodeType, mutant: Mutant) -> CodeType:
    """The code of a module, or of a part of it, in which the mutant takes the place of its function."""
    if code.co_qualname == mutant.function:
        return mutant.code.replace(co_name=code.co_name, co_qualname=code.co_qualname)
    consts = tuple(with_mutant(const, mutant) if isinstance(const, CodeType) else const for const in code.co_consts)
    return code.replace(co_consts=consts)


def clear_caches(folder: str) -> None:
    """Forget what functions with `lru_cache` have returned before."""
    for thing in gc.get_objects():
        if isinstance(thing, CACHED) and thing.__wrapped__.__code__.co_filename.startswith(folder):
            thing.cache_clear()
