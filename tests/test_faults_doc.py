"""docs/faults.md lists every kind of fault, and names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
KINDS = 32


def numbers(words):
    """The numbers in "1–3", "6, 26" or "12_13_and_19": of a row, or of the name of a test."""
    found = []
    for first, last in re.findall(r"(\d+)(?:(?:–|_to_)(\d+))?", words):
        found += range(int(first), int(last or first) + 1)
    return found


def rows():
    """Of each row its kinds and the tests that it names."""
    for line in DOCUMENT.splitlines():
        cells = line.split("|")
        if len(cells) > 4 and cells[1].strip()[:1].isdigit():
            yield numbers(cells[1]), re.findall(r"`(test_\w+)`", cells[4])


def test_every_test_that_the_list_of_faults_names_exists():
    named = set(re.findall(r"`(test_\w+)`", DOCUMENT))
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py")]
    assert len(named) > 60
    assert not {name for name in named if not any(f"def {name}(" in text for text in texts)}


def test_every_kind_has_a_test_by_its_number_on_real_nixl_and_one_below_it():
    listed = [kind for kinds, _ in rows() for kind in kinds]
    assert sorted(listed) == list(range(1, KINDS + 1))
    for kinds, tests in rows():
        real = [name for name in tests if name.startswith("test_case_")]
        by_number = {kind for name in real for kind in numbers(re.match(r"test_case_((?:\d+|_to_|_and_|_)+)", name)[1])}
        assert by_number == set(kinds), (kinds, real)
        assert len(tests) > len(real), (kinds, tests)


def test_the_tests_by_number_are_all_listed():
    for path in (ROOT / "tests").glob("test_cases_*.py"):
        text = path.read_text(encoding="utf-8")
        assert "pytest.mark.nixl" in text
        for name in re.findall(r"def (test_case_\w+)\(", text):
            assert f"`{name}`" in DOCUMENT, name


def test_the_kinds_that_take_several_ranks_have_a_test_in_the_simulated_world_and_one_on_real_nixl():
    simulated = (ROOT / "tests" / "test_engine_ranks.py").read_text(encoding="utf-8")
    real = (ROOT / "tests" / "test_faults_ranks.py").read_text(encoding="utf-8")
    assert "pytest.mark.nixl" in real
    section = DOCUMENT.partition("## Rooms between several ranks")[2]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) >= 5
    for _, kind, _, low, high, _ in rows:
        names = [re.findall(r"`(test_\w+)`", cell) for cell in (low, high)]
        assert all(names), kind
        assert all(f"def {name}(" in simulated for name in names[0]), kind
    for name in re.findall(r"def (test_on_nixl_\w+)\(", real):
        assert f"`{name}`" in section, name
