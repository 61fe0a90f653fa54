"""CITATION.cff can be read, and says the version, licence and authors that the package says."""
import tomllib
from pathlib import Path

import pytest

import mla_lab

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parent.parent


def test_it_agrees_with_the_package():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert cited["cff-version"] == "1.2.0" and cited["message"] and cited["type"] == "software"
    assert str(cited["version"]) == mla_lab.__version__ == project["version"]
    assert cited["license"] == project["license"] and cited["title"].startswith(f"{project['name']}:")
    assert cited["authors"] == project["authors"]
    papers = [one["value"] for reference in cited["references"] for one in reference["identifiers"]]
    assert papers == ["arXiv:2405.04434", "arXiv:2412.19437"]
