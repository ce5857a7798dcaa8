"""All ranks of a shape in a simulated world: the product's own engines, pools that an independent oracle knows.

ranks = Ranks(CASES["mha-tp2-1"], seed=3)
ranks.play()          # every rank opens and sends, in an order that the seed draws, until all rooms have ended
assert ranks.wrong() == []
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from ..engine.core import Ports
from ..engine.decode import DecodeEngine, DecodeRoom
from ..engine.group import RoomGroup
from ..engine.host import Place
from ..engine.prefill import PrefillEngine, PrefillRoom
from ..engine.settings import EngineSettings
from ..protocol.layout import AuxSpec, BufferSpec, ComponentSpec, Instance, Layout, Rank
from ..protocol.memory import Buffer, Component, Memory
from ..protocol.status import Status
from ..shapes import deal, judge, oracle, pools
from ..shapes.pools import Pool, Sizes
from ..shapes.rooms import Places
from ..shapes.table import Case
from .faults import Faults
from .ports import SimTransport, Write
from .witness import Witness
from .world import World

GROUP = 77


class Member:
    """One rank: its engine, its pools, and how its rooms stand. `key`: ("prefill", instance, rank) or alike."""

    def __init__(self, key: tuple[str, int, int], member: Rank, pool: Pool, sizes: Sizes) -> None:
        self.key = key
        self.member = member
        self.layout = member.layout
        self.pool = pool
        self.sizes = sizes
        self.memory = described(self.layout, pool)
        self.engine: Any = None
        self.transport: SimTransport | None = None
        self.rooms: dict[int, Any] = {}
        self.wanted = pools.copy_of(pool)

    @property
    def name(self) -> str:
        """What it is called in the world: prefill ranks by their instance, then their number."""
        side, instance, rank = self.key
        return f"{side}-{instance} {rank}"


class Ranks(Witness):
    """See the module. instances: the shape's own, or others in their place. start: whether all engines are made."""

    def __init__(
        self, case: Case, seed: int = 0, *, settings: EngineSettings | None = None, faults: Faults | None = None,
        start: bool = True,
    ) -> None:  # fmt: skip
        self.case = case
        self.world = World(seed, faults)
        self.world.witness = self
        self.settings = settings or EngineSettings()
        self.rooms = dict(enumerate(deal.rooms(case, seed)))
        self.writes: list[judge.Write] = []
        self.early: list[str] = []
        """What was not in place at the moment at which a decode rank's room was DONE."""
        self.prefill = [plain(instance) for instance in case.prefill]
        self.decode = replace(plain(case.decode), id=GROUP)
        self.prefills = {
            (i, k): self._prefill(i, k) for i, one in enumerate(self.prefill) for k in range(len(one.ranks))
        }
        self.decodes = {k: self._decode(k) for k in range(len(self.decode.ranks))}
        if start:
            for member in self.members():
                self.start(member)

    def members(self) -> list[Member]:
        """Every rank."""
        return [*self.prefills.values(), *self.decodes.values()]

    # -- engines ---------------------------------------------------------------------------------------------------

    def _prefill(self, instance: int, rank: int) -> Member:
        one, sizes = self.prefill[instance], deal.prefill_sizes(self.case)
        pool = pools.blank(one.ranks[rank].layout, sizes, f"prefill {instance} {rank}")
        for room in self.rooms.values():
            if room.instance == instance:
                oracle.paint(one, rank, pool, room)
        return Member(("prefill", instance, rank), one.ranks[rank], pool, sizes)

    def _decode(self, rank: int) -> Member:
        member, sizes = self.decode.ranks[rank], deal.decode_sizes(self.case)
        return Member(("decode", 0, rank), member, pools.blank(member.layout, sizes, f"decode {rank}"), sizes)

    def start(self, member: Member) -> Member:
        """Make the engine of a rank, or another one in its place, with the same pools."""
        side, instance, rank = member.key
        if side == "prefill":
            place = Place(rank, len(self.prefill[instance].ranks), member.member)
            parts = self.world.assemble(member.name, member.memory, self.settings, listen=True, place=place)
            self.meddle(member, parts.ports)
            member.engine = PrefillEngine(
                member.memory,
                settings=self.settings,
                assembly=parts,
                cp_rank=member.member.cp_rank,
                cp_size=member.member.cp_size,
                group=self.group_of(member),
            )
        else:
            parts = self.world.assemble(member.name, member.memory, self.settings, instance=self.decode, rank=rank)
            self.meddle(member, parts.ports)
            group = self.group_of(member)
            member.engine = DecodeEngine(member.memory, settings=self.settings, assembly=parts, group=group)
        member.transport = self.world.agents[parts.ports.transport.agent]
        return member

    def group_of(self, member: Member) -> RoomGroup | None:
        """The group that gives a rank's rooms one outcome; whoever wants one comes here."""
        return None

    def meddle(self, member: Member, ports: Ports) -> None:
        """Whoever wants to stand between a rank and its ports comes here."""

    # -- rooms -----------------------------------------------------------------------------------------------------

    def receive(self, number: int, rank: int, **options: Any) -> DecodeRoom:
        """Open a room on a decode rank."""
        room, member = self.rooms[number], self.decodes[rank]
        places = room.decode[rank]
        arguments: dict[str, Any] = {
            "bootstrap": "http://world:1",
            "instance": f"prefill-{room.instance}",
            "pages": places.pages,
            "aux_index": places.aux_slot,
            "prefix_pages": room.prefix,
            "tokens": room.tokens,
        }
        if any(some for _, some in places.state):
            arguments["state_indices"] = indices(places)
        made: DecodeRoom = member.engine.open(number, **{**arguments, **options})
        member.rooms[number] = made
        made._end.call(member.engine.lock, lambda: self._ended(member, number))  # noqa: SLF001 - where `wait` waits, too
        return made

    def _ended(self, member: Member, number: int) -> None:
        if member.rooms[number].poll() is Status.DONE:
            pair = oracle.Pair(self.prefill[self.rooms[number].instance], self.decode)
            wanted = oracle.expected(pair, member.key[2], member.pool, self.rooms[number])
            words = judge.compare(member.layout, wanted, member.pool)
            self.early += [f"room {number} is DONE on {member.name}, and {one}" for one in words]

    def offer(self, number: int, rank: int, **options: Any) -> PrefillRoom:
        """Open a room on a prefill rank of the instance that serves it."""
        room = self.rooms[number]
        member = self.prefills[room.instance, rank]
        arguments = {"pages": room.source_pages, "aux_index": room.prefill[rank].aux_slot}
        made: PrefillRoom = member.engine.open(number, **{**arguments, **options})
        member.rooms[number] = made
        return made

    def send(self, number: int, rank: int) -> None:
        """Hand over all that a prefill rank has of a room."""
        for arguments in self.sends(number, rank):
            self.prefills[self.rooms[number].instance, rank].rooms[number].send(**arguments)

    def sends(self, number: int, rank: int) -> Iterator[dict[str, Any]]:
        """What a prefill rank hands over of a room, one send after another."""
        room = self.rooms[number]
        yield from sends(self.case, self.prefill[room.instance].ranks[rank].layout, room.prefill[rank])

    def play(self, *numbers: int) -> None:
        """Rooms (all of them) from the first call to the last end, in an order that the seed draws.

        Raises Stuck if they do not end by themselves.
        """
        self.call(*numbers)
        self.world.run(lambda: all(room.poll().terminal for m in self.members() for room in m.rooms.values()))
        self.world.settle()

    def call(self, *numbers: int) -> None:
        """Every call of every rank for rooms (all of them), in an order that the seed draws."""
        draw = self.world.random
        todo: list[Iterator[object]] = []
        for number in numbers or tuple(self.rooms):
            todo += [self._receiving(number, rank) for rank in self.decodes]
            instance = self.rooms[number].instance
            todo += [self._sending(number, rank) for i, rank in self.prefills if i == instance]
        while todo:
            for _ in range(draw.randrange(4)):
                self.world.step()
            one = draw.choice(todo)
            if next(one, self) is self:
                todo.remove(one)

    def _receiving(self, number: int, rank: int) -> Iterator[object]:
        yield self.receive(number, rank)

    def _sending(self, number: int, rank: int) -> Iterator[object]:
        yield self.offer(number, rank)
        member = self.prefills[self.rooms[number].instance, rank]
        for arguments in self.sends(number, rank):
            if member.rooms[number].poll() is not Status.FAILED:
                yield member.rooms[number].send(**arguments)

    # -- what is wrong ---------------------------------------------------------------------------------------------

    def posted(self, write: Write) -> None:
        """See `Witness.posted`."""
        by_transport = {member.transport: member for member in self.members()}
        source, target = by_transport.get(write.source), by_transport.get(write.target)
        for here, length, there in write.rows:
            prefill, decode = (-1 if one is None else one.key[2] for one in (source, target))
            self.writes.append(judge.Write(prefill, here, decode, there, length))

    def failures(self) -> list[str]:
        """The rooms that are not DONE, in words."""
        rooms = [(m.name, room) for m in self.members() for room in m.rooms.values()]
        return [f"{name}: {room!r}: {room.failure}" for name, room in rooms if room.poll() is not Status.DONE]

    def differs(self, *numbers: int) -> list[str]:
        """What of the pools is not what it must be, once rooms (all of them) are DONE."""
        words = []
        for member in self.members():
            wanted = member.wanted
            for number in numbers or tuple(self.rooms):
                room = self.rooms[number]
                if member.key[0] == "decode":
                    pair = oracle.Pair(self.prefill[room.instance], self.decode)
                    wanted = oracle.expected(pair, member.key[2], wanted, room)
            words += [f"{member.name}: {one}" for one in judge.compare(member.layout, wanted, member.pool)]
        return words

    def miswritten(self, *numbers: int) -> list[str]:
        """Where the writes of rooms (all of them) are not what is owed, each byte once, from one that has it."""
        owed: dict[oracle.Address, frozenset[oracle.Address]] = {}
        for number in numbers or tuple(self.rooms):
            room = self.rooms[number]
            sources = [_bases(member) for (i, _), member in self.prefills.items() if i == room.instance]
            targets = [_bases(member) for member in self.decodes.values()]
            owed.update(oracle.owed(oracle.Pair(self.prefill[room.instance], self.decode), room, sources, targets))
        return judge.complaints(owed, self._from_pools(owed))

    def _from_pools(self, owed: Mapping[oracle.Address, frozenset[oracle.Address]]) -> Iterator[judge.Write]:
        """The writes. What was gathered elsewhere first counts as from a pool that has it; `early` sees its bytes."""
        pools_of = [
            (rank, array.ctypes.data, array.ctypes.data + len(array))
            for (_, rank), member in self.prefills.items()
            for array in member.pool
        ]
        for write in self.writes:
            if any(rank == write.prefill and low <= write.source < high for rank, low, high in pools_of):
                yield write
                continue
            for there in range(write.target, write.target + write.length):
                holders = owed.get((write.decode, there), frozenset({(write.prefill, write.source)}))
                rank, here = next((one for one in holders if one[0] == write.prefill), min(holders))
                yield judge.Write(rank, here, write.decode, there, 1)


