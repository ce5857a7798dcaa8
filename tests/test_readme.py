"""The README's code is the example, and the example runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "embed.py"


def test_the_readme_shows_the_example_to_the_letter() -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    _, code = EXAMPLE.read_text().split('"""\n\n', 1)
    assert shown == [code]


@pytest.mark.timeout(120)
def test_the_example_runs() -> None:
    run = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    assert "64 pages are free again" in run.stdout


@pytest.mark.nixl
@pytest.mark.timeout(120)
def test_the_allocator_gets_everything_back() -> None:
    command = [sys.executable, str(ROOT / "examples" / "allocator.py")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    assert "all of it is free again: [2, 3, 3] and 6 lent" in run.stdout


def test_links_of_the_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
