"""Probes of memory, which goes back last (S3)."""

from __future__ import annotations

from typing import Any

from ...engine.settings import EngineSettings
from ...protocol import wire
from ...protocol.errors import InvalidArgument, UncertainWrite
from ...protocol.failure import Reason
from ...protocol.status import Status
from ...transport.ports import CloseCause
from .hand import HandDecode, HandPrefill
from .probe import Play, probe
from .stage import FREED, SPENT, UNTOUCHED, Broken, Room, Shape, Stage

SWA = Shape(indexed=1)


# -- S3: memory goes back last -----------------------------------------------------------------------------------------


def _reuse(stage: Stage, receiver: Room | None, sender: Room | None) -> None:
    """What is said to be free is used again at once; nothing may change it, and nothing of it may be read."""
    used: set[str] = set()
    targets, sources = stage.decodes[0].pool, stage.prefills[0].pool

    def look() -> None:
        if receiver is not None and receiver.poll() is Status.FAILED and receiver.memory_free and "target" not in used:
            used.add("target")
            stage.note("decode caller", "state", "uses the free pages 8, 2, 5 for something else")
            targets.fill("kv", [8, 2, 5], FREED)
        if sender is not None and sender.memory_free and "source" not in used:
            used.add("source")
            stage.note("prefill caller", "state", "uses the free pages 3, 9, 4 for something else")
            sources.fill("kv", [3, 9, 4], SPENT)
        if "target" in used and not targets.holds("kv", [8, 2, 5], FREED):
            raise Broken("pages that were said to be free on decode were written to afterwards")
        if "source" in used and any(bool((buffer == SPENT).any()) for buffer in targets.parts["kv"]):
            raise Broken("pages that were said to be free on prefill were sent afterwards")

    stage.watchers.append(look)


def in_flight(play: Play, **options: Any) -> tuple[Stage, Any, Any]:
    """A room whose writes are posted and do not land; what is free is used again."""
    stage = play.scene(**options)
    stage.world.writes_held = True
    stage.fault("no write lands")
    receiver, sender = stage.pair()
    stage.settle()
    _reuse(stage, receiver, sender)
    return stage, receiver, sender


def land(stage: Stage) -> None:
    """Let the writes that are in flight land."""
    stage.fault("the writes land at last")
    stage.world.writes_held = False
    stage.settle()


@probe("S3", seeds=3)
def no_range_goes_back_with_a_write_in_flight(play: Play) -> None:
    """Either side aborts, or closes, or both; for as long as it takes; then the writes land."""
    slow = EngineSettings(piece_bytes=32, inflight_per_peer_bytes=32)
    for how in ("decode aborts", "prefill aborts", "both close"):
        for wait, settings in ((0.0, None), (0.0, slow), (40.0, None)):
            stage, receiver, sender = in_flight(play, settings=settings)
            stage.note("callers", "call", how)
            if how == "both close":
                receiver.close()
                sender.close()
            else:
                (receiver if how == "decode aborts" else sender).abort()
            stage.settle()
            stage.pass_time(wait)
            land(stage)


@probe("S3", seeds=2)
def the_end_of_a_connection_is_no_proof(play: Play) -> None:
    """It timed out, or we closed it ourselves: the writer lives, and its writes land."""
    for what in ("the network timed out", "prefill stands still", "decode stands still", "decode does not read"):
        stage, *_ = in_flight(play, settings=EngineSettings(heartbeat_timeout_s=2.0))
        stage.fault(what)
        if what == "the network timed out":
            stage.decodes[0].ports.channel.cut(CloseCause.TIMED_OUT)
            stage.settle()
        elif what == "decode does not read":
            channel = stage.prefills[0].ports.channel
            channel.jam(channel.connections[0])
            stage.settle()
        else:
            who = what.split()[0]
            stage.world.stall(who)
            stage.pass_time(8.0)
            stage.world.stall(who, stalled=False)
        stage.pass_time(3.0)
        land(stage)


