"""Mistakes in what engines do on a bad day: holds, turns, limits, draining, fences, and what callers are told."""

from __future__ import annotations

from ...protocol.events import Do, Timer
from ...protocol.failure import Reason
from ...protocol.status import Phase
from ...statemachine.table import arm, go
from .mutant import Mutant
from .plant import Cell, Constant, Text, Without

_FINAL = frozenset({Reason.HANDSHAKE_REFUSED, Reason.PROTOCOL, Reason.ABORTED, Reason.PEER_ABORTED})
_PREFILL = ("statemachine.rooms:PREFILL_ROOM", "_PREFILL")

WAITING = (
    Mutant(
        "hold-is-said-once",
        "prefill was asked to keep a room: it will, however long decode's queue is",
        Text("engine.holds:DecodeHolds._renew", "self.now + self.settings.hold_renew_s", "self.now + 1e6"),
        ("L2",),
    ),
    Mutant(
        "hold-renews-nothing",
        "a HOLD asks whether the room is still there; that somebody wants it is no reason to keep it longer",
        Text("engine.prefill_grants:PrefillGrants._hold", "self._step(record, Held())", "pass"),
        ("L2",),
    ),
    Mutant(
        "hold-renews-the-cap",
        "whoever asks to keep a room means all of its deadlines",
        Cell(*_PREFILL, "METADATA", "HELD", (go(Phase.METADATA, arm(Timer.BOOTSTRAP), arm(Timer.CAP)),)),
        ("L1",),
    ),
    Mutant(
        "hold-lost-is-not-told",
        "a room that has failed is not there: nothing is said of it to who holds it",
        Text("engine.prefill_grants:PrefillGrants._hold", "if record.failure is not None:", "if False:"),
        ("L3",),
    ),
    Mutant(
        "hold-lost-is-told-when-asked",
        "whoever holds a room asks for it again and again, and is told that it has failed when it does",
        Text("engine.prefill_core:PrefillCore._tell_failed", "self._tell_holders(record, failure)", "pass"),
        ("L3",),
    ),
    Mutant(
        "hold-outlives-its-connection",
        "who holds a room stays in its list while the room is open, connected or not",
        Text("engine.prefill_core:PrefillCore._void_all", "self._forget_holder(peer)", "pass"),
        ("C1",),
        only=True,
    ),
    Mutant(
        "hold-refused-in-silence",
        "a refused handshake fails the rooms that wait for it; a hold is no room",
        Text("engine.holds:DecodeHolds._refused", "for hold in list(link.holds):", "for hold in ():"),
        ("L3",),
        only=True,
    ),
    Mutant(
        "anybody-ends-a-hold",
        "a HOLD_LOST names the room: whose it is need not be asked",
        Text(
            "engine.holds:DecodeHolds._hold_lost", "if hold is not None and hold in link.holds:", "if hold is not None:"
        ),
        ("S5",),
        only=True,
    ),
    Mutant(
        "hold-alarm-stays",
        "a hold that is released is not in the table: its alarm finds nothing",
        Text("engine.holds:DecodeHolds.release", "self._timers.disarm(hold, Alarm.HOLD)", "pass"),
        ("C1",),
        only=True,
    ),
    Mutant(
        "open-keeps-the-hold",
        "a room that is opened is asked for: whoever held it releases the hold when it likes",
        Text("engine.decode:DecodeEngine.open", "is not None:", "is not None and held.lost:"),
        ("C1",),
        only=True,
    ),
    Mutant(
        "idle-says-nothing",
        "what was handed over has settled, and the caller computes: the transfer has begun, so it moves",
        Without(*_PREFILL, "KV", "IDLE", Do.ARM),
        ("L3",),
        only=True,
    ),
    Mutant(
        "idle-while-writes-fly",
        "when a write has settled it is the caller's turn",
        Text("engine.prefill_posting:PrefillPosting._idle_if_so", "and not any(map(_busy, record.writers))", ""),
        ("L3",),
        only=True,
    ),
    Mutant(
        "waiting-for-a-turn-is-moving",
        "a deadline is a deadline: why nothing has settled is not asked",
        Text("engine.prefill_core:PrefillCore._has_waited", "if since <= record.armed_at:", "if True:"),
        ("L4",),
        only=True,
    ),
    Mutant(
        "parked-for-ever",
        "a grant waits for its room as long as it takes",
        Text(
            "engine.prefill_grants:PrefillGrants._park",
            "self._timers.arm(writer, Alarm.PARKED,",
            "(writer, Alarm.PARKED,",
        ),
        ("L3", "C1"),
    ),
    Mutant(
        "refused-in-silence",
        "a grant that is refused is taken out of the tables, and that is all",
        Text(
            "engine.prefill_grants:PrefillGrants._refuse_grant",
            "self._reject(writer.peer, writer.number, Reason.REFUSED, detail)",
            "pass",
        ),
        ("L3",),
    ),
    Mutant(
        "any-number-may-wait",
        "a METADATA is small: there is a place for every one",
        Text("engine.parking:Parking.full", "return peer.parked", "return False and peer.parked"),
        ("C1",),
    ),
    Mutant(
        "one-peer-takes-all-places",
        "places to wait in are counted over all peers",
        Text("engine.parking:Parking.full", "peer.parked >= self._settings.parked_per_peer or", ""),
        ("L4",),
    ),
    Mutant(
        "one-peer-takes-all-bytes",
        "bytes in flight are bounded over all peers",
        Text(
            "engine.prefill_posting:PrefillPosting._may_post",
            "peer.posted_bytes + size <= self.settings.inflight_per_peer_bytes or not peer.posted_bytes",
            "True",
        ),
        ("L4",),
        only=True,
    ),
    Mutant(
        "failed-bytes-stay-in-flight",
        "the bytes of a write that has failed are not known to have arrived: they stay counted",
        Text(
            "engine.prefill_posting:PrefillPosting._take_in",
            "self._count_posted(writer, -piece.bytes)",
            "self._count_posted(writer, -piece.bytes if error is None else 0)",
        ),
        ("L4",),
        only=True,
    ),
    Mutant(
        "overloaded-keeps-the-key",
        "a room's key is taken before it is known whether there is a place for the room",
        Text(
            "engine.decode:DecodeEngine._admit",
            "self._check_room()\n        self._claims.take_key(key)",
            "self._claims.take_key(key)\n        self._check_room()",
        ),
        ("C1",),
        only=True,
    ),
    Mutant(
        "closed-rooms-take-places",
        "a room that is closed leaves the engine's tables, and stays in the set that rooms_max is held against",
        Text("engine.host:Engine.room_forgotten", "self._open_rooms.pop(room, None)", "pass"),
        ("C1", "C2"),
    ),
    Mutant(
        "freed-rooms-take-places",
        "a closed room whose memory was held counts against rooms_max, also when that is free again",
        Text("engine.host:Engine.room_freed", "self._unfree.pop(room, None)", "pass"),
        ("C1",),
        only=True,
    ),
    Mutant(
        "drain-leaves-rooms-open",
        "a drain waits for its rooms; those that are late are reported",
        Text("engine.host:Engine.drain", 'room.abort("the engine was drained", again=True)', "pass"),
        ("L1",),
        only=True,
    ),
    Mutant(
        "drain-takes-new-rooms",
        "draining is for the rooms that are there",
        Text("engine.host:Engine._check_room", "if self._draining:", "if False:"),
        ("L1",),
        only=True,
    ),
    Mutant(
        "drain-lets-grants-wait",
        "a drained engine treats a grant for a room that is not open as ever: it waits",
        Text("engine.prefill_grants:PrefillGrants._park", "if self.closing or self.draining:", "if self.closing:"),
        ("L3",),
        only=True,
    ),
    Mutant(
        "drain-forgets-who-waits",
        "grants that wait when an engine is drained are refused when their time is over",
        Text("engine.prefill_core:PrefillCore.drain", "for writer in self._parked.all():", "for writer in ():"),
        ("L3",),
        only=True,
    ),
    Mutant(
        "drained-is-free",
        "every room of a drained engine is over, so its memory is free",
        Text("engine.host:Engine.drain", "held = sum(", "held = 0 * sum("),
        ("S3",),
        only=True,
    ),
)
"""Who waits for whom, and for how long."""

