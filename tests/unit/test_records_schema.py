"""Records files: their schema, what is made from it, and who reads them."""

import gzip
import hashlib
import io
import json
import re
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from replay.analysis import analyze, pool
from replay.published import SCHEMA_PATH, VALIDATOR, read
from replay.records_docs import documents

ROOT = Path(__file__).parents[2]
OWN = sorted((ROOT / "docs" / "data").glob("*/*/records/*.json.gz"))
MAIN = ROOT / "docs" / "data" / "h200" / "gpu" / "records" / "main.json.gz"
SCHEMA = yaml.safe_load(SCHEMA_PATH.read_text(encoding="utf-8"))
PUBLISHED_LAST = "greedy_first_logprob_delta_refeed"


def unpacked(path, folder):
    file = folder / path.stem
    file.write_bytes(gzip.decompress(path.read_bytes()))
    return file


@pytest.mark.parametrize("path", sorted(documents()), ids=lambda path: path.name)
def test_documents_are_made_from_the_schema(path):
    assert path.read_text(encoding="utf-8") == documents()[path]


def test_the_published_schema_is_one():
    VALIDATOR.check_schema(json.loads((ROOT / "docs" / "records.schema.json").read_text()))


@pytest.mark.parametrize("path", OWN, ids=lambda path: "-".join(path.parts[-3::2]))
def test_our_own_records_are_valid_and_every_field_is_described(path):
    content = json.loads(gzip.decompress(path.read_bytes()))
    assert list(VALIDATOR(SCHEMA).iter_errors(content)) == []
    for name, entries in (
        ("config", [content["config"]]),
        ("problem", content["per_problem"]),
        ("pivot", content["pivots"]),
    ):
        described = SCHEMA["$defs"][name]
        patterns = described.get("patternProperties", {})
        for key in {key for entry in entries for key in entry} - set(described["properties"]):
            assert any(re.search(pattern, key) for pattern in patterns), key


def test_our_own_records_are_read_as_published_ones_are(tmp_path):
    path = unpacked(MAIN, tmp_path)
    content = read(path, hashlib.sha256(path.read_bytes()).hexdigest())
    assert content["pivots"] == pool(path)[0]


def test_our_own_records_are_pooled_with_published_ones(tmp_path):
    """Half of the problems under the published fields alone, half as the workflow writes them."""
    own, published = unpacked(MAIN, tmp_path), tmp_path / "published.json"
    content = json.loads(own.read_text())
    whole = analyze(*pool(own))
    fields = list(SCHEMA["$defs"]["pivot"]["properties"])
    fields = set(fields[: fields.index(PUBLISHED_LAST) + 1])
    halves = [[r for r in content["pivots"] if r["problem_id"] % 2 == half] for half in (0, 1)]
    own.write_text(json.dumps(content | {"pivots": halves[0]}))
    stripped = [{f: record[f] for f in record if f in fields} for record in halves[1]]
    published.write_text(json.dumps(content | {"pivots": stripped}))
    both = analyze(*pool(own, published))
    for key in ("n_records", "common_set", "clustered", "critical_token_jaccard", "bias"):
        assert both[key] == whole[key]


def test_the_lines_that_the_document_shows_do_what_it_says(tmp_path, monkeypatch):
    folder = tmp_path / "results" / "demo" / "records"
    folder.mkdir(parents=True)
    unpacked(MAIN, folder)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^    .*\n)+", page, flags=re.M)
    if not find_spec("polars"):  # it is not in the lock; its block still runs in its place
        stand_in = SimpleNamespace(DataFrame=lambda records, strict: records)
        monkeypatch.setitem(sys.modules, "polars", stand_in)
    code = "".join(re.sub("^    ", "", block, flags=re.M) for block in blocks)
    output = io.StringIO()
    with redirect_stdout(output):
        exec(code, {})
    refeed = analyze(*pool(folder / "main.json"))["common_set"]["refeed"]
    assert output.getvalue().startswith(f"{refeed['n']} {refeed['flip_rate']}\n")
