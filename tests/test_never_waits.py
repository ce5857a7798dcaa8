"""The property that this project is about:

    an empty `state_indices`, in any spelling, on either side, at any rank count, chunking and order of arrival,
    never leaves decode waiting.

The first test says just this, of pipeline stages; those after it of state that one side alone has, of several rooms at
once, and of ranks that share a model in any way.

The engines are the real ones, called as users call them; only the wire, the clock and the registry under them are
simulated. `world.run` lets no time pass. So there is no deadline that could end a room: where nothing but a timer can
help, it raises Stuck.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import event, given, settings
from hypothesis import strategies as st
from mutants import Mutant, dies, hunt, named
from stages import LAYERS, decode_stages, prefill_stages

from kvrooms import DecodeEngine, PrefillEngine, Status
from kvrooms.engine import prefill as prefill_engine
from kvrooms.engine.decode_arrivals import DecodeArrivals
from kvrooms.engine.prefill_grants import PrefillGrants
from kvrooms.harness import strategies as rooms
from kvrooms.harness.ranks import Ranks
from kvrooms.harness.simulate.memory import Shape, source_pool, target_pool
from kvrooms.harness.world import World
from kvrooms.protocol import shares
from kvrooms.protocol.events import Accepted, Bound, Declared, Landed, Settled
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.manifest import Declaration, derive, state_indices
from kvrooms.protocol.notify import PartKind
from kvrooms.statemachine.rooms import decode_room, prefill_room, step_decode, step_prefill

EVERY_WAY = {
    "senders": st.integers(1, 3),
    "receivers": st.integers(1, 3),
    "prefill_says": rooms.nothing(["swa"]),  # absent, None, [], [[]], [None], [[], []], {}, {"swa": None}, arrays ...
    "decode_says": rooms.nothing(["swa"]),
    "components": st.integers(1, 2),
    "chunking": rooms.chunkings(pages=3),
    "data": st.data(),
    "order": rooms.schedules(),
}


@settings(max_examples=150)
@given(**EVERY_WAY)
def test_no_spelling_of_nothing_leaves_decode_waiting(
    senders, receivers, prefill_says, decode_says, components, chunking, data, order
):
    world = World()
    world.random = order
    prefill, decode = prefill_stages(world, senders, components), decode_stages(world, receivers, components)

    def receive(rank):
        where = {"bootstrap": "http://world:1", "instance": "prefill"}
        return decode[rank].open(7, **where, pages=[8, 2, 5], aux_index=4, **decode_says.argument())

    def send(rank):
        room = prefill[rank].open(7, aux_index=1)
        for pages, _, last in rooms.split(chunking, [3, 9, 6]):
            room.send(pages, last=last, **prefill_says.argument())
        return room

    calls = [(send, rank) for rank in range(senders)] + [(receive, rank) for rank in range(receivers)]
    ends = [call(rank) for call, rank in data.draw(st.permutations(calls), label="who calls when")]
    world.run(lambda: all(room.poll().terminal for room in ends))

    assert {room.poll() for room in ends} == {Status.DONE}
    for layer in range(LAYERS):
        for sent, landed in zip([3, 9, 6], [8, 2, 5], strict=True):
            assert decode.page(layer, landed) == prefill.page(layer, sent)
    assert decode.tokens(4) == [prefill.tokens(1)[0]] * receivers
    assert world.now == 0, "time has passed"


@settings(max_examples=150)
@given(
    data=st.data(),
    prefill_has=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    decode_wants=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    agree=st.booleans(),
    order=rooms.schedules(),
)
def test_nor_does_state_that_one_side_alone_has(data, prefill_has, decode_wants, agree, order):
    """Equal numbers of indices arrive; other numbers, none among them, fail both sides and say why. Nobody waits."""
    decode_wants = prefill_has if agree else decode_wants
    world = World()
    world.random = order
    source, target = source_pool(Shape(indexed=2), seed=1), target_pool(Shape(indexed=2))
    prefill = PrefillEngine(source.memory, assembly=world.assemble("prefill", source.memory, listen=True))
    decode = DecodeEngine(target.memory, assembly=world.assemble("decode", target.memory))
    given_by_prefill = dict(zip(("swa", "index"), ([5, 1][: prefill_has[0]], [2, 0][: prefill_has[1]]), strict=True))
    given_by_decode = dict(zip(("swa", "index"), ([3, 6][: decode_wants[0]], [7, 4][: decode_wants[1]]), strict=True))
    decode_says = data.draw(rooms.spellings(given_by_decode), label="decode says")
    chunking = data.draw(rooms.chunkings(pages=2, state=prefill_has), label="chunking")

    receiver = decode.open(7, bootstrap=prefill.bootstrap, pages=[8, 2], **decode_says.argument())
    sender = prefill.open(7)
    for pages, state, last in rooms.split(chunking, [3, 9], given_by_prefill):
        some = {name: state.get(name, []) for name in given_by_prefill}
        prefill_says = data.draw(rooms.spellings(some), label="prefill says")
        sender.send(pages, last=last, **prefill_says.argument())
    world.run(lambda: receiver.poll().terminal and sender.poll().terminal)

    if prefill_has == decode_wants:
        assert receiver.poll() is sender.poll() is Status.DONE
        for part in ("swa", "index"):
            sent, landed = source.read(part, given_by_prefill[part]), target.read(part, given_by_decode[part])
            assert [a.tobytes() for a in sent] == [b.tobytes() for b in landed]
    else:
        assert receiver.failure.reason is sender.failure.reason is Reason.MISMATCH
        assert "state component" in receiver.failure.detail
        assert receiver.failure.detail == sender.failure.detail
    assert world.now == 0


@settings(max_examples=60)
@given(
    prefill_says=st.lists(rooms.nothing(), min_size=4, max_size=4),
    decode_says=st.lists(rooms.nothing(), min_size=4, max_size=4),
    order=rooms.schedules(),
)
def test_nor_with_several_engines_and_rooms_at_once(prefill_says, decode_says, order):
    """Two prefill engines, two decode engines, a room between each two of them."""
    world = World()
    world.random = order
    shape = Shape(indexed=1)
    sources, targets = [source_pool(shape, seed=i) for i in range(2)], [target_pool(shape) for _ in range(2)]
    prefills = [
        PrefillEngine(pool.memory, assembly=world.assemble(f"prefill-{i}", pool.memory, listen=True))
        for i, pool in enumerate(sources)
    ]
    decodes = [
        DecodeEngine(pool.memory, assembly=world.assemble(f"decode-{i}", pool.memory)) for i, pool in enumerate(targets)
    ]
    ends = []
    for number in range(4):
        p, d = divmod(number, 2)
        place = {"bootstrap": prefills[p].bootstrap, "instance": f"prefill-{p}"}
        receiver = decodes[d].open(number, pages=[2 * p, 2 * p + 1], **place, **decode_says[number].argument())
        sender = prefills[p].open(number, pages=2)
        sender.send([4 + d])
        sender.send([8 + d], **prefill_says[number].argument())
        ends += [receiver, sender]
    world.run(lambda: all(room.poll().terminal for room in ends))

    assert {room.poll() for room in ends} == {Status.DONE}
    for p, source in enumerate(sources):
        for d, target in enumerate(targets):
            sent, landed = source.read("kv", [4 + d, 8 + d]), target.read("kv", [2 * p, 2 * p + 1])
            assert [a.tobytes() for a in sent] == [b.tobytes() for b in landed]
    assert world.now == 0


class Spelled(Ranks):
    """Every rank of both sides says in a way of its own that a room has no state; prefill ranks send as they like."""

    def __init__(self, case, order, data):
        super().__init__(case)
        self.world.random = order
        self.data = data
        self.rooms = {number: without_state(room) for number, room in self.rooms.items()}

    def says(self, rank, layout):
        return self.data.draw(rooms.nothing(layout.component_names, tensors=False), f"{rank} says").argument()

    def receive(self, number, rank, **options):
        said = self.says(f"decode rank {rank}", self.decode.ranks[rank].layout)
        return super().receive(number, rank, **options, **said)

    def sends(self, number, rank):
        room = self.rooms[number]
        pages = room.prefill[rank].valid_pages
        for chunk, _, last in rooms.split(self.data.draw(rooms.chunkings(len(pages), chunks=3), "chunks"), pages):
            said = self.says(f"prefill rank {rank}", self.prefill[room.instance].ranks[rank].layout)
            yield {"pages": chunk, "last": last, **said}


def without_state(room):
    sides = {side: tuple(replace(rank, state=()) for rank in getattr(room, side)) for side in ("prefill", "decode")}
    return replace(room, **sides)


few_ranks = rooms.topologies(
    kinds=("window", "index", "attention"),
    prompts=st.lists(st.integers(1, 9), min_size=1, max_size=2).map(tuple),
    layerwise=st.just(False),
).filter(lambda case: case.processes <= 10)


def no_rank_waits(case, order, data):
    ranks = Spelled(case, order, data)
    event(f"{len(ranks.prefill[0].ranks)} to {len(ranks.decodes)} ranks")
    ranks.play()  # without a timer: raises Stuck where nothing else can help

    assert ranks.failures() == []
    assert ranks.early == []
    assert ranks.differs() == []
    assert ranks.world.now == 0


@settings(max_examples=150)
@given(case=few_ranks, order=rooms.schedules(), data=st.data())
def test_nor_between_any_numbers_of_ranks(case, order, data):
    """One to four ranks or more on each side: heads, stages, parts of the prompt; any page sizes and prefixes."""
    no_rank_waits(case, order, data)


@named(
    [
        Mutant(shares, "_pairing", "pairs[p, p * receivers // senders] = []", "pass"),
        Mutant(PrefillGrants, "_bind", "for bound in record.writers:", "for bound in (writer,):"),
        Mutant(DecodeArrivals, "_arrival", "Landed(grant.sender, ", "Landed(0, "),
    ]
)
def test_that_can_fail(mutant, monkeypatch):
    mutant.plant(monkeypatch)
    dies(lambda: hunt(no_rank_waits, case=few_ranks, order=rooms.schedules(), data=st.data()))


@named(
    [
        Mutant(prefill_engine, "_next", "room._aux_index if last else", "room._aux_index if last and counted[0] else"),
        Mutant(PrefillGrants, "_bind", "for bound in record.writers:", "for bound in (writer,):"),
        Mutant(DecodeArrivals, "_arrival", "Landed(grant.sender, ", "Landed(0, "),
    ]
)
def test_that_the_first_can_fail(mutant, monkeypatch):
    """Among them what SGLang 0.5.12 did: aux goes with state, and there is none."""
    mutant.plant(monkeypatch)
    dies(lambda: hunt(test_no_spelling_of_nothing_leaves_decode_waiting.hypothesis.inner_test, **EVERY_WAY))


@settings(max_examples=100)
@given(
    ranks=st.integers(1, 8),
    prefill_says=rooms.nothing(["swa"]),
    decode_says=rooms.nothing(["swa"]),
    data=st.data(),
)
def test_nor_do_the_machines_of_a_room_between_one_rank_and_many(ranks, prefill_says, decode_says, data):
    """The tables alone, in every order of what may happen.

    What a rank owes is read off the spelling by the functions that the engines call.
    """
    layout = target_pool(Shape(indexed=1)).memory.layout

    def indices(spelling):
        value = spelling.value()
        return state_indices(layout, None if value is rooms.ABSENT else value, items=(8,))

    wanted = derive(layout, pages=2, prefix_pages=0, indices=indices(decode_says), aux=True)
    mine = derive(layout, pages=2, prefix_pages=0, indices=indices(prefill_says), aux=True)
    parts = [(PartKind.KV, 0, 0, 1), (PartKind.KV, 0, 1, 2), (PartKind.AUX, 0, 0, 1)]

    receiver = decode_room((wanted,) * ranks)
    arrivals = [Accepted(rank) for rank in range(ranks)]
    arrivals += [Landed(rank, *part) for rank in range(ranks) for part in parts]
    for one in data.draw(st.permutations(arrivals), label="arrivals at decode"):
        receiver, _ = step_decode(receiver, one)

    sender = prefill_room(ranks)
    known = [Declared(Declaration(mine.pages, mine.aux, mine.state)), *(Bound(rank, wanted) for rank in range(ranks))]
    written = [Settled(rank, *part) for rank in range(ranks) for part in parts]
    for one in data.draw(st.permutations(known)) + data.draw(st.permutations(written)):
        sender, _ = step_prefill(sender, one)

    assert (receiver.phase.name, sender.phase.name) == ("DONE", "DONE")