TOLD = (
    Mutant(
        "fence-ends-the-living",
        "whoever has the name that was fenced is fenced",
        Text("engine.decode_links:DecodeLinks._fenced", "if peer.link is not None:", "if False:"),
        ("S3",),
        only=True,
    ),
    Mutant(
        "fence-outlives-signs-of-life",
        "a peer that was said to be fenced, and is heard of again, is fenced when it is silent next",
        Text(
            "engine.decode_links:DecodeLinks._proof", "link.last_heard <= peer.fenced_at and", "peer.fenced_at > 0 and"
        ),
        ("S3",),
        only=True,
    ),
    Mutant(
        "fence-counts-when-it-is-cut-off",
        "a connection that ends after the word ends a process that was fenced",
        Text("engine.decode_links:DecodeLinks._proof", "<= peer.fenced_at and silent", "<= peer.fenced_at"),
        ("S3",),
        only=True,
    ),
    Mutant(
        "fence-comes-too-early",
        "the word is for peers that have no connection any more",
        Text("engine.decode_links:DecodeLinks.fence", "peer.fenced_at = self.now", "pass"),
        ("L5",),
        only=True,
    ),
    Mutant(
        "fence-is-forgotten-with-its-connection",
        "a connection that ended too early to say whether the peer was silent says nothing",
        Text("engine.decode_links:DecodeLinks._lost", "and proof is None", "and False"),
        ("L5",),
        only=True,
    ),
    Mutant(
        "quarantine-is-nobodys-business",
        "memory that is held for long is held for a reason: health does not complain",
        Text("engine.health:judge", "longest_s > settings.quarantine_warn_s", "False"),
        ("L5",),
        only=True,
    ),
    Mutant(
        "quarantine-has-no-budget",
        "how much memory is held is a figure; only its age is a problem",
        Text("engine.health:judge", "if total > budget:", "if total > registered:"),
        ("L5",),
        only=True,
    ),
    Mutant(
        "quarantine-begins-with-the-engine",
        "when a lease came into quarantine is not kept: how long is told from the engine's own age",
        Text("engine.decode_core:DecodeCore._lease", "grant.quarantined_at = self.now", "pass"),
        ("L5",),
        only=True,
    ),
    Mutant(
        "ended-is-free",
        "the answer to an abort is that the room has ended, so that its memory may be used",
        Text("engine.handle:Room.memory_status", "if self.memory_free:", "if self._status.terminal:"),
        ("S3",),
        only=True,
    ),
    Mutant(
        "met-is-what-was-owed",
        "of pages a failed room says what it was to get",
        Text("engine.account:met", "_without(whole.kv, missing.kv)", "whole.kv"),
        ("S1",),
    ),
    Mutant(
        "met-aux-with-the-pages",
        "a failed room that was to get aux has got it",
        Text("engine.account:met", "bool(whole.aux) and not missing.aux", "bool(whole.aux)"),
        ("S1",),
        only=True,
    ),
    Mutant(
        "met-is-nothing",
        "a room that failed has failed: what it has got is not told",
        Text("engine.decode_core:DecodeCore._met", "if record.failure is None:", "if True:"),
        ("C2",),
        only=True,
    ),
    Mutant(
        "mismatch-may-be-tried-again",
        "only what was said to be final is final, and callers may have changed their minds",
        Constant("protocol.failure:_FINAL", _FINAL),
        ("C2",),
        only=True,
    ),
    Mutant(
        "abort-told-as-ones-own",
        "decode passes its caller's abort on as it is",
        Text(
            "engine.decode_core:DecodeCore._send_abort",
            "*(failure or Failure(Reason.PEER_ABORTED)).told",
            "failure.reason if failure else Reason.PEER_ABORTED, *(failure or Failure(Reason.PEER_ABORTED)).told[1:]",
        ),
        ("C2",),
        only=True,
    ),
    Mutant(
        "abort-for-now-is-for-good",
        "prefill's caller aborts and says that the request may come again; decode goes by the reason alone",
        Text(
            "engine.decode_core:DecodeCore._frame",
            "case wire.Failed(number, reason, detail, retryable):\n"
            "            self._peer_failed(peer, number, Failure.heard(reason, detail, retryable))",
            "case wire.Failed(number, reason, detail, _):\n"
            "            self._peer_failed(peer, number, Failure(reason, detail, 'peer'))",
        ),
        ("C2",),
        only=True,
    ),
    Mutant(
        "abort-for-now-is-passed-on-for-good",
        "the other way: prefill takes decode's abort by its reason alone",
        Text(
            "engine.prefill_grants:PrefillGrants._aborted",
            "Failure.heard(body.reason, body.detail, body.retryable)",
            "Failure(body.reason, body.detail, 'peer')",
        ),
        ("C2",),
        only=True,
    ),
    Mutant(
        "hold-lost-told-as-ones-own",
        "what has ended a room that decode holds is passed on as it is",
        Text(
            "engine.prefill_grants:PrefillGrants._tell_lost",
            "*failure.told",
            "failure.reason, *failure.told[1:]",
        ),
        ("C2", "L3"),
    ),
)
"""What callers and orchestrators are told."""

BADDAY = (*WAITING, *TOLD)
