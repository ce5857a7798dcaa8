"""The real ports: NIXL, TCP, HTTP, the system's clock and random numbers. Imported when used."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..protocol.identity import agent_name
from ..protocol.layout import Instance, Rank
from ..protocol.memory import Memory
from ..protocol.registration import Registration, format_address, parse_address
from .core import EngineCore, Ports
from .host import Assembly, Place
from .security import Security, load_security
from .settings import EngineSettings
from .thread import EngineThread

if TYPE_CHECKING:
    from ..transport.registry import HttpRegistry
    from ..transport.tcp import TcpChannel

log = logging.getLogger("kvrooms.engine")
_RELEASE_TIMEOUT_S = 5.0


def assemble(
    name: str,
    memory: Memory,
    settings: EngineSettings,
    *,
    listen: tuple[str, int] | None = None,
    advertise: str | None = None,
    registry: str | None = None,
    security: Security | None = None,
    place: Place | None = None,
    instance: Instance | None = None,
    rank: int = 0,
) -> Assembly:
    """The parts of an engine. listen: where prefill takes connections; registry: where it registers (None: its own).

    place: of a prefill rank; instance, rank: of a decode rank. security: who is let in; None: as the environment says.
    Raises TransportError, OSError, InvalidArgument; nothing is left behind then.
    """
    from ..transport.nixl import NixlTransport
    from ..transport.system import SystemClock, SystemIds

    (security := security or load_security()).check(listen, registry)
    memory.check_unmoved()
    undo: list[Callable[[], None]] = []
    try:
        incarnation = (ids := SystemIds()).incarnation()
        transport = NixlTransport(agent_name(incarnation))
        undo.append(transport.close)
        source = transport.register(memory.layout, memory.regions)
        channel = _channel(listen, settings, security)
        undo.append(channel.close_all)
        finder = _finder(channel, security, undo)
        address = bootstrap = ""
        if listen is not None:
            place = place or Place(0, 1, Rank(memory.layout))
            instance = Instance((place.member,), incarnation)
            address = _advertised(channel.address, advertise)
            bootstrap = registry or _serve_registry(listen[0], security.token, undo)
            finder.announce(bootstrap, _registration(name, place, settings, address, incarnation))
    except BaseException:
        _release(undo)
        raise
    ports = Ports(
        name=name, incarnation=incarnation, layout=memory.layout, regions=memory.regions, settings=settings,
        transport=transport, channel=channel, registry=finder, clock=SystemClock(), ids=ids, instance=instance,
        rank=rank,
    )  # fmt: skip
    run, end = partial(_thread, channel), partial(_release, undo)
    return Assembly(ports, source, run, end, address, bootstrap, channel.counters, channel.abandon)


def _advertised(address: str, host: str | None) -> str:
    """What the registry is told: the address that is listened on, under another host name if there is one."""
    own, port = parse_address(address)
    return format_address(host or own, port)


def _thread(channel: TcpChannel, core: EngineCore, finish: Callable[[], None]) -> EngineThread:
    return EngineThread(core, channel, finish)


def _channel(listen: tuple[str, int] | None, settings: EngineSettings, security: Security) -> TcpChannel:
    from ..transport.tcp import TcpChannel
    from ..transport.tcp_door import Door

    most = settings.max_connections
    seconds, unproven = settings.handshake_timeout_s, max(1, most // 4)
    door = Door(security.secret, seconds=seconds, most=unproven, anywhere=security.anywhere)
    return TcpChannel(listen, max_connections=most, backlog_limit=settings.backlog_bytes, door=door)


def _finder(channel: TcpChannel, security: Security, undo: list[Callable[[], None]]) -> HttpRegistry:
    """The client of whatever registry."""
    from ..transport.registry import HttpRegistry

    finder = HttpRegistry(channel.wake, token=security.token)
    undo.append(lambda: finder.close(_RELEASE_TIMEOUT_S))
    return finder


def _serve_registry(host: str, token: str | None, undo: list[Callable[[], None]]) -> str:
    """Serve a registry in this process; its URL."""
    from ..transport.registry import RegistryServer

    server = RegistryServer(host=host, port=0, token=token)
    undo.append(server.close)
    return server.start()


def _registration(name: str, place: Place, settings: EngineSettings, address: str, incarnation: int) -> Registration:
    layout = place.member.layout
    return Registration(
        instance=name,
        rank=place.rank,
        address=address,
        incarnation=incarnation,
        page_size=layout.page_size,
        layout_digest=layout.digest.hex(),
        ttl_s=settings.registry_ttl_s,
        ranks=place.ranks,
        member=place.member,
    )


def _release(undo: list[Callable[[], None]]) -> None:
    """Close what was opened, the last first; one that fails does not keep the others open."""
    while undo:
        try:
            undo.pop()()
        except Exception:
            log.exception("while closing an engine's parts")
