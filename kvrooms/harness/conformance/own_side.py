"""One rank of a side of kvrooms: an engine, and its group if there are several, driven through public methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...engine.decode import DecodeEngine
from ...engine.group import RoomGroup
from ...engine.handle import Room
from ...engine.prefill import PrefillEngine, PrefillRoom
from ...engine.settings import EngineSettings, load_settings
from ...protocol import wire
from ...protocol.errors import InvalidArgument, KvroomsError, RoomClosed, RoomFailed
from ...protocol.identity import agent_name
from ...protocol.layout import Layout, Regions
from ...protocol.status import Status as RoomStatus
from .subject import ABSENT, ALL_SPELLINGS, SIDES, Refused, Request, Side, Status, Traits, View

PREFILL, DECODE = "conformance-prefill", "conformance-decode"
_NEVER_S = 3600.0
_WAITS = {
    ("METADATA", "prefill"): "decode's METADATA",
    ("METADATA", "decode"): "prefill to accept the grant",
    ("KV", "prefill"): "its pages to be sent and their writes to settle",
    ("KV", "decode"): "pages that have not landed",
    ("AUX", "prefill"): "the write of aux to settle",
    ("AUX", "decode"): "aux, which has not landed",
    ("STATE", "prefill"): "the writes of state to settle",
    ("STATE", "decode"): "state that has not landed",
}

TRAITS = Traits(
    prefill_spellings=ALL_SPELLINGS,
    decode_spellings=ALL_SPELLINGS,
    components=2,
    zero_pages=True,
    prefixes=True,
    splits=frozenset({2}),
    layers=4,
    attempts=True,
    aborts=frozenset(SIDES),
    deadlines=frozenset(SIDES),
    failures=True,
    counts=True,
    frees=True,
    kills=frozenset(SIDES),
    ranks=frozenset({(2, 1), (1, 2), (2, 2)}),
    odd_ranks=frozenset(SIDES),
    injects=frozenset({"control"}),
)


def settings(deadline_s: float | None) -> EngineSettings:
    """Every deadline of a room at `deadline_s`, or so far away that nobody sees it."""
    seconds = _NEVER_S if deadline_s is None else deadline_s
    names = ("bootstrap_timeout_s", "waiting_timeout_s", "queued_timeout_s", "moving_timeout_s", "cap_timeout_s")
    return load_settings({}, **dict.fromkeys(names, seconds))


class OwnSide:
    """An engine with its rooms, as the suite drives it. Rooms are known by a key of the suite's."""

    def __init__(
        self, side: Side, engine: PrefillEngine | DecodeEngine, bootstrap: str, group: RoomGroup | None = None
    ) -> None:
        self.side = side
        self.engine = engine
        self.bootstrap = bootstrap
        self.group = group
        self._rooms: dict[int, Room] = {}
        self._keys = 0

    def open(self, request: Request) -> int:
        """See `Subject.open`."""
        try:
            self._keys += 1
            self._rooms[self._keys] = self._open(request)
        except InvalidArgument as error:
            raise Refused(str(error)) from error
        return self._keys

    def _open(self, request: Request) -> Room:
        number, attempt, pages, aux, state, held, _ = request
        if isinstance(self.engine, PrefillEngine):
            return self.engine.open(number, attempt=attempt, pages=len(pages), aux_index=aux)
        given: dict[str, Any] = {} if state is ABSENT else {"state_indices": state}
        if held:
            given["prefix_pages"] = len(held)
        return self.engine.open(
            number, attempt=attempt, bootstrap=self.bootstrap, instance=PREFILL, pages=pages, aux_index=aux, **given
        )

    def send(self, key: int, pages: Sequence[int], state_indices: Any, last: bool, layers: Sequence[int] = ()) -> None:
        """See `Subject.send` and `Subject.send_layers`."""
        room = self._rooms[key]
        assert isinstance(room, PrefillRoom)
        given: dict[str, Any] = {} if state_indices is ABSENT else {"state_indices": state_indices}
        if layers:
            given["layers"] = layers
        try:
            room.send(pages, **given, last=last)
        except (InvalidArgument, RoomClosed) as error:
            raise Refused(str(error)) from error

    def poll(self, key: int) -> Status:
        """See `Subject.poll`. Of several ranks what integrations read: how the room has ended for all of them."""
        room = self._rooms[key]
        status = room.outcome if room.poll().terminal else RoomStatus.TRANSFERRING
        return "done" if status is RoomStatus.DONE else "failed" if status is RoomStatus.FAILED else "open"

    def explain(self, key: int) -> View:
        """See `Subject.explain`."""
        room = self._rooms[key]
        failure, met = room.failure, room.met
        belief = f"failed: {failure}" if failure is not None else ""
        return View(room.phase, str(met) if met is not None else "", _WAITS.get((room.phase, self.side), ""), belief)

    def abort(self, key: int) -> None:
        """See `Subject.abort`."""
        self._rooms[key].abort()

    def failure(self, key: int) -> str | None:
        """See `Subject.failure`."""
        try:
            self._rooms[key].failure_exception()
        except RoomFailed as failed:
            return str(failed)
        except RoomClosed:
            pass
        return None

    def close(self, key: int) -> None:
        """See `Subject.close`."""
        self._rooms[key].close()

    def memory_free(self, key: int) -> bool:
        """See `Subject.memory_free`."""
        return self._rooms[key].memory_free

    def held(self) -> Mapping[str, int]:
        """See `Subject.held`."""
        group = {} if self.group is None else self.group.tables()
        return {**self.engine.tables(), **{f"group {name}": count for name, count in group.items()}}

    def end(self) -> None:
        """End the engine."""
        try:
            self.engine.close()
            if self.group is not None:
                self.group.close()
        except KvroomsError:  # the suite is finished with it
            pass


class Sayings(NamedTuple):
    """Frames of our own protocol, with their length prefix, for strangers to change."""

    layout: Layout
    regions: Regions

    def frames(self) -> list[bytes]:
        """One of each kind that decode says, as a stranger may say it."""
        bodies: list[wire.Body] = [
            wire.Hello("stranger", agent_name(5), self.layout, self.regions, b"no blob of any agent"),
            wire.Ack(1),
            wire.Ping(7),
            wire.Goodbye(),
            wire.Accept(3),
        ]
        return [wire.encode(body, 5, 0, 1) for body in bodies]
