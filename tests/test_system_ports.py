"""The system's clock and random numbers."""

import time

from kvrooms.transport.system import SystemClock, SystemIds


def test_the_clock_goes_on_during_sleep_and_never_back():
    clock = SystemClock()
    times = [clock.now() for _ in range(1000)]
    assert times == sorted(times)
    boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert 0 <= clock.now() - times[0] < 10
    assert abs(clock.now() - boot) < 10


def test_ids_are_64_bits_and_an_incarnation_is_never_0(monkeypatch):
    ids = SystemIds()
    drawn = {ids.token() for _ in range(1000)} | {ids.incarnation() for _ in range(1000)}
    assert len(drawn) == 2000
    assert max(drawn) < 2**64
    assert max(drawn) > 2**60
    numbers = iter([0, 0, 5])
    monkeypatch.setattr("kvrooms.transport.system.secrets.randbits", lambda bits: next(numbers))
    assert ids.incarnation() == 5
