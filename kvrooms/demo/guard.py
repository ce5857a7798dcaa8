"""Run a command that dies with its parent: `python guard.py PARENT_PID COMMAND...` (Linux; elsewhere it only runs it).

The demo's own children end when their standard input closes. A command that does not look at it gets this instead.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for SIGKILL at the parent's death, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(3)  # it died before we asked
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
