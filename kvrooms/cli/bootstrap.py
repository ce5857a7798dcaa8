"""`kvrooms bootstrap`: the registry as a process of its own."""

from __future__ import annotations

import json
import sys

from ..engine.ending import CutOff, Ending, status_of
from ..engine.security import load_security
from ..transport.registry import RegistryServer


def main(host: str, port: int, *, advertise: str | None, max_registrations: int, quiet: bool) -> int:
    """Serve until SIGTERM or SIGINT; requests that are under way then are answered.

    Returns the exit status: 0 after a signal, `status_of` a second one, 1 when the address cannot be bound.
    """
    with Ending(quiet=quiet) as ending:
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
            ending.wait()
            server.close()
        except CutOff as error:
            return status_of(error.sign)
    return 0
