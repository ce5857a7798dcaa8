"""A small, right implementation in one process, with a switch for each way to be wrong: what the suite is tested on.

It is driven by messages that are handed over in any order, knows no time but `settle(timers=True)`, and is written for
nothing but this. `Toy(defect="S3")` breaks the property of that name; the defects in `CARRIED` are mistakes about
prefixes and layers.
"""

from __future__ import annotations

import random
from functools import partial

from kvrooms.harness.conformance.subject import ABSENT, SIDES, Item, Refused, Subject, Traits, Unsupported, View

ALL = frozenset(SIDES)
CARRIED = {
    "by-count": "under a prefix the first page that is sent goes to the first page that is wanted",
    "again": "what decode holds is sent again",
    "rounded": "a page of prefill that decode holds in part is thought to be held",
    "first-layer": "a page has landed with the first of its layers",
    "last-layer": "a chunk has landed with the layers that came in its last send",
    "apart-by-count": "under a prefix a layer that is sent apart goes to the first page that is wanted",
}


class Half:
    """A room on one side."""

    def __init__(self, side, request):
        self.side, self.request = side, request
        self.key = (request.number, request.attempt)
        self.status, self.cause, self.told, self.closed = "open", None, False, False
        self.other, self.granted, self.free, self.writes, self.done = None, False, False, 0, False
        self.sent, self.landed, self.wanted, self.asked = [], set(), None, {}


