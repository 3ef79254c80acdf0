"""Disks, permissions and damaged files: recovery or one clear error, never a silent number."""

import io
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch
from engines import FakeEngine
from safetensors.torch import save_file

from replay import engine, grades, passes, records
from replay.kv_state import KVStateError, describe
from replay.prompts import load_tokenizer
from replay.protocol import ARMS, PASSES
from replay.storage import (
    SUMS,
    StoredFileError,
    Workspace,
    atomic_path,
    check_folder,
    link,
    publish_folder,
    read_json,
    read_jsonl,
    seal_folder,
    write_json,
    write_jsonl,
    write_text,
)
from replay.trunks import kv_file, resumable

SCRIPTS = Path(__file__).parents[2] / "workflow" / "scripts"


@contextmanager
def files_end_at(size: int):
    """Writes past `size` bytes of a file fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte; skipped where this user may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)):
        yield folder


@contextmanager
def mounted(*arguments: str):
    mount = shutil.which("mount")
    if not mount or subprocess.run([mount, *arguments], capture_output=True).returncode:
        pytest.skip("mounting a file system takes rights that this user has not")
    try:
        yield
    finally:
        subprocess.run(["umount", arguments[-1]], check=True)


@contextmanager
def read_only(folder: Path):
    """No file can be made in `folder`, by root neither: root takes a read-only mount."""
    if os.geteuid():
        folder.chmod(0o500)
        try:
            yield
        finally:
            folder.chmod(0o700)
    else:
        with mounted("--bind", str(folder), str(folder)):
            subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
            yield


REMEDY = r"make room or correct the permissions, then run the same command"


def test_a_disk_that_fills_up_keeps_the_old_file_and_says_so(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"a": 1}])
    with (
        files_end_at(1000),
        pytest.raises(StoredFileError, match=rf"rows\.jsonl: cannot be written .*{REMEDY}"),
    ):
        write_jsonl(path, ({"a": i} for i in range(100_000)))
    assert list(read_jsonl(path)) == [{"a": 1}]
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_full_disk_says_which_file_and_what_to_do(small_disk):
    (small_disk / "other").write_bytes(bytes(2**20 - 2**14))
    with pytest.raises(StoredFileError, match=rf"3\.json: .*No space left on device.*{REMEDY}"):
        write_json(small_disk / "3.json", ["x" * 100] * 1000)
    assert [file.name for file in small_disk.iterdir()] == ["other"]


def test_a_read_only_folder_says_which_file_and_what_to_do(tmp_path):
    with read_only(tmp_path):
        for path in (tmp_path / "a.json", tmp_path / "new" / "a.json"):
            with pytest.raises(StoredFileError, match=rf"a\.json: cannot be written .*{REMEDY}"):
                write_json(path, {})


def test_a_log_on_a_full_disk_does_not_hide_the_error():
    program = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
from replay.job import logged
with logged("/dev/full"):
    raise ValueError("what went wrong")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode != 0
    assert result.stderr == "error: what went wrong\n  (details: /dev/full)\n"


def test_a_log_that_cannot_be_opened_is_one_clear_error(tmp_path):
    (tmp_path / "logs").write_text("a file where the folder should be")
    program = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
from replay.job import logged
with logged({str(tmp_path / "logs" / "job.log")!r}):
    pass
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ") and str(tmp_path / "logs") in result.stderr


def test_what_replaces_a_file_is_on_the_disk_before_its_name_is(tmp_path, monkeypatch):
    calls = []

    def recorded(name):
        original = getattr(os, name)

        def call(*arguments):
            calls.append(name)
            return original(*arguments)

        monkeypatch.setattr(os, name, call)

    recorded("fsync")
    recorded("replace")
    write_text(tmp_path / "a", "x")
    assert calls == ["fsync", "replace", "fsync"]


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no second file system at /dev/shm")
def test_a_results_folder_that_is_a_link_to_another_file_system(tmp_path):
    """Files appear beside their final place; what is shared between them is copied."""
    elsewhere = Path(subprocess.check_output(["mktemp", "-d", "-p", "/dev/shm"], text=True).strip())
    results = tmp_path / "results"
    results.symlink_to(elsewhere)
    try:
        assert elsewhere.stat().st_dev != tmp_path.stat().st_dev
        write_json(tmp_path / "here.json", 1)
        workspace = Workspace(results / "shard", "x")
        link(tmp_path / "here.json", workspace.path("finished") / "a.json")
        for _ in range(2):
            seal_folder(workspace.path("finished"))
            publish_folder(workspace.path("finished"), results / "shard")
            check_folder(results / "shard")
            link(tmp_path / "here.json", workspace.path("finished") / "a.json")
        assert read_json(results / "shard" / "a.json") == 1
    finally:
        shutil.rmtree(elsewhere)


def test_a_damaged_piece_is_named_and_not_used(tmp_path):
    workspace = Workspace(tmp_path / "shard", "x")
    workspace.save("3.json", {"tokens": [17, 4]})
    assert workspace.has("3.json") and not workspace.has("4.json")
    path = workspace.path("3.json")
    path.write_text(path.read_text().replace("17", "16"))
    with pytest.raises(StoredFileError, match=r"3\.json: damaged, .*delete it and rerun"):
        workspace.has("3.json")
    write_json(path, [17, 4])
    with pytest.raises(StoredFileError, match=r"3\.json: damaged"):
        workspace.has("3.json")


def test_a_process_that_outlived_its_parent_is_awaited(tmp_path, capsys):
    """It may finish pieces, and publish, as long as it holds the lock."""
    first = Workspace(tmp_path / "shard", "x")

    def end():
        first.save("3.json", "done")
        first.lock.close()

    timer = threading.Timer(0.2, end)
    timer.start()
    assert Workspace(tmp_path / "shard", "x").load("3.json") == "done"
    timer.join()
    assert "another process is at work on this, its end is awaited" in capsys.readouterr().out


# A shard from trunks to records, as the rules make it, without an engine.

CLOSE = [[5, -0.5], [6, -1.0]]
TRUNKS = [
    {
        "problem_id": problem, "rollout": rollout, "seed": 1, "block_size": 16,
        "prompt_token_ids": [1] * 16, "token_ids": [5] * 20,
        "topk": [CLOSE, *[[[5, -0.1], [6, -9.0]]] * 19],
        "text": "Answer: 4", "finish_reason": "stop", "block_owners": [0, rollout],
    }
    for problem in (0, 1) for rollout in (0, 1)
]  # fmt: skip
SETTINGS = {
    "engine": {"max_model_len": 64, "kv_cache_gib": 1.0, "max_num_seqs": 4},
    "pivots": {"margin_lt": 1.0, "boundary_slack": 2, "max_per_rollout": 5, "ranking": "text"},
    "passes": PASSES,
    "pass_order": "listed",
    "continuations": {"k": 2, "max_tokens": 8, "probe_tokens": 8, "temperature": 1, "top_p": 1},
}
GRADING = {"grader": "strict", "scope": None}
TOKENIZER = cache(load_tokenizer)


class Shard:
    """Its files, and the jobs that make them."""

    def __init__(self, folder, checkpoint):
        self.trunks, self.passes = (
            folder / "trunks" / "s" / "0-of-1",
            folder / "passes" / "c" / "0-of-1",
        )
        self.grades, self.records = folder / "grades" / "c", folder / "records.json"
        self.dataset, self.checkpoint = folder / "dataset.jsonl", checkpoint

    def make(self):
        write_jsonl(self.dataset, [{"question": "2 + 2?", "answer": 4}] * 2)
        write_jsonl(self.trunks / "trunks.jsonl", TRUNKS)
        kv_file(self.trunks, 0).parent.mkdir()
        for problem in (0, 1):
            rows = TRUNKS[2 * problem : 2 * problem + 2]
            sequences = [resumable(r["prompt_token_ids"] + r["token_ids"], 16) for r in rows]
            state = {"layer.0": torch.zeros(2, 4)}
            save_file(state, kv_file(self.trunks, problem), metadata=describe(sequences, 16))
        seal_folder(self.trunks)
        self.run_passes()
        self.run_grades()
        self.run_records()

    def run_passes(self, settings=SETTINGS):
        trunks = [str(self.trunks)]
        passes.run(["c"], settings, "x", trunks, self.checkpoint, self.passes, io.StringIO())

    def run_grades(self):
        grades.run(
            GRADING,
            PASSES,
            [str(self.trunks)],
            [self.passes],
            self.dataset,
            self.checkpoint,
            self.grades,
        )

    def run_records(self):
        records.run({"k": 2, "passes": PASSES}, [str(self.passes)], str(self.grades), self.records)


@pytest.fixture(scope="module")
def made(tmp_path_factory, checkpoint):
    folder = tmp_path_factory.mktemp("shard")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "Engine", FakeEngine)
        Shard(folder, checkpoint).make()
    return folder


@pytest.fixture
def shard(made, tmp_path, checkpoint, monkeypatch):
    monkeypatch.setattr(passes, "Engine", None)
    for module in (passes, grades):
        monkeypatch.setattr(module, "load_tokenizer", TOKENIZER)
    shard = Shard(shutil.copytree(made, tmp_path / "shard"), checkpoint)
    assert len(read_json(shard.records)["pivots"]) == 4
    return shard


def last_line_gone(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-20])


def line_twice(path):
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[-1])


def flipped(path):
    data = path.read_bytes()
    position = data.index(b'"token_ids":[') + len(b'"token_ids":[')
    path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
    assert list(read_jsonl(path)), "still valid JSON"


def gone(path):
    path.unlink()


def not_in_sums(path):
    lines = (path.parent / SUMS).read_text().splitlines(keepends=True)
    (path.parent / SUMS).write_text("".join(line for line in lines if path.name not in line))


def no_sums(path):
    (path.parent / SUMS).unlink()


DAMAGES = [last_line_gone, cut_off, line_twice, flipped, gone, not_in_sums, no_sums]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_of_trunks_is_named_by_what_reads_it(shard, damage):
    damage(shard.trunks / "trunks.jsonl")
    name = SUMS if damage is no_sums else r"trunks\.jsonl"
    for read in (shard.run_passes, shard.run_grades):
        with pytest.raises(StoredFileError, match=rf"{name}: .*; delete .*0-of-1 and rerun"):
            read()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", PASSES)
def test_a_damaged_file_of_a_pass_is_named_by_what_reads_it(shard, damage, name):
    damage(shard.passes / f"{name}.jsonl")
    name = SUMS if damage is no_sums else rf"{name}\.jsonl"
    for read in (shard.run_grades, shard.run_records):
        with pytest.raises(StoredFileError, match=rf"{name}: .*; delete .*0-of-1 and rerun"):
            read()


def test_passes_of_other_trunks_are_not_graded(shard):
    rows = [row | {"seed": 2} for row in TRUNKS]
    write_jsonl(shard.trunks / "trunks.jsonl", rows)
    seal_folder(shard.trunks)
    with pytest.raises(StoredFileError, match=r"passes/c/0-of-1: was made from other files"):
        shard.run_grades()


def test_passes_of_a_shard_that_is_not_graded_with_them_are_refused(shard):
    """And those that do not say what they were made from."""
    other = shutil.copytree(shard.trunks, shard.trunks.with_name("1-of-2"))
    for origins in ([other], []):
        seal_folder(shard.passes, made_from=origins)
        with pytest.raises(StoredFileError, match=r"passes/c/0-of-1: was made from other files"):
            shard.run_grades()


def test_grades_of_other_passes_make_no_records(shard):
    write_json(shard.passes / "seconds.json", [])
    seal_folder(shard.passes, made_from=[shard.trunks])
    with pytest.raises(StoredFileError, match=r"grades/c: was made from other files"):
        shard.run_records()


def test_the_sums_can_be_checked_by_hand(shard):
    """Also those of the folders that it was made from."""
    if not shutil.which("sha256sum"):
        pytest.skip("no sha256sum on this machine")
    for folder, origin in ((shard.grades, "passes/c/0-of-1"), (shard.passes, "trunks/s/0-of-1")):
        command = ["sha256sum", "-c", SUMS]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert result.returncode == 0
        assert "exact1.jsonl: OK" in result.stdout
        assert f"/{origin}/{SUMS}: OK" in result.stdout


def sealed_again(shard, name, rows):
    """A pass file that is what was written, by an engine or a program that went wrong."""
    write_jsonl(shard.passes / f"{name}.jsonl", rows)
    seal_folder(shard.passes, made_from=[shard.trunks])
    shard.run_grades()


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (lambda rows: rows[:-1], r"pass refeed, problem 1, rollout 1, position 16, arm alt: k=\[0"),
        (lambda rows: rows[1:], r"pass refeed, problem 0, rollout 0, position 16, arm actual"),
        (
            lambda rows: [*rows, rows[0]],
            r"pass refeed, .*arm actual: k=0 is there twice",
        ),
        (lambda rows: [*rows, rows[0] | {"k": 2}], r"k=\[0, 1, 2, 'greedy'\] are there"),
        (lambda rows: [r for r in rows if r["problem_id"] == 0], "pass refeed, problem 1"),
        (lambda rows: [], r"k=\[\] are there, k=\[0, 1, 'greedy'\] were asked for"),
    ],
)
def test_every_continuation_that_was_asked_for_is_there_once(shard, rows, says):
    sealed_again(shard, "refeed", rows(list(read_jsonl(shard.passes / "refeed.jsonl"))))
    with pytest.raises(StoredFileError, match=says):
        shard.run_records()


@pytest.mark.parametrize("change", [{"problem_id": 9}, {"abs_pos": 17}, {"rollout": 7}])
def test_a_pass_of_another_problem_is_not_graded(shard, change):
    rows = [row | change for row in read_jsonl(shard.passes / "exact2.jsonl")]
    with pytest.raises(StoredFileError, match="a continuation of no pivot of these trunks"):
        sealed_again(shard, "exact2", rows)


def test_missing_grades_are_no_smaller_mean(shard):
    path = shard.grades / "exact1.jsonl"
    last_line_gone(path)
    seal_folder(shard.grades, made_from=[shard.passes])
    with pytest.raises(StoredFileError, match=r"grades of pass exact1, .*k=\[0\] are there"):
        shard.run_records()


def test_a_finished_shard_is_published_again_without_an_engine(shard):
    """Killed after its last line, before Snakemake noted its end: Snakemake drops its output."""
    before = {file.name: file.read_bytes() for file in shard.passes.iterdir()}
    shutil.rmtree(shard.passes)
    shard.run_passes()
    assert {file.name: file.read_bytes() for file in shard.passes.iterdir()} == before


def test_pieces_of_other_settings_are_not_taken_over(shard):
    more = SETTINGS | {"continuations": SETTINGS["continuations"] | {"k": 3}}
    with pytest.raises(TypeError, match="not callable"):
        shard.run_passes(more)


def test_a_cache_too_small_for_the_trunks_is_found_before_an_engine_starts(shard):
    """Three blocks of trunks' state, vLLM's own, and what continuations take besides."""
    state, request = kv_file(shard.trunks, 0), passes.Request(0, 16, ARMS[0], 0, 1, [1] * 17)
    save_file(
        {"layer.0": torch.zeros(3, 2**18)},  # a MiB a block
        state,
        metadata=describe([[1] * 32, [1] * 16 + [2] * 16], 16),
    )
    work = passes.Work(4, "c", state, [], [request] * 6)
    small = SETTINGS | {"engine": SETTINGS["engine"] | {"kv_cache_gib": 4.9 / 1024}}
    with pytest.raises(
        KVStateError,
        # 5 and 8 MiB: one request takes one block more, and four run at once
        match=r"engine\.kv_cache_gib is 0\.00478.*, but problem 4's trunks \(.*\) and one request "
        r"take 0\.005; with 0\.008 all that run at once fit",
    ):
        passes.check_memory([work], small)
    passes.check_memory([work], SETTINGS | {"engine": small["engine"] | {"kv_cache_gib": 0.005}})


def test_a_write_that_fails_halfway_leaves_nothing_behind(tmp_path):
    with pytest.raises(StoredFileError), atomic_path(tmp_path / "a") as partial:
        partial.write_text("half")
        raise OSError(28, "No space left on device")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_no_file_holds_a_number_that_is_none(tmp_path, number):
    path = tmp_path / "a"
    with pytest.raises(StoredFileError, match="a: NaN or an infinity is no result"):
        write_json(path, {"delta": number})
    with pytest.raises(StoredFileError, match="a, line 2: NaN or an infinity is no result"):
        write_jsonl(path, [{}, {"delta": number}])
    assert not list(tmp_path.iterdir())
    path.write_text(json.dumps({"delta": number}))
    with pytest.raises(StoredFileError, match=r"a: not valid JSON \(.* is no result\)"):
        read_json(path)
    with pytest.raises(StoredFileError, match=r"a, line 1: not valid JSON \(.* is no result\)"):
        list(read_jsonl(path))


def test_an_engine_that_fails_in_a_pass_says_of_which_problem(shard, monkeypatch):
    class Failing(FakeEngine):
        def generate(self, prompts, parameters):
            raise engine.EngineError("request 1 of 3 returned no tokens")

    monkeypatch.setattr(passes, "Engine", Failing)
    more = SETTINGS | {"continuations": SETTINGS["continuations"] | {"k": 3}}
    with pytest.raises(engine.EngineError, match="problem 0, pass exact1: request 1 of 3 returned"):
        shard.run_passes(more)
