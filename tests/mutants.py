"""Mutants: a check is worth what it catches, so small faults are planted in the code, and the check must find each.

A mutant replaces a piece of text in the source of one function, compiles that among the function's own globals, and
puts it where `owner` has the function. Checks therefore call what they check through its module.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis.strategies import SearchStrategy

CO_FUTURE_ANNOTATIONS = annotations.compiler_flag


class Mutant(NamedTuple):
    """In `owner.name`, `old` becomes `new`. `owner` is a module or a class."""

    owner: Any
    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.owner.__name__.rpartition('.')[2]}.{self.name}: {self.old} -> {self.new}"

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Put the mutant in place until the patch is undone."""
        found = inspect.getattr_static(self.owner, self.name)
        function: Any = found.fget if isinstance(found, property) else inspect.unwrap(found)
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) == 1, f"{self}: the text occurs {source.count(self.old)} times"
        flags = CO_FUTURE_ANNOTATIONS
        code = compile(source.replace(self.old, self.new), f"<{self}>", "exec", flags, dont_inherit=True)
        namespace: dict[str, Any] = {}
        exec(code, function.__globals__, namespace)
        patch.setattr(self.owner, self.name, namespace[function.__name__])


def hunt(check: Callable[..., None], **strategies: SearchStrategy[Any]) -> None:
    """Run a property by itself, without shrinking: what it raises is what it found."""
    settings(phases=[Phase.generate], max_examples=400, report_multiple_bugs=False)(given(**strategies)(check))()


def dies(check: Callable[[], None]) -> None:
    """The check must fail now. Any exception counts: the code under it may break before an assertion does."""
    try:
        check()
    except (Exception, pytest.fail.Exception):
        return
    pytest.fail("the mutant survived")


def named(mutants: list[Mutant]) -> pytest.MarkDecorator:
    """Parametrise a test over `mutant`, with readable names."""
    return pytest.mark.parametrize("mutant", mutants, ids=str)
