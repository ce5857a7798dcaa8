"""A process that forks the others: everything is imported once, so that a restart costs milliseconds and not seconds.

`python -m kvrooms.soak.zygote FD MODULE`. FD is one end of a SOCK_SEQPACKET pair: a datagram with one descriptor asks
for a process that gets it as its pipe; the answer is its pid. The process is what the module's `main` makes of it.
Nothing here has a thread, an engine or an agent when it forks.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
from typing import NoReturn

from ..engine.ending import SIGNALS, end_with_parent


def main(descriptor: int, module: str) -> None:
    """Fork on request until the other end closes; then every process that was forked is killed by the kernel."""
    for sign in SIGNALS:
        signal.signal(sign, signal.SIG_IGN)  # with this one all would be killed; it ends with the conductor
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")
    _import_all(module)
    gc.freeze()  # what is imported is not looked at again, so its pages stay shared
    signal.signal(signal.SIGCHLD, lambda *_: _reap())
    with socket.socket(fileno=descriptor) as asked:
        asked.send(b"ready")
        while True:
            data, descriptors, _, _ = socket.recv_fds(asked, 64, 1)
            if not data:
                return
            pid = os.fork()
            if pid == 0:
                asked.detach()
                _child(descriptors[0], module)
            os.close(descriptors[0])
            asked.send(str(pid).encode())


def _import_all(module: str) -> None:
    for name in ("nixl._api", "nixl._bindings", "aiohttp.web"):
        importlib.import_module(name)
    for name in ("engine.real", "transport.nixl", "transport.registry", "transport.tcp"):
        importlib.import_module(f"kvrooms.{name}")
    importlib.import_module(module)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _child(pipe: int, module: str) -> NoReturn:
    """Become a worker; never return into the zygote."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        end_with_parent()
        os.dup2(pipe, 3)
        os.closerange(4, 4096)  # also the zygote's own: whoever holds a pipe's end keeps its other end from noticing
        status = importlib.import_module(module).main(3)
    except BaseException:  # noqa: BLE001 - whatever it is, it is shown, and the process ends here
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
