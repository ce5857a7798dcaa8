"""What the registry's HTTP server logs: requests that are none are a stranger's doing, and logged now and then only."""

from __future__ import annotations

import logging


class BadRequest(Exception):
    """A request that was answered, and refused for what it is: nobody who means well makes it."""


class NowAndThen(logging.Filter):
    """Lets a bad request through the first time, the second, the fourth, ..., as a warning in one line.

    aiohttp logs each as an error with a traceback: so anybody could fill a disk, and hide what went wrong here. A fault
    of a handler of ours stays what it is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._requests = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`."""
        from aiohttp.http_exceptions import HttpProcessingError

        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, (HttpProcessingError, ConnectionError, BadRequest)):
            return True
        self._requests += 1
        if self._requests & (self._requests - 1):
            return False
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        record.exc_info = None
        words = " ".join(str(error).split())[:200]
        record.msg, record.args = "a bad request: %s: %s (%d so far)", (type(error).__name__, words, self._requests)
        return True


http_log = logging.getLogger("kvrooms.registry.http")
http_log.addFilter(NowAndThen())


def complain(status: int, words: str) -> None:
    """Log a request that we have refused, as those are that could not be read."""
    http_log.warning("a bad request", exc_info=BadRequest(f"{status}: {words}"))
