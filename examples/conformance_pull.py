"""An engine whose decode pulls, and that knows no room numbers, as a subject: the shape that vLLM's connector has.

    kvrooms conformance examples/conformance_pull.py:Pull
    kvrooms conformance examples/conformance_pull.py:Pull --option forgets=yes

Prefill names its own requests. When the last page is computed it offers them: parameters that a router hands to decode.
Decode asks before it reads, prefill lends its pages until it is told that they were read or given up, and so never has
to guess when they are free. With `forgets` decode does not say so after an abort (L3 and L5 find it): a lease that only
a timer could end. S4 and S5 stay unknown: there is no number to use again, and no way in for a stranger.
"""

import itertools
import random

from kvrooms.harness.conformance.subject import SIDES, Item, Refused, Subject, Traits, View
from kvrooms.harness.evidence import Step


class Job:
    """One request on one side. lent: prefill's pages may be read, or decode's be written, until all reads are over."""

    def __init__(self, side, name, pages, aux):
        self.side, self.name, self.items = side, name, [*(Item("kv", page) for page in pages), Item("aux", aux)]
        self.status, self.why, self.lent, self.offered, self.closed = "open", None, False, False, False

    def end(self, status, why=None):
        if self.status == "open":
            self.status, self.why = status, why


class Pull(Subject):
    name, version = "pull", "1"
    traits = Traits(
        prefill_spellings=frozenset({"absent"}),
        decode_spellings=frozenset({"absent"}),
        components=0,
        pulls=True,
        room_numbers=False,  # the suite's number of a room is the key of a dictionary, and nothing more
        decode_first=False,  # without parameters there is nothing to open
        aborts=frozenset(SIDES),
        deadlines=frozenset({"prefill"}),
        failures=True,
        counts=True,
        frees=True,
        held_writes=True,
        simulated=True,
    )

    def __init__(self, forgets="no"):
        self.forgets = forgets == "yes"

    def start(self, shape, *, deadline_s=None, seed=0):
        self.random, self.names, self.seen, self.held_back = random.Random(seed), itertools.count(), [], False
        self.memory = {side: {} for side in SIDES}
        self.jobs = {side: {} for side in SIDES}  # by the engine's own name
        self.offers = {}  # what the router has: the suite's number -> the name and how many pages
        self.queue, self.reads = [], []

    def stop(self):
        pass

    def fill(self, side, item, data):
        self.memory[side][item] = data

    def read(self, side, item):
        return self.memory[side][item]

    # -- callers -------------------------------------------------------------------------------------------------

    def open(self, side, request):
        if side == "prefill":
            name = f"request-{next(self.names)}"
            self.offers[request.number] = name
        elif (name := self.offers.pop(request.number, None)) is None or not self.is_offered(name):
            raise Refused("prefill has offered nothing")
        job = self.jobs[side][name] = Job(side, name, request.pages if side == "decode" else (), request.aux_index)
        if side == "decode":
            self.say("decode", "ask", name, len(request.pages))
        return job

    def is_offered(self, name):
        return name in self.jobs["prefill"] and self.jobs["prefill"][name].offered

    def send(self, room, pages, state_indices, *, last):
        if room.status != "open":
            raise Refused("the request has ended")
        room.items[-1:-1] = [Item("kv", page) for page in pages]  # aux stays the last
        room.offered = last

    def poll(self, room):
        return room.status

    def abort(self, room):
        room.end("failed", "aborted by its caller")

    def failure(self, room):
        self.close(room)  # as whoever has read why a request failed does
        return room.why

    def memory_free(self, room):
        return room.status != "open" and not room.lent

    def close(self, room):
        self.abort(room)
        room.closed = True
        self.forget(room)

    def forget(self, room):
        if room.closed and not room.lent:
            self.jobs[room.side].pop(room.name, None)

    def held(self, side):
        return {"jobs": len(self.jobs[side])}

    def explain(self, room):
        waiting = "the reads" if room.lent else "word from the other side"
        return View(room.status, "offered" if room.offered else "", waiting if room.status == "open" else "")

    # -- the protocol: ask, yes or no, read, over -------------------------------------------------------------------

    def say(self, side, verb, name, *more):
        self.seen.append(Step(0, side, "message", f"{verb} {name}", next(other for other in SIDES if other != side)))
        self.queue.append((getattr(self, verb), name, *more))

    def ask(self, name, pages):
        job = self.jobs["prefill"].get(name)
        if job is None or job.status != "open":
            return self.say("prefill", "no", name, "prefill has it no more")
        if pages != len(job.items) - 1:
            job.end("failed", f"{len(job.items) - 1} pages are offered and {pages} are asked for")
            return self.say("prefill", "no", name, job.why)
        job.lent = True
        return self.say("prefill", "yes", name, tuple(job.items))

    def no(self, name, why):
        if name in self.jobs["decode"]:
            self.jobs["decode"][name].end("failed", why)

    def yes(self, name, sources):
        job = self.jobs["decode"].get(name)
        if job is not None and job.status == "open":
            job.lent = True
            self.reads += [(self.move, job, pair) for pair in zip(sources, job.items, strict=True)]
        else:
            self.give_back(name, "decode has given it up")

    def give_back(self, name, why):
        if not (self.forgets and why):
            self.say("decode", "over", name, why)

    def move(self, job, pair):
        self.memory["decode"][pair[1]] = self.memory["prefill"][pair[0]]
        self.seen.append(Step(0, "decode", "write", f"reads {pair[0].kind} {pair[0].index}"))
        if not any(other is job for _, other, _ in self.reads):
            job.lent = False
            job.end("done")
            self.give_back(job.name, job.why)
            self.forget(job)

    def over(self, name, why):
        job = self.jobs["prefill"][name]
        job.lent = False
        job.end("failed" if why else "done", why)
        self.forget(job)

    # -- the suite's -------------------------------------------------------------------------------------------------

    def hold_writes(self, *, held):
        self.held_back = held

    def settle(self, until, view, *, patience_s, timers=False):
        while not until():
            events = self.queue if not self.reads or self.held_back else [*self.queue, *self.reads]
            late = [job for job in self.jobs["prefill"].values() if job.status == "open" and not job.lent]
            if events:
                event = self.random.choice(events)
                (self.queue if event in self.queue else self.reads).remove(event)
                event[0](*event[1:])
            elif timers and late:
                late[0].end("failed", "nobody has asked for it in time")
            else:
                return until()
        return True

    def steps(self):
        seen, self.seen = self.seen, []
        return seen
