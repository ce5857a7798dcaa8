"""A room that hangs, on purpose: each side answers "is there state?" with a predicate of its own.

    kvrooms conformance examples/conformance_wrong.py:Wrong --html hang.html

Prefill sends state, and the word that it is complete, `if state_indices`; decode waits for that word `if state_indices
is not None`. Every test with indices passes, and so does every one with None. The suite finds `[]` and what is like it
(L2), and that the two sides never compare what they ask for (A1).
"""

from kvrooms.harness.conformance.subject import ABSENT, SIDES, Item, Refused, Subject, Traits, View
from kvrooms.harness.evidence import Step


class Room:
    def __init__(self, side, request):
        self.side, self.request, self.status = side, request, "open"
        self.pages, self.waits_for = [], set()


class Wrong(Subject):
    """Both sides in one process: what one says to the other lies in `queue` until it is delivered."""

    name, version = "wrong", "1"
    traits = Traits(
        prefill_spellings=frozenset({"absent", "None", "list", "none_entry"}),
        decode_spellings=frozenset({"absent", "None", "list", "none_entry"}),
        always=False,
        aborts=frozenset(SIDES),
        simulated=True,
    )

    def start(self, shape, *, deadline_s=None, seed=0):
        self.memory = {side: {} for side in SIDES}
        self.rooms, self.queue, self.seen = {}, [], []

    def stop(self):
        pass

    def fill(self, side, item, data):
        self.memory[side][item] = data

    def read(self, side, item):
        return self.memory[side][item]

    # -- callers -------------------------------------------------------------------------------------------------

    def open(self, side, request):
        room = self.rooms[side, request.number] = Room(side, request)
        if side == "decode":
            room.waits_for = {"kv", "aux"}
            if request.state_indices is not None and request.state_indices is not ABSENT:
                room.waits_for.add("state")  # the first of the two predicates
        self.queue.append((self.move, request.number))
        return room

    def send(self, room, pages, state_indices, *, last):
        if room.status != "open":
            raise Refused("the room has ended")
        room.pages += pages
        if last:
            room.state = [] if state_indices in (None, ABSENT) else state_indices
            self.queue.append((self.move, room.request.number))

    def poll(self, room):
        return room.status

    def abort(self, room):
        for side in SIDES:
            other = self.rooms.get((side, room.request.number))
            if other is not None and other.status == "open":
                other.status = "failed"

    def close(self, room):
        self.abort(room)
        self.rooms.pop((room.side, room.request.number), None)

    def explain(self, room):
        met = {"kv", "aux", "state"} - room.waits_for if room.side == "decode" else set()
        return View(room.status, ", ".join(sorted(met)), ", ".join(sorted(room.waits_for)))

    # -- the protocol --------------------------------------------------------------------------------------------

    def move(self, number):
        prefill, decode = (self.rooms.get((side, number)) for side in SIDES)
        if prefill is None or decode is None or not hasattr(prefill, "state") or prefill.status != "open":
            return
        for source, target in zip(prefill.pages, decode.request.pages, strict=False):
            self.write(decode, Item("kv", source), Item("kv", target))
        self.write(decode, Item("aux", prefill.request.aux_index), Item("aux", decode.request.aux_index))
        if prefill.state:  # the second
            for source, target in zip(flat(prefill.state), flat(decode.request.state_indices), strict=False):
                self.write(decode, Item("state", source), Item("state", target))
            self.write(decode, None, Item("state", 0))
        prefill.status = "done"

    def write(self, decode, source, target):
        if source is not None:
            self.memory["decode"][target] = self.memory["prefill"][source]
        self.seen.append(Step(0, "prefill", "write", target.kind, "decode"))
        decode.waits_for.discard(target.kind)
        if not decode.waits_for and decode.status == "open":
            decode.status = "done"

    def settle(self, until, view, *, patience_s, timers=False):
        while not until():
            if not self.queue:
                return until()
            function, number = self.queue.pop(0)
            function(number)
        return True

    def steps(self):
        seen, self.seen = self.seen, []
        return seen


def flat(state_indices):
    return [] if state_indices in (None, ABSENT) else [index for entry in state_indices for index in entry or []]
