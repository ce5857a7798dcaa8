"""NIXL's bindings and a new agent: what is loaded, and how, when the first engine of a process starts."""

from __future__ import annotations

import logging
import os
from typing import Any

from ..protocol.errors import TransportError

BACKEND = "UCX"


def start(agent: str) -> tuple[Any, Any]:
    """NIXL's bindings and a new agent. Raises TransportError."""
    # What NIXL prints at ERROR are events of every day (a peer died), and they reach us as exceptions.
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")
    raise_exceptions = logging.raiseExceptions
    try:
        import nixl._bindings as bindings
        from nixl._api import nixl_agent, nixl_agent_config
    except ImportError as error:
        raise TransportError(f"nixl cannot be imported: {error}") from error
    finally:
        logging.raiseExceptions = raise_exceptions  # importing nixl switches it off for the whole process
    try:
        # With a progress thread, every hand-over costs a scheduler's quantum where cores are few.
        wrapper = nixl_agent(agent, nixl_agent_config(enable_prog_thread=False, backends=[BACKEND]))
    except Exception as error:
        raise TransportError(f"NIXL cannot start an agent: {error}; NIXL_LOG_LEVEL=ERROR shows more") from error
    if BACKEND not in wrapper.backends:
        raise TransportError(f"this NIXL has no backend {BACKEND}")
    return bindings, wrapper
