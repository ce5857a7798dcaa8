"""The two ends of one room, handled as SGLang's own schedulers handle them.

SGLang's sender and receiver are passive: the scheduler polls them and takes the next step. What is modelled here of the
schedulers: prefill calls `init` and `send` once the room has left Bootstrapping, and the chunk that completes the
pages is the one that carries state; decode asks the bootstrap server, calls `init`, sends its metadata as soon as the
room has left Bootstrapping, and takes Success for success only when the room's own aux slot has arrived; an ended room
is cleared (SGLang 0.5.12 and 0.5.13 do not clear a room that failed; here it is cleared, which only helps them).
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ..subject import ABSENT
from .memory import Memory

FAILED, BOOTSTRAPPING, WAITING, TRANSFERRING, SUCCESS = range(5)
PHASES = ("Failed", "Bootstrapping", "WaitingForInput", "Transferring", "Success")
_RETRY_S, _RETRIES = 1.0, 15


class PrefillRoom:
    """A sender, and the sends that wait for decode's metadata."""

    def __init__(self, conn: Any, manager: Any, memory: Memory, address: str, request: dict[str, Any]) -> None:
        self.number, self._pages, self._aux = request["number"], len(request["pages"]), request["aux_index"]
        self._memory, self._sent = memory, 0
        self._queue: list[tuple[list[int], Any, bool]] = []
        self._held: list[int] = []
        self._ready = False
        self.asked_why = False
        self.corrupt = ""
        # 0.5.12 and 0.5.13 take the ranks of the destination and the pipeline rank, and use neither.
        try:
            self.end = conn.NixlKVSender(manager, address, self.number, [0], 0)
        except TypeError:
            self.end = conn.NixlKVSender(manager, address, self.number)

    def send(self, pages: list[int], state: Any, *, last: bool) -> None:
        """The next pages; they are handed over when decode has asked for the room."""
        self._queue.append((pages, state, last))
        self.advance(self.end.poll())

    def poll(self) -> int:
        """SGLang's KVPoll, after the step that the scheduler takes on it."""
        status = int(self.end.poll())
        self.advance(status)
        return status

    def advance(self, status: int) -> None:
        """Hand over what waits, once the room has left Bootstrapping."""
        if status not in (WAITING, TRANSFERRING):
            return
        if not self._ready:
            self._ready = True
            self.end.pop_decode_prefix_len()
            self.end.init(self._pages, self._aux)
        while self._queue:
            self._hand_over(*self._queue.pop(0))

    def _hand_over(self, pages: list[int], state: Any, last: bool) -> None:
        pages = self._held + pages
        # The chunk that reaches the total is SGLang's last: pages that would reach it before the last send wait for it.
        self._held = pages if not last and self._sent + len(pages) >= self._pages else []
        if self._held or (not pages and not last):
            return
        if last:
            self._memory.mark(self._aux, self.number)
        self._sent += len(pages)
        indices = np.array(pages, dtype=np.int32)
        if not last or state is ABSENT:
            self.end.send(indices)
        else:
            self.end.send(indices, state)

    def memory_free(self, status: int) -> bool:
        """The scheduler releases the source pages when it sees the end of the room."""
        return status in (FAILED, SUCCESS)

    def abort(self) -> None:
        """As the scheduler does on a request to abort; it no longer knows a room that it has seen end."""
        if self.poll() not in (FAILED, SUCCESS):
            self.end.abort()

    def belief(self) -> dict[str, str]:
        """For timelines."""
        ready = "its caller's next send" if self._sent < self._pages else "its writes"
        waiting = ready if self._ready else "METADATA from decode"
        return {"belief": f"{self._sent} of {self._pages} pages handed over", "waiting": waiting}