@probe("S3", seeds=2)
def a_goodbye_promises_only_what_is_drained(play: Play) -> None:
    """An engine closes with writes in flight: it says so, and the end of its connection is no death."""
    stage = play.scene()
    hand = HandPrefill(stage)
    receiver = stage.receive(instance=hand.name)
    hand.welcome()
    grant = hand.grant()
    hand.say(wire.Accept(grant.grant), wire.Goodbye((grant.grant,)))
    if receiver.memory_free:
        raise Broken("prefill said GOODBYE and named a grant that may still be written, and its pages are free")
    hand.channel.close(hand.connection)
    stage.settle()
    if receiver.memory_free:
        raise Broken("a connection that ended after a GOODBYE was taken for the death of the writer")


@probe("S3", seeds=2)
def a_failed_write_is_never_acknowledged(play: Play) -> None:
    """A write that failed when it was started lands later, whatever was said meanwhile."""
    for how in ("abort", "silence"):
        stage = play.scene(settings=EngineSettings(heartbeat_timeout_s=2.0))
        receiver, sender = stage.receive(), stage.offer()
        stage.settle()
        port = stage.prefills[0].ports.transport
        stage.world.writes_held = True
        _uncertain(port)
        _reuse(stage, receiver, None)
        stage.fault("the write fails, and is under way all the same", "prefill")
        stage.send(sender, [3, 9, 4], last=True)
        stage.settle()
        if how == "silence":
            stage.fault("stands still", "decode")
            stage.world.stall("decode")
            stage.pass_time(8.0)
            stage.world.stall("decode", stalled=False)
        stage.pass_time(4.0)
        land(stage)


def _uncertain(port: Any) -> None:
    """Let posts start a write, and say that they failed."""
    post, settled = port.post, port.settled
    hidden: set[int] = set()

    def failing(agent: str, piece: object, notification: bytes) -> None:
        hidden.add(post(agent, piece, notification))
        raise UncertainWrite("the write failed when it was started")

    port.post = failing
    port.settled = lambda: [one for one in settled() if one.handle not in hidden]


@probe("S3", seeds=1)
def a_page_has_one_owner(play: Play) -> None:
    """Pages and slots of a room whose memory is not free are not given to another, however many they are."""
    for pages in ([8, 2, 5], list(range(40))):
        stage = play.scene(SWA, pages=40)
        stage.world.writes_held = True
        receiver, sender = stage.receive(pages=pages, state_indices=[[2]]), stage.offer()
        stage.send(sender, pages, [[1]], last=True)
        stage.settle()
        stage.abort(receiver)
        stage.settle()
        cases: tuple[dict[str, Any], ...] = (
            {"pages": [pages[-1]], "aux_index": None},
            {"pages": pages, "aux_index": None},
            {"pages": [], "aux_index": 3},
            {"pages": [], "aux_index": None, "state_indices": [[2]]},
        )
        for options in cases:
            try:
                stage.receive(8, **options)
            except InvalidArgument:
                continue
            raise Broken(f"{options} was given to another room while {receiver!r} may still be written")


@probe("S3", seeds=4)
def nothing_is_written_after_an_acknowledgement(play: Play) -> None:
    """METADATA comes after its own ABORT, or again after it: the acknowledgement stands, and nothing is written."""
    for order in (("abort", "metadata"), ("metadata", "abort", "metadata")):
        stage = play.scene()
        hand = HandDecode(stage)
        for what in order:
            hand.say(hand.metadata() if what == "metadata" else wire.Abort(1, Reason.PEER_ABORTED, "", retryable=False))
        acknowledged = wire.Ack(1) in hand.heard(wire.Ack)
        hand.pool.fill("kv", [8, 2, 5], UNTOUCHED)
        sender = stage.offer()
        stage.send(sender, [3, 9, 4], last=True)
        stage.settle()
        if acknowledged and any(hand.written("kv", page) for page in (8, 2, 5)):
            raise Broken("a grant was acknowledged, and written to afterwards", order=" ".join(order))


@probe("S3", seeds=1)
def a_long_wait_is_no_reason_to_refuse_a_bound_grant(play: Play) -> None:
    """A METADATA waited for its room, was bound, and its writes are slow: nothing says later that it waits in vain."""
    stage = play.scene(settings=EngineSettings(parked_ttl_s=5.0))
    stage.world.writes_held = True
    receiver = stage.receive()
    stage.settle()
    sender = stage.offer()
    stage.send(sender, [3, 9, 4], last=True)
    stage.settle()
    _reuse(stage, receiver, None)
    stage.pass_time(12.0)
    land(stage)
