"""Mistakes in the cores of both engines."""

from __future__ import annotations

from ...transport.ports import CloseCause
from .mutant import Mutant
from .plant import Constant, Text

_HEARTBEAT = (CloseCause.PEER_CLOSED, CloseCause.RESET, CloseCause.LOCAL)
_TIMED_OUT = (CloseCause.PEER_CLOSED, CloseCause.RESET, CloseCause.TIMED_OUT)

ENGINE = (
    Mutant(
        "second-indices-overwrite-the-first",
        "indices of a later send are paired with the first ones that decode asked for",
        Text(
            "engine.sends:transfers",
            "wanted.state[component][at : at + len(indices)]",
            "wanted.state[component][: len(indices)]",
        ),
        ("S1",),
    ),
    Mutant(
        "counts-from-the-chunk",
        "positions of a send are counted from where decode begins, not from where the send does",
        Text("engine.sends:transfers", "send.pages[low - first : high - first]", "send.pages[: high - low]"),
        ("S1",),
        also=("simulate",),
    ),
    Mutant(
        "too-much-is-seen-late",
        "pages beyond what decode expects are compared with the last send only",
        Text("engine.prefill_core:PrefillCore._declare", "declaration.pages is None and pages > wanted.pages", "False"),
        ("A1",),
        only=True,
    ),
    Mutant(
        "what-was-sent-before-is-not-compared",
        "what was sent before METADATA came is compared with the last send only",
        Text(
            "engine.prefill_grants:PrefillGrants._bind",
            "if record.sends and record.sends[-1].declaration == Declaration() and",
            "if False and",
        ),
        ("A1",),
        only=True,
    ),
    Mutant(
        "older-grant-wins",
        "the METADATA that comes last is the one that counts",
        Text("engine.prefill_grants:PrefillGrants._place", "if bound.number > writer.number:", "if False:"),
        ("S4",),
        only=True,
    ),
    Mutant(
        "strangers-may-supersede",
        "whoever asks for a room last gets it",
        Text("engine.prefill_grants:PrefillGrants._place", "if stranger is not None:", "if False:"),
        ("S5",),
        only=True,
    ),
    Mutant(
        "done-answers-for-the-next-life",
        "a room that is DONE and not closed answers a METADATA for its next life",
        Text(
            "engine.prefill_grants:PrefillGrants._place",
            "if record is None or record.room.phase is Phase.DONE:",
            "if record is None:",
        ),
        ("S4",),
        only=True,
    ),
    Mutant(
        "over-is-not-refused",
        "a METADATA is checked against the grants that are live, not against those that are over",
        Text(
            "engine.prefill_grants:PrefillGrants._metadata",
            "if number in peer.drains or peer.book.verdict(number) is Verdict.OVER:",
            "if number in peer.drains:",
        ),
        ("S4", "S3"),
    ),
    Mutant(
        "acknowledged-without-voiding",
        "an unknown grant is acknowledged: there is nothing to void",
        Text("engine.prefill_grants:PrefillGrants._aborted", "self._over(peer, body.grant)", "pass"),
        ("S3", "S4"),
    ),
    Mutant(
        "void-forgotten-at-cleanup",
        "a grant that has drained is taken out of the tables and not remembered as over",
        Text("engine.prefill_core:PrefillCore._drained", "self._over(peer, writer.number)", "pass"),
        ("S4",),
    ),
    Mutant(
        "floor-from-a-stale-frame",
        "the floor is what the latest frame says, also if an earlier one said more",
        Text("engine.grants:GrantBook.raise_floor", "if floor > self.floor:", "if floor != self.floor:"),
        ("S4",),
    ),
    Mutant(
        "doubtful-write-acknowledged",
        "a write that failed has failed: its grant can be acknowledged",
        Text("engine.prefill_grants:PrefillGrants._acknowledge", "and number not in peer.doubtful", ""),
        ("S3",),
        only=True,
    ),
    Mutant(
        "goodbye-forgets-doubtful-writes",
        "GOODBYE lists the grants with writes in flight, not those with failed ones",
        Text("engine.prefill_links:PrefillLinks._undrained_of", "(*peer.drains, *peer.doubtful)", "tuple(peer.drains)"),
        ("S3",),
        only=True,
    ),
    Mutant(
        "connection-closed-over-writes-in-flight",
        "a connection that is given up is closed, whatever is in flight",
        Text("engine.prefill_links:PrefillLinks._let_go", "(peer.drains or peer.doubtful) and not peer.gone", "False"),
        ("S3",),
    ),
    Mutant(
        "leaves-without-goodbye",
        "a connection to a silent peer is closed without a word: it does not listen",
        Text("engine.core:EngineCore._drop", "if link.up:", "if link.up and self.closing:"),
        ("S3",),
    ),
    Mutant(
        "source-free-when-the-room-ends",
        "a room that has ended sends nothing more: its source is the caller's",
        Text("engine.prefill_core:PrefillCore._maybe_freed", "and not record.writers and", "and"),
        ("S3",),
        also=("simulate",),
    ),
    Mutant(
        "void-still-posts",
        "what was queued for a grant is posted, also when it is void meanwhile",
        Text("engine.prefill_core:PrefillCore._drain", "self._withdraw(writer)", "pass"),
        ("S3", "C2"),
    ),
    Mutant(
        "parked-alarm-stays-armed",
        "a grant that waited and was bound is refused when its waiting time is over",
        Text(
            "engine.prefill_grants:PrefillGrants._unpark",
            "if self._parked.remove(writer):",
            "if self._parked.remove(writer) and writer.drain.posted:",
        ),
        ("S3", "C1"),
    ),
    Mutant(
        "parked-place-is-lost",
        "a place to wait in is not given back to its peer",
        Text("engine.parking:Parking.remove", "writer.peer.parked -= 1", "pass"),
        ("L4",),
        only=True,
    ),
    Mutant(
        "stuck-peer-blocks-the-queue",
        "when the next piece cannot be posted, posting stops for now",
        Text(
            "engine.prefill_posting:PrefillPosting._work",
            "self._set_aside(writer)\n            continue",
            "self._ready[writer] = None\n            self._ready.move_to_end(writer, last=False)\n            break",
        ),
        ("L4",),
    ),
    Mutant(
        "handshake-refused-in-silence",
        "rooms that wait for a refused handshake are left to their deadline",
        Text(
            "engine.decode_links:DecodeLinks._refused",
            "for source in link.sources:\n        self._give_up(source, failure)",
            "_ = failure",
        ),
        ("L3",),
        only=True,
    ),
    Mutant(
        "second-names-stay-behind",
        "a link that another takes in leaves behind the names that it had taken in itself",
        Text(
            "engine.decode_links:DecodeLinks._share",
            "{target: other for target, one in self._by_target.items() if one is link}",
            "{link.target: other}",
        ),
        ("S3",),
    ),
    Mutant(
        "lost-without-proof-goes-on",
        "only a proof of death fails the rooms of a lost connection",
        Text(
            "engine.decode_links:DecodeLinks._lost",
            "self._fail(grant.record, On.PEER_LOST, failure)",
            "_ = self._fail(grant.record, On.PEER_LOST, failure) if proof is not None else None",
        ),
        ("L3",),
    ),
    Mutant(
        "earlier-deadline-comes-late",
        "a deadline is only ever moved later",
        Text("engine.timers:Timers.arm", "if deadline >= entry[0]:", "if True:"),
        ("L3",),
        only=True,
    ),
    Mutant(
        "moving-deadline-is-the-cap",
        "a transfer that has begun is given all the time a room has",
        Text("engine.decode_core:DecodeCore._arm", "settings.moving_timeout_s", "settings.cap_timeout_s"),
        ("L3",),
        only=True,
    ),
    Mutant(
        "deadline-does-not-name-state",
        "a failure names the pages and aux that were open, and no state",
        Text("engine.account:open_words", "if gaps:", "if gaps and not missing.kv:"),
        ("L3",),
        only=True,
    ),
    Mutant(
        "heartbeat-proves-death",
        "a peer that we have given up for its silence is dead",
        Constant("engine.decode_links:_PROOFS", _HEARTBEAT),
        ("S3",),
    ),
    Mutant(
        "timeout-proves-death",
        "a connection that timed out had a dead process at its end",
        Constant("engine.decode_links:_PROOFS", _TIMED_OUT),
        ("S3",),
    ),
    Mutant(
        "goodbye-and-closed-is-dead",
        "the peer's kernel closed the connection: its process is gone, whatever it said before",
        Text(
            "engine.decode_links:DecodeLinks._proof",
            "if cause in _PROOFS and not link.goodbye:",
            "if cause in _PROOFS:",
        ),
        ("S3",),
    ),
    Mutant(
        "goodbye-promises-everything",
        "GOODBYE acknowledges every grant, also those that it lists",
        Text("engine.decode_links:DecodeLinks._left", "if grant.number not in undrained:", "if True:"),
        ("S3",),
        only=True,
    ),
    Mutant(
        "any-name-may-report",
        "whoever knows the token of a grant may report for it",
        Text("engine.decode_arrivals:DecodeArrivals._arrival", " or grant.peer.agent != agent:", ":"),
        ("S5",),
        only=True,
    ),
    Mutant(
        "reports-are-not-bounded",
        "a notification may report any positions: those that are not owed are ignored",
        Text(
            "engine.decode_arrivals:DecodeArrivals._arrival",
            "if not within(grant.manifest, kind, component, first, first + size):",
            "if component >= max(len(grant.manifest.state), 1):",
        ),
        ("S5",),
        only=True,
    ),
    Mutant(
        "agent-name-not-compared",
        "a HELLO may name any agent as its own",
        Text(
            "engine.prefill_links:PrefillLinks._admit",
            "if source == 0 or hello.agent != agent_name(source):",
            "if source == 0:",
        ),
        ("S5",),
        only=True,
    ),
    Mutant(
        "incarnations-not-compared",
        "the connection says who speaks: the incarnation in the frame is not looked at",
        Text(
            "engine.core:EngineCore._frame_in",
            "if link.up and (received.source != link.incarnation or received.target != self.incarnation):",
            "if False:",
        ),
        ("S4",),
        only=True,
    ),
    Mutant(
        "released-grant-stays-in-the-queue",
        "a room that was aborted before its METADATA could be sent is asked for all the same",
        Text("engine.decode_core:DecodeCore._free", "link.held.pop(grant, None)", "pass"),
        ("S4",),
    ),
    Mutant(
        "token-stays",
        "the token of a room that has ended stays in its table",
        Text("engine.decode_core:DecodeCore._step", "self._by_token.pop(grant.token, None)", "pass"),
        ("C1",),
        only=True,
        also=("simulate",),
    ),
    Mutant(
        "cap-stays-armed",
        "the cap of a room that has ended stays armed: it does no harm",
        Text("engine.decode_core:DecodeCore._carry_out", "self._timers.disarm(record, Alarm.CAP)", "pass"),
        ("C1",),
        only=True,
    ),
    Mutant(
        "released-grant-stays-with-its-peer",
        "a grant that is released stays in the table of its peer",
        Text("engine.decode_core:DecodeCore._free", "peer.grants.pop(grant.number, None)", "pass"),
        ("C1",),
    ),
    Mutant(
        "dead-peer-stays",
        "a decode engine that is proven dead is remembered for the case that it comes back",
        Text("engine.prefill_links:PrefillLinks._retire", "self._peers.pop(peer.incarnation, None)", "pass"),
        ("C1",),
        only=True,
    ),
    Mutant(
        "cause-told-as-ones-own",
        "an abort is passed on as it is: to the other side it looks like its own",
        Text("engine.prefill_core:PrefillCore._tell_failed", "*failure.told", "failure.reason, *failure.told[1:]"),
        ("C2",),
        only=True,
    ),
)
