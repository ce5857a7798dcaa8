"""Hypothesis strategies for rooms, so that anybody can write properties of their own.

    from hypothesis import given
    from kvrooms.harness import strategies as rooms

    @given(ours=rooms.nothing(), theirs=rooms.nothing(), chunks=rooms.chunkings(pages=3), schedule=rooms.schedules())
    def test_mine(ours, theirs, chunks, schedule): ...

Rooms between many ranks: `topologies`, with `kvrooms.harness.ranks.Ranks`, which plays them beside an oracle. Groups of
ranks: `groups`, with `kvrooms.harness.group_play.PlayedGroup`, which plays them.

What is drawn prints itself readably and shrinks towards the plainest case: `absent` for a spelling, one send for a
chunking, first come first served for a schedule, nothing wrong for faults and groups. Needs the `harness` extra.
"""

from .groups import group_rooms, group_troubles, groups
from .layouts import declarations, index_lists, layouts, manifests, shapes
from .orders import Announced, Schedule, announced, faults, schedules
from .sends import Chunk, LayerSend, chunkings, layer_schedules, split
from .spellings import ABSENT, Absent, Spelling, nothing, spelled, spellings
from .topologies import instances, pairs, prefixes, rank_layouts, topologies

__all__ = [
    "ABSENT",
    "Absent",
    "Announced",
    "Chunk",
    "LayerSend",
    "Schedule",
    "Spelling",
    "announced",
    "chunkings",
    "declarations",
    "faults",
    "group_rooms",
    "group_troubles",
    "groups",
    "index_lists",
    "instances",
    "layer_schedules",
    "layouts",
    "manifests",
    "nothing",
    "pairs",
    "prefixes",
    "rank_layouts",
    "schedules",
    "shapes",
    "spelled",
    "spellings",
    "split",
    "topologies",
]
