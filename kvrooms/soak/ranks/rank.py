"""One rank of a shape: an engine on real NIXL, and its caller, who opens the rank's rooms and sends or awaits them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from ...engine.decode import DecodeEngine
from ...engine.handle import Room
from ...engine.prefill import PrefillEngine, PrefillRoom
from ...engine.settings import load_settings
from ...harness.ranks import indices, sends
from ...protocol.errors import KvroomsError, RoomClosed
from ...protocol.layout import Instance
from ...protocol.status import Status
from ...shapes.deal import decode_sizes, prefill_sizes, rooms
from ...shapes.pools import Bytes
from ...shapes.table import CASES, Case
from .memory import described
from .messages import Role

LIMIT_S = 60.0
"""How long the rooms of a shape may take in all; they have deadlines of their own, far below it."""


class Rank:
    """What both sides share."""

    engine: Any

    def __init__(self, role: Role, memory: Bytes) -> None:
        self.role = role
        self.case = CASES[role.case]
        self.memory = memory
        self.rooms = list(enumerate(rooms(self.case, role.seed)))
        self.opened: dict[int, Room] = {}

    def carry(self) -> tuple[str, ...]:
        """Every room of this rank, to its end. Returns what did not go well, in words."""
        wrong = self.work()
        end = time.monotonic() + LIMIT_S
        for number, room in self.opened.items():
            try:
                room.wait(max(0.0, end - time.monotonic()))
            except TimeoutError:
                wrong.append(f"room {number} has not ended: {room!r}")
            else:
                if room.poll() is not Status.DONE:
                    wrong.append(f"room {number}: {room.failure}")
                elif not room.wait_memory_free(max(0.0, end - time.monotonic())):
                    wrong.append(f"room {number} is DONE, and its memory is not free")
        if self.role.corrupt is not None:
            self.memory[self.role.corrupt] ^= 0xFF
        return tuple(wrong)

    def work(self) -> list[str]:
        """Open the rooms, and do what is to be done with them."""
        raise NotImplementedError

    def staged(self) -> tuple[int, int]:
        """How many pieces the engine has gathered in slots, and how many it has scattered from there."""
        counters = self.engine.counters()
        return counters.get("pieces gathered", 0), counters.get("pieces scattered", 0)

    def close(self) -> tuple[str, ...]:
        """Close rooms and engine. Returns what was still held."""
        for room in self.opened.values():
            room.close()
        self.engine.close()
        return tuple(f"{name}: {count}" for name, count in self.engine.tables().items() if count and name in _EMPTY)


class PrefillRank(Rank):
    """Sends: the rooms of its instance, all open at once, a chunk of each in turn."""

    def __init__(self, role: Role, memory: Bytes) -> None:
        super().__init__(role, memory)
        instance = self.case.prefill[role.instance]
        member = instance.ranks[role.rank]
        self.layout = member.layout
        self.engine: PrefillEngine = PrefillEngine(
            described(memory, member.layout, prefill_sizes(self.case)),
            name=instance_name(self.case, role.instance),
            registry=role.registry,
            rank=role.rank,
            ranks=len(instance.ranks),
            cp_rank=member.cp_rank,
            cp_size=member.cp_size,
            settings=load_settings(**role.settings),
        )

    def work(self) -> list[str]:
        """See `Rank.work`."""
        wrong = []
        todo: dict[int, Iterator[dict[str, Any]]] = {}
        for number, room in self.rooms:
            if room.instance == self.role.instance:
                places = room.prefill[self.role.rank]
                self.opened[number] = self.engine.open(number, pages=room.source_pages, aux_index=places.aux_slot)
                todo[number] = sends(self.case, self.layout, places)
        while todo:
            for number in list(todo):
                arguments = next(todo[number], None)
                if arguments is None:
                    del todo[number]
                    continue
                handle = self.opened[number]
                assert isinstance(handle, PrefillRoom)
                try:
                    handle.send(**arguments)
                except RoomClosed:  # it has failed, and says why
                    del todo[number]
                except KvroomsError as error:
                    wrong.append(f"room {number}, {arguments}: {error}")
                    del todo[number]
        return wrong


class DecodeRank(Rank):
    """Receives all rooms of the shape, whichever prefill instance they are from."""

    def __init__(self, role: Role, memory: Bytes) -> None:
        super().__init__(role, memory)
        ranks = Instance(self.case.decode.ranks, role.group)
        self.engine: DecodeEngine = DecodeEngine(
            described(memory, ranks.ranks[role.rank].layout, decode_sizes(self.case)),
            name=f"{self.case.name}-decode-{role.rank}",
            ranks=ranks,
            rank=role.rank,
            settings=load_settings(**role.settings),
        )

    def work(self) -> list[str]:
        """See `Rank.work`."""
        for number, room in self.rooms:
            places = room.decode[self.role.rank]
            self.opened[number] = self.engine.open(
                number,
                bootstrap=self.role.registry,
                instance=instance_name(self.case, room.instance),
                pages=places.pages,
                aux_index=places.aux_slot,
                state_indices=indices(places),
                prefix_pages=room.prefix,
                tokens=room.tokens,
            )
        return []


def instance_name(case: Case, instance: int) -> str:
    """What the registry knows a prefill instance by."""
    return f"{case.name}-{instance}"


_EMPTY = ("rooms", "grants", "posted", "tokens", "waiting", "claims", "keys", "staged")
"""Tables that must be empty once the engine is closed."""
