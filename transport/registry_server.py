"""The bootstrap registry's server: an HTTP JSON interface to a `RegistryTable`, on a thread of its own.

The interface is described in `kvrooms.transport.registry`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from ..protocol import registration as values
from ..protocol.errors import InvalidArgument, WireError
from .registry_log import complain, http_log
from .registry_table import DEFAULT_CAPACITY, Refused, RegistryTable

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Middleware

log = logging.getLogger("kvrooms.registry")

_BODY_TIMEOUT_S = 5.0
_UNAUTHORIZED = 401
_WILDCARDS = {"", "0.0.0.0", "::"}  # noqa: S104  (recognised here, never a default)


class RegistryServer:
    """A registry in this process, served by one daemon thread. Any thread may start and close it."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        capacity: int = DEFAULT_CAPACITY,
        advertise: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        token: str | None = None,
    ) -> None:
        """Nothing is opened before `start()`.

        `host` and `port` are bound (port 0: the system chooses). `capacity` bounds the registrations. `advertise` is
        the host in `url`: by default `host`, or this machine's name when `host` means every interface. `clock` returns
        monotonic seconds. `token` is what every request must bring, except for `/health`; None: nothing.
        """
        self._host = host
        self._port = port
        self._advertise = advertise or (socket.gethostname() if host in _WILDCARDS else host)
        self._table = RegistryTable(capacity, clock)
        self._token = token
        self._refusals: Counter[int] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._bound = threading.Event()
        self._error: BaseException | None = None
        self._url = ""

    @property
    def url(self) -> str:
        """Where the registry is reached, "http://host:port"; empty before `start()`."""
        return self._url

    @property
    def refusals(self) -> dict[int, int]:
        """How many requests were refused, by HTTP status. Any thread."""
        return dict(self._refusals)

    def start(self) -> str:
        """Bind, serve, and return the URL. OSError when the address cannot be bound; RuntimeError if started twice."""
        if self._thread is not None:
            raise RuntimeError("the registry was started already")
        self._thread = threading.Thread(target=self._run, name="kvrooms-registry", daemon=True)
        self._thread.start()
        self._bound.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self._url

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop serving and end the thread. Safe to call twice, and before `start()`."""
        thread, loop, stop = self._thread, self._loop, self._stop
        if thread is None or loop is None or stop is None or not thread.is_alive():
            return
        # The loop may close between the question and the call: then there is nothing left to stop.
        try:
            loop.call_soon_threadsafe(stop.set)
        except RuntimeError:
            log.debug("the registry's loop had ended already")
        thread.join(timeout_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            # Handed to the thread that called start().
            if self._bound.is_set():
                log.exception("the registry stopped")
            self._error = error
        finally:
            self._bound.set()

    async def _serve(self) -> None:
        from aiohttp import web

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        runner = web.AppRunner(
            make_app(self._table, self._token, self._refusals),
            access_log=None,
            logger=http_log,
            auto_decompress=False,  # a body that is none would be an error of ours, and a small one could be large
            shutdown_timeout=0.5,
            keepalive_timeout=30.0,
            handle_signals=False,
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._host, self._port, backlog=512)
            await site.start()
            port = runner.addresses[0][1]
            self._url = f"http://{values.format_address(self._advertise, port)}"
            log.info("registry at %s", self._url)
            self._bound.set()
            await self._stop.wait()
        finally:
            await runner.cleanup()


def make_app(table: RegistryTable, token: str | None = None, refusals: Counter[int] | None = None) -> web.Application:
    """The registry's HTTP interface over `table`, as an aiohttp application; see `RegistryServer` for the rest."""
    from aiohttp import web

    routes = _Routes(table)
    middlewares: list[Middleware] = [web.middleware(_Words(Counter() if refusals is None else refusals))]
    if token is not None:
        middlewares.append(web.middleware(_Bearer(token)))
    app = web.Application(client_max_size=values.MAX_BODY, middlewares=middlewares)
    app.router.add_get("/health", routes.health)
    app.router.add_get("/v1/engines", routes.list_all)
    app.router.add_get("/v1/engines/{instance}/{rank}", routes.get)
    app.router.add_put("/v1/engines/{instance}/{rank}", routes.put)
    app.router.add_delete("/v1/engines/{instance}/{rank}", routes.delete)
    return app


