"""`kvrooms fuzz`: inputs to the decoders, then a live attack; one JSON object in the end."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

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
    """Run it and print. Returns the exit status: 1 when something was found. Raises InvalidArgument."""
    if options.replay is not None:
        return _replay(options.replay)
    began = time.monotonic()
    result: dict[str, Any] = {"ok": True, "seed": options.seed}
    tally = _inputs(options)
    siege = live.run(options.seed, options.messages, _say) if options.messages else live.Siege()
    _report(options, tally, siege)
    ratio = siege.rate_attacked / siege.rate if siege.rate else 0.0
    result |= {
        "ok": not tally.untyped and (siege.ok or not options.messages),
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
        "seconds": round(time.monotonic() - began, 1),
    }
    if options.json:
        print(json.dumps(result), flush=True)
    else:
        _show(result)
    return 0 if result["ok"] else 1


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


def _inputs(options: FuzzOptions) -> inputs.Tally:
    if not options.inputs:
        return inputs.Tally()
    said = time.monotonic()

    def say(done: int) -> None:
        nonlocal said
        if time.monotonic() - said > _SAY_EVERY_S:
            said = time.monotonic()
            _say(f"{done:,} of {options.inputs:,} inputs")

    _say(f"{options.inputs:,} inputs to the decoders, seed {options.seed}")
    return inputs.run(options.seed, options.first, options.inputs, say)


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
    print("ok" if result["ok"] else "NOT ok: see above")
