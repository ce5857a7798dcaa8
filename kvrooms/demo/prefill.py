"""A prefill process: chunked prefill into paged memory, each chunk sent as soon as it is computed.

All requests of all models run at the same time: one chunk of each in turn, the way an engine interleaves them. Each of
several ranks computes the whole model, and has memory for its own heads and channels only.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from kvrooms import PrefillEngine, RoomClosed, Status

from .cache import paging_cache, write_aux, write_states
from .child import Limit, Parent, serve
from .generate import feed, pick
from .groups import form
from .jobs import Job, ModelJob, RequestJob
from .layout import KV, WINDOW, Extent, Step, probe, steps
from .memory import memory_of
from .messages import Finished, Held, Phase, Ready, Sent, Trouble
from .models import build
from .oracle import save
from .pages import Pools, Table, read, sizes
from .shards import part_of

_PAUSE_S = 0.005


@dataclass
class Side:
    """One model on this side, and the pools for this rank's part of it."""

    job: ModelJob
    model: Any
    pools: Pools


@dataclass
class Active:
    """One request under way: its cache, its room, and the chunks still to compute."""

    request: RequestJob
    side: Side
    table: Table
    cache: Any
    room: Any
    todo: deque[Step]
    total: int
    chunks: int = 0
    pages: int = 0
    phase: str = ""


def load(job: Job, model_job: ModelJob) -> Side:
    """Build one model, and memory for this rank's part of its requests."""
    model = build(model_job)
    layout = probe(model, model_job)
    if job.topology.split:
        layout = part_of(layout, job.seat.rank, job.seat.ranks)
    extents = [Extent.of(layout, len(request.prompt)) for request in job.of(model_job.name)]
    return Side(model_job, model, Pools.create(layout, extents, seed=f"{job.seat.child}/{model_job.name}", fill=0))


def open_request(side: Side, engine: Any, request: RequestJob) -> Active:
    """Take memory and open the room of one request."""
    extent = Extent.of(side.pools.layout, len(request.prompt))
    table = side.pools.take(extent)
    side.pools.clear(table)
    # Both ways of declaring the total are legal: at once, or with the last send.
    pages = extent.kv_pages if request.room % 2 == 0 else None
    room = engine.open(room=request.room, pages=pages, aux_index=table.slot)
    plan = steps(side.pools.layout, len(request.prompt), side.job.chunk)
    cache = paging_cache(side.model.config, side.pools, table)
    moving = sum(1 for step in plan if step.last or step.kv[0] < step.kv[1] or step.window[0] < step.window[1])
    return Active(request, side, table, cache, room, deque(plan), moving)


def run_chunk(active: Active) -> None:
    """Compute the next chunk and send the pages that it completed."""
    step = active.todo.popleft()
    side, table = active.side, active.table
    stepwise = side.job.stepwise and step.start > 0
    with torch.inference_mode():
        logits = feed(side.model, active.cache, active.request.prompt[step.start : step.end], stepwise=stepwise)
    pages = table.pages(KV)[slice(*step.kv)]
    window = table.pages(WINDOW)[slice(*step.window)]
    indices = {WINDOW: window} if window else {}
    if step.last:
        write_aux(side.pools, table, *pick(logits))
        write_states(active.cache, side.pools, table)
        indices.update({name: [table.slot] for name in side.pools.layout.states})
        active.cache = None
    elif not pages and not window:
        return  # nothing of this chunk will be in the window when the prompt ends
    active.room.send(pages, state_indices=indices, last=step.last)
    active.chunks += 1
    active.pages += len(pages) + len(window)


def work(parent: Parent, job: Job, limit: Limit) -> None:
    """Do the job: serve every request, then wait until its room is over and its memory free."""
    sides = [load(job, model_job) for model_job in job.models]
    with ExitStack() as stack:
        engines = enter_engines(parent, job, sides, stack, limit)
        transport = "+".join(sorted({engine.transport for engine in engines.values()}))
        parent.tell(Ready({name: engine.bootstrap for name, engine in engines.items()}, transport))
        rooms = [
            open_request(side, engines[side.job.name], request) for side in sides for request in job.of(side.job.name)
        ]
        turns = deque(rooms)
        while turns:
            active = turns.popleft()
            try:
                run_chunk(active)
            except RoomClosed:  # it has failed: `settle` says why
                active.todo.clear()
            parent.tell(Sent(active.request.id, active.chunks, active.total, active.pages))
            if active.todo:
                turns.append(active)
            for other in rooms:
                tell_phase(parent, other)
        settle(parent, job, rooms, limit)
    parent.tell(Finished())


def enter_engines(parent: Parent, job: Job, sides: list[Side], stack: ExitStack, limit: Limit) -> dict[str, Any]:
    """An engine per model, by its name; `stack` closes them."""
    memories = {side.job.name: memory_of(side.pools) for side in sides}
    registry = parent.addresses(["registry"], limit.left)["registry"]
    groups = form(parent, job, memories, stack, limit)
    return {
        side.job.name: stack.enter_context(
            PrefillEngine(
                memories[side.job.name],
                name=side.job.instance,
                registry=registry,
                rank=job.seat.rank,
                ranks=job.seat.ranks,
                group=groups[side.job.name],
            )
        )
        for side in sides
    }


def leave_copy(parent: Parent, job: Job, active: Active) -> None:
    """Leave what this rank holds of a request where the byte check finds it."""
    held = read(active.side.pools, active.table)
    save(job.held(active.request.id, job.seat.child), held)
    parent.tell(Held(active.request.id, active.pages, *sizes(held)))


def settle(parent: Parent, job: Job, rooms: list[Active], limit: Limit) -> None:
    """Follow the rooms to their end. Raises TimeoutError if one stands still."""
    waiting = list(rooms)
    while waiting:
        for active in list(waiting):
            tell_phase(parent, active)
            status = active.room.outcome
            if status not in (Status.DONE, Status.FAILED) or not active.room.memory_free:
                continue
            if status is Status.FAILED:
                parent.tell(Trouble(str(active.room.outcome_failure), active.request.id))
            elif job.topology.split:
                leave_copy(parent, job, active)
            active.room.close()
            active.side.pools.give(active.table)
            waiting.remove(active)
        if waiting and not limit.left:
            stuck = ", ".join(f"{active.request.id} in {active.room.phase}" for active in waiting)
            raise TimeoutError(f"rooms stand still on the prefill side: {stuck}")
        time.sleep(_PAUSE_S)


def tell_phase(parent: Parent, active: Active) -> None:
    """Report a room's phase if it is another one than last time."""
    phase = str(active.room.phase)
    if phase != active.phase:
        active.phase = phase
        parent.tell(Phase(active.request.id, phase))


if __name__ == "__main__":
    serve(work)
