"""The real SGLang NIXL classes, from a published wheel, as a subject of the conformance suite."""

from __future__ import annotations

from ..subject import Subject
from .pair import SglangSubject


def subject(version: str | None, wheel: str | None) -> Subject:
    """SGLang of this version, or of this wheel file; exactly one of the two. Raises ValueError."""
    return SglangSubject(version, wheel)
