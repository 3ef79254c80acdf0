"""config/README.md, made from the schema: every key with its meaning, values and default."""

import json
from pathlib import Path

from replay.config import follow, load_schema

README = Path(__file__).parents[3] / "config" / "README.md"
INTRODUCTION = """\
# Configuration

`config.yaml` is the demo, `overnight.yaml` the same grid at a size whose intervals mean something,
`controls.yaml` every pass that there is, `published.yaml` the paper recomputed from its published
records, `catalog.yaml` the models and datasets that every configuration can name, and those
records. A run with your own file:
`snakemake --cores 1 all --configfile own.yaml`. This page is made from
`workflow/schemas/config.schema.yaml` by `python -m replay.config_docs` (in `workflow/scripts`).

A section under a configuration (`configurations.NAME.continuations`, say) overrides the section of
the same name at the top level, key by key.
"""


def render(schema: dict) -> str:
    """Markdown: one table for the top level, then one for each section and kind of entry."""
    parts = [INTRODUCTION, section("Top level", schema, schema)]
    for name, entry in schema["$defs"].items():
        if "properties" in entry:
            parts.append(section(f"`{name}`", entry, schema))
    return "\n".join(parts)


def section(title: str, entry: dict, root: dict) -> str:
    """Markdown of one object of the schema `root`: its description and a table of its keys."""
    lines = [f"## {title}", "", entry.get("description", "").strip(), ""]
    lines += ["| key | values | default | meaning |", "|---|---|---|---|"]
    required = set(entry.get("required", []))
    for name, child in _keys(entry).items():
        lines.append(_row(name, child, name in required, root))
        nested = next((s for s in child.get("oneOf", []) if "properties" in s), {})
        for key, grandchild in nested.get("properties", {}).items():
            lines.append(_row(f"{name}.{key}", grandchild, False, root))
    return "\n".join(lines) + "\n"


def _keys(section: dict) -> dict:
    """Properties of a section, with those of its alternatives."""
    keys = dict(section["properties"])
    for alternative in section.get("oneOf", []):
        for name, child in alternative.get("properties", {}).items():
            keys.setdefault(name, child)
    return keys


def _row(name: str, child: dict, required: bool, root: dict) -> str:
    child = follow(child, root)
    meaning = child.get("description", "")
    default = "required" if required else _literal(child.get("default", ""))
    cells = [f"`{name}`", _values(child), default, " ".join(meaning.split())]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _literal(value: object) -> str:
    if value in ("", {}):
        return "see below" if value == {} else ""
    return f"`{json.dumps(value)}`"


def _values(child: dict) -> str:
    if "enum" in child:
        return ", ".join(f"`{json.dumps(value)}`" for value in child["enum"])
    if "enum" in child.get("items", {}):
        return f"list of {_values(child['items'])}"
    kind = child.get("type", "object or null" if "oneOf" in child else "object")
    text = " or ".join(kind) if isinstance(kind, list) else kind
    limits = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
    return text + "".join(f", {sign} {child[key]}" for key, sign in limits.items() if key in child)


if __name__ == "__main__":
    README.write_text(render(load_schema()), encoding="utf-8")
