"""A live attack: honest rooms between real engines, and slices of time with and without the attacker, in turns."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ..engine.ending import Ending
from ..engine.host import Drained
from ..protocol.errors import KvroomsError
from ..protocol.registration import decode_record, parse_address
from .child import Child, ChildError
from .false_prefill import NAME
from .pool import INSTANCE

MESSAGES_PER_S = 1000
"""How fast the attacker strikes. It takes its time from the same cores, and thinks of what to send beforehand."""
_SLICE_S = 2.5
_FEWEST_SLICES = 2
_FLOOD_FROM = 10_000
"""A run of so many messages has one moment of too many connections as well."""
_LURES_PER_SLICE = 5
_LULL_S = 0.2
_GROUP_SHARE = 10
"""A group is attacked with one message for so many to the engines, in these limits."""
_GROUP_FEWEST, _GROUP_MOST = 200, 5000
_REST_LIMIT_S = 15.0
_START_S = 90.0
_AT_REST = {
    "prefill": {"rooms": 0, "grants": 0, "parked": 0, "posted": 0, "ready": 0, "in_flight": 0, "links": 1, "keys": 0},
    "decode": {"rooms": 0, "tokens": 0, "grants": 0, "tickets": 0, "links": 1, "claims": 0, "keys": 0},
}
"""What the tables of both honest engines hold when nothing is left of an attack: one connection between the two."""


@dataclass
class Siege:
    """What a live attack has done. errors: what was logged as an error or found to be wrong, in words."""

    messages: int = 0
    honest_rooms: int = 0
    honest_failed: int = 0
    quiet: list[tuple[int, float]] = field(default_factory=list)
    attacked: list[tuple[int, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    logged: int = 0
    cores: dict[str, list[float]] = field(default_factory=dict)
    """Processor seconds per second of each process: without the attack, and under it."""
    kinds: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    last: list[str] = field(default_factory=list)
    drained: dict[str, Drained] = field(default_factory=dict)
    """What became of the rooms that were open when a signal came, by engine."""

    @property
    def ok(self) -> bool:
        """Nothing is wrong, and the honest rooms were there to show it."""
        return not self.errors and not self.honest_failed and not self.logged and self.honest_rooms > 0

    @property
    def rate(self) -> float:
        """Honest rooms per second without an attack."""
        return _rate(self.quiet)

    @property
    def rate_attacked(self) -> float:
        """Honest rooms per second under attack."""
        return _rate(self.attacked)


def _rate(slices: list[tuple[int, float]]) -> float:
    seconds = sum(each for _, each in slices)
    return sum(rooms for rooms, _ in slices) / seconds if seconds else 0.0


def run(seed: int, messages: int, say: Callable[[str], None], ending: Ending | None = None) -> Siege:
    """Attack with so many messages. Once `ending` was asked, end early: honest rooms that are open are drained."""
    ending = ending or Ending()
    siege = Siege()
    children: list[Child] = []

    def kill() -> None:
        for child in children:
            child.process.kill()

    ending.at_once.append(kill)
    try:
        say("starting prefill, decode and the attacker")
        children.extend(map(Child, ("prefill", "decode", "attacker")))
        _Run(siege, seed, messages, say, ending, *children).run()
        if ending.asked is None:
            children.append(Child("group"))
            _attack_group(siege, seed, messages, say, ending, children[-1])
    except ChildError as error:
        if ending.asked is None:
            siege.errors.append(str(error))
    finally:
        if ending.asked is not None:
            for child in children[:2]:
                siege.drained |= child.drain()
        for child in reversed(children):
            child.end()
        ending.at_once.remove(kill)
    return siege


def _attack_group(
    siege: Siege, seed: int, messages: int, say: Callable[[str], None], ending: Ending, child: Child
) -> None:
    """Attack the ranks of a group, when nobody measures how fast the honest engines are."""
    count = min(max(messages // _GROUP_SHARE, _GROUP_FEWEST), _GROUP_MOST)
    child.call("start", seed)
    for first in range(0, count, _GROUP_FEWEST):
        if ending.asked is not None:
            return
        siege.messages += child.call("attack", first, min(_GROUP_FEWEST, count - first))
    done, failed, wrong, kinds, counters = child.call("finish", limit_s=150)
    siege.honest_rooms += done
    siege.honest_failed += failed
    siege.errors += wrong
    siege.kinds |= kinds
    siege.counters |= {f"group: {name}": number for name, number in counters.items()}
    say(f"{count:,} messages to the ranks of a group; {done:,} honest rooms beside them")
    child.call("close")


class _Run:
    """One run; the parts share the processes."""

    def __init__(
        self,
        siege: Siege,
        seed: int,
        messages: int,
        say: Callable[[str], None],
        ending: Ending,
        prefill: Child,
        decode: Child,
        attacker: Child,
    ) -> None:
        self.siege, self.seed, self.messages, self.say = siege, seed, messages, say
        self.ending = ending
        self.prefill, self.decode, self.attacker = self._all = prefill, decode, attacker
        self._cpu_s = {child.role: [0.0, 0.0] for child in self._all}

    def run(self) -> None:
        """From the start of the engines to the last look at their tables."""
        self.prefill.ask("start", self.seed)
        self.decode.ask("start", self.seed)
        self.bootstrap, address, _ = self.prefill.answer(_START_S)
        self.decode.answer(_START_S)
        self.lure = self.attacker.call("start", self.seed, self.bootstrap, address, limit_s=_START_S)
        self.decode.call("begin", self.bootstrap)
        self.decode.call("lure", self.lure, ["first"])
        if not self.attacker.call("meet", limit_s=_START_S):
            self.siege.errors.append("decode never came to the attacker: nothing of decode was attacked")
            return
        self._slices()
        self.siege.kinds = self.attacker.call("kinds")
        self.siege.last = self.attacker.call("last")
        self._finish()
        if self.ending.asked is not None:
            return
        self.attacker.call("close")
        self.attacker.end()
        # It may have said goodbye and kept what is undrained: then only the orchestrator can give the memory back.
        self.decode.call("fence", NAME)
        self._rest()
        for child in (self.prefill, self.decode):
            self._look(child)
            child.call("close")

    def _slices(self) -> None:
        count = max(_FEWEST_SLICES, round(self.messages / MESSAGES_PER_S / _SLICE_S))
        time.sleep(1.0)  # the first rooms warm both sides up
        for n in range(count):
            if self.ending.asked is not None:
                return
            first, last = self.messages * n // count, self.messages * (n + 1) // count
            seconds = (last - first) / MESSAGES_PER_S
            # Each goes first in turn, so that a machine that slows down does not count against one of the two.
            for attacked in (n % 2 == 1, n % 2 == 0):
                if attacked:
                    self.attacker.call("prepare", first, last - first)
                    self._attacked(first, seconds, flood=n == count - 1 and self.messages >= _FLOOD_FROM)
                else:
                    self._measure(self.siege.quiet, lambda s=seconds: time.sleep(s))  # type: ignore[misc]
                self._look_up()
                time.sleep(_LULL_S)
            seconds_of = [sum(s for _, s in each) for each in (self.siege.quiet, self.siege.attacked)]
            self.siege.cores = {
                role: [round(cpu / wall, 2) for cpu, wall in zip(used, seconds_of, strict=True)]
                for role, used in self._cpu_s.items()
            }
            self.say(
                f"{last:,} of {self.messages:,} messages; honest rooms per second: "
                f"{self.siege.rate_attacked:,.0f} under attack, {self.siege.rate:,.0f} without"
            )

    def _attacked(self, first: int, seconds: float, *, flood: bool) -> None:
        lures = [f"lure-{first}-{n}" for n in range(_LURES_PER_SLICE)]

        def strike() -> None:
            self.attacker.ask("attack", seconds, flood)
            self.decode.call("lure", self.lure, lures)
            self.siege.messages += self.attacker.answer(_START_S + 10 * seconds)

        self._measure(self.siege.attacked, strike)

    def _measure(self, into: list[tuple[int, float]], during: Callable[[], None]) -> None:
        used = [child.cpu_s() for child in self._all]
        began, before = self.decode.call("mark")
        during()
        ended, after = self.decode.call("mark")
        into.append((after - before, ended - began))
        for child, so_far in zip(self._all, used, strict=True):
            self._cpu_s[child.role][into is self.siege.attacked] += child.cpu_s() - so_far

    def _look_up(self) -> None:
        """The registry still answers, and still says the truth about the honest engine."""
        url = urlsplit(self.bootstrap)
        host, port = parse_address(url.netloc)
        connection = http.client.HTTPConnection(host, port, timeout=5)
        try:
            connection.request("GET", f"/v1/engines/{INSTANCE}/0")
            found = decode_record(connection.getresponse().read())
            if found.instance != INSTANCE:
                self.siege.errors.append(f"the registry answers about {found.instance}")
        except (OSError, http.client.HTTPException, KvroomsError) as error:
            self.siege.errors.append(f"the registry does not answer: {type(error).__name__}: {error}")
        finally:
            connection.close()

    def _finish(self) -> None:
        done, failed, failures = self.decode.call("finish", limit_s=120)
        of_prefill, more = self.prefill.call("finish", limit_s=60)
        self.siege.honest_rooms, self.siege.honest_failed = done, max(failed, of_prefill)
        self.siege.errors += failures + more

    def _rest(self) -> None:
        """When the attacker is gone, nothing of it is left in any table."""
        end = time.monotonic() + _REST_LIMIT_S
        left: dict[str, Any] = {"": 0}
        while left and time.monotonic() < end:
            time.sleep(0.1)
            left = {}
            for child in (self.prefill, self.decode):
                tables = child.call("tables")
                wanted = _AT_REST[child.role]
                left |= {f"{child.role} {n}": tables[n] for n, v in wanted.items() if tables[n] != v}
        if left:
            self.siege.errors.append(f"left in the tables {_REST_LIMIT_S:g} s after the attack: {left}")

    def _look(self, child: Child) -> None:
        state = child.call("state")
        self.siege.logged += state["errors"]
        self.siege.errors += [f"{child.role} logged: {text}" for text in state["first"]]
        if state["canaries"]:
            self.siege.errors.append(f"{child.role}: {state['canaries']} bytes were written outside of every room")
        self.siege.counters |= {f"{child.role}: {name}": count for name, count in state["counters"].items()}
