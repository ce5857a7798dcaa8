"""`kvrooms fuzz`: inputs to the decoders, then a live attack; one JSON object in the end."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

from ..engine.draining import words
from ..engine.ending import CutOff, Ending, status_of
from ..protocol.errors import InvalidArgument
from . import inputs, live

_RATIO_WANTED = 0.8
_SAY_EVERY_S = 5.0


@dataclass(frozen=True)
class FuzzOptions:
    """What to feed and with what to attack.

    inputs: to the decoders, those numbered from `first`. messages: to live engines. seed: all of them follow from it.
    json: plain lines and one JSON object as the last line. replay: DECODER:HEX, one input and nothing else.
    """

    inputs: int = 200_000
    messages: int = 10_000
    seed: int = 1
    first: int = 0
    json: bool = False
    replay: str | None = None


def main(options: FuzzOptions) -> int:
    """Run it and print. Raises InvalidArgument.

    Returns the exit status: 1 when something was found, `status_of` a signal that cut it short (`engine.ending`).
    """
    if options.replay is not None:
        return _replay(options.replay)
    began = time.monotonic()
    tally, siege = inputs.Tally(), live.Siege()
    with Ending() as ending:
        sign = None
        try:
            tally = _inputs(options, ending)
            if options.messages and ending.asked is None:
                siege = live.run(options.seed, options.messages, _say, ending)
            sign = ending.asked
        except CutOff as error:
            sign = error.sign
        _report(options, tally, siege)
        result = _result(options, tally, siege, time.monotonic() - began)
        if sign is not None:
            _say("\n".join([f"interrupted by {sign.name}", *words(siege.drained)]))
            drained = {name: one._asdict() for name, one in siege.drained.items()}
            result |= {"ok": False, "interrupted": sign.name, "drained": drained}
        if options.json:
            print(json.dumps(result), flush=True)
        else:
            _show(result)
    if sign is not None:
        return status_of(sign)
    return 0 if result["ok"] else 1


def _result(options: FuzzOptions, tally: inputs.Tally, siege: live.Siege, seconds: float) -> dict[str, Any]:
    """The one JSON object."""
    ratio = siege.rate_attacked / siege.rate if siege.rate else 0.0
    return {
        "ok": not tally.untyped and (siege.ok or not options.messages),
        "seed": options.seed,
        "inputs": tally.inputs,
        "untyped_errors": tally.untyped + siege.logged,
        "messages": siege.messages,
        "honest_rooms": siege.honest_rooms,
        "honest_failed": siege.honest_failed,
        "rate_ratio": round(ratio, 3),
        "honest_rooms_per_s": round(siege.rate, 1),
        "honest_rooms_per_s_attacked": round(siege.rate_attacked, 1),
        "decoders": {name: {"accepted": yes, "refused": no} for name, yes, no in inputs.numbers(tally)},
        "cores": siege.cores,
        "strikes": siege.kinds,
        "counters": siege.counters,
        "errors": siege.errors,
        "seconds": round(seconds, 1),
    }


def _replay(given: str) -> int:
    try:
        tally = inputs.replay(given)
    except ValueError as error:
        raise InvalidArgument("replay", given, f"DECODER:HEX is expected: {error}") from None
    for finding in tally.findings:
        print(finding.error)
    if not tally.findings:
        print(
            "accepted" if tally.accepted else f"refused, as it should be ({', '.join(tally.fields) or 'typed error'})"
        )
    return 1 if tally.findings else 0


def _inputs(options: FuzzOptions, ending: Ending) -> inputs.Tally:
    if not options.inputs:
        return inputs.Tally()
    said = time.monotonic()

    def say(done: int) -> None:
        nonlocal said
        if time.monotonic() - said > _SAY_EVERY_S:
            said = time.monotonic()
            _say(f"{done:,} of {options.inputs:,} inputs")

    _say(f"{options.inputs:,} inputs to the decoders, seed {options.seed}")
    return inputs.run(options.seed, options.first, options.inputs, say, ending=ending)


def _report(options: FuzzOptions, tally: inputs.Tally, siege: live.Siege) -> None:
    """What was found, in full, with how to see it again."""
    for finding in tally.findings:
        _say(finding.text(options.seed))
    if siege.errors:
        for words in siege.errors:
            _say(words)
        _say("the last strikes:")
        for words in siege.last[-20:]:
            _say(f"  {words}")
        _say(f"replay: kvrooms fuzz --inputs 0 --messages {options.messages} --seed {options.seed}")


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _show(result: dict[str, Any]) -> None:
    """For people."""
    print(
        f"{result['inputs']:,} inputs to {len(result['decoders'])} decoders: {result['untyped_errors']} untyped errors"
    )
    if result["messages"]:
        print(
            f"{result['messages']:,} hostile messages; {result['honest_rooms']:,} honest rooms beside them, "
            f"{result['honest_failed']} failed; {result['rate_ratio']:.2f} of their rate without an attack"
        )
        if result["rate_ratio"] < _RATIO_WANTED:
            print(f"(wanted: {_RATIO_WANTED}; what else the machine does counts too)")
    if "interrupted" in result:
        print(f"interrupted by {result['interrupted']} before the end")
    print("ok" if result["ok"] else "NOT ok: see above")
