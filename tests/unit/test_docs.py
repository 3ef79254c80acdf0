"""Documents that are made from code are as the code makes them."""

import re

import pytest
import yaml

from replay.config import load_schema
from replay.config_docs import README, render


def test_config_readme_is_made_from_the_schema():
    assert README.read_text(encoding="utf-8") == render(load_schema())


def test_the_citation_names_the_pinned_commit_of_the_published_records():
    root = README.parents[1]
    citation, catalog = (
        yaml.safe_load((root / name).read_text(encoding="utf-8"))
        for name in ("CITATION.cff", "config/catalog.yaml")
    )
    (paper,) = citation["references"]
    assert paper["commit"] == catalog["paper"]["commit"]
    assert paper["repository-code"].endswith("/" + catalog["paper"]["repository"])


def test_every_key_has_a_description():
    def undescribed(schema, path=""):
        for name, child in schema.get("properties", {}).items():
            if "const" not in child and "$ref" not in child and not child.get("description"):
                yield f"{path}.{name}"
            yield from undescribed(child, f"{path}.{name}")

    schema = load_schema()
    sections = {"": schema} | schema["$defs"]
    assert [key for name, s in sections.items() for key in undescribed(s, name)] == []


@pytest.mark.parametrize("folder", [".", "config", "docs", "workflow/report"])
def test_no_document_holds_the_marks_of_a_merge(root, folder):
    documents = [p for p in (root / folder).glob("*") if p.suffix in (".md", ".yaml", ".rst")]
    assert documents
    for document in documents:
        text = document.read_text(encoding="utf-8")
        assert not re.search(r"^(<{7} |={7}$|>{7} )", text, flags=re.M), document


def test_what_is_promised_names_tests_that_are_there(root):
    promised = (root / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", promised))
    tests = "".join(path.read_text(encoding="utf-8") for path in (root / "tests").rglob("*.py"))
    assert named
    assert named - set(re.findall(r"^def (test_\w+)\(", tests, flags=re.M)) == set()
