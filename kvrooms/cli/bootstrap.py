"""`kvrooms bootstrap`: the registry as a process of its own."""

from __future__ import annotations

import json
import signal
import sys
import threading

from ..engine.security import load_security
from ..transport.registry import RegistryServer


def main(host: str, port: int, *, advertise: str | None, max_registrations: int, quiet: bool) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status: 0 after a signal, 1 when the address cannot be bound."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    security = load_security()
    security.check_registry_host("host", host)
    server = RegistryServer(host, port, capacity=max_registrations, advertise=advertise, token=security.token)
    try:
        url = server.start()
    except OSError as error:
        print(f"kvrooms bootstrap: cannot serve on {host}:{port}: {error.strerror or error}", file=sys.stderr)
        return 1
    try:
        print(json.dumps({"bootstrap": url}), flush=True)
        if not quiet:
            print(f"registry at {url}; end it with Ctrl-C", file=sys.stderr)
        ended.wait()
    finally:
        server.close()
    return 0