def _bases(member: Member) -> list[int]:
    return [array.ctypes.data for array in member.pool]


def sends(case: Case, layout: Layout, places: Places) -> Iterator[dict[str, Any]]:
    """The sends of one room on one rank, chunk by chunk; layer by layer where the shape says so."""
    pages = places.valid_pages
    layers = sorted({buffer.layer for buffer in layout.kv}) if case.layerwise else []
    chunks = [pages[at : at + case.chunk] for at in range(0, len(pages), case.chunk)] or [()]
    for number, chunk in enumerate(chunks):
        last = number == len(chunks) - 1
        for layer in layers[:-1]:
            yield {"pages": chunk, "layers": [layer], "last": False}
        some = {"layers": layers[-1:]} if layers else {}
        yield {"pages": chunk, **some, "state_indices": indices(places) if last else None, "last": last}


def indices(places: Places) -> dict[str, Any]:
    """The state of a room on one rank, as a caller spells it."""
    return {name: some for name, some in places.state if some}


def plain(instance: Instance) -> Instance:
    """The same with elements of one byte: numpy has no bfloat16, and an oracle of bytes does not mind."""
    return Instance(tuple(replace(rank, layout=_plain(rank.layout)) for rank in instance.ranks), instance.id)


def _plain(layout: Layout) -> Layout:
    def one(spec: BufferSpec) -> BufferSpec:
        return replace(spec, dtype="uint8")

    aux = tuple(AuxSpec(spec.name, spec.item_length, "uint8") for spec in layout.aux)
    state = tuple(
        ComponentSpec(spec.name, spec.kind, spec.owed, tuple(map(one, spec.buffers))) for spec in layout.state
    )
    return Layout(layout.page_size, tuple(map(one, layout.kv)), aux, state)


def described(layout: Layout, pool: Pool) -> Memory:
    """What an engine is given of a rank's pools."""
    arrays = iter(pool)

    def buffer(spec: BufferSpec) -> Buffer:
        return Buffer(spec.layer, spec.role, next(arrays).reshape(-1, spec.item_length), spec.shards)

    kv = [buffer(spec) for spec in layout.kv]
    aux = {spec.name: next(arrays).reshape(-1, spec.item_length) for spec in layout.aux}
    state = [
        Component(one.name, one.kind, one.owed.value, [buffer(spec) for spec in one.buffers]) for one in layout.state
    ]
    return Memory(layout.page_size, kv, aux, state)
