"""`kvrooms demo`: the parent process.

It starts a registry, prefill and decode processes (one per rank) and a reference process, tells them what to do, shows
what they report, and compares. It never computes anything itself.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO

import msgspec

from ..engine.draining import words
from ..engine.ending import CutOff, Ending, status_of
from ..engine.settings import load_settings
from . import models
from .jobs import Job, ModelJob, RequestJob
from .messages import Addresses, Gather, Held, Leads, Message, Ready, decode
from .procs import Children, Exit, Line
from .ranks import SIDES, Topology, check, parse
from .session import Session
from .view import View, pick_view

_TICK_S = 0.1
_FAREWELL_S = 10.0
_DRAIN_GRACE_S = 5.0
_TIMEOUT_S = 90.0
_TIMEOUT_PER_RANK_S = 15.0
_CHILD_SHARE = 0.8  # children give up first: they can say where they stand


@dataclass(frozen=True)
class DemoOptions:
    """What `kvrooms demo` was asked for.

    `model` is a kind (dense, sliding, hybrid) or a local folder, None for all kinds. `prompt` replaces the prepared
    prompts, of which there are `requests` per model. `json` asks for plain lines even on a terminal. `timeout_s`
    bounds the whole demo; None: as `limit_s` says. `tp` is "P:D", how many prefill and decode ranks share each model.
    """

    prompt: str | None = None
    model: str | None = None
    json: bool = False
    timeout_s: float | None = None
    requests: int = 3
    tp: str = "1:1"


def main(options: DemoOptions, output: TextIO | None = None, *, instead: dict[str, list[str]] | None = None) -> int:
    """Run the demo; 0 if everything held, 1 if not, `status_of` the signal that cut it short (see `engine.ending`).

    The last line of standard output is the report, come what may. `instead` gives other command lines for some of the
    children (tests).
    """
    output = output or sys.stdout
    view = pick_view(output, plain=options.json)
    session: Session | None = None
    error, status = "", 1
    with Ending() as ending:
        try:
            with tempfile.TemporaryDirectory(prefix="kvrooms-demo-") as folder, view:
                session = Session(plan(options, folder))
                with Children(instead, session.job.topology) as children:
                    ending.at_once.append(children.kill)
                    Demo(session, children, view, limit_s(options, session.job.topology), ending).run()
        except Interrupted as problem:
            error, status = str(problem), status_of(problem.sign)
        except CutOff as problem:
            error, status = str(problem), status_of(problem.sign)
        except Exception as problem:  # noqa: BLE001 - the report is owed in any case
            error = f"{type(problem).__name__}: {problem}" if not isinstance(problem, DemoError) else str(problem)
        if session is not None:
            session.errors += [error] if error else []
            view.summary(session, _texts(session))
        else:
            view.note(f"error: {error}")
        output.write(json.dumps(report(session, error)) + "\n")
        output.flush()
    return 0 if session is not None and session.ok else status


class DemoError(Exception):
    """The demo as a whole cannot go on; the text is for the person."""


class Interrupted(DemoError):
    """A signal asked the demo to end, and its engines have drained."""

    def __init__(self, sign: signal.Signals) -> None:
        super().__init__(f"interrupted by {sign.name}")
        self.sign = sign


def plan(options: DemoOptions, folder: str) -> Job:
    """The job for these options.

    Raises ValueError if they name no model, an empty prompt, or ranks that cannot share a model.
    """
    topology = parse(options.tp)
    chosen = _models(options)
    for model in chosen:
        check(model, topology)
    if len({model.name for model in chosen}) != len(chosen):
        raise ValueError("two models have the same name")
    job_requests: list[RequestJob] = []
    for model in chosen:
        if options.prompt is not None:
            prompts = [models.tokenize(model, options.prompt)]
        else:
            prompts = models.prepared_prompts(model, options.requests)
        job_requests += models.requests(model, prompts, first_room=1 + len(job_requests))
    return Job(chosen, job_requests, folder, limit_s(options, topology) * _CHILD_SHARE, topology)


def limit_s(options: DemoOptions, topology: Topology) -> float:
    """How long the demo may take: as asked, or 90 s and 15 more for each rank beyond the first on a side."""
    if options.timeout_s is not None:
        return options.timeout_s
    return _TIMEOUT_S + _TIMEOUT_PER_RANK_S * (topology.total - 2)


def _models(options: DemoOptions) -> list[ModelJob]:
    if options.model is None:
        chosen = [models.builtin(kind) for kind in models.KINDS]
    else:
        kinds = [kind for kind in models.KINDS if kind == options.model]
        chosen = [models.builtin(kinds[0]) if kinds else models.local(Path(options.model))]
    if options.prompt is not None:
        # The weights were chosen to bite on the prepared prompts; on any other one a log-probability may have to tell.
        chosen = [msgspec.structs.replace(model, strict=False) for model in chosen]
    return chosen


class Demo:
    """One run: children are started, instructed and heard until everything is said or something fails."""

    def __init__(
        self, session: Session, children: Children, view: View, timeout_s: float, ending: Ending | None = None
    ) -> None:
        self._ending = ending or Ending()
        self._session = session
        self._children = children
        self._view = view
        self._timeout_s = timeout_s
        self._gone: set[str] = set()
        topology = session.job.topology
        self._side = {side: topology.children(side) for side in SIDES}
        self._engines = [seat.child for seat in topology.seats()]
        self._workers = frozenset((*self._engines, "reference"))

    def run(self) -> None:
        """Run to the end. Raises DemoError when a child dies, speaks nonsense, or time is up, or a signal came."""
        ends = time.monotonic() + self._timeout_s
        self._view.note(f"starting: registry, {', '.join(self._engines)}, reference")
        job = self._session.job
        for seat in job.topology.seats():
            self._children.start(seat.child)
            self._children.tell(seat.child, msgspec.structs.replace(job, seat=seat))
        self._children.start("registry")
        self._children.start("reference")
        self._children.tell("reference", job)
        while not self._session.complete:
            left = ends - time.monotonic()
            if left <= 0:
                raise DemoError(f"time is up after {self._timeout_s:.0f} s: {self._standing()}")
            heard = self._children.hear(min(left, _TICK_S))
            if self._ending.asked is not None:
                self._drain(self._ending.asked, heard)
            if isinstance(heard, Exit):
                self._exited(heard)
            elif heard is not None:
                self._heard(heard)
            self._view.tick(self._session)
        self._farewell(min(ends, time.monotonic() + _FAREWELL_S))

    def _drain(self, sign: signal.Signals, heard: Line | Exit | None) -> NoReturn:
        """Let open rooms end within the limit that engines have, and hear what became of them. Raises Interrupted."""
        limit_s = load_settings().drain_timeout_s
        for name in self._engines:
            self._children.drain(name)
        ends = time.monotonic() + limit_s + _DRAIN_GRACE_S
        while True:
            if isinstance(heard, Exit):
                self._gone.add(heard.child)
            elif heard is not None:
                self._heard(heard)
            left = ends - time.monotonic()
            if left <= 0 or self._gone.issuperset(self._engines):
                break
            heard = self._children.hear(min(left, _TICK_S))
            self._view.tick(self._session)
        for drained in self._session.drained.values():
            for line in words(drained.engines):
                self._view.note(line)
        raise Interrupted(sign)

    def _farewell(self, ends: float) -> None:
        """Let the children leave by themselves: an engine that cannot be closed is a fault too."""
        while not self._gone >= self._workers:
            left = ends - time.monotonic()
            if left <= 0:
                raise DemoError(f"{', '.join(sorted(self._workers - self._gone))} finished but did not exit")
            heard = self._children.hear(left)
            if isinstance(heard, Exit):
                self._exited(heard)

    def _heard(self, line: Line) -> None:
        if line.child == "registry":
            url = str(json.loads(line.data)["bootstrap"])
            self._view.note(f"registry at {url}")
            self._tell(self._side["prefill"], Addresses({"registry": url}))
            return
        try:
            message: Message = decode(line.data)
        except msgspec.MsgspecError as error:
            raise DemoError(f"the {line.child} process wrote a line that is no event: {error}") from error
        if isinstance(message, Ready) and line.child == self._side["prefill"][0]:
            self._view.note("prefill serves; decode opens its rooms")
            self._tell(self._side["decode"], Addresses(message.urls))
        if isinstance(message, Leads):
            side = next(children for children in self._side.values() if line.child in children)
            self._tell(side[1:], Addresses(message.addresses))
        row = self._session.take(line.child, message)
        if isinstance(message, Held) and line.child in self._side["decode"] and row is not None and row.landed:
            self._tell(self._side["decode"][:1], Gather(message.request))
        self._view.show(row, line.child, message)

    def _tell(self, children: Iterable[str], value: msgspec.Struct) -> None:
        for child in children:
            self._children.tell(child, value)

    def _exited(self, gone: Exit) -> None:
        self._gone.add(gone.child)
        reference_done = all(row.reference is not None for row in self._session.rows.values())
        expected = gone.child in self._session.finished or (gone.child == "reference" and reference_done)
        if gone.status == 0 and expected:
            return
        if self._ending.asked is not None and expected:
            return  # whoever told us has told it too, and it had nothing left to do
        how = f"exit status {gone.status}" if gone.status >= 0 else signal.Signals(-gone.status).name
        told = any(error.startswith(f"{gone.child}: ") for error in self._session.errors)
        words = "" if told else self._children.last_words(gone.child)
        raise DemoError(f"the {gone.child} process ended early ({how})" + (f"; it said:\n{words}" if words else ""))

    def _standing(self) -> str:
        open_rows = [
            f"{name} (prefill {row.phase('prefill') or 'not open'}, decode {row.phase('decode') or 'not open'})"
            for name, row in self._session.rows.items()
            if not row.good
        ]
        return ", ".join(open_rows) or "all requests are good, but a process has not finished"


def report(session: Session | None, error: str = "") -> dict[str, Any]:
    """The one JSON object. `errors` appears only if something did not hold, `drained` after a signal."""
    rows = [] if session is None else [row.as_json() for row in session.rows.values()]
    ok = session is not None and session.ok
    transport = "" if session is None else session.transport
    result: dict[str, Any] = {"ok": ok, "transport": transport, "requests": rows}
    if session is not None and session.job.topology.split:
        result["tp"] = str(session.job.topology)
    if session is not None and session.drained:
        result["drained"] = {
            (f"{child}/{name}" if session.job.topology.split else name): drained._asdict()
            for child, told in session.drained.items()
            for name, drained in told.engines.items()
        }
    if not ok:
        result["errors"] = [error] if session is None else session.complaints()
    return result


def _texts(session: Session) -> dict[str, str]:
    texts = {}
    for model in session.job.models:
        to_text = models.detokenizer(model)
        for request in session.job.of(model.name):
            done = session.rows[request.id].generated
            if to_text is not None and done is not None:
                texts[request.id] = to_text(done.tokens)
    return texts
