"""Plain arguments of public methods, checked in the caller's thread before anything has changed.

What is wrong there must not reach an engine's thread: it would end that, and every room with it.
"""

from __future__ import annotations

import math

from .errors import InvalidArgument

_LONGEST_S = 9e9
"""Nearly what Python's locks can wait: 2**63 nanoseconds."""


def check_limit(field: str, value: object) -> float:
    """A limit in seconds, 0 or more; what no clock can wait is cut. Raises InvalidArgument naming the field."""
    seconds = _seconds(field, value)
    if seconds < 0:
        raise InvalidArgument(field, value, "must be 0 or more seconds")
    return min(seconds, _LONGEST_S)


def check_left(field: str, value: object) -> float | None:
    """How many seconds a caller will still wait; None: as long as it takes. Less than 0 is 0: its time is up.

    Raises InvalidArgument naming the field.
    """
    if value is None:
        return None
    return min(max(_seconds(field, value), 0.0), _LONGEST_S)


def _seconds(field: str, value: object) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise InvalidArgument(field, value, "must be a number of seconds")
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(field, value, "must be a number of seconds") from None
    if math.isnan(seconds):
        raise InvalidArgument(field, value, "must be a number of seconds")
    return seconds


def check_text(field: str, value: object) -> str:
    """Words that can be sent to others. Raises InvalidArgument naming the field."""
    if not isinstance(value, str):
        raise InvalidArgument(field, value, "must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(field, value, "has half a character, which no text can carry") from None
    return value


def check_bool(field: str, value: object) -> bool:
    """True or False, of Python or of numpy. Raises InvalidArgument naming the field."""
    if isinstance(value, bool):
        return value
    if type(value).__name__ in ("bool_", "bool") and type(value).__module__ == "numpy":
        return bool(value)
    raise InvalidArgument(field, value, "must be True or False")
