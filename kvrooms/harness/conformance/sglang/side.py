"""One side in its own process: the real manager and its rooms, driven by the suite's commands."""

from __future__ import annotations

import base64
import importlib
import os
import socket
import sys
import threading
import time
import traceback
from typing import Any

from . import standins
from .memory import Memory
from .pipe import receive_frame, send_frame, unpack_indices
from .rooms import FAILED, PHASES, SUCCESS, DecodeRoom, PrefillRoom
from .taps import Taps

_NEVER_S = 86_400


def serve(channel: socket.socket, request: dict[str, Any]) -> None:
    """Build the side, say so, and answer commands until the suite hangs up. A refusal to start is told in words."""
    try:
        side = Side(request)
    except Exception as error:  # noqa: BLE001 - told to the suite
        send_frame(channel, {"error": _words(error)})
        return
    send_frame(channel, {"ready": True, "address": side.address})
    commands = _Commands(channel)
    while (command := commands.next()) is not None:
        verb = command.pop("do")
        try:
            answer = {"answer": getattr(side, f"do_{verb}")(**command)}
        except Exception as error:  # noqa: BLE001 - what SGLang raises into its caller is a result here
            side.taps.note("fault", f"{verb} raises {_words(error)} into its caller")
            side.raised.append(f"{verb} raised {_words(error)}")
            answer = {"raised": _words(error)}
        send_frame(channel, answer)


