"""The timer table: nothing fires early, late or twice, nothing is left behind, and `due` always comes to an end."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvrooms.engine.timers import TICK_S, Alarm, Timers

KINDS = (Alarm.PHASE, Alarm.CAP, Alarm.RETRY)
ULPS = 1e-9

times = (
    st.integers(0, 4000).map(lambda n: n * TICK_S) | st.floats(0, 60) | st.sampled_from([0.1 * n for n in range(400)])
)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(KINDS), times, st.booleans()), max_size=30), times)
def test_alarms_fire_once_in_their_tick(calls: list[tuple[str, Alarm, float, bool]], start: float) -> None:
    """Arm, move and disarm; then let time pass as the engine does, from one `next_deadline` to the next."""
    timers, model = Timers(), {}
    for owner, alarm, deadline, disarmed in calls:
        if disarmed:
            timers.disarm(owner, alarm)
            model.pop((owner, alarm), None)
        else:
            timers.arm(owner, alarm, deadline)
            model[owner, alarm] = deadline
        assert len(timers) == len(model)
    now, looks = start, [start]
    while True:
        for key in timers.due(now):
            assert model.pop(key) <= now + ULPS, "early"
        assert all(deadline > now - TICK_S for deadline in model.values()), "late"
        following = timers.next_deadline()
        if following is None:
            break
        now = max(now, following)
        looks.append(now)
        assert len(looks) < 5000, "time does not pass"
    assert not model
    assert len(timers) == 0
    assert all(a <= b for a, b in pairwise(looks))


def test_a_deadline_that_is_moved_to_the_edge_of_its_tick_fires() -> None:
    """tick * TICK_S may be a little less than a deadline whose tick it is: `due` must not look for ever."""
    edges = 0
    for n in range(20_000):
        deadline = n * 0.1
        tick = math.ceil(deadline / TICK_S)
        if tick * TICK_S >= deadline:
            continue
        edges += 1
        timers = Timers()
        timers.arm("owner", Alarm.PHASE, 0.0)
        timers.arm("owner", Alarm.PHASE, deadline)
        assert timers.due(tick * TICK_S) == [("owner", Alarm.PHASE)]
    assert edges
