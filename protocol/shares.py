"""Which rank of one instance sends what to which rank of another.

A rank publishes what it has: its layout, with layer ids and owned units, and its place in a context-parallel group.
`pair_up` is the one place that decides who sends: parts are paired by layer, role and name, units by their number in
the whole model. Where several ranks have the same unit (replicated heads, MLA latents, aux), one of them is chosen,
so that the receivers share them evenly. Data-parallel groups are instances of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from .errors import WireError
from .identity import BUFFERS_MAX
from .intervals import Intervals, span
from .layout import AuxSpec, BufferSpec, Instance, Layout, Rank, RankNumber, Ranks, Shard
from .notify import PartKind

_Index = Annotated[int, msgspec.Meta(ge=0, le=BUFFERS_MAX)]
_Unit = Annotated[int, msgspec.Meta(ge=0, le=2**24)]
ENTRIES_MAX = 2**16


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Units [first, stop) of one shard of one buffer, from one sending to one receiving rank.

    name: the component or aux name, "" for KV. source, target: the buffer's index within the part on either side (an
    aux buffer is a part of its own: 0).
    """

    kind: PartKind
    name: Annotated[str, msgspec.Meta(max_length=128)]
    source: _Index
    target: _Index
    shard: Annotated[int, msgspec.Meta(ge=0, le=15)]
    first: _Unit
    stop: _Unit


class Share(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, dict=True):
    """What one sending rank owes one receiving rank of instance `instance`, room by room.

    receiver: which one the receiving rank is of the `receivers` that this sending rank serves.
    """

    instance: Annotated[int, msgspec.Meta(ge=0)]
    receivers: Ranks
    receiver: RankNumber
    entries: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=ENTRIES_MAX)]


class Covers(NamedTuple):
    """Which parts of a room one pair of ranks is about: pages at all, aux names, component names, the pages' owner."""

    kv: bool
    aux: tuple[str, ...]
    state: tuple[str, ...]
    cp_rank: int = 0
    cp_size: int = 1

    def positions(self, pages: int, start: int) -> Intervals:
        """The page positions owed: those of this rank's part of the prompt that decode does not hold yet."""
        if not self.kv:
            return ()
        low, high = part_of(pages, self.cp_rank, self.cp_size)
        return span(max(low, start), high)


def part_of(pages: int, cp_rank: int, cp_size: int) -> tuple[int, int]:
    """The page positions [low, high) that context-parallel rank `cp_rank` of `cp_size` computes."""
    return pages * cp_rank // cp_size, pages * (cp_rank + 1) // cp_size


def covers_of(share: Share, sender: Rank) -> Covers:
    """What a share is about; names in the order of the sender's layout."""
    kinds = {(entry.kind, entry.name) for entry in share.entries}
    return Covers(
        any(kind is PartKind.KV for kind, _ in kinds),
        tuple(name for name in sender.layout.aux_names if (PartKind.AUX, name) in kinds),
        tuple(name for name in sender.layout.component_names if (PartKind.STATE, name) in kinds),
        sender.cp_rank,
        sender.cp_size,
    )


class Pairing(NamedTuple):
    """Who sends to whom: a share per (sending rank, receiving rank) that have to do with each other."""

    shares: dict[tuple[int, int], Share]

    def senders(self, receiver: int) -> list[int]:
        """The sending ranks that a receiving rank waits for."""
        return [p for p, d in self.shares if d == receiver]


class CannotPair(Exception):
    """Two instances cannot work together. `words`: one sentence per reason."""

    def __init__(self, words: tuple[str, ...]) -> None:
        super().__init__("; ".join(words))
        self.words = words


_Key: TypeAlias = tuple[PartKind, str, int, str]


class _Held(NamedTuple):
    """A buffer that a rank has."""

    rank: int
    buffer: int
    spec: BufferSpec


def _buffers(layout: Layout) -> Iterator[tuple[_Key, int, BufferSpec]]:
    for i, spec in enumerate(layout.kv):
        yield (PartKind.KV, "", spec.layer, spec.role), i, spec
    for aux in layout.aux:
        yield (PartKind.AUX, aux.name, 0, ""), 0, _as_buffer(aux)
    for component in layout.state:
        for i, spec in enumerate(component.buffers):
            yield (PartKind.STATE, component.name, spec.layer, spec.role), i, spec


def _as_buffer(aux: AuxSpec) -> BufferSpec:
    return BufferSpec(0, "aux", aux.item_length, aux.dtype)


