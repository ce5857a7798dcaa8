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
    section = section_of("Rooms between several ranks")
    assert len(list(kinds_of(section))) >= 5
    for kind, low, high in kinds_of(section):
        assert high, kind
        assert low, kind
        assert all(f"def {name}(" in simulated for name in low), kind
    for name in re.findall(r"def (test_on_nixl_\w+)\(", real):
        assert f"`{name}`" in section, name


def section_of(title):
    """What stands below a heading, up to the next one."""
    return DOCUMENT.partition(f"## {title}\n")[2].partition("\n## ")[0]


def kinds_of(section):
    """Of each row of the table in a section its kind, and the tests that its last two cells name."""
    for line in [line for line in section.splitlines() if line.startswith("|")][2:]:
        _, kind, _, low, high, _ = line.split("|")
        yield kind, re.findall(r"`(test_\w+)`", low), re.findall(r"`(test_\w+)`", high)


def test_what_happens_to_groups_has_a_test_in_the_simulated_world_and_one_between_processes():
    texts = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py")}
    apart = [texts[f"test_{name}.py"] for name in ("faults_groups", "cases_ranks", "group_processes")]
    simulated = [text for name, text in texts.items() if name.startswith("test_group_") and text not in apart]
    section = section_of("Groups of ranks")
    assert len(list(kinds_of(section))) >= 5
    for kind, low, high in kinds_of(section):
        assert low, kind
        assert all(any(f"def {name}(" in text for text in simulated) for name in low), kind
        assert high, kind
        assert all(any(f"def {name}(" in text for text in apart) for name in high), kind
    for name in re.findall(r"def (test_on_nixl_\w+)\(", apart[0]):
        assert f"`{name}`" in section, name
