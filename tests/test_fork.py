"""A fork of a process with engines: every call is refused, nothing deadlocks, and the parent's death is seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvrooms import Buffer, DecodeEngine, Memory, Status
from kvrooms.protocol.failure import Reason

LIMIT_S = 40.0
HERE = str(Path(__file__).resolve().parent)

CALLS = """
import asyncio, os, sys, threading, time, traceback
sys.path.insert(0, sys.argv[1])
from engine_bench import Bench
from kvrooms import EngineClosed, wait_any

bench = Bench(3)
prefill, decode = bench.prefill, bench.decode
receiver, sender = bench.receive(bench.plan(2), 7), bench.offer(bench.plan(2), 7)
ended = decode.open(9, bootstrap=prefill.bootstrap)
ended.abort()
bench.settle()
hold = decode.hold(11, bootstrap=prefill.bootstrap)
rooms = {"receiver": receiver, "sender": sender}
calls = {
    "open decode": lambda: decode.open(8, bootstrap=prefill.bootstrap),
    "open prefill": lambda: prefill.open(8),
    "send": lambda: sender.send([1]),
    "hold": lambda: decode.hold(12, bootstrap=prefill.bootstrap),
    "release": lambda: decode.release(hold),
    "peer_fenced": lambda: decode.peer_fenced("x"),
    "wait_any": lambda: wait_any([receiver]),
    "failure_exception": ended.failure_exception,
}
for name, engine in {"prefill": prefill, "decode": decode}.items():
    for call in ("drain", "close", "tables", "health"):
        calls[f"{name} {call}"] = getattr(engine, call)
for name, room in rooms.items():
    for call in ("poll", "wait", "wait_memory_free", "abort", "close", "failure_exception"):
        calls[f"{name} {call}"] = getattr(room, call)
    calls[f"{name} memory_free"] = lambda room=room: room.memory_free
    calls[f"{name} memory_status"] = lambda room=room: room.memory_status
    calls[f"{name} await"] = lambda room=room: asyncio.run(room._ended())
    calls[f"{name} memory_freed"] = lambda room=room: asyncio.run(room.memory_freed())

held, fork = threading.Event(), threading.Event()

def hold_locks():
    with prefill.lock, decode.lock:
        held.set()
        fork.wait()

threading.Thread(target=hold_locks, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    status = 1
    try:
        wrong = []
        for name, call in calls.items():
            try:
                call()
                wrong.append(f"{name} was not refused")
            except EngineClosed as error:
                if "this is a fork of it" not in str(error):
                    wrong.append(f"{name}: {error}")
        print(*wrong, sep="\\n", flush=True)
        status = bool(wrong)
    except BaseException:
        traceback.print_exc()
    os._exit(status)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
fork.set()
assert receiver.poll() is not None and sender.poll() is not None, "the parent goes on"
receiver.abort()
bench.settle()
assert sender.poll().terminal
sys.exit(code)
"""


def test_every_call_is_refused_in_a_fork_even_if_its_locks_were_held():
    done = subprocess.run(
        [sys.executable, "-c", CALLS, HERE], capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


VICTIM = """
import os, sys, time
import numpy as np
from kvrooms import Buffer, Memory, PrefillEngine

memory = Memory(page_size=4, kv=[Buffer(0, "kv", np.ones((8, 64), np.uint8))])
engine = PrefillEngine(memory, name="victim", heartbeat_timeout_s=1000)
engine.open(1, pages=2).send([3])
print(engine.bootstrap, flush=True)
sys.stdin.readline()
child = os.fork()
if child == 0:
    time.sleep(1000)
    os._exit(0)
print(child, flush=True)
time.sleep(1000)
"""


@pytest.mark.nixl
def test_the_death_of_an_engine_is_seen_although_a_fork_of_it_lives():
    """No timer of decode can end the room, nor free its memory: only the kernel's word."""
    memory = Memory(page_size=4, kv=[Buffer(0, "kv", np.zeros((8, 64), np.uint8))])
    command = [sys.executable, "-P", "-c", VICTIM]
    with (
        DecodeEngine(memory, name="survivor", heartbeat_timeout_s=1000) as decode,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent,
    ):
        child = 0
        try:
            assert parent.stdout is not None
            assert parent.stdin is not None
            room = decode.open(1, bootstrap=parent.stdout.readline().strip(), pages=[5, 6])
            while room.poll() is not Status.TRANSFERRING:
                assert not room.poll().terminal, room.failure
            parent.stdin.write("fork\n")
            parent.stdin.flush()
            child = int(parent.stdout.readline())
            parent.kill()
            assert room.wait(LIMIT_S) is Status.FAILED
            assert room.failure is not None
            assert room.failure.reason is Reason.PEER_LOST
            assert room.wait_memory_free(LIMIT_S)
            os.kill(child, 0)  # it lives
        finally:
            parent.kill()
            if child:
                os.kill(child, signal.SIGKILL)