def _held_by(instance: Instance) -> dict[_Key, list[_Held]]:
    held: dict[_Key, list[_Held]] = {}
    for number, rank in enumerate(instance.ranks):
        for key, index, spec in _buffers(rank.layout):
            held.setdefault(key, []).append(_Held(number, index, spec))
    return held


@lru_cache(maxsize=64)
def pair_up(prefill: Instance, decode: Instance) -> Pairing:
    """Who of `prefill` sends what to whom of `decode`. Raises CannotPair with everything that does not fit."""
    words = _sides(prefill, decode)
    sending, receiving = _held_by(prefill), _held_by(decode)
    entries: dict[tuple[int, int], list[Entry]] = {}
    for key, wanted in receiving.items():
        holders = sending.get(key, [])
        if not holders:
            words.append(f"{_named(key)}: no prefill rank has it, decode rank {wanted[0].rank} does")
            continue
        groups = [holders] if key[0] is not PartKind.KV else _by_cp(prefill, holders)
        for group in groups:
            words += _deal(prefill, decode, key, group, wanted, entries)
    if words:
        raise CannotPair(tuple(dict.fromkeys(words)))
    return _pairing(len(prefill.ranks), len(decode.ranks), entries, decode.id)


def _named(key: _Key) -> str:
    kind, name, layer, role = key
    match kind:
        case PartKind.KV:
            return f"kv layer {layer} {role}"
        case PartKind.AUX:
            return f"aux {name!r}"
        case PartKind.STATE:  # pragma: no branch
            return f"state component {name!r} layer {layer} {role}"


def _by_cp(prefill: Instance, holders: list[_Held]) -> list[list[_Held]]:
    """The holders of a KV buffer, apart for each part of the prompt."""
    size = prefill.ranks[0].cp_size
    return [[held for held in holders if prefill.ranks[held.rank].cp_rank == i] for i in range(size)]


def _sides(prefill: Instance, decode: Instance) -> list[str]:
    """What is wrong with the instances as such."""
    words = []
    for name, side in (("prefill", prefill), ("decode", decode)):
        for field in ("page_size", "cp_size"):
            values = {getattr(rank.layout if field == "page_size" else rank, field) for rank in side.ranks}
            if len(values) > 1:
                words.append(f"{field}: the {name} ranks differ, they have {sorted(values)}")
    if any(rank.cp_size != 1 for rank in decode.ranks):
        words.append(f"cp_size: decode has {decode.ranks[0].cp_size}; only prefill may split a prompt's pages")
    words += _components(prefill, decode)
    return words


def _components(prefill: Instance, decode: Instance) -> list[str]:
    kinds = {component.name: component for rank in prefill.ranks for component in rank.layout.state}
    words = []
    for rank in decode.ranks:
        for component in rank.layout.state:
            other = kinds.get(component.name, component)
            where = f"state component {component.name!r}"
            if other.kind != component.kind:
                words.append(f"{where}: prefill's kind is {other.kind!r}, decode's {component.kind!r}")
            if other.owed is not component.owed:
                words.append(f"{where}: prefill owes it {other.owed.value}, decode {component.owed.value}")
    return words


