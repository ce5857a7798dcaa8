"""Probes of what ranks of unlike layouts write: shapes made for one question each, and some that are drawn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from ...engine.settings import EngineSettings
from ...protocol import wire
from ...protocol.errors import KvroomsError
from ...protocol.notify import PartKind
from ...protocol.shares import Entry
from ...shapes.build import Model, Side
from ...shapes.table import EVERYTHING, Case
from ..topologies import any_case
from .probe import Play, probe
from .stage import Aside, Broken
from .stage_ranks import RankStage

_DRAWN = 12
HEADS = Model(attention=(0, 1), kv_heads=4, head_bytes=2)
_LATENT = Model(attention=(0,), latent_bytes=3)
_LAYERS = Model(attention=(0, 1, 2, 3), kv_heads=2, head_bytes=1)
_HYBRID = Model(
    attention=(0,), kv_heads=4, head_bytes=1, mamba=(1, 3), mamba_heads=4, conv_bytes=2, ssm_bytes=3, window=(2,)
)
ONE, TWO, FOUR = Side(page_size=2), Side(tp=2, page_size=2), Side(tp=4, page_size=2)


def shape(model: Model, prefill: Side, decode: Side, prompts: tuple[int, ...] = (5, 4), **more: Any) -> Case:
    """A small shape."""
    return Case("made", "", model, prefill, decode, prompts, **more)


_SHAPES = (
    shape(HEADS, TWO, ONE),
    shape(HEADS, ONE, FOUR),
    shape(HEADS, Side(tp=4, page_size=2, head_major=True), TWO),
    shape(Model(attention=(0,), kv_heads=2, head_bytes=2, fused=True), FOUR, TWO),
    shape(_LATENT, FOUR, TWO),
    shape(HEADS, Side(cp=3, page_size=2), TWO, (5, 9), chunk=1),
    shape(HEADS, Side(tp=2, page_size=2, head_major=True), ONE),
    shape(HEADS, Side(page_size=4), Side(tp=2, page_size=2), (7, 3), prefix_tokens=3),
    shape(HEADS, Side(page_size=2), Side(page_size=6), (7, 12), prefix_tokens=6, chunk=1),
    shape(HEADS, Side(page_size=4), ONE, (1, 3, 4), prefix_tokens=EVERYTHING),
    shape(HEADS, Side(page_size=2, padding=3), Side(page_size=2, padding=3)),
    shape(
        _LAYERS, Side(page_size=2, stages=((0,), (1, 2, 3))), Side(page_size=2, stages=((0, 1), (2, 3))), layerwise=True
    ),
    shape(_LAYERS, ONE, Side(page_size=2, stages=((0,), (1, 2, 3))), layerwise=True, chunk=1),
    shape(_LAYERS, TWO, ONE, (2, 2, 2, 2), layerwise=True),
    shape(_HYBRID, Side(tp=2, page_size=2, stages=((0, 1, 3), (2,))), ONE, (6, 6, 6)),
    shape(_HYBRID, ONE, Side(tp=2, page_size=2, stages=((0, 1, 2), (3,)))),
    shape(_HYBRID, Side(page_size=2, stages=((0, 1, 3), (2,))), ONE, (2, 1)),
    shape(HEADS, ONE, Side(page_size=2, head_major=True)),
)


def _played(play: Play, *, aside: bool) -> Iterator[RankStage]:
    """Every shape, with its rooms at their end. aside: one whose rooms do not end is another property's business."""
    drawn = [any_case(random.Random(number).choice) for number in range(_DRAWN)]  # noqa: S311 - to be replayed
    for number, case in enumerate((*_SHAPES, *drawn)):
        stage = play.ranks(case, seed=number, settings=EngineSettings(piece_bytes=(12, 1 << 20)[number % 2]))
        try:
            stage.ended(aside=aside)
        except Aside:
            continue
        except KvroomsError as error:
            if not aside:
                words = f"{case.prefill_side} to {case.decode_side}: a call that must be taken is refused: {error}"
                raise Broken(words) from None
            continue
        yield stage


@probe("L2", seeds=1)
def rooms_between_many_ranks_end_by_themselves(play: Play) -> None:
    """Every rank of both sides agrees: no timer is needed, and all are DONE."""
    for stage in _played(play, aside=False):
        if stage.failures():
            raise Broken(stage.failures()[0])


@probe("S1", seeds=1)
def what_is_done_on_a_rank_is_in_place(play: Play) -> None:
    """At the moment at which a decode rank is DONE, its every byte is what the oracle says."""
    for stage in _played(play, aside=True):
        if stage.early:
            raise Broken(stage.early[0])


@probe("S3", seeds=1)
def ranks_write_what_is_owed_and_each_byte_once(play: Play) -> None:
    """What a room does not own, padding and prefixes too, is not written; nor is anything written by two ranks."""
    for stage in _played(play, aside=True):
        wrong = [words for words in stage.miswritten() if "is not owed" in words or "was written again" in words]
        if wrong:
            raise Broken(wrong[0])


@probe("S5", seeds=1)
def a_share_that_lies_writes_nothing_outside(play: Play) -> None:
    """Decode rank 1 of 2 says in its HELLO that it is owed what it, or the sender, does not have."""
    lies: list[dict[str, Any]] = [
        {"first": 0, "stop": 4},
        {"first": 0, "stop": 2},
        {"first": 2, "stop": 9},
        {"first": 3, "stop": 3},
        {"first": 9, "stop": 11},
        {"source": 3},
        {"target": 9},
        {"shard": 3},
        {"name": "other", "kind": PartKind.STATE},
        {"name": "other", "kind": PartKind.AUX},
    ]
    for lie in lies:
        stage = play.ranks(shape(HEADS, ONE, TWO), start=False)

        def lying(body: wire.Body, lie: dict[str, Any] = lie) -> wire.Body:
            if not isinstance(body, wire.Hello):
                return body
            assert body.share is not None
            entries: list[Entry] = list(body.share.entries)
            entries[0] = replace(entries[0], **lie)
            return replace(body, share=replace(body.share, entries=tuple(entries)))

        stage.lies["decode", 0, 1] = lying
        for member in stage.members():
            stage.start(member)
        try:
            stage.call()
            stage.settle()
        except (KvroomsError, ArithmeticError, LookupError) as error:
            words = f"the engine ends of what a peer says: {type(error).__name__}: {error}"
            raise Broken(words, **lie) from None
