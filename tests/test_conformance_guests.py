"""What the suite finds of peers that lie and callers that disagree, in implementations that are wrong just there."""

from __future__ import annotations

from typing import ClassVar

import pytest
from conformance_toy import Toy

from kvrooms.engine import prefill_grants
from kvrooms.engine.decode_arrivals import DecodeArrivals
from kvrooms.engine.prefill_grants import PrefillGrants
from kvrooms.harness.conformance.own_sim import KvroomsSim
from kvrooms.harness.conformance.plan import Plan, RoomPlan
from kvrooms.harness.conformance.reduce import smaller
from kvrooms.harness.conformance.stage import Stage
from kvrooms.harness.conformance.subject import ABSENT, ComponentShape, Request, Shape
from kvrooms.harness.conformance.suite import default_effort, run

SHAPE = Shape(64, 8, 8, 16, 4, 4, (ComponentShape("window", "when_indexed", 8, 4, 4),))


def judged(subject, *properties, **changes):
    return run(subject, default_effort(subject, **{"examples": 60, "seconds": 30.0, **changes}), properties)


def test_without_guests_the_property_is_judged_by_strangers_alone():
    [outcome] = judged(Toy(), "S5")
    assert (outcome.ok, outcome.not_offered) == (True, ("peers that were let in and lie",))


def test_nobody_believes_a_guest():
    [outcome] = judged(KvroomsSim(), "S5")
    assert (outcome.ok, outcome.reason, outcome.not_offered) == (True, "", ())


def _whose_ever(self, peer, body):
    """`PrefillGrants._aborted`, with grants that are not kept apart by peer."""
    for one in self._peers.values():
        writer = one.drains.get(body.grant)
        if writer is not None and writer.record is not None:
            self._fail(writer.record, prefill_grants.On.PEER_FAILED, prefill_grants.Failure(body.reason, "", "peer"))


def _from_anybody(self, agent, message, arrival=DecodeArrivals._arrival):
    """`DecodeArrivals._arrival`, without a look at who has sent it."""
    for peer in self._peers.values():
        agent = peer.agent
    arrival(self, agent, message)


WRONG = {
    "asks prefill for the room": lambda patch: patch.setattr(prefill_grants, "_strange", lambda *_: False),
    "given up": lambda patch: patch.setattr(PrefillGrants, "_aborted", _whose_ever),
    "everything has arrived": lambda patch: patch.setattr(DecodeArrivals, "_arrival", _from_anybody),
}


@pytest.mark.parametrize("words", WRONG)
def test_an_engine_that_believes_a_guest_is_found_out(words, monkeypatch):
    WRONG[words](monkeypatch)
    [outcome] = judged(KvroomsSim(), "S5", examples=100)
    assert outcome.ok is False
    found = outcome.counterexample
    assert words in found.input["guest_1"]
    assert "guest_2" not in found.input
    assert [step for step in found.timeline if step.who == "guest" and words in step.text]


def test_who_comes_first_may_take_a_room_but_it_is_not_done_without_its_bytes():
    class Taken(Toy):
        """Its guest is a decode side in the place of the true one, for whose room prefill posts nothing."""

        traits = Toy.traits._replace(guests=frozenset({"claim"}))
        taken: ClassVar = []
        times: ClassVar = []

        def start(self, shape, **rest):
            self.taken.clear()
            super().start(shape, **rest)

        def guest(self, saying, request):
            if request.number not in [key[0] for key in self.open_rooms["decode"]]:
                self.taken.append(request.number)
                self.times.append(request.number)

        def metadata(self, decode):
            if decode.request.number not in self.taken:
                super().metadata(decode)

    [outcome] = judged(Taken(), "S5")
    assert (outcome.ok, outcome.reason) == (True, "")
    assert Taken.times


def test_a_guest_says_less_and_earlier_in_smaller_plans():
    plan = Plan((RoomPlan(),), guests=(("claim", 2), ("grant", 3)))
    steps = {less.guests for less in smaller(plan, Toy.traits)} - {plan.guests}
    assert steps == {(("grant", 3),), (("claim", 2),), (("claim", 1), ("grant", 3)), (("claim", 2), ("grant", 2))}
    assert all(less.size < plan.size for less in smaller(plan, Toy.traits) if less.guests != plan.guests)


def test_a_guest_of_the_simulated_world_comes_back_when_it_is_thrown_out():
    subject = KvroomsSim()
    stage = Stage(subject, SHAPE, patience_s=1.0, deadline_s=None, seed=0)
    request = Request(7, 0, (1, 2), 0, [[1]])
    subject.guest("claim", request)
    stage.rest()
    [peer] = subject._owns["prefill"][0].engine._core._peers.values()
    assert len(peer.drains) == 1
    for connection in subject._guest._channel.connections:
        subject._guest._channel.close(connection)
    stage.rest()
    subject.guest("grant", request)
    stage.rest()
    assert len(subject._guest._channel.connections) == 1


# -- callers that disagree -----------------------------------------------------------------------------------------


class Silent(Toy):
    """Right, but where decode is given nothing for state and prefill has some: then nobody says a word."""

    def move(self, prefill):
        last = prefill.sent and prefill.sent[-1][2]
        if prefill.granted and last and prefill.sent[-1][1]:
            value = prefill.other.request.state_indices
            if value is None or value is ABSENT:
                return
        super().move(prefill)


def test_a_hang_of_callers_that_disagree_in_one_spelling_breaks_a1_and_leaves_l2_alone():
    agreement, manifests = judged(Silent(), "L2", "A1")
    assert (agreement.id, agreement.ok) == ("L2", True)
    assert (manifests.id, manifests.ok) == ("A1", False)
    assert "nothing but a timer can end it" in manifests.reason
    assert manifests.counterexample.input["decode_state_indices"] in ("None", "absent")
    assert "other_room_1" not in manifests.counterexample.input


def test_every_disagreement_that_hangs_breaks_a1():
    class Mute(Toy):
        def fail(self, half, cause):
            if cause != "the manifests differ":
                super().fail(half, cause)

    agreement, manifests = judged(Mute(), "L2", "A1")
    assert (agreement.ok, manifests.ok) == (True, False)
