"""Inputs to the decoders: which one follows from seed and number alone, so that each can be made again by itself."""

from __future__ import annotations

import multiprocessing
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import NamedTuple

from ..engine.ending import Ending, belong_to_parent, kill_workers
from ..protocol.errors import WireError
from .decoders import BY_NAME, Decoder, draw
from .mutate import mutated, noise

PROCESSES = 2
_BATCH = 10_000
_NOISE = 0.05
_VALID = 0.02
_SLOW_S = 1.0
"""Processor seconds; the longest input is 48 KiB."""
_MEMORY_BYTES = 2 << 30
"""Of address space for a worker: a length that a decoder believes shows as a MemoryError rather than a dead machine."""
_FINDINGS_MAX = 20
_FIELDS_OF = {"frame", "hello", "metadata"}
"""Those whose fields are ours to name, so that there are not more of them than the protocol has."""


class Finding(NamedTuple):
    """An input that a decoder did not bear. number: -1 where it was given by hand."""

    number: int
    decoder: str
    data: bytes
    error: str

    def text(self, seed: int) -> str:
        """For people: what happened, the input in full, and how to see it again."""
        where = f"input {self.number} of seed {seed}" if self.number >= 0 else "the given input"
        return (
            f"{where} to the decoder {self.decoder!r}: {self.error}\n  {len(self.data)} bytes: {self.data.hex()}\n"
            f"  replay: kvrooms fuzz --replay {self.decoder}:{self.data.hex()}"
        )


@dataclass
class Tally:
    """What became of inputs. untyped: how many ended in an error that is none of the decoder's, or took too long.

    accepted and refused count inputs per decoder; fields counts the refused frames by the field that was blamed.
    """

    inputs: int = 0
    untyped: int = 0
    findings: list[Finding] = field(default_factory=list)
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    fields: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Everything that another tally holds."""
        self.inputs += other.inputs
        self.untyped += other.untyped
        self.findings = (self.findings + other.findings)[:_FINDINGS_MAX]
        self.accepted.update(other.accepted)
        self.refused.update(other.refused)
        self.fields.update(other.fields)

    def found(self, finding: Finding) -> None:
        """One more that a decoder did not bear; the first few are kept in full."""
        self.untyped += 1
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(finding)


def make(seed: int, number: int) -> tuple[Decoder, bytes]:
    """The input with this number: whom it is for, and its bytes."""
    rng = random.Random(seed << 40 | number)
    decoder = draw(rng)
    samples = decoder.samples
    sample = samples[rng.randrange(len(samples))]
    kind = rng.random()
    if kind < _NOISE:
        return decoder, noise(rng, sample.whole)
    if kind < _NOISE + _VALID:
        return decoder, sample.whole
    return decoder, mutated(rng, sample, samples[rng.randrange(len(samples))].whole)


def feed(tally: Tally, decoder: Decoder, data: bytes, number: int = -1) -> None:
    """Give one input to its decoder, and note what came out."""
    tally.inputs += 1
    began = time.thread_time()
    try:
        decoder.check(data)
    except decoder.typed as error:
        tally.refused[decoder.name] += 1
        if isinstance(error, WireError) and decoder.name in _FIELDS_OF:
            tally.fields[error.field.partition("[")[0]] += 1
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        tally.found(Finding(number, decoder.name, data, f"{type(error).__name__}: {error}"[:500]))
    else:
        tally.accepted[decoder.name] += 1
    if time.thread_time() - began > _SLOW_S:
        tally.found(Finding(number, decoder.name, data, f"it took {time.thread_time() - began:.1f} s"))


def batch(seed: int, first: int, count: int) -> Tally:
    """Inputs [first, first + count), in this process."""
    tally = Tally()
    for number in range(first, first + count):
        decoder, data = make(seed, number)
        feed(tally, decoder, data, number)
    return tally


def replay(given: str) -> Tally:
    """One input given as DECODER:HEX. Raises ValueError when it is not."""
    name, colon, digits = given.partition(":")
    if not colon:
        raise ValueError("there is no colon")
    if name not in BY_NAME:
        raise ValueError(f"{name!r} is no decoder; they are {', '.join(BY_NAME)}")
    tally = Tally()
    feed(tally, BY_NAME[name], bytes.fromhex(digits))
    return tally


def run(
    seed: int,
    first: int,
    count: int,
    say: Callable[[int], None],
    processes: int = PROCESSES,
    ending: Ending | None = None,
) -> Tally:
    """Inputs [first, first + count) in worker processes. `say` is told now and then how many are done.

    Once `ending` was asked, nothing new begins: the tally says how many inputs there were.
    """
    ending = ending or Ending()
    tally = Tally()
    batches = ((at, min(_BATCH, first + count - at)) for at in range(first, first + count, _BATCH))
    context = multiprocessing.get_context("spawn")
    ending.at_once.append(kill_workers)
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_bounded) as pool:
        running: dict[Future[Tally], tuple[int, int]] = {}
        for at, some in batches:
            if ending.asked is not None:
                break
            running[pool.submit(batch, seed, at, some)] = (at, some)
            if len(running) > 2 * processes:
                _collect(tally, running)
                say(tally.inputs)
        while running:
            if ending.asked is not None:
                for future in [future for future in running if future.cancel()]:
                    del running[future]
            _collect(tally, running)
            say(tally.inputs)
    ending.at_once.remove(kill_workers)
    return tally


def _collect(tally: Tally, running: dict[Future[Tally], tuple[int, int]]) -> None:
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        at, some = running.pop(future)
        try:
            tally.add(future.result())
        except BrokenProcessPool:
            words = (
                f"a worker died somewhere in inputs {at} to {at + some - 1}: kvrooms fuzz --first {at} --inputs {some}"
            )
            tally.found(Finding(at, "?", b"", words))


def _bounded() -> None:
    """In a worker: little memory, no life without the parent, and no ears for signals, which are the parent's."""
    belong_to_parent()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def numbers(tally: Tally) -> Iterator[tuple[str, int, int]]:
    """(decoder, accepted, refused), for those that were fed."""
    for name in BY_NAME:
        if tally.accepted[name] or tally.refused[name]:
            yield name, tally.accepted[name], tally.refused[name]
