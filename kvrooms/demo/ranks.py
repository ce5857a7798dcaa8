"""Several ranks on a side: how many there are, what they are called, and which heads and channels each of them has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from .jobs import ModelJob

Side = Literal["prefill", "decode"]
SIDES: tuple[Side, Side] = ("prefill", "decode")
RANKS_MAX = 8  # of a side: each is a process with a model in it


class Topology(msgspec.Struct, frozen=True):
    """How many ranks each side has."""

    prefill: int = 1
    decode: int = 1

    def __str__(self) -> str:
        return f"{self.prefill}:{self.decode}"

    @property
    def split(self) -> bool:
        """Is the model split on either side?"""
        return max(self.prefill, self.decode) > 1

    @property
    def total(self) -> int:
        """How many ranks there are on both sides."""
        return self.prefill + self.decode

    def ranks(self, side: Side) -> int:
        """How many ranks `side` has."""
        return self.prefill if side == "prefill" else self.decode

    def children(self, side: Side) -> list[str]:
        """The names of the side's processes, in the order of their ranks."""
        ranks = self.ranks(side)
        return [Seat(side, rank, ranks).child for rank in range(ranks)]

    def seats(self) -> list[Seat]:
        """All ranks of both sides."""
        return [Seat(side, rank, self.ranks(side)) for side in SIDES for rank in range(self.ranks(side))]


class Seat(msgspec.Struct, frozen=True):
    """Which rank of how many, on which side, a process is."""

    side: Side = "prefill"
    rank: int = 0
    ranks: int = 1

    @property
    def child(self) -> str:
        """The process' name."""
        return self.side if self.ranks == 1 else f"{self.side}-{self.rank}"


def parse(text: str) -> Topology:
    """The topology that "P:D" means. Raises ValueError."""
    found = re.fullmatch(r"([0-9]{1,3}):([0-9]{1,3})", text.strip())
    if found is None:
        raise ValueError(f"--tp {text}: must be P:D, prefill and decode ranks, as in 2:1")
    topology = Topology(int(found[1]), int(found[2]))
    for side in SIDES:
        if not 1 <= topology.ranks(side) <= RANKS_MAX:
            raise ValueError(f"--tp {text}: {topology.ranks(side)} {side} ranks; there can be 1 to {RANKS_MAX}")
    return topology


def share_of(total: int, rank: int, ranks: int) -> range:
    """Which of `total` heads or channels a rank has: as many as any other; where ranks are more, several have the same.

    Raises ValueError where that does not come out even.
    """
    if total % ranks and ranks % total:
        raise ValueError(f"{total} do not go evenly among {ranks} ranks: neither number is a multiple of the other")
    units = max(1, total // ranks)
    first = rank * total // ranks
    return range(first, first + units)


def check(model: ModelJob, topology: Topology) -> None:
    """Raise ValueError unless the ranks of both sides can share the model, as far as the job says what it has.

    A local folder does not say it: its processes find out.
    """
    for what, total in units_of(model).items():
        for side in SIDES:
            try:
                share_of(total, 0, topology.ranks(side))
            except ValueError as error:
                raise ValueError(f"--tp {topology}: {side}, {what} of {model.name}: {error}") from None


def units_of(model: ModelJob) -> dict[str, int]:
    """How many KV heads and Mamba channels one of the demo's own models has."""
    if model.path:
        return {}
    units = {"KV heads": int(model.config["num_key_value_heads"])}
    if model.kind == "hybrid":
        units["Mamba channels"] = int(model.config["mamba_expand"]) * int(model.config["hidden_size"])
    return units
