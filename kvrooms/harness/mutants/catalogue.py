"""All mutants."""

from __future__ import annotations

from .faults_badday import BADDAY
from .faults_doors import DOORS
from .faults_engine import ENGINE
from .faults_fresh import FRESH
from .faults_group import GROUP
from .faults_protocol import PROTOCOL
from .faults_public import PUBLIC
from .faults_shapes import SHAPES
from .faults_staging import STAGING
from .faults_tables import TABLES
from .faults_words import WORDS
from .mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *PROTOCOL,
    *TABLES,
    *PUBLIC,
    *ENGINE,
    *FRESH,
    *BADDAY,
    *DOORS,
    *SHAPES,
    *GROUP,
    *STAGING,
    *WORDS,
)
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
QUICK = (
    "aux-guarded-by-state",
    "decode-has-no-cap",
    "failed-write-is-not-told",
    "cleanup-gives-anothers-key-back",
    "reconnect-says-nothing",
    "one-component-is-all",
    "done-may-still-fail-on-decode",
    "goodbye-promises-everything",
    "incarnations-not-compared",
    "any-name-may-report",
    "token-stays",
    "failure-raised-before-cleanup",
    "too-much-is-seen-late",
)
"""One for each property: what a quick look takes."""
