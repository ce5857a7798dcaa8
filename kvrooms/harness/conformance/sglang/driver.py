"""The driver: a process that has loaded SGLang from a wheel and forks one child per side, which runs that side.

    python -m kvrooms.harness.conformance.sglang.driver FD PACKAGE DEPENDENCIES

FD is a socket to the suite. The first process imports everything once (seconds) and opens nothing: each `fork` it is
asked for is then a fresh side in well under a second. It ends, and its children with it, when the suite's end of the
socket closes, so nothing outlives a suite that was killed.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from . import standins
from .pipe import receive_frame, send_frame

MODULES = (
    "sglang.srt.disaggregation.base.conn",
    "sglang.srt.disaggregation.nixl.conn",
    "sglang.srt.disaggregation.utils",
    "sglang.srt.environ",
)
SIDE = f"{__package__}.side"
"""Imported after SGLang and before the first fork, so that every child runs the same, and an error is told."""


def main(descriptor: int, package: Path, dependencies: Path) -> None:
    """Import, say so, and fork sides until the suite hangs up."""
    channel = socket.socket(fileno=descriptor)
    children: set[int] = set()
    try:
        standins.install(package, dependencies)
        for name in MODULES:
            importlib.import_module(name)
        importlib.import_module(SIDE)
    except Exception as error:  # noqa: BLE001 - any import error is told to the suite, in words
        send_frame(channel, {"error": f"{type(error).__name__}: {error}"})
        return
    send_frame(channel, {"ready": True})
    try:
        while (request := receive_frame(channel)) is not None:
            if "kill" in request:
                _kill(children, request["kill"])
                send_frame(channel, {"killed": request["kill"]})
            else:
                _, (theirs,), _, _ = socket.recv_fds(channel, 1, 1)
                child = os.fork()
                if child == 0:
                    channel.close()
                    _side(theirs, request)
                os.close(theirs)
                children.add(child)
                send_frame(channel, {"pid": child})
    finally:
        for child in list(children):
            _kill(children, child)


def _kill(children: set[int], child: int) -> None:
    if child in children:
        children.discard(child)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _side(descriptor: int, request: dict[str, Any]) -> None:
    """In the child: never returns, and runs nothing that the first process had registered for its exit."""
    try:
        serve = importlib.import_module(SIDE).serve
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the suite; it closes the socket
        serve(socket.socket(fileno=descriptor), request)
    finally:
        os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
