"""Bad days, drawn from seeds; and faults planted in the engines, each of which such a day, or one test, must find.

A day passes when every room ends, no byte of a free range changes, and the engines are as new in the evening.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import test_engine_grants as grants
import test_engine_leases as leases
import test_engine_losses as losses
from engine_chaos import Chaos
from mutants import Mutant, dies, named

from kvrooms.engine import decode_links
from kvrooms.engine.decode_core import DecodeCore
from kvrooms.engine.decode_links import DecodeLinks
from kvrooms.engine.grants import GrantBook
from kvrooms.engine.parking import Parking
from kvrooms.engine.prefill_core import PrefillCore
from kvrooms.engine.prefill_posting import PrefillPosting
from kvrooms.harness.ports import SimTransport
from kvrooms.harness.world import Faults
from kvrooms.protocol.events import Do, DrainEvent, LeaseEvent
from kvrooms.statemachine import memory
from kvrooms.statemachine.memory import Always, Drain, InFlight, Lease
from kvrooms.statemachine.table import go
from kvrooms.transport.ports import CloseCause

DAYS = {
    "stalls and cuts": Faults(),
    "slow": Faults(delay=0.02),
    "frames lost": Faults(drop=0.1, delay=0.01),
    "frames repeated": Faults(repeat=0.2),
    "frames out of order": Faults(reorder=True, delay=0.01),
    "everything": Faults(drop=0.1, repeat=0.1, reorder=True, delay=0.02),
}


@pytest.mark.parametrize("day", DAYS)
def test_bad_days(day: str) -> None:
    seen: set[str] = set()
    for seed in range(40):
        chaos = Chaos(seed, DAYS[day])
        chaos.day()
        seen |= chaos.seen
    wanted = {
        "DONE",
        "aborted",
        "peer_aborted",
        "peer_lost",
        "stall",
        "held",
        "cut in flight",
        "PrefillEngine crashed",
        "DecodeEngine crashed",
    }
    wanted |= {"DecodeRoom FAILED, memory not free", "PrefillRoom FAILED, memory not free"}
    assert wanted <= seen, f"these days were too good: {wanted - seen}"


@pytest.mark.deep
@pytest.mark.parametrize("day", DAYS)
def test_many_bad_days(day: str) -> None:
    for seed in range(1000, 4000):
        Chaos(seed, DAYS[day]).day()


# -- what the checks are worth -----------------------------------------------------------------------------------------


class Planted(NamedTuple):
    """A fault that is no change of a function's text."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]

    def __str__(self) -> str:
        return self.name


def row(cells: dict[Any, Any], cell: tuple[Any, ...], new: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Replace a compiled row of a table."""
    return lambda patch: patch.setitem(cells, cell, new)


def proof(module: Any, *causes: CloseCause) -> Callable[[pytest.MonkeyPatch], None]:
    """Take more for a proof of death than is one."""
    return lambda patch: patch.setattr(module, "_PROOFS", (*module._PROOFS, *causes))


def bad_days() -> None:
    """Days of each kind, fewer."""
    for seed in range(25):
        for faults in DAYS.values():
            Chaos(seed, faults).day()


def a_bad_week() -> None:
    """What no mutant may spoil here: the same check passes without one."""
    for seed in range(3):
        for faults in DAYS.values():
            Chaos(seed, faults).day()


def test_the_check_passes_without_a_mutant() -> None:
    a_bad_week()


ABORTED = (Lease.GRANTED, LeaseEvent.FAILED, Always.ALWAYS)
RETRIED = (Lease.QUARANTINED, LeaseEvent.RETRY, Always.ALWAYS)
VOIDED = (Drain.OPEN, DrainEvent.VOIDED, InFlight.IN_FLIGHT)


@named(
    [
        Planted("a failed room's ranges are free", row(memory._LEASE, ABORTED, go(Lease.RELEASED, Do.FREE))),
        Planted("a timer frees", row(memory._LEASE, RETRIED, go(Lease.RELEASED, Do.DISARM, Do.FREE))),
        Planted("acknowledged before it settles", row(memory._DRAIN, VOIDED, go(Drain.DRAINED, Do.SEND_ACK, Do.FREE))),
        Planted("our own close is a proof", proof(decode_links, CloseCause.LOCAL)),
        Planted("a network's time-out is a proof", proof(decode_links, CloseCause.TIMED_OUT)),
        Mutant(DecodeLinks, "_proof", " and not link.goodbye", ""),
        Mutant(DecodeLinks, "_left", "if grant.number not in undrained:", "if True:"),
        Mutant(DecodeLinks, "_redial", "link.holds or self._owes_aborts(link)", "link.holds"),
        Mutant(DecodeCore, "_acked", "self._lease(grant, LeaseEvent.ACKED)", "pass"),
        Mutant(DecodeCore, "_free", "record.unreleased == 0", "record.room.phase is not Phase.FAILED"),
        Mutant(PrefillCore, "_maybe_freed", " and not record.writers", ""),
        Mutant(PrefillCore, "_drain", "self._withdraw(writer)", "pass"),
    ]
)
def test_bad_days_find_it(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(bad_days)


def fences() -> None:
    """Each test of a grant that is over, and of the lease of posting."""
    grants.check_metadata_after_its_abort(abort_first=True)
    grants.check_metadata_after_its_abort(abort_first=False)
    grants.check_metadata_below_the_floor()
    grants.check_metadata_after_done()
    for seed in range(3):
        leases.check_fence(seed)
    grants.check_parked_places()
    losses.check_cut()
    losses.check_abort_after_reconnect()


def test_the_fences_hold_without_a_mutant() -> None:
    fences()


@named(
    [
        Mutant(GrantBook, "verdict", "return Verdict.OVER", "return Verdict.NEW"),
        Mutant(GrantBook, "verdict", "grant < self.floor or ", ""),
        Mutant(GrantBook, "end", "if grant >= self.floor:", "if False:"),
        Mutant(PrefillCore, "_aborted", "self._over(peer, body.grant)", "pass"),
        Mutant(PrefillCore, "_reached", "peer.book.raise_floor(floor)", "pass"),
        Mutant(PrefillPosting, "_may_post", "self.clock.now() <= peer.lease_until", "True"),
        Planted("a network's time-out is a proof", proof(decode_links, CloseCause.TIMED_OUT)),
        Mutant(DecodeLinks, "_welcomed", "self._lease(grant, LeaseEvent.LINK_UP)", "pass"),
        Mutant(Parking, "remove", "writer.peer.parked -= 1", "pass"),
    ]
)
def test_the_fences_find_it(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(fences)


def deaths() -> None:
    """Prefill killed at every step; decode killed while its METADATA waits."""
    losses.test_prefill_killed_at_every_step()
    losses.check_parked_and_killed()


@named(
    [
        Mutant(DecodeLinks, "_lost", "self._lease(grant, proof)", "pass"),
        Mutant(PrefillCore, "_void_all", "self._drain(writer, DrainEvent.VOIDED)", "pass"),
        Mutant(SimTransport, "_land", "if self.killed:", "if False:"),  # the world's own: the dead write no more
    ]
)
def test_a_death_at_every_step_finds_it(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(deaths)
