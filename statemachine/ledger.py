"""Ledgers: which obligations of a room are met. Frozen, hashable, without time; the phase is read off them.

The decode ledger holds per sending rank what is still missing; the prefill ledger holds per receiving rank what has not
settled yet, beside what the caller has declared.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ..protocol.events import Accepted, Bound, Declared, Landed, Located, Settled
from ..protocol.intervals import Intervals, remove, span
from ..protocol.manifest import Declaration, Manifest, differences
from ..protocol.notify import PartKind
from ..protocol.shares import Covers
from ..protocol.status import Phase

# Named here because every step asks for them: Python 3.11 takes five times as long to find a member in its enum.
_METADATA, _KV, _AUX, _STATE, _DONE = Phase.METADATA, Phase.KV, Phase.AUX, Phase.STATE, Phase.DONE
_PART_KV, _PART_AUX = PartKind.KV, PartKind.AUX


class Missing(msgspec.Struct, frozen=True):
    """What one pair of ranks still owes: KV positions, aux (position 0), positions per component of the manifest."""

    kv: Intervals
    aux: Intervals
    state: tuple[Intervals, ...]

    def without(self, part: PartKind, component: int, start: int, stop: int) -> Missing:
        """What is missing after [start, stop) of a part; the very same object if nothing of it was missing."""
        if part is _PART_KV:
            kv = remove(self.kv, start, stop)
            return self if kv is self.kv else Missing(kv, self.aux, self.state)
        if part is _PART_AUX:
            aux = remove(self.aux, start, stop)
            return self if aux is self.aux else Missing(self.kv, aux, self.state)
        before = self.state[component]
        after = remove(before, start, stop)
        if after is before:
            return self
        state = (*self.state[:component], after, *self.state[component + 1 :])
        return Missing(self.kv, self.aux, state)


def owed(manifest: Manifest) -> Missing:
    """Everything in a manifest, still missing."""
    return Missing(manifest.kv, span(0, 1 if manifest.aux else 0), tuple([span(0, n) for _, n in manifest.state]))


def within(manifest: Manifest, part: PartKind, component: int, start: int, stop: int) -> bool:
    """Whether [start, stop) of a part lies inside what the manifest owes."""
    if part is _PART_KV:
        return any(a <= start and stop <= b for a, b in manifest.kv)
    if part is _PART_AUX:
        return bool(manifest.aux) and (start, stop) == (0, 1)
    return component < len(manifest.state) and stop <= manifest.state[component][1]


class Sender(msgspec.Struct, frozen=True):
    """decode's view of one sending rank: has it accepted the grant, and what is missing from it."""

    accepted: bool
    missing: Missing


class DecodeLedger(msgspec.Struct, frozen=True):
    """What decode still waits for, per sending rank; none: it is not known yet which ranks send."""

    senders: tuple[Sender, ...]

    @property
    def open_phase(self) -> Phase:
        """The first kind of obligation that is still open; DONE when none is."""
        phase = _DONE if self.senders else _METADATA
        for sender in self.senders:
            if not sender.accepted:
                return _METADATA
            phase = _earlier(phase, sender.missing)
        return phase

    def apply(self, event: Located | Accepted | Landed) -> DecodeLedger:
        """The ledger after an event; the very same object if it says nothing new."""
        if type(event) is Located:
            return self if self.senders else decode_ledger(event.manifests)
        if event.sender >= len(self.senders):
            return self  # a rank that is not waited for
        sender = self.senders[event.sender]
        missing = sender.missing
        if type(event) is Landed:  # a valid notification shows that the grant was accepted
            missing = missing.without(event.part, event.component, event.start, event.stop)
        if sender.accepted and missing is sender.missing:
            return self
        new = Sender(accepted=True, missing=missing)
        i = event.sender
        return DecodeLedger((*self.senders[:i], new, *self.senders[i + 1 :]))


def decode_ledger(manifests: tuple[Manifest, ...]) -> DecodeLedger:
    """The ledger of a room that is being opened on decode: one manifest per sending rank."""
    return DecodeLedger(tuple([Sender(accepted=False, missing=owed(manifest)) for manifest in manifests]))


class Receiver(msgspec.Struct, frozen=True):
    """prefill's view of one receiving rank: what it wants, and which writes have not settled yet.

    covers: what this pair of ranks is for; None: everything.
    """

    wanted: Manifest
    missing: Missing
    covers: Covers | None = None


class PrefillLedger(msgspec.Struct, frozen=True):
    """What prefill has declared, and per receiving rank (None: no METADATA yet) what has not settled."""

    declared: Declaration
    receivers: tuple[Receiver | None, ...]

    @property
    def disagreement(self) -> tuple[str, ...]:
        """The differences between what is declared and what bound ranks expect, in words."""
        words: tuple[str, ...] = ()
        for receiver in self.receivers:
            if receiver is not None:
                words += differences(self.declared, receiver.wanted, receiver.covers)
        return words

    @property
    def open_phase(self) -> Phase:
        """The first kind of obligation that is still open; an undeclared item is open. DONE when none is."""
        phase = _DONE
        for receiver in self.receivers:
            if receiver is None:
                return _METADATA
            phase = _earlier(phase, receiver.missing)
        declared = self.declared
        if phase is _KV or declared.pages is None:
            return _KV
        if phase is _AUX or declared.aux is None:
            return _AUX
        return _STATE if declared.state is None else phase

    def apply(self, event: Bound | Declared | Settled) -> PrefillLedger:
        """The ledger after an event; the very same object if it says nothing new."""
        if type(event) is Declared:
            new, old = event.declaration, self.declared
            merged = Declaration(
                old.pages if new.pages is None else new.pages,
                old.aux if new.aux is None else new.aux,
                old.state if new.state is None else new.state,
            )
            return self if merged == old else PrefillLedger(merged, self.receivers)
        i = event.receiver
        if type(event) is Bound:
            receivers = self.receivers if any(self.receivers) or not event.receivers else (None,) * event.receivers
            if receivers[i] is not None:
                return self
            bound = Receiver(event.manifest, owed(event.manifest), event.covers)
            return PrefillLedger(self.declared, (*receivers[:i], bound, *receivers[i + 1 :]))
        receiver = self.receivers[i] if i < len(self.receivers) else None
        if receiver is None:
            return self
        missing = receiver.missing.without(event.part, event.component, event.start, event.stop)
        if missing is receiver.missing:
            return self
        left = Receiver(receiver.wanted, missing, receiver.covers)
        return PrefillLedger(self.declared, (*self.receivers[:i], left, *self.receivers[i + 1 :]))


def prefill_ledger(receivers: int = 1) -> PrefillLedger:
    """The ledger of a room that is being opened on prefill, for so many receiving ranks: the first METADATA tells."""
    return PrefillLedger(Declaration(), (None,) * receivers)


Ledger: TypeAlias = DecodeLedger | PrefillLedger
_ORDER = {_KV: 0, _AUX: 1, _STATE: 2, _DONE: 3}


def _earlier(phase: Phase, missing: Missing) -> Phase:
    """The earlier of `phase` and the first phase that `missing` leaves open."""
    if missing.kv:
        return _KV
    if missing.aux:
        return _AUX if _ORDER[phase] > _ORDER[_AUX] else phase
    if any(missing.state):
        return _STATE if phase is _DONE else phase
    return phase
