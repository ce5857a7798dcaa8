"""What the parent knows: one row per request, filled by what the children say, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .controls import noticed
from .jobs import Job, RequestJob
from .messages import (
    Control,
    Drained,
    Finished,
    Generated,
    Held,
    Leads,
    Message,
    Phase,
    Ready,
    Reference,
    Sent,
    Trouble,
)
from .oracle import differences, load, part_of
from .ranks import SIDES, Seat, Side, Topology


@dataclass
class Row:
    """One request as it stands. `None` means: not known yet."""

    request: RequestJob
    kind: str
    topology: Topology
    phases: dict[str, str] = field(default_factory=dict)
    sends: dict[str, Sent] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    generated: Generated | None = None
    reference: Reference | None = None
    damaged: list[Control] = field(default_factory=list)
    bytes_identical: bool | None = None
    identical: bool | None = None
    controls: dict[str, bool] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    rank_identical: dict[str, bool] = field(default_factory=dict)
    strayed: bool = False

    def phase(self, side: Side) -> str:
        """The phase of the room on `side`: where its ranks are in different ones, all of them."""
        phases = [self.phases[child] for child in self.topology.children(side) if child in self.phases]
        return "/".join(dict.fromkeys(phases))

    @property
    def sent(self) -> Sent | None:
        """What the rank that is furthest behind has sent; None before each has sent something."""
        if len(self.sends) < self.topology.prefill:
            return None
        return min(self.sends.values(), key=lambda sent: sent.chunks)

    @property
    def landed(self) -> bool:
        """Has every decode rank left a copy of what landed there?"""
        return all(child in self.held for child in self.topology.children("decode"))

    def bytes(self, side: Side) -> int:
        """What the ranks of `side` hold, all together."""
        return sum(self.held[child].bytes for child in self.topology.children(side) if child in self.held)

    @property
    def same_bytes(self) -> bool | None:
        """Is every byte that landed, on every rank, what it must be, and no other one written? None: not known yet."""
        if self.bytes_identical is None or (self.topology.split and len(self.rank_identical) < self.topology.total):
            return None
        return self.bytes_identical and not self.strayed and all(self.rank_identical.values())

    @property
    def good(self) -> bool:
        """Everything was shown: the bytes, the tokens, at least one control, and every control noticed."""
        shown = self.same_bytes is True and self.identical is True and bool(self.controls)
        moved = self.generated is not None and self.bytes("decode") > 0 and self.sent is not None
        return shown and moved and all(self.controls.values()) and not self.troubles

    def as_json(self) -> dict[str, Any]:
        """The row of the final report."""
        done = self.generated
        landed = [self.held[child] for child in self.topology.children("decode") if child in self.held]
        row: dict[str, Any] = {
            "model": self.request.model,
            "kind": self.kind,
            "prompt_tokens": len(self.request.prompt),
            "new_tokens": len(done.tokens) if done else 0,
            "chunks": self.sent.chunks if self.sent else 0,
            "pages": max((held.pages for held in landed), default=0),
            "bytes": self.bytes("decode"),
            "state_bytes": sum(held.state_bytes for held in landed),
            "bytes_identical": self.same_bytes is True,
            "identical": self.identical is True,
            "controls": dict(self.controls),
            "seconds": round(done.seconds, 3) if done else 0.0,
        }
        if self.topology.split:
            row["ranks"] = {side: [self._rank(child) for child in self.topology.children(side)] for side in SIDES}
        return row

    def _rank(self, child: str) -> dict[str, Any]:
        held = self.held.get(child)
        return {"bytes": held.bytes if held else 0, "identical": self.rank_identical.get(child, False)}


class Session:
    """All rows, and what went wrong outside any of them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.rows = {request.id: Row(request, job.model(request.model).kind, job.topology) for request in job.requests}
        self.errors: list[str] = []
        self.finished: set[str] = set()
        self.transport = ""
        self.drained: dict[str, Drained] = {}

    def take(self, child: str, message: Message) -> Row | None:
        """Take in what `child` said; the row that it concerns, if any.

        Raises KeyError for a request that nobody asked for.
        """
        if isinstance(message, Finished | Ready | Leads | Drained) or not message.request:
            self._take_general(child, message)
            return None
        row = self.rows[message.request]
        match message:
            case Phase():
                row.phases[child] = message.phase
            case Sent():
                row.sends[child] = message
            case Held():
                row.held[child] = message
            case Generated():
                row.generated = message
            case Reference():
                row.reference = message
            case Control():
                row.damaged.append(message)
            case Trouble():
                row.troubles.append(f"{child}: {message.text}")
        self._judge(row)
        return row

    def _take_general(self, child: str, message: Message) -> None:
        """Take in what concerns no single request."""
        match message:
            case Finished():
                self.finished.add(child)
                for model, pools in message.strays.items():
                    self._blame(model, f"bytes landed outside what was granted: {', '.join(pools)}")
            case Ready():
                self.transport = message.transport
            case Drained():
                self.drained[child] = message
            case Trouble():
                self.errors.append(f"{child}: {message.text}")

    @property
    def complete(self) -> bool:
        """Has every child said all it has to say? The reference is heard when each row has its answer."""
        answered = all(row.reference is not None for row in self.rows.values())
        return answered and self.finished >= {seat.child for seat in self.job.topology.seats()}

    @property
    def ok(self) -> bool:
        """Did everything hold?"""
        return self.complete and not self.errors and bool(self.rows) and all(row.good for row in self.rows.values())

    def complaints(self) -> list[str]:
        """Everything that did not hold, in words."""
        found = list(self.errors)
        for name, row in self.rows.items():
            found += [f"{name}: {trouble}" for trouble in row.troubles]
            if self.complete and row.identical is False:
                found.append(f"{name}: the tokens differ from the reference's")
            if self.complete and row.generated is None and not row.troubles:
                found.append(f"{name}: decode generated nothing")
            if self.complete and self.job.topology.split and not row.troubles:
                silent = [seat.child for seat in self.job.topology.seats() if seat.child not in row.rank_identical]
                found += [f"{name}: {child} did not show what it holds" for child in silent]
            found += [f"{name}: nobody noticed {control}" for control, seen in row.controls.items() if not seen]
        return found

    def _judge(self, row: Row) -> None:
        """Compare what can be compared by now; each part once."""
        if row.reference is None:
            return
        request = row.request.id
        if self.job.topology.split:
            for seat in self.job.topology.seats():
                if seat.child in row.held and seat.child not in row.rank_identical:
                    self._judge_rank(row, seat)
        if row.generated is None:
            return
        if row.bytes_identical is None:
            row.identical = row.generated.tokens == row.reference.tokens
            found = differences(load(self.job.file(request, "landed")), load(self.job.file(request, "reference")))
            row.bytes_identical = not found
            row.troubles += [f"bytes: {text}" for text in found]
            if row.reference.foreign:
                row.bytes_identical = False
                row.troubles.append(f"the reference imported {', '.join(row.reference.foreign)}")
        for control in row.damaged:
            if control.name not in row.controls:
                row.controls[control.name] = self._noticed(row, control)

    def _judge_rank(self, row: Row, seat: Seat) -> None:
        """Compare what one rank holds with its share of what the reference computed."""
        request = row.request.id
        held = load(self.job.held(request, seat.child))
        whole = load(self.job.file(request, "reference"))
        page_size = self.job.model(row.request.model).page_size
        found = differences(held, part_of(whole, held, seat.rank, seat.ranks, page_size))
        row.rank_identical[seat.child] = not found
        row.troubles += [f"bytes of {seat.child}: {text}" for text in found]

    def _noticed(self, row: Row, control: Control) -> bool:
        assert row.reference is not None
        request = row.request.id
        damaged = load(self.job.file(request, control.name))
        return noticed(
            control.name,
            tokens=control.tokens,
            logprobs=control.logprobs,
            wanted_tokens=row.reference.tokens,
            wanted_logprobs=row.reference.logprobs,
            bytes_differ=bool(differences(damaged, load(self.job.file(request, "reference")))),
            strict=self.job.model(row.request.model).strict,
        )

    def _blame(self, model: str, text: str) -> None:
        for row in self.rows.values():
            if row.request.model == model:
                row.strayed = True
                row.troubles.append(text)
