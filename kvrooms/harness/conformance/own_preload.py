"""What the server that forks workers imports, once: a worker then starts in milliseconds. No thread starts here."""

from __future__ import annotations

import importlib
import os

os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")  # read when nixl is imported; sides are killed here, on purpose
os.environ.setdefault("UCX_LOG_LEVEL", "fatal")
for _name in (
    "nixl._api",
    "nixl._bindings",
    "aiohttp",
    "kvrooms.engine.real",
    "kvrooms.transport.nixl",
    "kvrooms.transport.registry",
    "kvrooms.transport.tcp",
    "kvrooms.harness.conformance.own_worker",
):
    importlib.import_module(_name)
