"""docs/records.md and docs/records.schema.json, made from the schema of records files."""

import json
from pathlib import Path

import yaml

from replay.config_docs import section
from replay.published import SCHEMA_PATH

DOCS = Path(__file__).parents[3] / "docs"
INTRODUCTION = """\
# Records

`results/<run>/records/<configuration>.json` holds one record a pivot, and names fields as the
paper's published files do. A JSON schema for them is [records.schema.json](records.schema.json).
One line loads them in pandas,

    import json, pandas
    content = json.load(open("results/demo/records/main.json"))
    pivots = pandas.DataFrame(content["pivots"])

and in polars (2.1; `strict=False` since a token stands beside its logprob in one list):

    import polars
    frame = polars.DataFrame(content["pivots"], strict=False)

The estimates are `A_exact1`, `A_exact2` and `A_refeed`; a pivot is eligible if any is not 0. So the
first numbers of Table 1 are, in pandas,

    eligible = pivots[(pivots[["A_exact1", "A_exact2", "A_refeed"]] != 0).any(axis=1)]
    sign = eligible[["A_exact1", "A_refeed"]].map(lambda a: (a > 0) - (a < 0))
    print(len(eligible), (sign.A_refeed != sign.A_exact1).mean())

The workflow reads published files and its own alike (`replay.analysis.pool`, from
`workflow/scripts`):

    from replay.analysis import analyze, pool
    print(analyze(*pool("results/demo/records/main.json"))["common_set"])

This page and the JSON schema are made from `workflow/schemas/records.schema.yaml` by
`python -m replay.records_docs` (in `workflow/scripts`).
"""


def documents() -> dict[Path, str]:
    """Path and content of each document."""
    schema = yaml.safe_load(SCHEMA_PATH.read_text(encoding="utf-8"))
    parts = [INTRODUCTION, section("The file", schema, schema)]
    parts += [section(f"`{n}`", schema["$defs"][n], schema) for n in ("config", "problem", "pivot")]
    return {
        DOCS / "records.md": "\n".join(parts),
        DOCS / "records.schema.json": json.dumps(schema, indent=2) + "\n",
    }


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
