"""The stored notebooks obey the rules without which a green nbval run would mean little (tools/hygiene.py)."""

from pathlib import Path

import hygiene
import pytest

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


def test_there_are_notebooks():
    """A glob that finds nothing would pass every test below."""
    if not NOTEBOOKS.exists():
        pytest.skip("no notebooks/ yet")
    assert list(NOTEBOOKS.glob("*.ipynb")), "notebooks/ holds no notebook"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebook_is_clean(path):
    found = hygiene.problems_of(path)
    assert not found, "\n".join([path.name, *found])
