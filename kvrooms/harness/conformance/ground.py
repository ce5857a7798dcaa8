"""The memory that examples are played on: who is given which items, what lies in them, what must lie in them later.

The oracle of bytes: written down from what callers intend (positions in order, one after another), it shares no code
with any implementation.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from .plan import Odd, RoomPlan
from .spelling import Indices
from .subject import SIDES, Item, Shape, Side, Subject

UNTOUCHED, SPENT = 0xA5, 0x5A


class Given(NamedTuple):
    """What one side's caller was given for a room: items of its memory, in the order of positions.

    held: pages of the leading positions that decode holds already; `pages` are those after them. odd: what the caller
    of one rank was given instead.
    """

    pages: tuple[int, ...]
    aux: int
    state: Indices
    held: tuple[int, ...] = ()
    odd: Given | None = None

    def items(self) -> list[Item]:
        """All of them that are the room's; what decode holds is not."""
        found = [Item("kv", page) for page in self.pages] + [Item("aux", self.aux)]
        return found + [Item("state", index, number) for number, some in enumerate(self.state) for index in some]

    def more(self) -> list[Item]:
        """Those that only the odd rank was given."""
        known = {*self.items(), *(Item("kv", page) for page in self.held)}
        return [] if self.odd is None else [item for item in self.odd.items() if item not in known]


class Must(NamedTuple):
    """What must lie in decode's memory. expected: once the room is done. kept: always, whatever becomes of the room:
    in pages that decode holds, and in one beside them that no room has."""

    expected: tuple[tuple[Item, bytes], ...] = ()
    kept: tuple[tuple[Item, bytes], ...] = ()