def _deal(
    prefill: Instance,
    decode: Instance,
    key: _Key,
    holders: list[_Held],
    wanted: list[_Held],
    entries: dict[tuple[int, int], list[Entry]],
) -> list[str]:
    """Choose for each unit that a decode rank wants the prefill rank that sends it."""
    words = [
        difference
        for target in wanted
        for held in holders
        for difference in _misfits(key, held.spec, target.spec, prefill, decode)
    ]
    if words:
        return words
    for shard in range(len(wanted[0].spec.parts)):
        ranges = [(held, held.spec.parts[shard]) for held in (*holders, *wanted)]
        edges = sorted({edge for _, s in ranges for edge in (s.first, s.first + s.units)})
        for low, high in pairwise(edges):
            having = [held for held in holders if _owns(held.spec.parts[shard], low, high)]
            wanting = [held for held in wanted if _owns(held.spec.parts[shard], low, high)]
            if wanting and not having:
                words.append(f"{_named(key)}: no prefill rank has units {low} to {high - 1}")
                continue
            for i, target in enumerate(wanting):
                chosen = having[i * len(having) // len(wanting)]
                entry = Entry(key[0], key[1], chosen.buffer, target.buffer, shard, low, high)
                _append(entries.setdefault((chosen.rank, target.rank), []), entry)
    return words


def _append(entries: list[Entry], entry: Entry) -> None:
    """Add an entry; one that continues the last one is made one with it."""
    last = entries[-1] if entries else None
    alike = last is not None and last == msgspec.structs.replace(entry, first=last.first, stop=last.stop)
    if last is not None and alike and last.stop == entry.first:
        entries[-1] = msgspec.structs.replace(entry, first=last.first)
    else:
        entries.append(entry)


def _owns(shard: Shard, low: int, high: int) -> bool:
    return shard.first <= low and high <= shard.first + shard.units


def _misfits(key: _Key, ours: BufferSpec, theirs: BufferSpec, prefill: Instance, decode: Instance) -> list[str]:
    """Why two buffers of the same layer and role cannot exchange units."""
    where = _named(key)
    if ours.dtype != theirs.dtype:
        return [f"{where}: prefill's element type is {ours.dtype}, decode's {theirs.dtype}"]
    if len(ours.parts) != len(theirs.parts):
        return [f"{where}: prefill's items have {len(ours.parts)} shards, decode's {len(theirs.parts)}"]
    sizes = (prefill.ranks[0].layout.page_size, decode.ranks[0].layout.page_size)
    words = []
    for a, b in zip(ours.parts, theirs.parts, strict=True):
        for field in ("total", "unit_bytes"):
            mine, other = getattr(a, field), getattr(b, field)
            if mine != other:
                words.append(f"{where}: {field} is {mine} on prefill, {other} on decode")
        by_token = key[0] is PartKind.KV and (a.rows, b.rows) == sizes
        if not by_token and (a.rows != b.rows or (key[0] is PartKind.KV and sizes[0] != sizes[1])):
            words.append(
                f"{where}: rows are {a.rows} on prefill (pages of {sizes[0]} tokens) and {b.rows} on decode"
                f" (pages of {sizes[1]})"
            )
    return words


def _pairing(senders: int, receivers: int, entries: dict[tuple[int, int], list[Entry]], instance: int) -> Pairing:
    """Shares for the pairs that exchange something; a rank without any gets one pair with nothing in it."""
    pairs = dict(entries)
    for p in range(senders):
        if not any(pair[0] == p for pair in pairs):
            pairs[p, p * receivers // senders] = []
    for d in range(receivers):
        if not any(pair[1] == d for pair in pairs):
            pairs[d * senders // receivers, d] = []
    shares = {}
    for p, d in sorted(pairs):
        served = sorted(other for sender, other in pairs if sender == p)
        shares[p, d] = Share(instance, len(served), served.index(d), tuple(pairs[p, d]))
    return Pairing(shares)


def check_share(share: Share, sender: Layout, receiver: Layout) -> None:
    """Raise WireError, naming the entry, unless a peer's share speaks of buffers and units that both ranks have."""
    if share.receiver >= share.receivers:
        raise WireError("share.receiver", f"{share.receiver} of {share.receivers} receivers")
    ours, theirs = _numbered(sender), _numbered(receiver)
    for i, entry in enumerate(share.entries):
        a, b = ours.get((entry.kind, entry.name, entry.source)), theirs.get((entry.kind, entry.name, entry.target))
        if a is None or b is None:
            raise WireError(f"share.entries[{i}]", f"{entry} names a buffer that is not there")
        if a.layer != b.layer or a.role != b.role or entry.shard >= min(len(a.parts), len(b.parts)):
            raise WireError(f"share.entries[{i}]", f"{entry}: {a} and {b} are no pair")
        from_part, to_part = a.parts[entry.shard], b.parts[entry.shard]
        if from_part.unit_bytes != to_part.unit_bytes or a.dtype != b.dtype:
            raise WireError(f"share.entries[{i}]", f"{entry}: units of {a} have another size or element type")
        for shard in (from_part, to_part):
            if entry.first >= entry.stop or not _owns(shard, entry.first, entry.stop):
                end = shard.first + shard.units
                raise WireError(f"share.entries[{i}]", f"{entry}: the rank has units {shard.first} to {end - 1}")
    _check_once(share)


def _check_once(share: Share) -> None:
    """No byte is asked for twice."""
    places = sorted((e.kind.value, e.name, e.target, e.shard, e.first, e.stop, i) for i, e in enumerate(share.entries))
    for (*one, _, stop, _), (*other, first, _, i) in pairwise(places):
        if one == other and first < stop:
            raise WireError(f"share.entries[{i}]", f"{share.entries[i]} asks for units that another entry asks for")


def _numbered(layout: Layout) -> dict[tuple[PartKind, str, int], BufferSpec]:
    return {(key[0], key[1], index): spec for key, index, spec in _buffers(layout)}
