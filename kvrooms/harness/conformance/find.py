"""Which subject is meant: one of those that are shipped, or anybody's class."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from ...protocol.errors import InvalidArgument
from .subject import Subject

SHIPPED = ("kvrooms", "kvrooms-sim", "sglang")


def find(
    name: str, *, version: str | None = None, wheel: str | None = None, options: Mapping[str, str] | None = None
) -> Subject:
    """The subject of this name: shipped, or `module:Class`, or `path/to/file.py:Class`, made with these options.

    Raises InvalidArgument when there is none, or when options do not fit.
    """
    options = options or {}
    if name != "sglang" and (version or wheel):
        raise InvalidArgument("version", version or wheel, "goes with the subject sglang")
    if name in SHIPPED:
        if options:
            raise InvalidArgument("option", dict(options), f"{name} has no options")
        return _shipped(name, version, wheel)
    place, _, class_name = name.rpartition(":")
    if not place:
        raise InvalidArgument("subject", name, f"must be one of {', '.join(SHIPPED)}, or module:Class")
    found = getattr(_module(place), class_name, None)
    if found is None:
        raise InvalidArgument("subject", name, f"{place} has no {class_name}")
    if not (isinstance(found, type) and issubclass(found, Subject)):
        raise InvalidArgument("subject", name, f"is no class that derives from {Subject.__module__}.Subject")
    try:
        return found(**options)
    except TypeError as error:
        raise InvalidArgument("option", dict(options), str(error)) from error
    except Exception as error:
        raise InvalidArgument("subject", name, f"cannot be made: {type(error).__name__}: {error}") from error


def _shipped(name: str, version: str | None, wheel: str | None) -> Subject:
    if name == "kvrooms":
        from .own_nixl import KvroomsNixl

        return KvroomsNixl()
    if name == "kvrooms-sim":
        from .own_sim import KvroomsSim

        return KvroomsSim()
    if (version is None) == (wheel is None):
        raise InvalidArgument("version", version, "sglang needs either --version or --wheel")
    from .sglang import subject

    return subject(version, wheel)


def _module(place: str) -> ModuleType:
    """A module by its name, seen from the working directory too, or by its file."""
    try:
        if not place.endswith(".py"):
            if "" not in sys.path and str(Path.cwd()) not in sys.path:
                sys.path.insert(0, str(Path.cwd()))
            return importlib.import_module(place)
        path = Path(place)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise ImportError(f"{path} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    except ImportError as error:
        raise InvalidArgument("subject", place, str(error)) from error
    except Exception as error:
        raise InvalidArgument("subject", place, f"cannot be imported: {type(error).__name__}: {error}") from error


def given(options: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE texts, as `--option` has them. Raises InvalidArgument."""
    found = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidArgument("option", option, "must be NAME=VALUE")
        found[name] = value
    return found
