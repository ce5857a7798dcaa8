"""What the parent asks of its child processes: plain values that travel as JSON.

A job names models and requests. It says nothing about *how* a model is built or its cache laid out, so that the
reference process can answer from the same job with code of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from .ranks import Seat, Topology

Kind = Literal["dense", "sliding", "hybrid"]


class Scale(msgspec.Struct, frozen=True):
    """One change to a model's random weights: parameters whose name matches `pattern` become `w * factor + offset`."""

    pattern: str
    factor: float = 1.0
    offset: float = 0.0


class ModelJob(msgspec.Struct, frozen=True):
    """One model and how it is prefilled.

    Either `config` (keyword arguments of the transformers configuration, with `model_type`) with `seed` and `scales`
    gives random weights, or `path` is a local folder. `chunk` and `page_size` are tokens. `stepwise` means that the
    tokens of every chunk but the first are fed one at a time, see `kvrooms.demo.generate`. `stop` lists token ids
    that end a generation. `strict` means that a control counts as noticed only if the tokens differ.
    """

    name: str
    kind: Kind
    page_size: int
    chunk: int
    new_tokens: int
    config: dict[str, int | float | str | bool] = {}
    scales: list[Scale] = []
    seed: int = 0
    path: str = ""
    stepwise: bool = False
    stop: list[int] = []
    strict: bool = True

    @property
    def instance(self) -> str:
        """The name under which the registry knows this model's prefill engine."""
        return f"prefill-{self.kind}"


class RequestJob(msgspec.Struct, frozen=True):
    """One prompt (token ids) for one model, and the room that carries its cache."""

    id: str
    model: str
    room: int
    prompt: list[int]


class Job(msgspec.Struct, frozen=True):
    """Everything a child needs: `folder` takes the files it writes, `limit_s` bounds each of its waits (seconds).

    `topology` says how many ranks there are, `seat` which of them this child is.
    """

    models: list[ModelJob]
    requests: list[RequestJob]
    folder: str
    limit_s: float
    topology: Topology = Topology()
    seat: Seat = Seat()

    def model(self, name: str) -> ModelJob:
        """The model called `name`; KeyError if there is none."""
        for model in self.models:
            if model.name == name:
                return model
        raise KeyError(name)

    def of(self, name: str) -> list[RequestJob]:
        """The requests for the model called `name`, in order."""
        return [request for request in self.requests if request.model == name]

    def file(self, request: str, what: str) -> Path:
        """Where a child writes what it has of `request`; `what` names the state ("landed", a control)."""
        return Path(self.folder) / f"{request}.{what}.npz"

    def held(self, request: str, child: str) -> Path:
        """Where `child` leaves what it holds of `request`. Alone on its side, it leaves all that landed."""
        return self.file(request, child if self.topology.split else "landed")