class DecodeRoom:
    """A receiver, and the metadata that waits for the bootstrap server."""

    def __init__(
        self, conn: Any, manager: Any, memory: Memory, address: str, request: dict[str, Any], state: Any
    ) -> None:
        self.number, self._pages, self._aux = request["number"], request["pages"], request["aux_index"]
        self._manager, self._memory, self._address, self._state = manager, memory, address, state
        self._known = self._asked = False
        self._attempts, self._next = 0, 0.0
        self._release_by: float | None = None
        self._gated = self._committed = False
        self.asked_why = False
        self.corrupt = ""
        self.key = -1
        memory.mark(self._aux, 0)
        self.end = conn.NixlKVReceiver(manager, address, self.number)
        self.poll()

    def poll(self) -> int:
        """SGLang's KVPoll, after the step that the scheduler takes on it."""
        if not self._known and time.monotonic() >= self._next:
            self._resolve()
        status = int(self.end.poll())
        if status == WAITING and not self._asked:
            self._asked = True
            self._send_metadata()
        if status == FAILED and self._release_by is None:
            self._failed()
        return self._commit() if status == SUCCESS else status

    def _commit(self) -> int:
        """Success counts when the room's own aux slot is there; another room's number in it is the end of the room."""
        marked = self._memory.marked(self._aux)
        self._gated = marked == 0
        if marked == self.number or self._committed:
            self._committed = True
            return SUCCESS
        if self._gated:
            return TRANSFERRING
        self._release_by = 0.0
        self.corrupt = f"the aux slot holds room {marked}, not room {self.number}"
        return FAILED

    def _resolve(self) -> None:
        if self._manager.try_ensure_parallel_info(self._address):
            self._known = True
            self.end.init(0)
            return
        self._attempts, self._next = self._attempts + 1, time.monotonic() + _RETRY_S
        if self._attempts >= _RETRIES:
            self._next = float("inf")
            self.end.abort()

    def _send_metadata(self) -> None:
        pages = np.array(self._pages, dtype=np.int32)
        # No pages: all of them are on decode already, one page of prefix will do.
        named: dict[str, Any] = {"decode_prefix_len": 0 if self._pages else self._memory.page_size}
        if self._state is not ABSENT:
            named["state_indices"] = self._state
        self.end.send_metadata(pages, self._aux, **named)

    def _failed(self) -> None:
        """0.5.23 keeps a failed room's pages until prefill has said that it writes no more, or for a time."""
        self._release_by = 0.0
        if self._asked and getattr(self._manager, "enable_deferred_decode_kv_release", False):
            if not self.end.abort_notified:
                self.end.ensure_abort_notified(force_arm=True)
            self._release_by = time.monotonic() + _deferred_release_s()

    def memory_free(self, status: int) -> bool:
        """Whether the scheduler would release the destination pages now."""
        if status == SUCCESS:
            return True
        if status != FAILED:
            return False
        if self._release_by is None:
            self._failed()
        assert self._release_by is not None
        safe = getattr(self._manager, "is_abort_release_safe", None)
        drained = safe is not None and safe(self.number, len(self.end.bootstrap_infos or ())) if self._asked else True
        free = drained or time.monotonic() >= self._release_by
        if free and hasattr(self._manager, "clear_deferred_abort_state"):
            self._manager.clear_deferred_abort_state(self.number)
            self._release_by = 0.0
        return free

    def abort(self) -> None:
        """As the scheduler does on a request to abort; it no longer knows a room that it has seen end."""
        if self.poll() not in (FAILED, SUCCESS):
            self.end.abort()

    def belief(self) -> dict[str, str]:
        """For timelines: what the receiver has seen and what it still wants."""
        if self._gated:
            return {"waiting": "its aux slot", "belief": "the receiver says Success, the aux slot names no room"}
        if not self._asked:
            return {"waiting": "the bootstrap server" if not self._known else "its own turn"}
        status = getattr(self._manager, "transfer_statuses", {}).get(self.number)
        if status is None:
            return {"waiting": "prefill's word that the room is done"}
        return _arrivals(status)


def _arrivals(status: Any) -> dict[str, str]:
    """Which obligations 0.5.12 and 0.5.13 count as met, and the first that is open."""
    seen = {rank: len(chunks) for rank, chunks in status.received_kvs_per_pp.items()}
    expected = dict(status.expected_kvs_per_pp)
    kv = bool(expected) and all(seen.get(rank, 0) == count for rank, count in expected.items())
    obligations = [("KV", kv), ("AUX", status.received_aux)]
    if status.expects_state:
        obligations.append(("STATE", bool(status.received_state_per_pp)))
    return {
        "met": ", ".join(name for name, met in obligations if met),
        "waiting": next((f"the {name} notification" for name, met in obligations if not met), ""),
        "belief": f"chunks seen {sum(seen.values())} of {sum(expected.values()) if expected else '?'}, "
        f"aux {'seen' if status.received_aux else 'not seen'}, "
        f"state {'expected' if status.expects_state else 'not expected'}"
        f"{' and seen' if status.received_state_per_pp else ''}",
    }


def _deferred_release_s() -> float:
    import importlib

    environ: Any = importlib.import_module("sglang.srt.environ")
    return float(environ.envs.SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT.get())