class Toy(Subject):
    name, version = "toy", "1"
    traits = Traits(
        frozenset({"list", "None", "absent", "none_entry", "tuple"}),
        frozenset({"list", "None", "absent", "none_entry"}),
        components=1, always=False, zero_pages=True, prefixes=True, splits=frozenset({2}), layers=3,
        attempts=True, aborts=ALL, deadlines=ALL, failures=True, counts=True, frees=True,
        kills=frozenset({"prefill"}), held_writes=True, injects=frozenset({"control"}), simulated=True,
    )  # fmt: skip

    def __init__(self, defect=""):
        self.defect = defect

    def start(self, shape, *, deadline_s=None, seed=0):
        self.shape, self.random = shape, random.Random(seed)
        self.memory = {side: {} for side in SIDES}
        self.open_rooms = {side: {} for side in SIDES}
        self.parked, self.queue, self.held_writes, self.deaf, self.dead = {}, [], False, False, False
        self.remembered, self.layers = set(), shape.layers or 1

    def stop(self):
        self.queue = []

    def fill(self, side, item, data):
        self.memory[side][item] = data

    def read(self, side, item):
        return self.memory[side][item]

    # -- callers

    def open(self, side, request):
        half = Half(side, request)
        if half.key in self.open_rooms[side]:
            raise Refused(f"{half.key} is open")
        self.open_rooms[side][half.key] = half
        if side == "decode":
            self.want(half)
            self.post(self.metadata, half)
            if self.defect == "S4" and half.key in self.remembered:
                self.fail(half, "a failure of its first life")
        elif half.key in self.parked:
            self.bind(half, self.parked.pop(half.key))
        return half

    def want(self, half):
        request, value = half.request, half.request.state_indices
        indices = self.meaning(value)
        pages = [(Item("kv", page), layer) for page in request.pages for layer in range(self.layers)]
        others = [Item("aux", request.aux_index), *(Item("state", index) for index in indices)]
        half.wanted = pages + [(item, 0) for item in others]
        if self.defect == "L2" and value is not None and value is not ABSENT and not indices:
            half.wanted.append((Item("state", 0), 0))  # the other predicate: something was passed, so something is owed

    def meaning(self, value):
        if value is None or value is ABSENT:
            return []
        return [index for entry in value for index in (entry or [])]

    def send(self, half, pages, state_indices, *, last):
        self.send_layers(half, range(self.layers), pages, state_indices, last=last)

    def send_layers(self, half, layers, pages, state_indices, *, last):
        if half.status != "open":
            raise Refused("the room has ended")
        half.sent.append((tuple(layers), list(pages), self.meaning(state_indices), last))
        self.move(half)

    def poll(self, half):
        return half.status

    def explain(self, half):
        waiting = [] if half.wanted is None else [item for item in half.wanted if item not in half.landed]
        return View(half.status, waiting=f"{len(waiting)} items")

    def abort(self, half):
        if self.defect == "S2" and half.status == "done":
            half.status = "failed"
        if self.defect == "L1" and half.side == "prefill" and not half.granted:
            return
        self.fail(half, "aborted")

    def failure(self, half):
        first, half.told = not half.told, True
        self.close(half)
        return half.cause if first else ("unknown reason" if self.defect == "C2" else None)

    def close(self, half):
        self.fail(half, "closed")
        half.closed = True
        self.forget(half)

    def forget(self, half):
        keeps = self.defect == "C1" and half.cause is not None
        if half.closed and not keeps and self.open_rooms[half.side].get(half.key) is half:
            del self.open_rooms[half.side][half.key]

    def memory_free(self, half):
        return half.free

    def held(self, side):
        return {"rooms": len(self.open_rooms[side]), "parked": len(self.parked) if side == "prefill" else 0}

    # -- messages

    def post(self, function, *arguments, write=False):
        self.queue.append((write, partial(function, *arguments)))

    def metadata(self, decode):
        if self.deaf or self.dead:
            return
        prefill = self.open_rooms["prefill"].get(decode.key)
        if decode.status != "open":
            decode.free = True
        elif prefill is None or prefill.granted or prefill.status != "open":
            self.parked[decode.key] = decode
        else:
            self.bind(prefill, decode)

    def bind(self, prefill, decode):
        prefill.other, decode.other, prefill.granted, decode.granted = decode, prefill, True, True
        self.move(prefill)

    def move(self, prefill):
        """Post what is sent and not posted yet; compare the totals when they are known."""
        if not prefill.granted or prefill.status != "open":
            return
        decode, wanted = prefill.other, prefill.other.wanted
        pages = [page for layers, some, _, _ in prefill.sent if 0 in layers for page in some]
        there = [*decode.request.held, *decode.request.pages]
        last = prefill.sent and prefill.sent[-1][3]
        indices = prefill.sent[-1][2] if last else []
        state = [item for item, _ in wanted if item.kind == "state"]
        if self.defect != "A1" and last and (len(pages), len(indices)) != (
            -(-len(there) // self.shape.split), len(state)
        ) and not (self.defect == "L2" and not indices):  # fmt: skip
            self.fail(prefill, "the manifests differ")
            return
        pairs = [pair for layer in range(self.layers) for pair in self.pages(prefill, layer)]
        if last:
            pairs.append((Item("aux", prefill.request.aux_index), 0, Item("aux", decode.request.aux_index), 0))
            pairs += [(Item("state", source), 0, target, 0) for source, target in zip(indices, state, strict=False)]
            if self.defect == "A1":
                first = max(0, len(pages) * self.shape.split - len(decode.request.held)) * self.layers
                decode.wanted = wanted[: min(first, len(decode.request.pages) * self.layers)] + [
                    one for one in wanted if one[0].kind != "kv"
                ]
            prefill.done = True
        prefill.writes += len(pairs)
        for source, piece, target, layer in pairs:
            if self.defect == "SMOKE" and target.kind == "aux":
                target = target._replace(index=(target.index + 1) % self.shape.decode_aux_slots)
            self.post(self.write, prefill, source, piece, target, layer, write=True)
        if prefill.done and not prefill.writes and prefill.status == "open":
            self.end(prefill, "done")

    def pages(self, prefill, layer):
        """What is sent and not posted yet of a layer: source and which piece of it, target, layer."""
        request, split = prefill.other.request, self.shape.split
        sources = [page for layers, some, _, _ in prefill.sent if layer in layers for page in some]
        there, held = [*request.held, *request.pages], len(request.held)
        apart = any(len(layers) < self.layers for layers, _, _, _ in prefill.sent)
        if self.defect == "by-count" or (self.defect == "apart-by-count" and apart):
            there, held = [*request.pages], 0
        if self.defect == "again":
            held = 0
        if self.defect == "rounded":
            held = -(-held // split) * split
        low, prefill.asked[layer] = prefill.asked.get(layer, 0) * split, len(sources)
        for at in range(max(low, held), min(len(sources) * split, len(there))):
            yield Item("kv", sources[at // split]), at % split, Item("kv", there[at]), layer

    def write(self, prefill, source, piece, target, layer):
        if self.dead:
            return
        data = self.memory["prefill"][source]
        size = len(data) // (self.shape.split if target.kind == "kv" else 1)
        old = self.memory["decode"].get(target, bytes(size))
        low, high = (size * at // self.layers for at in (layer, layer + 1)) if target.kind == "kv" else (0, size)
        new = data[piece * size : (piece + 1) * size]
        self.memory["decode"][target] = old[:low] + new[low:high] + old[high:]
        self.post(self.land, prefill, target, layer)

    def land(self, prefill, target, layer):
        decode = prefill.other
        prefill.writes -= 1
        decode.landed.add((target, layer))
        if target.kind == "kv" and self.defect in ("first-layer", "last-layer"):
            apart = any(len(layers) < self.layers for layers, _, _, _ in prefill.sent)
            ends = layer in prefill.sent[-1][0] and prefill.sent[-1][3]
            if apart and (self.defect == "first-layer" or ends):
                decode.landed |= {(target, one) for one in range(self.layers)}
        missing = [unit for unit in decode.wanted if unit not in decode.landed]
        early = self.defect == "S1" and target.kind == "aux"
        if decode.status == "open" and (not missing or early or (self.defect == "SMOKE" and len(missing) == 1)):
            self.end(decode, "done")
        if not prefill.writes:
            if prefill.status == "open" and prefill.done:
                self.end(prefill, "done")
            elif prefill.status == "failed":
                self.acknowledge(prefill)

    def end(self, half, status, cause=None):
        half.status, half.cause = status, cause
        half.free = half.free or status == "done" or self.defect == "S3"
        self.forget(half)

    def fail(self, half, cause):
        if half.status != "open":
            return
        self.remembered.add(half.key)
        self.end(half, "failed", cause)
        self.parked.pop(half.key, None) if half.side == "decode" else None
        if half.other is None:
            half.free = True
        elif half.side == "decode" or self.defect != "L3":
            self.post(self.hear, half.other, cause)
        if half.side == "decode" and half.granted and self.defect == "L4":
            self.deaf = True
        if half.side == "prefill" and half.granted and not half.writes:
            self.acknowledge(half)

    def hear(self, half, cause):
        if half.side == "prefill" and self.dead:
            return
        if half.side == "decode" and half.status == "failed" and not half.other.writes:
            half.free = self.defect != "L5"
        self.fail(half, f"the other side: {cause}")
        if half.side == "prefill" and not half.writes:
            self.acknowledge(half)

    def acknowledge(self, prefill):
        prefill.free = True
        if prefill.other is not None and prefill.other.status == "failed" and self.defect != "L5":
            self.post(setattr, prefill.other, "free", True)

    # -- the world

    def settle(self, until, view, *, patience_s, timers=False):
        while not until():
            ready = [entry for entry in self.queue if not (entry[0] and self.held_writes)]
            if not ready:
                late = [half for table in self.open_rooms.values() for half in table.values() if half.status == "open"]
                if not timers or not late or self.defect == "L1":
                    return until()
                self.fail(late[0], "the deadline is over")
                continue
            chosen = self.random.choice(ready)
            self.queue.remove(chosen)
            chosen[1]()
        return True

    def hold_writes(self, *, held):
        self.held_writes = held

    def kill(self, side):
        if side != "prefill":
            raise Unsupported(side)
        self.dead = True
        for half in list(self.open_rooms["decode"].values()):
            half.free = True
            self.post(self.fail, half, "the peer is gone")

    def restart(self, side):
        self.dead, self.parked, self.open_rooms[side] = False, {}, {}
        self.queue = [(write, call) for write, call in self.queue if call.func not in (self.write, self.metadata)]

    def inject(self, side, channel, parts):
        if self.defect == "S5" and side == "prefill":
            self.deaf = True