class _Bearer:
    """Refuses requests without the token, before anything of them is read. What is not served is not told either."""

    def __init__(self, token: str) -> None:
        self._wanted = f"Bearer {token}".encode()

    async def __call__(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        said = request.headers.get("Authorization", "").encode("utf-8", errors="surrogateescape")
        if request.path != "/health" and not hmac.compare_digest(said, self._wanted):
            raise Refused(
                _UNAUTHORIZED,
                "this registry must be asked with its token: set KVROOMS_SECRET or KVROOMS_REGISTRY_TOKEN",
            )
        return await handler(request)


class _Routes:
    """The handlers. What is wrong with a request is raised; `_Words` turns it into an answer."""

    def __init__(self, table: RegistryTable) -> None:
        self._table = table

    async def health(self, _: web.Request) -> web.Response:
        return _json(200, b'{"ok":true,"registrations":%d}' % len(self._table))

    async def list_all(self, _: web.Request) -> web.Response:
        records = [values.encode_record(entry.registration, entry.expires_in_s) for entry in self._table.entries()]
        return _json(200, b'{"engines":[%s]}' % b",".join(records))

    async def get(self, request: web.Request) -> web.Response:
        rank = _rank(request)
        name = request.match_info["instance"]
        entry = self._table.get_only(rank) if name == "-" else self._table.get(values.check_instance(name), rank)
        return _json(200, values.encode_record(entry.registration, entry.expires_in_s))

    async def put(self, request: web.Request) -> web.Response:
        name, rank = values.check_instance(request.match_info["instance"]), _rank(request)
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                body = await request.read()
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {_BODY_TIMEOUT_S:g} s") from None
        except ConnectionError:
            raise Refused(408, "the connection was lost before the body had arrived") from None
        registration = values.decode_announcement(name, rank, body)
        self._table.put(registration)
        return _json(200, values.encode_record(registration, registration.ttl_s))

    async def delete(self, request: web.Request) -> web.Response:
        name, rank = values.check_instance(request.match_info["instance"]), _rank(request)
        incarnation = values.parse_incarnation(request.query.get("incarnation", ""))
        self._table.delete(name, rank, incarnation)
        return _json(200, b'{"ok":true}')


def _rank(request: web.Request) -> int:
    text = request.match_info["rank"]
    if not (text.isascii() and text.isdecimal() and len(text) <= 5):
        raise WireError("rank", f"a number from 0 to {values.MAX_RANK} is expected")
    return values.check_rank(int(text))


def _json(status: int, body: bytes) -> web.Response:
    from aiohttp import web

    return web.Response(status=status, body=body, content_type="application/json")


class _Words:
    """Answers every refusal in JSON with an `error`, whatever raised it; counts them, and logs those of bad requests.

    Whoever asks for an engine that is not there yet, or is too slow, has done nothing wrong.
    """

    def __init__(self, refusals: Counter[int]) -> None:
        self._refusals = refusals

    async def __call__(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        from aiohttp import web

        try:
            return await handler(request)
        except Refused as refused:
            return self._refuse(refused.status, str(refused), bad=refused.status == _UNAUTHORIZED)
        except (WireError, InvalidArgument) as error:
            return self._refuse(400, str(error), bad=True)
        except web.HTTPRequestEntityTooLarge:
            return self._refuse(413, f"the body is longer than {values.MAX_BODY} bytes", bad=True)
        except web.HTTPException as error:
            path = urlsplit(request.path_qs).path[:200]
            return self._refuse(error.status, f"{request.method[:16]} {path}: {error.reason}", bad=True)

    def _refuse(self, status: int, words: str, *, bad: bool) -> web.Response:
        self._refusals[status] += 1
        if bad:
            complain(status, words)
        return _json(status, values.encode_refusal(words))
