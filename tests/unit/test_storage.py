"""Files appear whole or not at all, and bad ones are named."""

import pytest

from replay.storage import (
    StoredFileError,
    Workspace,
    atomic_path,
    clear_workspace,
    digest,
    lock_folder,
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
    first = Workspace(output, {"k": 4})
    first.save("3.json", "done")
    first.lock.close()  # the process died
    again = Workspace(output, {"k": 4})
    assert again.load("3.json") == "done"
    again.lock.close()
    other = Workspace(output, {"k": 8})
    assert not other.has("3.json")
    clear_workspace(output)
    clear_workspace(output)
    assert not list(tmp_path.iterdir())


def test_one_process_holds_a_folder(tmp_path):
    held = lock_folder(tmp_path / "results")
    with pytest.raises(BlockingIOError):
        lock_folder(tmp_path / "results")
    held.close()
    lock_folder(tmp_path / "results").close()


def test_publishing_replaces_a_folder(tmp_path):
    for content in ("old", "new"):
        write_json(tmp_path / "work" / "x.json", content)
        publish_folder(tmp_path / "work", tmp_path / "out")
        assert read_json(tmp_path / "out" / "x.json") == content
        assert not (tmp_path / "work").exists()


def test_digest_ignores_key_order_only():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 2, "b": 1})
