"""The leader's places for the other ranks of its group, and who may take one."""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol import group


class Seat:
    """One rank, and its connection if it has one. incarnation 0: nobody has taken it yet."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.incarnation = 0
        self.member = b""
        self.where = ""
        self.gone = False
        """It has left for good."""
        self.connection: int | None = None
        self.returning = False
        """It is back, and a rank of the group again as soon as it has answered."""
        self.over: list[int] = []
        """Connections that have ended here, and must be closed when there is a new one."""
        self.last_heard = 0.0
        self.confirmed = 0.0
        self.asked = 0
        self.asked_at = 0.0
        self.answered = True


class Visit:
    """One connection. left: its other end has said that it will be closed on purpose."""

    def __init__(self, connection: int, where: str) -> None:
        self.connection = connection
        self.where = where
        self.seat: Seat | None = None
        self.left = False


def unfit(seats: Sequence[Seat], complete: bool, source: int, body: group.Join) -> str:
    """Why a process cannot join, in words; "" if it can. complete: every rank has joined."""
    size = len(seats) + 1
    if body.size != size:
        return f"this group has {size} ranks, and you were told {body.size}"
    if not 0 < body.rank < size:
        return f"rank {body.rank} is none that could join: they are 1 to {size - 1}, and rank 0 is here"
    seat = seats[body.rank - 1]
    if complete and seat.incarnation != source:
        return (
            f"the group is complete, and you are not the rank {body.rank} that has joined it; a process that has ended "
            "cannot be replaced: start all ranks anew"
        )
    if seat.incarnation not in (0, source):
        return f"rank {body.rank} has joined already, from {seat.where}"
    if sum(len(other.member) for other in seats if other is not seat) + len(body.member) > group.MEMBERS_MAX:
        return f"the ranks say more of themselves than {group.MEMBERS_MAX} bytes"
    return ""
