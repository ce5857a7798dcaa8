"""A decode process: rooms into paged memory, a transformers cache from the landed bytes, tokens from the cache.

After the last request it does the same with damaged copies of what landed (`kvrooms.demo.controls`).

Of several ranks, each has memory for its own heads and channels only, and leaves a copy of what landed there in a file.
Rank 0 puts these copies together, and generates from them and nothing else.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from kvrooms import DecodeEngine, Status

from .cache import build_cache, read_aux
from .child import Limit, Parent, serve
from .controls import damaged_copies
from .generate import greedy
from .groups import form, instance_of
from .jobs import Job, ModelJob, RequestJob
from .layout import Extent, Layout, probe
from .memory import memory_of, state_indices
from .messages import Control, Finished, Generated, Held, Phase, Trouble
from .models import build
from .oracle import load as load_file
from .oracle import save
from .pages import CANARY, Landed, Pools, Table, read, sizes
from .shards import join, part_of, tensors

_PAUSE_S = 0.005


@dataclass
class Side:
    """One model on this side: the layout of all of it, and the pools for this rank's part."""

    job: ModelJob
    model: Any
    layout: Layout
    pools: Pools


@dataclass
class Active:
    """One request: its room, a copy of what landed here, and of what landed at all ranks, once it has."""

    request: RequestJob
    side: Side
    table: Table
    room: Any
    opened_s: float
    here: Landed | None = None
    landed: Landed | None = None
    phase: str = ""


def load(job: Job, model_job: ModelJob) -> Side:
    """Build one model, and memory for this rank's part of its requests, every byte of it a canary."""
    model = build(model_job)
    layout = probe(model, model_job)
    extents = [Extent.of(layout, len(request.prompt)) for request in job.of(model_job.name)]
    part = part_of(layout, job.seat.rank, job.seat.ranks) if job.topology.split else layout
    pools = Pools.create(part, extents, seed=f"{job.seat.child}/{model_job.name}", fill=CANARY)
    return Side(model_job, model, layout, pools)


def open_request(side: Side, engine: Any, bootstrap: str, request: RequestJob) -> Active:
    """Take memory and open the room of one request."""
    table = side.pools.take(Extent.of(side.pools.layout, len(request.prompt)))
    room = engine.open(
        room=request.room,
        bootstrap=bootstrap,
        instance=side.job.instance,
        pages=table.kv,
        aux_index=table.slot,
        state_indices=state_indices(side.pools, table),
    )
    return Active(request, side, table, room, time.monotonic())


def generate(active: Active, landed: Landed) -> tuple[list[int], list[float]]:
    """Tokens and log-probabilities from `landed` and nothing else."""
    side = active.side
    with torch.inference_mode():
        cache = build_cache(side.model.config, side.layout, active.table, landed)
        return greedy(side.model, cache, *read_aux(landed), side.job.new_tokens, side.job.stop)


def take_out(parent: Parent, job: Job, active: Active, limit: Limit) -> None:
    """Copy what landed out of the pools, give them back, and say so."""
    pools, table = active.side.pools, active.table
    active.here = read(pools, table)
    active.room.close()
    if not active.room.wait_memory_free(limit.left):
        raise TimeoutError(f"the memory of {active.request.id} is not free although its room is DONE")
    pools.give(table)
    save(job.held(active.request.id, job.seat.child), active.here)
    parent.tell(Held(active.request.id, len(table.kv) + len(table.window), *sizes(active.here)))


def finish(parent: Parent, job: Job, active: Active) -> None:
    """Put together what landed at all ranks, and generate."""
    assert active.here is not None
    if job.topology.split:
        others = job.topology.children("decode")[1:]
        files = [load_file(job.held(active.request.id, child)) for child in others]
        layouts = [part_of(active.side.layout, rank, job.seat.ranks) for rank in range(1, job.seat.ranks)]
        pieces = [tensors(layout, raw) for layout, raw in zip(layouts, files, strict=True)]
        active.landed = join(active.side.layout, [active.here, *pieces])
        save(job.file(active.request.id, "landed"), active.landed)
    else:
        active.landed = active.here
    tokens, logprobs = generate(active, active.landed)
    parent.tell(Generated(active.request.id, tokens, logprobs, time.monotonic() - active.opened_s))


def work(parent: Parent, job: Job, limit: Limit) -> None:
    """Do the job: all rooms at the same time, then the controls."""
    sides = [load(job, model_job) for model_job in job.models]
    with ExitStack() as stack:
        engines = enter_engines(parent, job, sides, stack, limit)
        urls = parent.addresses(engines, limit.left)
        rooms = [
            open_request(side, engines[side.job.name], urls[side.job.name], request)
            for side in sides
            for request in job.of(side.job.name)
        ]
        follow(parent, job, rooms, limit)
    for active in rooms:
        if active.landed is not None:
            run_controls(parent, job, active)
    parent.tell(Finished(strays={side.job.name: found for side in sides if (found := side.pools.strays())}))


def enter_engines(parent: Parent, job: Job, sides: list[Side], stack: ExitStack, limit: Limit) -> dict[str, Any]:
    """An engine per model, by its name; `stack` closes them."""
    memories = {side.job.name: memory_of(side.pools) for side in sides}
    groups = form(parent, job, memories, stack, limit)
    return {
        side.job.name: stack.enter_context(
            DecodeEngine(
                memories[side.job.name],
                name=job.seat.child.replace("decode", f"decode-{side.job.kind}"),
                ranks=instance_of(groups[side.job.name]),
                rank=job.seat.rank,
                group=groups[side.job.name],
            )
        )
        for side in sides
    }


def follow(parent: Parent, job: Job, rooms: list[Active], limit: Limit) -> None:
    """Follow the rooms to their end, and generate where that is ours. Raises TimeoutError if one stands still."""
    waiting = list(rooms)
    due: dict[str, Active] = {}
    while waiting or due:
        for active in list(waiting):
            phase = str(active.room.phase)
            if phase != active.phase:
                active.phase = phase
                parent.tell(Phase(active.request.id, phase))
            status = active.room.outcome
            if status is Status.DONE:
                take_out(parent, job, active, limit)
                if job.seat.rank == 0:
                    due[active.request.id] = active
            elif status is Status.FAILED:
                # A failed room's pages stay taken: only its lease can say when nobody writes there any more.
                parent.tell(Trouble(str(active.room.outcome_failure), active.request.id))
                active.room.close()
            if status in (Status.DONE, Status.FAILED):
                waiting.remove(active)
        word = parent.gather() if due else None
        if word is not None:
            finish(parent, job, due.pop(word.request))
            continue
        if not limit.left:
            stuck = [f"{active.request.id} in {active.room.phase}" for active in (*waiting, *due.values())]
            raise TimeoutError(f"rooms stand still on the decode side: {', '.join(stuck)}")
        time.sleep(_PAUSE_S)


def run_controls(parent: Parent, job: Job, active: Active) -> None:
    """Generate from each damaged copy, and leave the copy for the byte check."""
    assert active.landed is not None
    for name, damaged in damaged_copies(active.side.layout, active.landed, job.topology).items():
        save(job.file(active.request.id, name), damaged)
        tokens, logprobs = generate(active, damaged)
        parent.tell(Control(active.request.id, name, tokens, logprobs))


if __name__ == "__main__":
    serve(work)
