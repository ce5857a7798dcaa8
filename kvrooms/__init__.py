"""Rooms that carry a prompt's KV cache from a prefill process to a decode process over NIXL.

Names are loaded on first use: importing the package costs milliseconds and touches neither torch nor nixl.
"""

import importlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine.decode import DecodeEngine
    from .engine.group import RoomGroup
    from .engine.handle import wait_any
    from .engine.prefill import PrefillEngine
    from .engine.security import Security
    from .protocol.errors import (
        EngineClosed,
        GroupIncomplete,
        HandshakeRefused,
        InvalidArgument,
        Overloaded,
        RoomClosed,
        RoomFailed,
        WireError,
    )
    from .protocol.layout import Instance, Rank, Shard
    from .protocol.memory import Buffer, Component, Memory
    from .protocol.split import split
    from .protocol.status import Status

__version__ = "0.1.0"

__all__ = [
    "Buffer",
    "Component",
    "DecodeEngine",
    "EngineClosed",
    "GroupIncomplete",
    "HandshakeRefused",
    "Instance",
    "InvalidArgument",
    "Memory",
    "Overloaded",
    "PrefillEngine",
    "Rank",
    "RoomClosed",
    "RoomFailed",
    "RoomGroup",
    "Security",
    "Shard",
    "Status",
    "WireError",
    "__version__",
    "split",
    "wait_any",
]

_HOME = {
    "Buffer": ".protocol.memory",
    "Component": ".protocol.memory",
    "DecodeEngine": ".engine.decode",
    "EngineClosed": ".protocol.errors",
    "GroupIncomplete": ".protocol.errors",
    "HandshakeRefused": ".protocol.errors",
    "Instance": ".protocol.layout",
    "InvalidArgument": ".protocol.errors",
    "Memory": ".protocol.memory",
    "Overloaded": ".protocol.errors",
    "PrefillEngine": ".engine.prefill",
    "Rank": ".protocol.layout",
    "RoomClosed": ".protocol.errors",
    "RoomFailed": ".protocol.errors",
    "RoomGroup": ".engine.group",
    "Security": ".engine.security",
    "Shard": ".protocol.layout",
    "Status": ".protocol.status",
    "WireError": ".protocol.errors",
    "split": ".protocol.split",
    "wait_any": ".engine.handle",
}

logging.getLogger("kvrooms").addHandler(logging.NullHandler())


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
