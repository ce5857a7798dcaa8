"""What the parent knows: one row per request, filled by what the children say, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .controls import noticed
from .jobs import Job, RequestJob
from .messages import Control, Drained, Finished, Generated, Message, Phase, Ready, Reference, Sent, Trouble
from .oracle import differences, load


@dataclass
class Row:
    """One request as it stands. `None` means: not known yet."""

    request: RequestJob
    kind: str
    phases: dict[str, str] = field(default_factory=lambda: {"prefill": "", "decode": ""})
    sent: Sent | None = None
    generated: Generated | None = None
    reference: Reference | None = None
    damaged: list[Control] = field(default_factory=list)
    bytes_identical: bool | None = None
    identical: bool | None = None
    controls: dict[str, bool] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    strayed: bool = False

    @property
    def good(self) -> bool:
        """Everything was shown: the bytes, the tokens, at least one control, and every control noticed."""
        shown = self.bytes_identical is True and self.identical is True and bool(self.controls)
        moved = self.generated is not None and self.generated.bytes > 0 and self.sent is not None
        return shown and moved and all(self.controls.values()) and not self.troubles

    def as_json(self) -> dict[str, Any]:
        """The row of the final report."""
        done = self.generated
        return {
            "model": self.request.model,
            "kind": self.kind,
            "prompt_tokens": len(self.request.prompt),
            "new_tokens": len(done.tokens) if done else 0,
            "chunks": self.sent.chunks if self.sent else 0,
            "pages": done.pages if done else 0,
            "bytes": done.bytes if done else 0,
            "state_bytes": done.state_bytes if done else 0,
            "bytes_identical": self.bytes_identical is True and not self.strayed,
            "identical": self.identical is True,
            "controls": dict(self.controls),
            "seconds": round(done.seconds, 3) if done else 0.0,
        }


class Session:
    """All rows, and what went wrong outside any of them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.rows = {request.id: Row(request, job.model(request.model).kind) for request in job.requests}
        self.errors: list[str] = []
        self.finished: set[str] = set()
        self.transport = ""
        self.drained: dict[str, Drained] = {}

    def take(self, child: str, message: Message) -> Row | None:
        """Take in what `child` said; the row that it concerns, if any.

        Raises KeyError for a request that nobody asked for.
        """
        if isinstance(message, Finished):
            self.finished.add(child)
            for model, pools in message.strays.items():
                self._blame(model, f"bytes landed outside what was granted: {', '.join(pools)}")
            return None
        if isinstance(message, Ready):
            self.transport = message.transport
            return None
        if isinstance(message, Drained):
            self.drained[child] = message
            return None
        if isinstance(message, Trouble) and not message.request:
            self.errors.append(f"{child}: {message.text}")
            return None
        row = self.rows[message.request]
        match message:
            case Phase():
                row.phases[child] = message.phase
            case Sent():
                row.sent = message
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

    @property
    def complete(self) -> bool:
        """Has every child said all it has to say? The reference is heard when each row has its answer."""
        answered = all(row.reference is not None for row in self.rows.values())
        return answered and {"prefill", "decode"} <= self.finished

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
            found += [f"{name}: nobody noticed {control}" for control, seen in row.controls.items() if not seen]
        return found

    def _judge(self, row: Row) -> None:
        """Compare what can be compared by now; each part once."""
        if row.generated is None or row.reference is None:
            return
        request = row.request.id
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