class _Commands:
    """Reads on a thread of its own: a hang-up ends the process even while SGLang holds the main thread."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._ready, self._commands = threading.Semaphore(0), list[dict[str, Any]]()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while (command := receive_frame(self._channel)) is not None:
                self._commands.append(command)
                self._ready.release()
        finally:
            os._exit(0)

    def next(self) -> dict[str, Any] | None:
        self._ready.acquire()
        return self._commands.pop(0)


class Side:
    """SGLang's manager of one side, and what the suite may ask of it: the methods `do_*`."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.role: str = request["side"]
        self.address: str = request["address"]
        self.raised: list[str] = []
        self._died: list[str] = []
        self._rooms: dict[int, PrefillRoom | DecodeRoom] = {}
        self._closed: dict[int, int] = {}
        self._leaving: list[DecodeRoom] = []
        _environment(request["deadline_s"])
        self.taps = Taps("decode" if self.role == "prefill" else "prefill")
        threading.excepthook = self._on_death
        self._base: Any = importlib.import_module("sglang.srt.disaggregation.base.conn")
        self._conn: Any = importlib.import_module("sglang.srt.disaggregation.nixl.conn")
        self._nixl: Any = importlib.import_module("nixl._api")
        self._zmq: Any = importlib.import_module("zmq")
        self.taps.on_zmq(self._zmq.Socket)
        self.taps.on_nixl(self._nixl.nixl_agent)
        self.memory = Memory(self.role, request["shape"])
        self.taps.regions = self.memory.regions()
        self.manager = self._start()

    def _start(self) -> Any:
        utils: Any = importlib.import_module("sglang.srt.disaggregation.utils")
        settings = sys.modules["sglang.srt.server_args"].settings
        if self.role == "prefill":
            port = int(self.address.rpartition(":")[2]) if self.address else _free_port()
            self.address = f"127.0.0.1:{port}"
            standins.bootstrap_at(port)
            self._server = self._conn.NixlKVBootstrapServer("127.0.0.1", port)
            _wait_for(port)
        mode = utils.DisaggregationMode.PREFILL if self.role == "prefill" else utils.DisaggregationMode.DECODE
        return self._conn.NixlKVManager(self.memory.kv_args(self._base), mode, settings, self.memory.is_mla)

    def _on_death(self, death: threading.ExceptHookArgs) -> None:
        where = traceback.extract_tb(death.exc_traceback)[-1]
        name = death.thread.name if death.thread else "a thread"
        text = f"{name} has died in {where.name}: {_words(death.exc_value)}"
        self._died.append(text)
        self.taps.note("fault", text)

    # -- memory --------------------------------------------------------------------------------------------------

    def do_item(self, kind: str, index: int, component: int, data: str | None) -> str:
        """Read an item, or write and read it."""
        content = None if data is None else base64.b64decode(data)
        return base64.b64encode(self.memory.item(kind, index, component, content)).decode()

    # -- rooms ---------------------------------------------------------------------------------------------------

    def do_open(self, key: int, request: dict[str, Any], state: Any) -> None:
        """Open a room; `key` is the suite's handle."""
        common = (self._conn, self.manager, self.memory, request["address"], request)
        if self.role == "prefill":
            self._rooms[key] = PrefillRoom(*common)
        else:
            self._rooms[key] = DecodeRoom(*common, unpack_indices(state))

    def do_send(self, key: int, pages: list[int], state: Any, last: bool) -> None:
        """The next pages of a prefill room."""
        room = self._rooms[key]
        assert isinstance(room, PrefillRoom)
        room.send(pages, unpack_indices(state), last=last)

    def do_poll(self, key: int) -> int:
        """KVPoll; of a closed room what it was at the end."""
        if key in self._closed:
            return self._closed[key]
        return self._rooms[key].poll()

    def do_free(self, key: int) -> bool:
        """Whether the engine would hand the room's memory out again."""
        self._leave()
        room = self._rooms.get(key)
        if room is not None:
            return room.memory_free(room.poll())
        return not any(left.key == key for left in self._leaving)

    def do_abort(self, key: int) -> None:
        """The caller gives up."""
        if key in self._rooms:
            self._rooms[key].abort()

    def do_failure(self, key: int) -> str | None:
        """What SGLang raises when asked why. Its schedulers ask once and drop the room."""
        room = self._rooms.get(key)
        if room is None or room.asked_why:
            return None
        room.asked_why = True
        if room.corrupt:
            return room.corrupt
        try:
            room.end.failure_exception()
        except Exception as error:  # noqa: BLE001 - the answer is an exception of any kind
            return _words(error)
        return None

    def do_close(self, key: int) -> None:
        """What the scheduler does with a room that has ended; one that has not is aborted first."""
        room = self._rooms.get(key)
        if room is None:
            return
        status = room.poll()
        if status not in (FAILED, SUCCESS):
            room.abort()
            status = room.poll()
        if not room.asked_why and status == FAILED:
            self.do_failure(key)
        free = room.memory_free(status)
        del self._rooms[key]
        self._closed[key] = status
        if not free and isinstance(room, DecodeRoom):
            room.key = key
            self._leaving.append(room)
        else:
            room.end.clear()

    def _leave(self) -> None:
        """The scheduler's look at rooms that have failed, or were closed, while their memory could still be written."""
        for open_room in self._rooms.values():
            if open_room.asked_why:
                open_room.memory_free(open_room.poll())
        for room in list(self._leaving):
            if room.memory_free(FAILED):
                self._leaving.remove(room)
                room.end.clear()

    def do_explain(self, key: int) -> dict[str, str]:
        """For timelines."""
        if key not in self._rooms:
            return {"phase": f"closed as {PHASES[self._closed.get(key, FAILED)]}"}
        room = self._rooms[key]
        status = room.poll()
        view = {"phase": PHASES[status]}
        return view if status in (FAILED, SUCCESS) else view | room.belief()

    # -- the whole -----------------------------------------------------------------------------------------------

    def do_held(self) -> dict[str, int]:
        """Entries that name a room, in every table and set of the manager."""
        self._leave()
        counts = {}
        for name, value in vars(self.manager).items():
            if (count := _rooms_in(value)) is not None:
                counts[name] = count
        queues = getattr(self.manager, "transfer_queues", ())
        counts["queued chunks"] = sum(len(queue._buf) for queue in queues)  # noqa: SLF001 - has no public length
        return counts

    def do_ailments(self) -> list[str]:
        """Threads that have died, and what was raised into a caller that asked for nothing wrong."""
        return [*self._died, *self.raised]

    def do_steps(self) -> list[tuple[float, str, str, str]]:
        """What was seen since the last call."""
        return self.taps.drain()

    # -- faults --------------------------------------------------------------------------------------------------

    def do_lose(self, lost: bool) -> None:
        """Control messages of this side are lost."""
        self.taps.losing = lost

    def do_hold(self, held: bool) -> None:
        """Posted writes do not start."""
        self.taps.hold(held=held)

    def do_fail(self, failing: bool) -> None:
        """Posting raises."""
        self.taps.failing = failing

    def do_inject(self, channel: str, parts: list[str]) -> None:
        """A stranger speaks: on the control socket, or as a NIXL agent that has this one's metadata."""
        frames = [base64.b64decode(part) for part in parts]
        self.taps.note("message" if channel == "control" else "notification", f"a stranger says {frames!r:.80}")
        if channel == "control":
            stranger = self._zmq.Context.instance().socket(self._zmq.PUSH)
            self.taps.strangers.append(stranger)
            stranger.connect(f"tcp://{self.manager.local_ip}:{self.manager.rank_port}")
            stranger.send_multipart(frames)
            stranger.close(linger=1000)
            self.taps.strangers.remove(stranger)
        else:
            agent = self._nixl.nixl_agent("stranger", self._nixl.nixl_agent_config(backends=["UCX"]))
            peer = agent.add_remote_agent(self.manager.agent.get_agent_metadata())
            agent.send_notif(peer, frames[0])
            self._strangers = [*getattr(self, "_strangers", ()), agent]

    def do_sayings(self) -> list[list[str]]:
        """Messages that this side has sent, one of each kind."""
        return [[base64.b64encode(frame).decode() for frame in frames] for frames in self.taps.sayings.values()]


def _rooms_in(value: Any) -> int | None:
    """How many entries of a table or set are keyed by a room's number; None for anything else."""
    if isinstance(value, dict):
        keyed = sum(isinstance(key, int) for key in value)
        return keyed + sum(_rooms_in(inner) or 0 for inner in value.values() if isinstance(inner, set))
    if isinstance(value, (set, frozenset)):
        return sum(isinstance(member, int) for member in value)
    return None


def _environment(deadline_s: float | None) -> None:
    """SGLang's own settings: its timeouts, its shortest heartbeat, and loopback."""
    timeout = str(_NEVER_S if deadline_s is None else max(1, round(deadline_s)))
    os.environ.update(
        SGLANG_DISAGGREGATION_WAITING_TIMEOUT=timeout,
        SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT=timeout,
        SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL="2",
        SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE="1",
        SGLANG_HOST_IP="127.0.0.1",
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int) -> None:
    """Until the bootstrap server's thread listens; the manager's own retry would wait a second."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise RuntimeError(f"SGLang's bootstrap server does not listen on port {port}")


def _words(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"
