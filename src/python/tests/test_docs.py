"""Every example of the pages is run: each page's blocks of Python, one after the other, as one program."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGES = sorted((HERE / "pages").glob("*.md")) or [
    HERE.parent / "README.md",
    HERE.parents[2] / "README.md",
    HERE.parents[1] / "book/tutorial/python.md",
    HERE.parents[1] / "book/howto/python-calls.md",
]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_there_are_some():
    assert len(PAGES) == 4 and all(blocks(page) for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: "-".join(page.parts[-2:]))
def test_examples(page, tmp_path):
    # A file: examples that begin processes are imported again by these.
    program = tmp_path / "example.py"
    program.write_text("\n".join(blocks(page)))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
