"""docs/faults.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_test_that_the_list_of_faults_names_exists():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")))
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py")]
    assert len(named) > 50
    assert not {name for name in named if not any(f"def {name}(" in text for text in texts)}
