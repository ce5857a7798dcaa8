"""The conformance suite under pytest: `pytest --kvrooms-subject my.module:MySubject`, each property a test of its own.

This module is loaded in every pytest run of whoever has kvrooms installed, so it imports nothing but pytest until its
option is given. Without paths on the command line only the suite runs, with paths it comes after what they hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .conformance.subject import Subject
    from .conformance.suite import Effort, Outcome

_SUBJECT = "--kvrooms-subject"
_ALLOW = "--kvrooms-allow-unknown"
_OPTION = "--kvrooms-option"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The suite's options."""
    group = parser.getgroup("kvrooms", "conformance of an implementation to the properties of kvrooms")
    group.addoption(_SUBJECT, metavar="MODULE:CLASS", help="run the suite on this subject")
    group.addoption(_ALLOW, action="store_true", help="skip a property whose verdict is unknown, instead of failing")
    group.addoption(
        _OPTION, metavar="NAME=VALUE", action="append", default=[], help="for the subject's class; may be repeated"
    )
    group.addoption("--kvrooms-examples", type=int, metavar="N", help="examples per property, about")
    group.addoption("--kvrooms-seconds", type=float, metavar="S", help="seconds per property, about")
    group.addoption("--kvrooms-patience", type=float, metavar="S", help="seconds without change that are a hang")
    group.addoption("--kvrooms-seed", type=int, metavar="N", help="seed of everything that is drawn")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> object:
    """Collect the suite if there is a subject."""
    config = session.config
    if not config.getoption(_SUBJECT) or config.pluginmanager.has_plugin("dsession"):
        return None  # with xdist, the workers collect
    items: list[pytest.Item] = []
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        items += session.perform_collect()
    ours = _items(session)
    report = pytest.CollectReport(_SUBJECT, "passed", None, list(ours))
    config.hook.pytest_collectreport(report=report)  # counts them, for "collected 14 items"
    config.hook.pytest_collection_modifyitems(session=session, config=config, items=ours)
    session.items = [*items, *ours]
    session.testscollected = len(session.items)
    config.hook.pytest_collection_finish(session=session)
    return session.items


def _items(session: pytest.Session) -> list[pytest.Item]:
    from ..protocol.errors import InvalidArgument
    from .conformance.find import find, given
    from .conformance.suite import default_effort
    from .evidence import PROPERTY_IDS

    option = session.config.getoption
    try:
        options, which = given(option(_OPTION)), option(_SUBJECT)
        source = {name: options.pop(name, None) for name in ("version", "wheel")} if which == "sglang" else {}
        subject = find(which, **source, options=options)
    except InvalidArgument as error:
        raise pytest.UsageError(f"{_SUBJECT}: {error}") from error
    effort = default_effort(
        subject,
        examples=option("--kvrooms-examples"),
        seconds=option("--kvrooms-seconds"),
        patience_s=option("--kvrooms-patience"),
        seed=option("--kvrooms-seed"),
    )
    ids = ("SMOKE", *(one for one in PROPERTY_IDS if one != "SMOKE"))
    return [PropertyItem.make(session, one, subject, effort) for one in ids]


class Verdict(Exception):
    """A property that does not hold, or of which nothing is known."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class PropertyItem(pytest.Item):
    """One property as a test."""

    subject: Subject
    effort: Effort

    @classmethod
    def make(cls, session: pytest.Session, property_id: str, subject: Subject, effort: Effort) -> PropertyItem:
        """The test of a property; its id is the property's, behind the subject's name."""
        item: PropertyItem = cls.from_parent(session, name=property_id, nodeid=f"{subject.name}::{property_id}")
        item.subject, item.effort = subject, effort
        return item

    def runtest(self) -> None:
        """Judge. Fails with the smallest counterexample; unknown is no pass."""
        from .conformance.suite import Session, judge

        outcome = judge(Session(self.subject, self.effort), self.name)
        self.user_properties += [("examples", outcome.examples), ("verdict", str(outcome.ok))]
        if outcome.ok is None and self.config.getoption(_ALLOW):
            pytest.skip(f"unknown: {outcome.reason}")
        if not outcome.ok:
            raise Verdict(outcome)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The counterexample as a timeline, instead of a traceback through the suite."""
        if not isinstance(excinfo.value, Verdict):
            return super().repr_failure(excinfo, style)
        outcome = excinfo.value.outcome
        if outcome.counterexample is not None:
            return outcome.counterexample.text()
        return f"{self.name} is unknown, which is no pass ({_ALLOW} skips it): {outcome.reason}"

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """What the report is headed with."""
        return self.path, None, f"{self.subject.name} {self.subject.version} {self.name}"
