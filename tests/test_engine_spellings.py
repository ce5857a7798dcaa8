"""The headline: however the two sides spell "no state", the room ends DONE on both, complete, and no timer is needed.

The engines are the real ones, called through their public methods; only what is under them is simulated. `world.run`
lets no time pass unless it is told to: where only a deadline could end a room, it raises Stuck.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from engine_bench import Bench, Plan, Shape, send_in
from mutants import Mutant, dies, named

from kvrooms import InvalidArgument, Status
from kvrooms.engine import decode_state, prefill, sends
from kvrooms.protocol import manifest
from kvrooms.protocol.failure import Reason
from kvrooms.statemachine import ledger

ABSENT = object()

# Functions, because a generator says what it says only once.
NOTHING: dict[str, Callable[[], Any]] = {
    "absent": lambda: ABSENT,
    "None": lambda: None,
    "[]": list,
    "[[]]": lambda: [[]],
    "[None]": lambda: [None],
    "[[], []]": lambda: [[], []],
    "[None, []]": lambda: [None, []],
    "[[[]]]": lambda: [[[]]],
    "()": tuple,
    "((),)": lambda: ((),),
    "((), [])": lambda: ((), []),
    "{}": dict,
    "deque()": deque,
    "range(0)": lambda: range(0),
    "generator": lambda: (i for i in ()),
    "generator of empties": lambda: (spell for spell in ([], None)),
    "numpy int32": lambda: np.empty(0, np.int32),
    "numpy int64": lambda: np.empty(0, np.int64),
    "numpy (2, 0)": lambda: np.empty((2, 0), np.int32),
    "[numpy]": lambda: [np.empty(0, np.int32)],
    "torch int32": lambda: torch.empty(0, dtype=torch.int32),
    "torch int64": lambda: torch.empty(0, dtype=torch.int64),
    "[torch, numpy]": lambda: [torch.empty(0, dtype=torch.int64), np.empty(0, np.int64)],
}
PAIRS = list(itertools.product(NOTHING, NOTHING))
CHUNKS = [[3], [1, 1, 1], [2, 1], [3, 0], [0, 1, 2]]


def given(spell: str) -> dict[str, Any]:
    """The argument, or none at all."""
    value = NOTHING[spell]()
    return {} if value is ABSENT else {"state_indices": value}


def carry(ours: str, theirs: str, components: int, chunks: list[int], *, decode_first: bool, seed: int) -> None:
    """One room through two engines: prefill says "no state" as `ours`, decode as `theirs`."""
    bench = Bench(seed, Shape(indexed=components, layers=1), pages=4, slots=2)
    plan = bench.plan(pages=3)

    def receive() -> Any:
        return bench.decode.open(
            7,
            bootstrap=bench.prefill.bootstrap,
            pages=plan.target["kv"],
            aux_index=plan.target["aux"][0],
            **given(theirs),
        )

    def send() -> Any:
        room = bench.prefill.open(7, aux_index=plan.source["aux"][0])
        pages = iter(plan.source["kv"])
        for i, size in enumerate(chunks):
            room.send(itertools.islice(pages, size), last=i == len(chunks) - 1, **given(ours))
        return room

    rooms = [receive(), send()] if decode_first else [send(), receive()]
    bench.finish(*rooms)

    assert [room.poll() for room in rooms] == [Status.DONE, Status.DONE], [room.failure for room in rooms]
    bench.check_landed(bench.decodes[0], plan)  # every byte of the pages, and of aux
    assert bench.world.now == 0, "time has passed, so a timer could have helped"


@pytest.mark.parametrize("components", [0, 1, 2])
@pytest.mark.parametrize("decode_first", [True, False], ids=["decode first", "prefill first"])
def test_every_pair_of_spellings_of_no_state_ends_done_on_both_sides(components: int, decode_first: bool) -> None:
    for seed, (ours, theirs) in enumerate(PAIRS):
        chunks = CHUNKS[(seed // len(NOTHING) + seed) % len(CHUNKS)]
        carry(ours, theirs, components, chunks, decode_first=decode_first, seed=seed)


# -- the same with state: sliding windows, hybrids ---------------------------------------------------------------------

SOME: dict[str, Callable[[list[int]], Any]] = {
    "{name: list}": lambda some: {"swa": some},
    "{name: numpy, other: empty}": lambda some: {"index": [], "swa": np.array(some)},
    "[list]": lambda some: [some],
    "[list, []]": lambda some: [some, []],
    "(tuple, None)": lambda some: (tuple(some), None),
    "[numpy int64, [None]]": lambda some: [np.array(some), [None]],
    "[torch, generator]": lambda some: [torch.tensor(some), (i for i in ())],
    "generator": lambda some: (spell for spell in (iter(some), ())),
}


def agree(bench: Bench, plan: Plan, ours: Any, theirs: Any, chunks: Sequence[int] = (1, 1)) -> None:
    """A room of this plan, with these state indices on prefill and decode, ends DONE and leaves nothing."""
    receiver = bench.receive(plan, state_indices=theirs)
    sender = bench.offer(plan)
    send_in(sender, plan, chunks, state=ours)
    bench.finish(receiver, sender)
    assert receiver.poll() is sender.poll() is Status.DONE, (receiver.failure, sender.failure)
    for room in (receiver, sender):
        room.close()
    bench.settle()
    bench.check_clean()
    assert bench.world.now == 0


@pytest.mark.parametrize("ours", SOME)
def test_a_sliding_window_arrives_beside_a_component_without_indices(ours: str) -> None:
    for seed, (theirs, count) in enumerate(itertools.product(SOME, (1, 2, 3))):
        bench = Bench(seed, Shape(indexed=2))
        plan = bench.plan(2, state={"swa": count})
        agree(bench, plan, SOME[ours](plan.source["swa"]), SOME[theirs](plan.target["swa"]))


@pytest.mark.parametrize("nothing", NOTHING)
def test_a_hybrid_carries_its_always_components_whatever_the_other_says(nothing: str) -> None:
    for seed, aux in itertools.product(range(3), (True, False)):
        bench = Bench(seed, Shape(indexed=1, always=2))
        plan = bench.plan(2, aux=aux)
        value = NOTHING[nothing]()
        swa = None if value is ABSENT else value
        named_by = {"swa": swa, "conv": plan.source["conv"], "ssm": np.array(plan.source["ssm"])}
        listed = [None, plan.target["conv"], torch.tensor(plan.target["ssm"])]
        agree(bench, plan, named_by, listed)


@pytest.mark.parametrize("seed", range(20))
def test_state_may_be_sent_before_the_last_send_and_in_parts(seed: int) -> None:
    bench = Bench(seed, Shape(indexed=2, always=1))
    plan = bench.plan(3, state={"swa": 4, "index": 1})
    swa, pages = plan.source["swa"], plan.source["kv"]
    sender = bench.offer(plan)
    sender.send(pages[:1], {"swa": swa[:1]})
    sender.send([], [swa[1:3], [], plan.source["conv"]])
    receiver = bench.receive(plan)
    sender.send(pages[1:], {"index": plan.source["index"]})
    sender.send(state_indices={"swa": swa[3:]}, last=True)
    bench.finish(receiver, sender)
    assert receiver.poll() is sender.poll() is Status.DONE, (receiver.failure, sender.failure)
    bench.check_bytes()


@pytest.mark.parametrize("seed", range(6))
def test_skip_state_on_both_sides_carries_no_state_at_all(seed: int) -> None:
    bench = Bench(seed, Shape(indexed=1, always=1))
    plan = bench.plan(2, state={"conv": 0})
    receiver = bench.receive(plan, skip_state=True, state_indices=NOTHING["[[], []]"]())
    sender = bench.offer(plan, skip_state=True)
    send_in(sender, plan, [2], state=NOTHING["generator"]())
    bench.finish(receiver, sender)
    assert receiver.poll() is sender.poll() is Status.DONE, (receiver.failure, sender.failure)
    bench.check_bytes()


@pytest.mark.parametrize("decode_skips", [True, False])
def test_skip_state_on_one_side_only_fails_both_in_words(decode_skips: bool) -> None:
    bench = Bench(1, Shape(always=1))
    plan = bench.plan(1)
    state = {"state_indices": None} if decode_skips else {}
    receiver = bench.receive(plan, skip_state=decode_skips, **state)
    sender = bench.offer(plan, skip_state=not decode_skips)
    send_in(sender, plan, [1], state=plan.state(plan.source) if decode_skips else {})
    bench.finish(receiver, sender)
    for room in (receiver, sender):
        assert room.failure is not None
        assert room.failure.reason is Reason.MISMATCH
        sends, expects = (1, 0) if decode_skips else (0, 1)
        words = f"state component 'conv': prefill sends {sends} indices, decode expects {expects}"
        assert words in room.failure.detail


# -- what is refused before anything happens ---------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", NOTHING)
def test_no_indices_for_a_component_owed_always_are_refused_at_open_and_at_the_last_send(nothing: str) -> None:
    bench = Bench(0, Shape(indexed=1, always=1))
    before = bench.decode.tables(), bench.prefill.tables()
    with pytest.raises(InvalidArgument, match="component 'conv' is owed always"):
        bench.decode.open(7, bootstrap=bench.prefill.bootstrap, pages=[1], **given(nothing))
    assert (bench.decode.tables(), bench.prefill.tables()) == before
    sender = bench.prefill.open(7)
    with pytest.raises(InvalidArgument, match="component 'conv' is owed always"):
        sender.send([1], last=True, **given(nothing))
    sender.send([1], **given(nothing))  # it may still come
    with pytest.raises(InvalidArgument, match="component 'conv' is owed always"):
        sender.send([2], last=True, **given(nothing))
    sender.send([2], {"conv": [0]}, last=True)


@pytest.mark.parametrize(
    ("components", "value", "field"),
    [
        (0, [[3]], r"state_indices\[0\]"),
        (0, [3], "state_indices"),
        (0, {"swa": []}, "state_indices"),
        (1, [[1], [2]], r"state_indices\[1\]"),
        (1, [99], r"state_indices\[swa\]"),
        (1, [[-1]], r"state_indices\[swa\]"),
        (1, {"swa": [0.5]}, r"state_indices\[swa\]"),
        (1, [True], r"state_indices\[0\]"),
        (1, "12", "state_indices"),
        (2, [1, 2], "state_indices"),
        (2, [[0], [None, 1]], r"state_indices\[index\]"),
        (2, {"conv": [1]}, "state_indices"),
        (2, 5, "state_indices"),
    ],
)
def test_wrong_state_indices_are_refused_by_name_on_both_sides(components: int, value: Any, field: str) -> None:
    bench = Bench(0, Shape(indexed=components))
    sender = bench.prefill.open(7)
    before = bench.decode.tables(), bench.prefill.tables()
    with pytest.raises(InvalidArgument, match=f"^{field}: "):
        bench.decode.open(7, bootstrap=bench.prefill.bootstrap, pages=[1], state_indices=value)
    with pytest.raises(InvalidArgument, match=f"^{field}: "):
        sender.send([1], value, last=True)
    assert (bench.decode.tables(), bench.prefill.tables()) == before


# -- the property can fail ---------------------------------------------------------------------------------------------


EACH = "(name, total) for name, total in zip(names, totals, strict=True) if total"


def check_some_pairs() -> None:
    """The headline for the spellings that broke other engines."""
    few = ["absent", "[]", "[[]]", "[[], []]", "[[[]]]", "numpy int32"]
    for components, (seed, (ours, theirs)) in itertools.product(range(3), enumerate(itertools.product(few, few))):
        carry(ours, theirs, components, [2, 1], decode_first=bool(seed % 2), seed=seed)


def test_the_property_holds_without_a_mutant() -> None:
    check_some_pairs()


@named(
    [
        # "Is there state?" asked by looking at the argument instead of counting indices, on one side or on both.
        Mutant(decode_state, "derive", "tuple(map(len, indices))", "tuple(max(len(some), 1) for some in indices)"),
        Mutant(prefill, "counts_of", EACH, EACH.replace("total) for", "total or 1) for").removesuffix(" if total")),
        Mutant(manifest, "counts_of", " if total", ""),
        Mutant(manifest, "_spelled", "[] if all(map(_says_nothing, listed)) else listed", "listed"),
        # The last obligation waits for state that nobody sends; aux goes only where state goes.
        Mutant(ledger, "_earlier", "any(missing.state)", "True"),
        Mutant(sends, "transfers", "and wanted.manifest.aux", "and wanted.state"),
    ]
)
def test_the_property_fails_with_a_mutant(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_some_pairs)
