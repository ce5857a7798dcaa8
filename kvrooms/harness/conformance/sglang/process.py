"""The suite's end: starts the driver, asks it for sides, talks to them, and leaves no process behind."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

from .install import Wheel
from .pipe import receive_frame, send_frame

_START_S = 120.0
_ANSWER_S = 60.0


class DriverError(RuntimeError):
    """The driver, or SGLang in it, did not start or has ended; or it did not answer in time."""


class SglangRaised(RuntimeError):
    """SGLang raised an exception into its caller; the text has its type and its words."""


class SideProcess:
    """One side: commands in, answers out. pid: the driver's child."""

    def __init__(self, channel: socket.socket, pid: int) -> None:
        self._channel = channel
        self.pid = pid
        self.address: str = ""
        channel.settimeout(_ANSWER_S)

    def wait_ready(self) -> None:
        """Until the side has started. Raises DriverError with SGLang's words if it could not."""
        answer = self._receive("start")
        if "error" in answer:
            raise DriverError(answer["error"])
        self.address = answer["address"]

    def call(self, verb: str, **arguments: Any) -> Any:
        """What `Side.do_<verb>` answers. Raises SglangRaised and DriverError."""
        try:
            send_frame(self._channel, {"do": verb, **arguments})
        except OSError as error:
            raise DriverError(f"the side's process has ended: {error}") from error
        answer = self._receive(verb)
        if "raised" in answer:
            raise SglangRaised(answer["raised"])
        return answer["answer"]

    def _receive(self, verb: str) -> dict[str, Any]:
        try:
            answer = receive_frame(self._channel)
        except TimeoutError as error:
            raise DriverError(f"{verb}: the side's process has not answered for {_ANSWER_S:g} s") from error
        except OSError as error:
            raise DriverError(f"{verb}: the side's process has ended: {error}") from error
        if answer is None:
            raise DriverError(f"{verb}: the side's process has ended")
        return answer

    def close(self) -> None:
        """Hang up. The child ends by itself; the driver is asked to make sure."""
        self._channel.close()


class Driver:
    """The first process of a wheel: imported once, forks a side per `fork`. Any thread."""

    def __init__(self, wheel: Wheel, log: Path | None = None) -> None:
        ours, theirs = socket.socketpair()
        output = subprocess.DEVNULL if log is None else log.open("ab")
        command = [sys.executable, "-m", f"{__package__}.driver", str(theirs.fileno())]
        try:
            self._process = subprocess.Popen(
                [*command, str(wheel.package), str(wheel.dependencies)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        finally:
            theirs.close()
            if not isinstance(output, int):
                output.close()
        self._channel = ours
        self._channel.settimeout(_START_S)
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _end, self._process, ours)
        answer = self._ask(None)
        if "error" in answer:
            self.stop()
            raise DriverError(f"SGLang {wheel.version} could not be loaded: {answer['error']}")

    def fork(self, request: dict[str, Any]) -> SideProcess:
        """A fresh side; ask it `wait_ready` before anything else."""
        ours, theirs = socket.socketpair()
        try:
            with self._lock:
                send_frame(self._channel, request)
                socket.send_fds(self._channel, [b"."], [theirs.fileno()])
                return SideProcess(ours, self._ask(None)["pid"])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    def kill(self, side: SideProcess) -> None:
        """As SIGKILL does; waited for."""
        with self._lock:
            self._ask({"kill": side.pid})
        side.close()

    def stop(self) -> None:
        """End the driver and every side. Idempotent."""
        self._end()

    def _ask(self, request: dict[str, Any] | None) -> dict[str, Any]:
        try:
            if request is not None:
                send_frame(self._channel, request)
            answer = receive_frame(self._channel)
        except OSError as error:
            raise DriverError(f"the driver does not answer: {error}") from error
        if answer is None:
            raise DriverError(f"the driver has ended with status {self._process.wait(10)}")
        return answer


def _end(process: subprocess.Popen[bytes], channel: socket.socket) -> None:
    """Hang up; the driver then kills and reaps its children."""
    channel.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
