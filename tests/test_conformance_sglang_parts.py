"""The parts of SGLang's driver that need no process: the pipe, the taps, the rooms and the memory."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import numpy as np
import pytest

from kvrooms.harness.conformance.sglang.memory import Memory
from kvrooms.harness.conformance.sglang.pipe import pack_indices, receive_frame, send_frame, unpack_indices
from kvrooms.harness.conformance.sglang.rooms import FAILED, SUCCESS, TRANSFERRING, WAITING, DecodeRoom, PrefillRoom
from kvrooms.harness.conformance.sglang.taps import Taps, describe
from kvrooms.harness.conformance.subject import ABSENT, ComponentShape, Shape

SHAPE = Shape(64, 8, 8, 16, 2, 2, (ComponentShape("window", "when_indexed", 8, 4, 4),))
PLAIN = SHAPE._asdict() | {"state": [part._asdict() for part in SHAPE.state]}


# -- pipe --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [ABSENT, None, [], [[]], [None], [[3, 5], None], [np.array([3, 5], dtype=np.int32)]])
def test_indices_cross_as_they_are_spelled(value):
    found = unpack_indices(pack_indices(value))
    assert type(found) is type(value)
    assert repr(found) == repr(value)


@pytest.mark.parametrize("value", [(3,), {"window": [3]}, iter([1]), "3"])
def test_spellings_that_sglang_does_not_take_are_refused(value):
    with pytest.raises(TypeError, match=type(value).__name__):
        pack_indices(value)


def test_frames_end_with_the_stream():
    here, there = socket.socketpair()
    with here, there:
        send_frame(here, {"do": "poll"})
        assert receive_frame(there) == {"do": "poll"}
        here.close()
        assert receive_frame(there) is None


# -- taps --------------------------------------------------------------------------------------------------------------


class FakeAgent:
    def __init__(self):
        self.posted = []

    def initialize_xfer(self, operation, local, remote, peer, notification=b""):
        return [notification]

    make_prepped_xfer = initialize_xfer

    def transfer(self, handle):
        self.posted.append(handle)
        return "PROC"

    def check_xfer_state(self, handle):
        assert handle in self.posted, "NIXL raises if it is asked about a write that was never posted"
        return "DONE"

    def get_new_notifs(self):
        return {"peer": [b"1_aux"]}


@pytest.fixture
def tapped():
    taps = Taps("decode")
    agent_class = type("Agent", (FakeAgent,), {})
    taps.on_nixl(agent_class)
    return taps, agent_class()


def test_a_held_write_is_posted_late_and_looks_in_progress(tapped):
    taps, agent = tapped
    handle = agent.initialize_xfer("WRITE", [], [], "peer", b"1_aux")
    taps.hold(held=True)
    assert agent.transfer(handle) == "PROC"
    assert agent.check_xfer_state(handle) == "PROC"
    assert agent.posted == []
    taps.hold(held=False)
    assert agent.posted == [handle]
    assert agent.check_xfer_state(handle) == "DONE"
    assert [kind for _, kind, _, _ in taps.drain()] == ["write", "state"]
    assert taps.drain() == []


def test_a_failing_write_raises_what_nixl_raises(tapped):
    taps, agent = tapped
    taps.failing = True
    with pytest.raises(Exception, match="NIXL_ERR_BACKEND"):
        agent.transfer(agent.initialize_xfer("WRITE", [], [], "peer"))
    taps.failing = False
    agent.transfer(agent.initialize_xfer("WRITE", [], [], "peer"))
    assert len(agent.posted) == 1


def test_a_lost_message_is_noted_and_not_sent():
    sent = []
    socket_class = type("Socket", (), {"send_multipart": lambda self, parts: sent.append(parts)})
    taps = Taps("prefill")
    taps.on_zmq(socket_class)
    taps.losing = True
    socket_class().send_multipart([b"ABORT", b"7"])
    taps.losing = False
    socket_class().send_multipart([b"ABORT", b"8"])
    assert sent == [[b"ABORT", b"8"]]
    assert [text for _, _, _, text in taps.drain()] == ["ABORT, room 7 (lost)", "ABORT, room 8"]
    assert list(taps.sayings) == ["ABORT"]


@pytest.mark.parametrize(
    ("frames", "kind", "text"),
    [
        ([b"NixlMsgGuard", b"None", *[b""] * 10], "", "registers its memory"),
        (
            [b"NixlMsgGuard", b"7", b"", b"", b"", bytes(8), b"3", b"1", b""],
            "METADATA",
            "2 pages, aux slot 3, state frame empty",
        ),
        ([b"KV_STATUS", b"7", b"0", b"0", b"why"], "KV_STATUS", "room 7: Failed (why)"),
        ([b"\xff\x00"], "", "1 parts"),
        ([b""], "", "1 parts"),
    ],
)
def test_messages_are_told_in_words(frames, kind, text):
    assert describe(frames)[0] == kind
    assert text in describe(frames)[1]


# -- rooms -------------------------------------------------------------------------------------------------------------


class FakeEnd:
    """A sender or a receiver whose status the test sets."""

    def __init__(self, manager, address, number, ranks=None, rank=0):
        self.status, self.calls = 1, []
        manager.end = self

    def poll(self):
        return self.status

    def __getattr__(self, name):
        def call(*arguments, **named):
            self.calls.append((name, *[a.tolist() if isinstance(a, np.ndarray) else a for a in arguments], named))

        return call


FAKE_CONN = SimpleNamespace(NixlKVSender=FakeEnd, NixlKVReceiver=FakeEnd)


def prefill_room(pages):
    manager, memory = SimpleNamespace(), Memory("prefill", PLAIN)
    room = PrefillRoom(FAKE_CONN, manager, memory, "", {"number": 7, "pages": pages, "aux_index": 1})
    return room, manager.end, memory


def sends(end):
    return [call[1:-1] for call in end.calls if call[0] == "send"]


def test_sends_wait_for_the_room_to_leave_bootstrapping():
    room, end, memory = prefill_room([1, 2, 3])
    room.send([1], ABSENT, last=False)
    room.send([2, 3], [[]], last=True)
    assert end.calls == []
    end.status = WAITING
    room.poll()
    assert [call[0] for call in end.calls] == ["pop_decode_prefix_len", "init", "send", "send"]
    assert sends(end) == [([1],), ([2, 3], [[]])]
    assert memory.marked(1) == 7


def test_the_pages_that_complete_the_room_wait_for_the_last_send():
    room, end, _ = prefill_room([1, 2])
    end.status = WAITING
    room.send([1, 2], ABSENT, last=False)
    assert sends(end) == []
    room.send([], None, last=True)
    assert sends(end) == [([1, 2], None)]


def decode_room(known=True, number=7):
    memory = Memory("decode", PLAIN)
    manager = SimpleNamespace(try_ensure_parallel_info=lambda address: known)
    room = DecodeRoom(FAKE_CONN, manager, memory, "", {"number": number, "pages": [4], "aux_index": 0}, ABSENT)
    return room, manager.end, memory


def test_success_counts_once_the_aux_slot_names_the_room():
    room, end, memory = decode_room()
    end.status = SUCCESS
    assert room.poll() == TRANSFERRING
    assert room.belief()["waiting"] == "its aux slot"
    memory.mark(0, 7)
    assert room.poll() == SUCCESS
    memory.mark(0, 9)
    assert room.poll() == SUCCESS


def test_another_rooms_aux_is_the_end_of_the_room():
    room, end, memory = decode_room()
    end.status = SUCCESS
    memory.mark(0, 9)
    assert room.poll() == FAILED
    assert "room 9" in room.corrupt


def test_state_that_was_not_given_is_not_passed_on():
    room, end, _ = decode_room()
    end.status = WAITING
    room.poll()
    room.poll()
    [(_, pages, aux, named)] = [call for call in end.calls if call[0] == "send_metadata"]
    assert (pages, aux, named) == ([4], 0, {"decode_prefix_len": 0})


def test_a_room_that_has_ended_is_not_aborted():
    room, end, _ = prefill_room([1])
    end.status = SUCCESS
    room.abort()
    assert end.calls == []
    end.status = WAITING
    room.abort()
    assert end.calls[-1][0] == "abort"


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page_bytes", "buffers", "mla"), [(64, 4, False), (66, 2, False), (63, 1, True)])
def test_pages_are_split_as_a_model_splits_them(page_bytes, buffers, mla):
    memory = Memory("decode", PLAIN | {"page_bytes": page_bytes})
    assert (len(memory.kv), memory.is_mla) == (buffers, mla)
    content = bytes(range(page_bytes))
    assert memory.item("kv", 2, 0, content) == content
    assert memory.item("kv", 1, 0, None) == bytes(page_bytes)
    base = SimpleNamespace(KVArgs=SimpleNamespace, StateType=SimpleNamespace(MAMBA="m", SWA="s"))
    args = memory.kv_args(base)
    assert args.state_types == ["s"]
    assert sum(args.kv_item_lens) == page_bytes
    assert sum(args.kv_data_lens) == page_bytes * 8
