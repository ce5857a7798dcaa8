"""A counterexample as a space-time diagram: two lifelines, time running down, messages and writes between them.

One HTML file with SVG in it and nothing else: no script, no font, nothing that is fetched.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape

from ..evidence import STATEMENTS, Counterexample, Step

_WIDTH, _LEFT, _RIGHT = 1180, 430, 750
_TOP, _ROW, _LINE = 58, 16, 14
_WRAP, _WRAP_BETWEEN = 58, 42
_X = {"prefill": _LEFT, "decode": _RIGHT}
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; max-width: 1220px; margin: 2em auto; padding: 0 1em; color: #1c2430;
       background: #fff }
h2 { margin: 2.2em 0 .3em } table { border-collapse: collapse } td { padding: .1em .8em .1em 0; vertical-align: top }
svg { max-width: 100%; height: auto; border: 1px solid #d6dbe3; border-radius: 6px; margin-top: 1em }
text { font: 12px ui-monospace, monospace; fill: #1c2430 } .name { font-weight: 600; font-size: 14px }
.life { stroke: #8a94a6; stroke-width: 2 } .dim { fill: #6a7486 }
.message { stroke: #2458b3; fill: #2458b3 } .write { stroke: #0d7d55; fill: #0d7d55 }
.notification { stroke: #8a5a00; fill: #8a5a00 } .fault { stroke: #b3261e; fill: #b3261e }
.call { stroke: #1c2430; fill: #1c2430 } .state { stroke: #6a7486; fill: #6a7486 }
.timer { stroke: #7a3fb3; fill: #7a3fb3 }
.open { stroke: #b3261e; fill: #b3261e } .arrow { fill: none; stroke-width: 1.6 } .wait { stroke: #b3261e;
stroke-width: 4; stroke-dasharray: 3 5 } text.open, text.fault { fill: #b3261e; stroke: none; font-weight: 600 }
text.message, text.write, text.notification, text.call, text.state, text.timer { stroke: none; fill: #1c2430 }
"""


def page(title: str, counterexamples: Sequence[Counterexample]) -> str:
    """The whole page."""
    parts = [_section(counterexample) for counterexample in counterexamples]
    body = "\n".join(parts) or "<p>No property was broken.</p>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def _section(counterexample: Counterexample) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td><code>{escape(value)}</code></td></tr>"
        for name, value in counterexample.input.items()
    )
    return (
        f"<h2>{escape(counterexample.property)}: {escape(counterexample.summary)}</h2>\n"
        f"<p>{escape(STATEMENTS[counterexample.property])}</p>\n<table>{rows}</table>\n"
        f"{drawing(counterexample.timeline)}\n"
    )


def drawing(timeline: Sequence[Step]) -> str:
    """The SVG of one timeline."""
    y, shapes, waits = _TOP, [], []
    for step in timeline:
        lines = _lines(step)
        shapes.append(_drawn(step, lines, y))
        if step.kind == "open" and step.who in _X:
            waits.append((_X[step.who], y))
        y += max(_ROW, _LINE * len(lines)) + 8
    bottom = y + 30
    lifelines = "".join(
        f'<line class="life" x1="{x}" x2="{x}" y1="{_TOP - 18}" y2="{bottom}"/>'
        f'<text class="name" x="{x}" y="{_TOP - 28}" text-anchor="middle">{side}</text>'
        for side, x in _X.items()
    )
    open_ends = "".join(
        f'<line class="wait" x1="{x}" x2="{x}" y1="{at}" y2="{bottom}"><title>an obligation is left open</title></line>'
        for x, at in waits
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {bottom + 10}" width="{_WIDTH}" height="{bottom + 10}" role="img" '
        f'aria-label="space-time diagram">{_heads()}{lifelines}{open_ends}{"".join(shapes)}</svg>'
    )


def _lines(step: Step) -> list[str]:
    """The text beside a lifeline, or between them with the name of who it is about."""
    if step.who in _X:
        return textwrap.wrap(step.text, _WRAP) or [""]
    return textwrap.wrap(f"{step.who}: {step.text}", _WRAP_BETWEEN)


def _heads() -> str:
    """Arrow heads, one per kind."""
    markers = "".join(
        f'<marker id="head-{kind}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path class="{kind}" d="M0,0 L8,4 L0,8 z"/></marker>'
        for kind in ("message", "write", "notification", "fault")
    )
    return f"<defs>{markers}</defs>"


def _drawn(step: Step, lines: list[str], y: int) -> str:
    kind, x = escape(step.kind), _X.get(step.who)
    time = f'<text class="dim" x="8" y="{y + 4}">{step.at:g}</text>'
    if x is None:  # the wire, a stranger, the suite: between the lifelines
        target = _X.get(step.to)
        middle = (_LEFT + _RIGHT) // 2
        arrow = _arrow(kind, middle, target, y) if target is not None else ""
        return time + arrow + _text(kind, lines, middle, y, "middle")
    side = "end" if x == _LEFT else "start"
    label = _text(kind, lines, x + (-14 if x == _LEFT else 14), y, side)
    target = _X.get(step.to)
    if target is not None and target != x:
        return time + _arrow(kind, x, target, y) + label
    return time + f'<circle class="{kind}" cx="{x}" cy="{y}" r="4"/>' + label


def _arrow(kind: str, start: int, end: int, y: int) -> str:
    head = kind if kind in ("message", "write", "notification") else "fault"
    near = end - 3 if end > start else end + 3
    return f'<path class="arrow {kind}" d="M{start},{y} L{near},{y + 8}" marker-end="url(#head-{head})"/>'


def _text(kind: str, lines: Sequence[str], x: int, y: int, anchor: str) -> str:
    spans = "".join(
        f'<tspan x="{x}" dy="{0 if number == 0 else _LINE}">{escape(line)}</tspan>' for number, line in enumerate(lines)
    )
    return f'<text class="{kind}" x="{x}" y="{y + 4}" text-anchor="{anchor}">{spans}</text>'
