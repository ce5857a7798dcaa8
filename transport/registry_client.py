"""The engines' side of the bootstrap registry: lookups and renewed registrations that never block the caller."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from ..protocol import registration as values
from ..protocol.errors import InvalidArgument, WireError
from ..protocol.registration import Registration, Resolved, Unresolved

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger("kvrooms.registry")

_CONNECT_TIMEOUT_S = 2.0
_TOTAL_TIMEOUT_S = 5.0
_BACKOFF_FIRST_S = 0.1
_BACKOFF_LAST_S = 5.0
_CONNECTIONS = 16

_Key = tuple[str, str, int]


class _NoAnswer(Exception):
    """A request to a registry failed; the text says how."""


class _Announcement:
    """One engine kept registered at one registry, by one task from the first PUT to the last DELETE."""

    def __init__(self, url: str, registration: Registration) -> None:
        self.url = url
        self.registration = registration
        self.ended = asyncio.Event()
        self.delete = False
        self.task: asyncio.Task[None] | None = None

    def end(self, *, delete: bool) -> None:
        self.delete = delete
        self.ended.set()


class HttpRegistry:
    """Registry client for the engines. Any thread may call it; one daemon thread does the HTTP.

    Results of lookups are collected with `poll()`; `wake` is called on the client's own thread whenever there are some,
    and must neither block nor raise. `token` goes with every request, to whatever registry.
    """

    def __init__(self, wake: Callable[[], None], *, token: str | None = None) -> None:
        self._wake = wake
        self._token = token
        self._tickets = count(1)
        self._results: deque[Resolved | Unresolved] = deque()
        self._announced: dict[_Key, _Announcement] = {}
        self._lookups: set[asyncio.Task[None]] = set()
        self._keepers: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._grace_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._session: aiohttp.ClientSession | None = None
        self._thread = threading.Thread(target=self._run, name="kvrooms-registry-client", daemon=True)
        # Started now rather than by the first lookup: it spends its first tenths of a second importing aiohttp.
        self._thread.start()

    def lookup(self, bootstrap: str, instance: str, rank: int) -> int:
        """Ask the registry at `bootstrap` for an engine; "" as instance means the only one there is.

        Returns a ticket at once. `poll()` will return one Resolved or Unresolved with it, whatever goes wrong.
        """
        ticket = next(self._tickets)
        try:
            url = values.check_bootstrap(bootstrap)
            name = values.check_instance(instance) if instance else ""
            values.check_rank(rank)
        except InvalidArgument as error:
            self._put(Unresolved(ticket, str(error)))
            return ticket
        if not self._submit(partial(self._ask, ticket, url, name, rank)):
            self._put(Unresolved(ticket, f"registry {url}: this engine is closing"))
        return ticket

    def poll(self) -> list[Resolved | Unresolved]:
        """The results that have come since the last call, oldest first. Never blocks."""
        results: list[Resolved | Unresolved] = []
        while self._results:
            results.append(self._results.popleft())
        return results

    def announce(self, bootstrap: str, registration: Registration) -> None:
        """Register now, and again every third of `ttl_s`, with backoff after failures, until `withdraw` or `close`.

        Another registration of the same instance and rank at the same registry takes the place of the earlier one.
        Returns at once. InvalidArgument when the URL or the registration is malformed.
        """
        url = values.check_bootstrap(bootstrap)
        values.check_instance(registration.instance)
        values.check_rank(registration.rank)
        try:
            values.decode_announcement(
                registration.instance, registration.rank, values.encode_announcement(registration)
            )
        except WireError as error:
            raise InvalidArgument("registration", registration, str(error)) from None
        self._submit(partial(self._announce, url, registration))

    def withdraw(self, bootstrap: str, registration: Registration) -> None:
        """Stop renewing a registration and delete it. Returns at once; what is not announced is ignored."""
        url = values.check_bootstrap(bootstrap)
        self._submit(partial(self._withdraw, url, registration))

    def close(self, timeout_s: float) -> None:
        """Withdraw what is still announced, forget lookups, end the thread; at most `timeout_s` seconds. Idempotent.

        A registration that could not be withdrawn in that time expires by itself.
        """
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            self._grace_s = timeout_s
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout_s + 1.0)

    # -- called by any thread -----------------------------------------------------------------------------------------

    def _submit(self, action: Callable[[], None]) -> bool:
        with self._lock:
            if self._closed or not self._thread.is_alive():
                return False
            self._loop.call_soon_threadsafe(action)
            return True

    def _put(self, result: Resolved | Unresolved) -> None:
        self._results.append(result)
        self._wake()

    # -- on the loop's thread only ------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        finally:
            with self._lock:
                self._closed = True
            asyncio.set_event_loop(None)
            self._loop.close()

    async def _main(self) -> None:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=_TOTAL_TIMEOUT_S, sock_connect=_CONNECT_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=_CONNECTIONS)
        # A registry is asked for small JSON only: no cookies, no compression, and (trust_env is off) no proxies.
        async with aiohttp.ClientSession(
            timeout=timeout, connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        ) as self._session:
            self._ready.set()
            await self._stop.wait()
            for announcement in self._announced.values():
                announcement.end(delete=True)
            for task in self._lookups:
                task.cancel()
            if self._keepers:
                await asyncio.wait(self._keepers, timeout=self._grace_s)
            rest = self._keepers | self._lookups
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    def _start(self, tasks: set[asyncio.Task[None]], work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(_complain)
        return task

    def _announce(self, url: str, registration: Registration) -> None:
        key = (url, registration.instance, registration.rank)
        earlier = self._announced.get(key)
        announcement = self._announced[key] = _Announcement(url, registration)
        if earlier is not None:
            earlier.end(delete=False)
        announcement.task = self._start(self._keepers, self._keep(announcement, earlier.task if earlier else None))

    def _withdraw(self, url: str, registration: Registration) -> None:
        key = (url, registration.instance, registration.rank)
        announcement = self._announced.get(key)
        if announcement is not None and announcement.registration.incarnation == registration.incarnation:
            del self._announced[key]
            announcement.end(delete=True)

    def _ask(self, ticket: int, url: str, name: str, rank: int) -> None:
        self._start(self._lookups, self._lookup(ticket, url, name, rank))

    async def _lookup(self, ticket: int, url: str, name: str, rank: int) -> None:
        result: Resolved | Unresolved
        try:
            found = values.decode_record(await self._request("GET", f"{url}/v1/engines/{name or '-'}/{rank}"))
            if found.rank != rank or (name and found.instance != name):
                raise WireError("instance", "the answer is about another engine")
            result = Resolved(ticket, found)
        except _NoAnswer as error:
            result = Unresolved(ticket, f"registry {url}: {error}")
        except WireError as error:
            result = Unresolved(ticket, f"registry {url}: malformed answer: {error}")
        self._put(result)

    async def _keep(self, announcement: _Announcement, earlier: asyncio.Task[None] | None) -> None:
        """PUT until ended, then DELETE: one task, so that no PUT can overtake the DELETE of its own registration."""
        if earlier is not None:
            await asyncio.wait([earlier])
        registration = announcement.registration
        who = f"{registration.instance} rank {registration.rank}"
        url = f"{announcement.url}/v1/engines/{registration.instance}/{registration.rank}"
        body = values.encode_announcement(registration)
        renewal_s, backoff_s, failing = registration.ttl_s / 3, _BACKOFF_FIRST_S, False
        while not announcement.ended.is_set():
            try:
                await self._request("PUT", url, body)
            except _NoAnswer as error:
                if not failing:
                    log.warning("registry %s: cannot register %s, trying again: %s", announcement.url, who, error)
                failing = True
                delay_s, backoff_s = min(backoff_s, renewal_s), min(2 * backoff_s, _BACKOFF_LAST_S)
            else:
                if failing:
                    log.info("registry %s: %s is registered now", announcement.url, who)
                failing = False
                delay_s, backoff_s = renewal_s, _BACKOFF_FIRST_S
            try:
                async with asyncio.timeout(delay_s):
                    await announcement.ended.wait()
            except TimeoutError:
                continue
        if announcement.delete:
            incarnation = values.format_incarnation(registration.incarnation)
            try:
                await self._request("DELETE", f"{url}?incarnation={incarnation}")
            except _NoAnswer as error:
                log.debug("registry %s: cannot withdraw %s: %s", announcement.url, who, error)

    async def _request(self, method: str, url: str, body: bytes | None = None) -> bytes:
        """The body of a 200; _NoAnswer in words for everything else that may happen."""
        import aiohttp

        await self._ready.wait()
        assert self._session is not None
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            async with self._session.request(method, url, data=body, headers=headers, allow_redirects=False) as answer:
                content = bytearray()
                async for piece in answer.content.iter_any():
                    content += piece
                    if len(content) > values.MAX_BODY:
                        raise _NoAnswer(f"the answer is longer than {values.MAX_BODY} bytes")
                if answer.status == 200:
                    return bytes(content)
                raise _NoAnswer(values.decode_refusal(bytes(content)) or f"HTTP status {answer.status}")
        except TimeoutError:
            raise _NoAnswer(f"no answer within {_TOTAL_TIMEOUT_S:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _NoAnswer(values.printable(f"unreachable ({str(error) or type(error).__name__})")) from None


def _complain(task: asyncio.Task[None]) -> None:
    """A task that ends with an exception is a fault of this module; say so at once rather than at collection."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("registry client: %s failed", task.get_name(), exc_info=error)
