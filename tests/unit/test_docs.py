"""Documents that are made from code are as the code makes them."""

from replay.config import load_schema
from replay.config_docs import README, render


def test_config_readme_is_made_from_the_schema():
    assert README.read_text(encoding="utf-8") == render(load_schema())


def test_every_key_has_a_description():
    def undescribed(schema, path=""):
        for name, child in schema.get("properties", {}).items():
            if "const" not in child and "$ref" not in child and not child.get("description"):
                yield f"{path}.{name}"
            yield from undescribed(child, f"{path}.{name}")

    schema = load_schema()
    sections = {"": schema} | schema["$defs"]
    assert [key for name, s in sections.items() for key in undescribed(s, name)] == []
