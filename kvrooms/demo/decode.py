"""The decode process: rooms into paged memory, a transformers cache from the landed bytes, tokens from the cache.

After the last request it does the same with damaged copies of what landed (`kvrooms.demo.controls`).
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
from .jobs import Job, ModelJob, RequestJob
from .layout import Extent, probe
from .memory import memory_of, state_indices
from .messages import Addresses, Control, Finished, Generated, Phase, Trouble
from .models import build
from .oracle import save
from .pages import CANARY, Landed, Pools, Table, read, sizes

_PAUSE_S = 0.005


@dataclass
class Side:
    """One model on this side."""

    job: ModelJob
    model: Any
    pools: Pools


@dataclass
class Active:
    """One request: its room, and a copy of what landed once it has."""

    request: RequestJob
    side: Side
    table: Table
    room: Any
    opened_s: float
    landed: Landed | None = None
    phase: str = ""


def load(job: Job, model_job: ModelJob) -> Side:
    """Build one model and memory for its requests, every byte of it a canary."""
    model = build(model_job)
    layout = probe(model, model_job)
    extents = [Extent.of(layout, len(request.prompt)) for request in job.of(model_job.name)]
    return Side(model_job, model, Pools.create(layout, extents, seed=f"decode/{model_job.name}", fill=CANARY))


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
        cache = build_cache(side.model.config, side.pools.layout, active.table, landed)
        return greedy(side.model, cache, *read_aux(landed), side.job.new_tokens, side.job.stop)


def finish(parent: Parent, job: Job, active: Active, limit: Limit) -> None:
    """Copy what landed out of the pools, give them back, and generate."""
    pools, table = active.side.pools, active.table
    active.landed = read(pools, table)
    active.room.close()
    if not active.room.wait_memory_free(limit.left):
        raise TimeoutError(f"the memory of {active.request.id} is not free although its room is DONE")
    pools.give(table)
    save(job.file(active.request.id, "landed"), active.landed)
    tokens, logprobs = generate(active, active.landed)
    total, states = sizes(active.landed)
    parent.tell(
        Generated(
            request=active.request.id,
            tokens=tokens,
            logprobs=logprobs,
            pages=len(table.kv) + len(table.window),
            bytes=total,
            state_bytes=states,
            seconds=time.monotonic() - active.opened_s,
        )
    )


def work(parent: Parent, job: Job, limit: Limit) -> None:
    """Do the job: all rooms at the same time, then the controls."""
    sides = [load(job, model_job) for model_job in job.models]
    with ExitStack() as stack:
        engines = {
            side.job.name: stack.enter_context(DecodeEngine(memory_of(side.pools), name=f"decode-{side.job.kind}"))
            for side in sides
        }
        urls = parent.receive(Addresses, limit.left).urls
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


def follow(parent: Parent, job: Job, rooms: list[Active], limit: Limit) -> None:
    """Follow the rooms to their end. Raises TimeoutError if one stands still."""
    waiting = list(rooms)
    while waiting:
        for active in list(waiting):
            phase = str(active.room.phase)
            if phase != active.phase:
                active.phase = phase
                parent.tell(Phase(active.request.id, phase))
            status = active.room.poll()
            if status is Status.DONE:
                finish(parent, job, active, limit)
            elif status is Status.FAILED:
                # A failed room's pages stay taken: only its lease can say when nobody writes there any more.
                parent.tell(Trouble(str(active.room.failure), active.request.id))
                active.room.close()
            if status in (Status.DONE, Status.FAILED):
                waiting.remove(active)
        if waiting and not limit.left:
            stuck = ", ".join(f"{active.request.id} in {active.room.phase}" for active in waiting)
            raise TimeoutError(f"rooms stand still on the decode side: {stuck}")
        time.sleep(_PAUSE_S)


def run_controls(parent: Parent, job: Job, active: Active) -> None:
    """Generate from each damaged copy, and leave the copy for the byte check."""
    assert active.landed is not None
    for name, damaged in damaged_copies(active.side.pools.layout, active.landed).items():
        save(job.file(active.request.id, name), damaged)
        tokens, logprobs = generate(active, damaged)
        parent.tell(Control(active.request.id, name, tokens, logprobs))


if __name__ == "__main__":
    serve(work)
