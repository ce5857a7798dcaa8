"""Writes the specification's data as Markdown with Mermaid diagrams. Knows no table: what it prints is in the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import spec_words as words
from .spec_wire import Data, unwrap


def markdown(data: Data) -> str:
    """The whole document. Paragraphs are not wrapped; the same data gives the same text."""
    parts = [
        f"# The {data['name']}",
        *unwrap(words.GENERATED.format(kvrooms=data["kvrooms"], version=data["wire"]["version"])),
        "## Purpose",
        *data["purpose"],
        *_identity(data["identity"]),
        *_manifest(data["manifest"]),
        "## Machines",
        *unwrap(words.MACHINES.format(endings=", ".join(data["machines"][0]["endings"]))),
    ]
    for machine in data["machines"]:
        parts += _machine(machine)
    parts += _statuses(data["statuses"])
    parts += _deadlines(data["deadlines"])
    parts += ["## Commands", _table(("command", "meaning"), ((c["name"], c["meaning"]) for c in data["commands"]))]
    parts += _reasons(data["reasons"])
    parts += _wire(data["wire"])
    parts += _notification(data["notification"])
    parts += ["## Lease rules", "\n".join(f"- **{rule['name']}**: {rule['text']}" for rule in data["lease_rules"])]
    parts += [
        "## Invariants",
        _table(("", "name", "what holds"), ((i["id"], i["name"], i["text"]) for i in data["invariants"])),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _identity(data: Data) -> list[str]:
    limits = ((f"`{limit['name']}`", limit["value"], limit["meaning"]) for limit in data["limits"])
    return ["## Identity", *data["meaning"], "Limits:", _table(("limit", "value", "of what"), limits)]


def _manifest(data: Data) -> list[str]:
    owed = ((row["kind"], row["owed"], row["counted"]) for row in data["obligations"])
    alike: dict[tuple[str, str], list[str]] = {}
    for row in data["spellings"]:
        alike.setdefault((row["when_indexed"], row["always"]), []).append(row["spelling"])
    spellings = ((", ".join(labels), *outcome) for outcome, labels in alike.items())
    return [
        "## Manifest and obligations",
        *data["meaning"],
        _table(("obligation", "owed", "counted in"), owed),
        *unwrap(words.SPELLINGS),
        _table(("spelling", "owed `when_indexed`", "owed `always`"), spellings),
        *unwrap(words.AGREEMENT),
    ]


def _machine(data: Data) -> list[str]:
    parts = [f"### {data['title']}", "```mermaid\n" + "\n".join(diagram(data)) + "\n```"]
    initial = _code(data["initial_commands"]) or "none"
    parts.append(
        f"Starts in {data['initial']}, with these commands: {initial}. Ends in {' or '.join(data['terminal'])}."
    )
    parts.append(_table(("state", "meaning"), ((s["name"], s["meaning"]) for s in data["states"])))
    events = ((e["name"], e["meaning"], _code(e.get("carries", ()))) for e in data["events"])
    parts.append(_table(("event", "meaning", "carries"), events))
    if data["guards"]:
        parts.append(_table(("guard", "holds when"), ((g["name"], g["meaning"]) for g in data["guards"])))
    rows = [
        (cell["state"], cell["event"], row["guard"] or "", _then(row), _code(row["commands"]))
        for cell in data["cells"]
        for row in cell["rows"]
    ]
    return [*parts, _table(("state", "event", "if", "then", "commands"), rows)]


def _then(row: Data) -> str:
    if row["kind"] == "ignore":
        return "ignore"
    return f"fail → {row['to']}" if row["kind"] == "fail" else f"→ {row['to']}"


def diagram(data: Data) -> list[str]:
    """A machine as a Mermaid state diagram: one edge per pair of states, what ends a room merged into one label."""
    edges: dict[tuple[str, str], list[str]] = {}
    is_room = bool(data["endings"])
    for cell in data["cells"]:
        for row in cell["rows"]:
            if row["kind"] == "ignore" or (row["to"] == cell["state"] and (is_room or not row["commands"])):
                continue  # what stays where it is, is in the table
            labels = edges.setdefault((cell["state"], row["to"]), [])
            guard = f" [{row['guard']}]" if row["guard"] and (row["kind"] == "fail" or not is_room) else ""
            label = f"{cell['event']}{guard}"
            if label not in labels:
                labels.append(label)
    lines = ["stateDiagram-v2", "    direction LR", f"    [*] --> {data['initial']}"]
    for (start, to), labels in edges.items():
        rest = [label for label in labels if label not in data["endings"]]
        merged = len(labels) - len(rest) == len(data["endings"]) > 0
        lines.append(f"    {start} --> {to}: {', '.join([*rest, 'any ending'] if merged else labels)}")
    return [*lines, *(f"    {state} --> [*]" for state in data["terminal"])]


def _statuses(rows: list[Data]) -> list[str]:
    when = {None: "", False: "nothing has landed or settled yet", True: "something has landed or settled"}
    return [
        "### What a caller sees",
        _table(
            ("status", "phases", "and"), ((row["name"], ", ".join(row["phases"]), when[row["moved"]]) for row in rows)
        ),
    ]


def _deadlines(rows: list[Data]) -> list[str]:
    shown = (
        (
            row["timer"],
            row["machine"],
            ", ".join(row["armed"]),
            f"`{row['setting']}`",
            f"{row['default_s']:g} s",
            f"`{row['reason']}`" if row["reason"] else "none: it repeats the ABORT",
        )
        for row in rows
    )
    return [
        "## Deadlines",
        *unwrap(words.DEADLINES),
        _table(("deadline", "machine", "armed", "setting", "default", "failure reason"), shown),
    ]


def _reasons(rows: list[Data]) -> list[str]:
    return [
        "## Failure reasons",
        *unwrap(words.REASONS),
        _table(
            ("reason", "retryable by itself", "meaning"),
            ((f"`{row['value']}`", "yes" if row["retryable"] else "no", row["meaning"]) for row in rows),
        ),
    ]


def _fields(rows: list[Data]) -> str:
    def shown(row: Data) -> str:
        return f"`{row['default']!r}`".replace("'", '"') if "default" in row else ""

    return _table(("field", "type", "default"), ((f"`{row['name']}`", row["type"], shown(row)) for row in rows))


def _fixed(rows: list[Data]) -> str:
    return _table(("field", "type", "value"), ((f"`{row['name']}`", row["type"], row["meaning"]) for row in rows))


def _wire(data: Data) -> list[str]:
    parts = [f"## Wire format, version {data['version']}", *data["meaning"]]
    parts += [f"A frame has at most {data['length_max']} bytes.", _fixed([*data["prefix"], *data["header"]])]
    for frame in data["frames"]:
        parts += _frame(frame, "###")
    parts += ["### Frames among the ranks of a group", *data["group"]["meaning"]]
    for frame in data["group"]["frames"]:
        parts += _frame(frame, "####")
    parts.append("### Values inside frames")
    parts.append("Each is an array of its fields.")
    for value in data["structs"]:
        parts += [f"#### {value['name']}", *value["meaning"], _fields(value["fields"])]
    return parts


def _frame(frame: Data, level: str) -> list[str]:
    title = f"{level} {frame['number']}: {frame['name']}"
    return [title, f"*{frame['direction']}*", *frame["meaning"], _fields(frame["fields"])]


def _notification(data: Data) -> list[str]:
    return [
        f"## Notifications, versions {data['versions'][0]} to {data['versions'][-1]}",
        *data["meaning"],
        "The head, little-endian:",
        _fixed(data["head"]),
        "Each part:",
        _fixed(data["part"]),
        "Behind the part, in the version for staging slots:",
        _fixed(data["slot"]),
    ]
