"""Files appear whole or not at all, and bad ones are named."""

import pytest

from replay.storage import (
    StoredFileError,
    Workspace,
    atomic_path,
    digest,
    publish_folder,
    read_json,
    read_jsonl,
    write_json,
    write_jsonl,
)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    target = tmp_path / "a.json"
    write_json(target, {"old": 1})
    with pytest.raises(ValueError):
        write_json(target, {"new": float("nan")})
    with pytest.raises(RuntimeError), atomic_path(target) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert read_json(target) == {"old": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_bad_line_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"a": 1}, {"a": 2}])
    assert list(read_jsonl(path)) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a":1}\n{"a":\n')
    with pytest.raises(StoredFileError, match=r"rows\.jsonl, line 2"):
        list(read_jsonl(path))


def test_pieces_survive_and_belong_to_their_settings(tmp_path):
    output = tmp_path / "shard"
    write_json(Workspace(output, {"k": 4}).path("3.json"), "done")
    assert read_json(Workspace(output, {"k": 4}).path("3.json")) == "done"
    other = Workspace(output, {"k": 8})
    assert not other.path("3.json").exists()
    other.clear()
    assert not Workspace(output, {"k": 4}).path("3.json").exists()


def test_publishing_replaces_a_folder(tmp_path):
    for content in ("old", "new"):
        write_json(tmp_path / "work" / "x.json", content)
        publish_folder(tmp_path / "work", tmp_path / "out")
        assert read_json(tmp_path / "out" / "x.json") == content
        assert not (tmp_path / "work").exists()


def test_digest_ignores_key_order_only():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 2, "b": 1})
