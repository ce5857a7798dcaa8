"""The strategies for rooms between many ranks: what they draw is what they say, reaches everything, and shrinks."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, find, given, settings
from hypothesis import strategies as st
from mutants import Mutant, dies, hunt, named

from kvrooms.engine import sends as engine_sends
from kvrooms.harness import strategies as rooms
from kvrooms.harness.ranks import Ranks, indices
from kvrooms.harness.topologies import any_case
from kvrooms.protocol.layout import Instance, Layout
from kvrooms.protocol.shares import pair_up

ONCE = settings(max_examples=2000, database=None, derandomize=True)


class LayerByLayer(Ranks):
    """Each prefill rank sends its layers in an order of its own."""

    def __init__(self, case: Any, schedules: st.DataObject) -> None:
        super().__init__(case)
        self.schedules = schedules

    def sends(self, number: int, rank: int) -> Iterator[dict[str, Any]]:
        """See `Ranks.sends`."""
        room = self.rooms[number]
        places, layout = room.prefill[rank], self.prefill[room.instance].ranks[rank].layout
        layers = sorted({buffer.layer for buffer in layout.kv})
        schedule = self.schedules.draw(rooms.layer_schedules(len(places.valid_pages), layers), f"prefill rank {rank}")
        for send in schedule:
            state = {"state_indices": indices(places)} if send.last else {}
            yield {**send.arguments(places.valid_pages), **state}


few = rooms.topologies(prompts=st.tuples(st.integers(1, 9))).filter(lambda case: case.processes <= 8)


def check_layers(case: Any, data: st.DataObject) -> None:
    ranks = LayerByLayer(case, data)
    ranks.play()
    assert ranks.failures() == []
    assert ranks.early == []
    assert ranks.miswritten() == []
    assert ranks.differs() == []


@settings(max_examples=60)
@given(case=few, data=st.data())
def test_in_whatever_order_layers_are_ready_every_byte_lands_once_and_done_means_landed(case, data) -> None:
    event(f"{case.processes} ranks")
    check_layers(case, data)


@named(
    [
        Mutant(engine_sends.Layers, "whole", "return min(", "return max("),
        Mutant(engine_sends, "_layered", "report=stop == cut", "report=True"),
    ]
)
def test_it_can_fail(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(lambda: hunt(check_layers, case=few, data=st.data()))


@given(pages=st.integers(0, 5), layers=st.integers(0, 3), data=st.data())
def test_a_schedule_sends_every_layer_of_every_page_once_and_in_order(pages, layers, data) -> None:
    ids = [3 * layer + 1 for layer in range(layers)]
    schedule = data.draw(rooms.layer_schedules(pages, ids))
    reached = dict.fromkeys(ids, 0)
    for send in schedule:
        for layer in send.layers:
            assert reached[layer] == send.first
            reached[layer] += send.pages
    assert set(reached.values()) <= {pages}
    assert [send.last for send in schedule] == [False] * (len(schedule) - 1) + [True]


def test_schedules_are_all_there_and_shrink_to_one_send() -> None:
    drawn = rooms.layer_schedules(2, [0, 1])
    assert find(drawn, lambda _: True, settings=ONCE) == (rooms.LayerSend(0, 2, (0, 1), last=True),)
    ahead = find(drawn, lambda schedule: schedule[0] == (0, 2, (1,), False), settings=ONCE)
    assert ahead == (rooms.LayerSend(0, 2, (1,)), rooms.LayerSend(0, 2, (0,), last=True))
    assert find(drawn, lambda schedule: len(schedule) == 5, settings=ONCE)[-1].pages == 0
    assert rooms.LayerSend(1, 2, (4,)).arguments([7, 8, 9]) == {"pages": [8, 9], "layers": (4,), "last": False}


@given(rooms.instances())
def test_instances_work_together(both: tuple[Instance, Instance]) -> None:
    assert pair_up(*both)


@given(rooms.rank_layouts(kinds=("mamba",)))
def test_layouts_of_a_kind(layout: Layout) -> None:
    assert layout.kv == ()
    assert set(layout.component_names) <= {"mamba"}


@pytest.mark.parametrize(
    "wanted",
    [
        lambda layout: layout.component_names == ("mamba", "window", "index"),
        lambda layout: any(shard.units < shard.total for spec in layout.kv for shard in spec.parts),
        lambda layout: any(len(spec.parts) == 3 for one in layout.state for spec in one.buffers),
        lambda layout: layout.padded,
    ],
    ids=["three components", "part of the heads", "groups", "padding"],
)
def test_layouts_reach_what_a_rank_may_have(wanted: Any) -> None:
    assert wanted(find(rooms.rank_layouts(), wanted, settings=ONCE))


@pytest.mark.parametrize(
    "wanted",
    [
        lambda case: len(case.prefill[0].ranks) == 1 and len(case.decode.ranks) == 4,
        lambda case: len(case.prefill[0].ranks) == 4 and len(case.decode.ranks) == 2,
        lambda case: case.prefill_side.cp > 1 and case.prefill_side.tp > 1,
        lambda case: len(case.prefill) > 1,
        lambda case: case.prefill_side.page_size != case.decode_side.page_size,
    ],
    ids=["1 to 4", "4 to 2", "parts and heads", "two instances", "two page sizes"],
)
def test_topologies_reach_every_kind(wanted: Any) -> None:
    assert wanted(find(rooms.topologies(), wanted, settings=ONCE))


def test_topologies_take_what_is_asked_for_and_shrink_to_few_ranks() -> None:
    plain = find(rooms.topologies(), lambda case: case.processes > 2, settings=ONCE)
    assert (plain.processes, plain.model.layers, plain.prompts, plain.prefix_tokens) == (3, (0,), (1,), 0)
    some = rooms.topologies(prompts=st.just((9,)), prefix_tokens=st.just(2), layerwise=st.just(True))
    asked = find(some, lambda _: True, settings=ONCE)
    assert (asked.prompts, asked.prefix_tokens, asked.layerwise) == ((9,), 2, True)


def test_topologies_are_those_that_chance_draws_as_well() -> None:
    assert any_case(random.Random(3).choice).processes >= 2


def test_prefixes_are_all_of_none_to_everything() -> None:
    assert {find(rooms.prefixes(33, 16), lambda n, m=m: n == m, settings=ONCE) for m in range(4)} == {0, 1, 2, 3}
    assert find(rooms.prefixes(33, 16), lambda _: True, settings=ONCE) == 0


@pytest.mark.parametrize("number", [0, 1])
def test_the_examples_of_the_documentation_run(number: int) -> None:
    text = (Path(__file__).parents[1] / "docs" / "verification.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(examples) == 2
    exec(examples[number], {})


def test_every_strategy_is_in_the_table_of_the_documentation() -> None:
    text = (Path(__file__).parents[1] / "docs" / "verification.md").read_text(encoding="utf-8")
    functions = {name for name in rooms.__all__ if name.islower()} - {"spelled"}
    assert functions <= set(re.findall(r"`(\w+)`", text))