class Ground:
    """The items of both sides, and which of them no room of this example has."""

    def __init__(self, subject: Subject, shape: Shape) -> None:
        self.subject = subject
        self.shape = shape
        self.names = [component.name for component in shape.state]
        self._serial = 0
        self._free: dict[tuple[Side, str, int], list[int]] = {}
        self.refill()

    def refill(self) -> None:
        """A new example: nobody has anything."""
        shape = self.shape
        for side in SIDES:
            prefill = side == "prefill"
            self._free[side, "kv", 0] = list(range(shape.prefill_pages if prefill else shape.decode_pages))
            slots = shape.prefill_aux_slots if prefill else shape.decode_aux_slots
            self._free[side, "aux", 0] = list(range(slots))
            for number, component in enumerate(shape.state):
                items = component.prefill_items if prefill else component.decode_items
                self._free[side, "state", number] = list(range(items))

    def give(self, plan: RoomPlan) -> dict[Side, Given]:
        """Items for both callers of a room."""
        given: dict[Side, Given] = {
            "prefill": self._give("prefill", plan.pages, plan.state),
            "decode": self._give("decode", plan.pages_wanted, plan.state_wanted, plan.held),
        }
        if plan.odd is not None:
            given[plan.odd.side] = self._other(given[plan.odd.side], plan.odd)
        return given

    def _other(self, given: Given, odd: Odd) -> Given:
        """The same, and for one rank as much of it as that has, or more of the same kind."""

        def some(kind: str, number: int, has: tuple[int, ...], count: int) -> tuple[int, ...]:
            return (*has[:count], *self._take(odd.side, kind, number, max(0, count - len(has))))

        there = some("kv", 0, (*given.held, *given.pages), odd.pages)
        counts = enumerate(zip(given.state, odd.state, strict=False))
        state = tuple(some("state", number, has, count) for number, (has, count) in counts)
        return given._replace(odd=Given(there[odd.held :], given.aux, state, there[: odd.held]))

    def _give(self, side: Side, pages: int, state: tuple[int, ...], held: int = 0) -> Given:
        counts = [*state, *[0] * (len(self.shape.state) - len(state))]
        indices = tuple(self._take(side, "state", number, count) for number, count in enumerate(counts))
        taken = self._take(side, "kv", 0, pages)
        return Given(taken[held:], self._take(side, "aux", 0, 1)[0], indices, taken[:held])

    def _take(self, side: Side, kind: str, component: int, count: int) -> tuple[int, ...]:
        """Items that no room of this example has. Every other one first, so that positions and indices differ."""
        free = self._free[side, kind, component]
        step = 3 if side == "prefill" else 1
        taken = [free.pop((step * n) % len(free)) for n in range(count)]
        if side == "decode":
            taken.reverse()
        return tuple(taken)

    def fill(self, plan: RoomPlan, given: dict[Side, Given]) -> Must:
        """Bytes that are different everywhere on the source, and none of them on the destination."""
        sources, targets = given["prefill"].items(), given["decode"].items()
        for item in (*sources, *given["prefill"].more()):
            self.put("prefill", item, self._bytes("prefill", item))
        for item in (*targets, *given["decode"].more()):
            self.put("decode", item, bytes([UNTOUCHED]) * self.length("decode", item))
        expected: list[tuple[Item, bytes]] = []
        for kind, component in dict.fromkeys((item.kind, item.component) for item in targets):
            source = [item for item in sources if (item.kind, item.component) == (kind, component)]
            target = [item for item in targets if (item.kind, item.component) == (kind, component)]
            parts = [part for item in source for part in self._pieces(item)]
            first = len(given["decode"].held) if kind == "kv" else 0
            expected += zip(target, parts[first:], strict=False)  # what one side has too much has no partner
        if plan.odd is not None:
            expected += self._had_by_some(sources, given["decode"])
        return Must(tuple(expected), self._keep(plan, given["decode"]))

    def _had_by_some(self, sources: list[Item], given: Given) -> list[tuple[Item, bytes]]:
        """Pages that some ranks hold and others do not: what is held is what comes, so it lies there from the start."""
        if given.odd is None:
            return []
        low, high = sorted((len(given.held), len(given.odd.held)))
        there = (*given.held, *given.pages)
        had = [
            (Item("kv", page), self.subject.read("prefill", source))
            for page, source in zip(there[low:high], sources[low:high], strict=False)
            if source.kind == "kv"
        ]
        for item, data in had:
            self.put("decode", item, data)
        return had

    def _pieces(self, item: Item) -> list[bytes]:
        """The bytes of a source item, in pieces as decode has them."""
        found = self.subject.read("prefill", item)
        if item.kind != "kv" or self.shape.split == 1:
            return [found]
        size = self.shape.page_bytes_of("decode")
        return [found[at : at + size] for at in range(0, len(found), size)]

    def _keep(self, plan: RoomPlan, given: Given) -> tuple[tuple[Item, bytes], ...]:
        if not (plan.held or plan.short):
            return ()
        nobodys = self._free["decode", "kv", 0].pop()
        held = given.held if given.odd is None else given.held[: len(given.odd.held)]
        items = [Item("kv", page) for page in (*held, nobodys)]
        kept = tuple((item, self._bytes("decode", item)) for item in items)
        for item, data in kept:
            self.put("decode", item, data)
        return kept

    def put(self, side: Side, item: Item, data: bytes) -> None:
        """Write an item, as the engine around the implementation does."""
        self.subject.fill(side, item, data)

    def _bytes(self, side: Side, item: Item) -> bytes:
        self._serial += 1
        length = self.length(side, item)
        word = hashlib.blake2b(f"{self._serial}/{item}".encode()).digest()
        return (word * (length // len(word) + 1))[:length]

    def length(self, side: Side, item: Item) -> int:
        """Bytes of an item of a side."""
        if item.kind == "state":
            return self.shape.state[item.component].item_bytes
        return self.shape.page_bytes_of(side) if item.kind == "kv" else self.shape.aux_bytes

    # -- looking -------------------------------------------------------------------------------------------------

    def wrong(self, must: Must) -> str | None:
        """The first item of decode's memory that does not hold what prefill had at its position, in words."""
        for item, expected in must.expected:
            found = self.subject.read("decode", item)
            if found != expected:
                place = item.kind if item.kind != "state" else f"state {self.names[item.component]!r}"
                untouched = found == bytes([UNTOUCHED]) * len(found)
                return f"{place} item {item.index} {'was not written' if untouched else 'holds other bytes'}"
        return None

    def strayed(self, must: Must, held: tuple[int, ...]) -> str | None:
        """The first item that had to stay as it was and did not, in words."""
        for item, data in must.kept:
            if self.subject.read("decode", item) != data:
                whose = "which decode held already" if item.index in held else "which no room has"
                return f"{item.kind} item {item.index}, {whose}, was written to"
        return None

    def spend(self, side: Side, given: Given) -> None:
        """Use the room's memory on this side for something else."""
        for item in given.items():
            self.put(side, item, bytes([SPENT]) * self.length(side, item))

    def unspent(self, side: Side, given: Given) -> str | None:
        """The first item that does not hold what `spend` wrote, in words."""
        for item in given.items():
            if self.subject.read(side, item) != bytes([SPENT]) * self.length(side, item):
                return f"{item.kind} item {item.index} was written to"
        return None
