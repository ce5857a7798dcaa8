"""The parts of a group on one rank, and the real ones: TCP, the system's clock and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..protocol.errors import InvalidArgument, WireError
from ..protocol.registration import parse_address
from ..transport.ports import Clock, ControlChannel, Ids
from .group_core import GroupCore
from .host import Runner
from .security import Security, load_security
from .settings import EngineSettings
from .thread import EngineThread


class GroupAssembly(NamedTuple):
    """A group's parts on one rank. address: where the leader listens, "" elsewhere.

    refused: how many connections were not let in, by reason. abandon: in a fork, close copies of sockets.
    """

    channel: ControlChannel
    clock: Clock
    ids: Ids
    runner: Callable[[GroupCore, Callable[[], None]], Runner]
    release: Callable[[], None]
    abandon: Callable[[], None]
    refused: Callable[[], dict[str, int]]
    address: str


def assemble(rank: int, leader: str, settings: EngineSettings, security: Security | None) -> GroupAssembly:
    """The real parts. Raises InvalidArgument, and OSError where rank 0 cannot listen."""
    from ..transport.system import SystemClock, SystemIds
    from ..transport.tcp import TcpChannel
    from ..transport.tcp_door import Door

    security = security or load_security()
    try:
        host, port = parse_address(leader if rank else _any_port(leader))
    except WireError:
        raise InvalidArgument("leader", leader, '"host:port" is expected') from None
    listen = None
    if rank == 0:
        security.check_host("leader", host)
        listen = (host, 0 if leader.endswith(":0") else port)
    most = settings.max_connections
    seconds, unproven = settings.handshake_timeout_s, max(1, most // 4)
    door = Door(security.secret, seconds=seconds, most=unproven, anywhere=security.anywhere)
    channel = TcpChannel(listen, max_connections=most, backlog_limit=settings.backlog_bytes, door=door)

    def runner(core: GroupCore, finish: Callable[[], None]) -> Runner:
        return EngineThread(core, channel, finish)

    return GroupAssembly(
        channel, SystemClock(), SystemIds(), runner, channel.close_all, channel.abandon, channel.counters,
        channel.address,
    )  # fmt: skip


def _any_port(leader: str) -> str:
    """An address to listen on, with port 0 (any free one) turned into one that can be parsed."""
    return leader[:-1] + "1" if leader.endswith(":0") else leader
