"""Sidecars hold what made a file, and nothing that is secret; the audit finds what was changed."""

import hashlib
import json
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import torch

from replay import provenance, storage
from replay.audit import (
    audit,
    damaged_blocks,
    differences,
    shown,
    strays,
    where_changed,
)
from replay.dag import Job
from replay.kv_state import describe
from replay.provenance import Sidecar
from replay.storage import (
    StoredFileError,
    Workspace,
    read_json,
    write_json,
    write_jsonl,
    write_text,
)
from replay.worker import block_digests

SCRIPTS = Path(__file__).parents[2] / "workflow" / "scripts"


def run_job(rule, params, inputs, outputs, make):
    """What `job.recorded` does around a script; `make` is what the script does."""
    sidecar = Sidecar(f"results/run/logs/{rule}.log", rule, {}, params, inputs)
    make()
    sidecar.write(outputs)


def copy(source, target):
    return lambda: write_text(target, Path(source).read_text())


def write():
    write_text("results/run/a", "a")


def fail():
    raise ValueError("no")


@pytest.fixture
def chain(tmp_path, monkeypatch):
    """Two jobs, the second of which takes what the first makes, as a DAG would list them."""
    monkeypatch.chdir(tmp_path)
    Path("source.json").write_text("1")
    Path("results/run").mkdir(parents=True)
    first, second = "results/run/first.json", "results/run/second.json"
    dag = []
    for rule, source, target in (("first", "source.json", first), ("second", first, second)):
        params = {"settings": {"k": 4}, "code": "a" * 64}
        run_job(rule, params, [source], [target], copy(source, target))
        sidecar = Path(f"results/run/provenance/{rule}.json")
        dag.append(Job(rule, f"{rule}.py", params, (source,), (target,), sidecar, frozenset()))
    return dag


def states(dag):
    return {stage.name: stage.state for stage in audit(dag)[0]}


def lines(dag):
    return "\n".join(line for stage in audit(dag)[0] for line in stage.lines())


def replaced(dag, index, **changes):
    return [Job(**vars(j) | changes) if i == index else j for i, j in enumerate(dag)]


def test_what_nobody_touched_is_verified(chain):
    assert states(chain) == {"first": "verified", "second": "verified"}


def test_a_change_is_found_where_it_was_made_and_nowhere_else(chain):
    Path(chain[0].outputs[0]).write_text("2")
    assert states(chain) == {"first": "changed by hand", "second": "verified"}
    assert "changed by hand: results/run/first.json" in lines(chain)


def test_nothing_is_made_from_a_changed_file_until_it_is_made_again(chain):
    source, (target,) = chain[0].outputs[0], chain[1].outputs
    again = ("second", chain[1].params, [source], [target], copy(source, target))
    Path(source).write_text("2")
    with pytest.raises(StoredFileError, match=f"^{source}: changed since job first made it"):
        run_job(*again)
    run_job("first", chain[0].params, ["source.json"], [source], copy("source.json", source))
    run_job(*again)
    assert states(chain) == {"first": "verified", "second": "verified"}


def test_an_input_of_which_one_sidecar_says_what_it_is_is_taken(chain):
    """A job whose log has moved leaves its old sidecar behind."""
    old = read_json(chain[0].sidecar)
    old["outputs"] = dict.fromkeys(old["outputs"], "0" * 64)
    write_json("results/run/provenance/elsewhere/first.json", old)
    source, target = chain[1].inputs[0], chain[1].outputs[0]
    run_job("second", chain[1].params, [source], [target], copy(source, target))
    assert states(chain)["second"] == "verified"


def test_what_was_made_from_a_changed_file_is_stale(chain):
    """Also without the sidecar that would have kept it from being made."""
    Path(chain[0].outputs[0]).write_text("2")
    job, kept = chain[1], read_json(chain[0].sidecar)
    chain[0].sidecar.unlink()
    run_job(
        "second", job.params, list(job.inputs), list(job.outputs), copy(*job.inputs, *job.outputs)
    )
    write_json(chain[0].sidecar, kept)
    assert states(chain) == {"first": "changed by hand", "second": "stale"}


def test_missing_files_and_sidecars_are_named(chain):
    Path(chain[1].outputs[0]).unlink()
    chain[0].sidecar.unlink()
    assert states(chain) == {"first": "missing", "second": "missing"}
    assert "results/run/provenance/first.json: no sidecar" in lines(chain)
    assert "missing: results/run/second.json" in lines(chain)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"params": {"settings": {"k": 8}, "code": "a" * 64}}, "settings.k was 4, is 8"),
        ({"params": {"settings": {"k": 4}, "code": "b" * 64}}, "the code that made it has changed"),
        ({"inputs": ("source.json", "other.json")}, "now takes other.json"),
    ],
)
def test_other_parameters_code_or_inputs_are_stale(chain, changes, said):
    dag = replaced(chain, 0, **changes)
    assert states(dag) == {"first": "stale", "second": "verified"}
    assert said in lines(dag)


def test_a_source_that_no_job_made_is_asked_itself(chain):
    Path("source.json").write_text("2")
    assert states(chain)["first"] == "stale"
    Path("source.json").unlink()
    assert "missing: source.json" in lines(chain)


def test_a_sidecar_that_was_edited_is_found_by_what_was_made_from_its_files(chain):
    """File and sidecar changed together: the next job recorded what it really read."""
    target = Path(chain[0].outputs[0])
    target.write_text("2")
    sidecar = read_json(chain[0].sidecar)
    sidecar["outputs"][str(target)] = hashlib.sha256(b"2").hexdigest()
    write_json(chain[0].sidecar, sidecar)
    assert states(chain) == {"first": "verified", "second": "stale"}


@pytest.mark.parametrize(
    "edit",
    [
        {"began": "2000-01-01T00:00:00.000+00:00"},
        {"git": {"commit": "0" * 40, "dirty": False}},
        {"environment": {"VLLM_PLANTED": "1"}},
        {"sources": {"resources/models/other": {}}},
    ],
)
def test_whatever_is_edited_in_a_sidecar_changes_the_final_sum(chain, edit):
    before = audit(chain)[1]
    assert before == audit(chain)[1]
    write_json(chain[0].sidecar, read_json(chain[0].sidecar) | edit)
    assert audit(chain)[1] != before


def test_a_sidecar_that_dated_the_data_and_was_edited_is_found(chain):
    first, second = (job.sidecar for job in chain)
    kept = {str(first): {"began": "2026-01-01", "sha256": provenance.hashes(first)}}
    write_json(second, read_json(second) | {"engine_sidecars": kept})
    assert states(chain)["second"] == "verified"
    write_json(first, read_json(first) | {"began": "9999-01-01"})
    assert states(chain)["second"] == "stale"
    assert f"was made from another {first}" in lines(chain)


def test_a_sidecar_of_no_job_is_named(chain):
    before = strays(Path("results/run"), chain)
    stray = chain[0].sidecar.with_name("zz.json")
    write_json(stray, read_json(chain[0].sidecar))
    assert set(strays(Path("results/run"), chain)) - set(before) == {stray}


def test_a_file_added_to_a_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("results/run/folder").mkdir(parents=True)
    make = lambda: write_text("results/run/folder/a.txt", "a")  # noqa: E731
    run_job("first", {}, [], ["results/run/folder"], make)
    sidecar = Path("results/run/provenance/first.json")
    dag = [Job("first", "first.py", {}, (), ("results/run/folder",), sidecar, frozenset())]
    Path("results/run/folder/.snakemake_timestamp").touch()
    assert states(dag) == {"first": "verified"}
    Path("results/run/folder/b.txt").touch()
    assert "results/run/folder/b.txt: added" in lines(dag)


def test_files_that_no_job_made_are_listed(chain):
    folder = Path("results/run")
    assert strays(folder, chain) == []
    planted = ["passes/evil/a.jsonl", "third.json", "provenance/zz.json", ".hidden", "a/.b/c"]
    for name in [*planted, "logs/a.log", "benchmarks/a", ".a.unfinished/b", ".snakemake_timestamp"]:
        write_text(folder / name, "")
    (folder / "link").symlink_to("/")
    assert strays(folder, chain) == sorted(folder / name for name in [*planted, "link"])


def test_a_hidden_file_in_a_folder_of_a_job_is_listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("results/run/folder")
    job = Job("first", "", {}, (), (str(folder),), Path("results/run/first.json"), frozenset())
    for name in ("a", "b/c", ".d"):
        write_text(folder / name, "")
    assert strays(Path("results/run"), [job]) == [folder / ".d"]


def test_a_name_draws_no_line_of_its_own(tmp_path, monkeypatch):
    assert shown("results/run/ä b") == "results/run/ä b"
    monkeypatch.chdir(tmp_path)
    folder = Path("results/run/folder")
    run_job("first", {}, [], [str(folder)], lambda: write_text(folder / "a", ""))
    sidecar = Path("results/run/provenance/first.json")
    dag = [Job("first", "", {}, (), (str(folder),), sidecar, frozenset())]
    (folder / "b\npasses  1 job  verified").touch()
    (stage,) = audit(dag)[0]
    assert not any("\n" in line for line in stage.lines()) and r"b\npasses" in stage.lines()[1]


def test_a_job_that_failed_leaves_no_sidecar(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sidecar = Path("results/run/provenance/first.json")
    write_json(sidecar, {"of": "an earlier run"})
    with pytest.raises(ValueError):
        run_job("first", {}, [], ["results/run/a"], fail)
    assert not sidecar.exists()


def test_work_that_outlives_a_failed_attempt_is_as_old_as_that_attempt(tmp_path, monkeypatch):
    """Whatever was run between, and whether or not its sidecars are still there."""
    monkeypatch.chdir(tmp_path)
    times = iter(f"2026-01-0{day}" for day in range(1, 10))
    for module in (provenance, storage):
        monkeypatch.setattr(module, "now", lambda: next(times))

    def attempt(k, fails=False):
        sidecar = Sidecar("results/run/logs/first.log", "first", {}, {"k": k}, [])
        workspace = Workspace("results/run/a", {"k": k})
        if not workspace.has("0.json"):
            workspace.save("0.json", k)
        workspace.lock.close()
        if not fails:
            write_json("results/run/a", workspace.load("0.json"))
            sidecar.took_over(workspace.began)
            sidecar.write(["results/run/a"])
            return read_json(sidecar.path)

    attempt(4, fails=True)
    assert attempt(8)["began"] == "2026-01-03"
    shutil.rmtree("results/run/provenance")
    assert attempt(4)["began"] == "2026-01-02"


def test_the_environment_is_what_changes_numbers_and_never_a_secret(tmp_path, monkeypatch):
    for name, value in {
        "HF_TOKEN": "planted-hf",
        "AWS_SECRET_ACCESS_KEY": "planted-aws",
        "VLLM_API_KEY": "planted-vllm",
        "VLLM_S3_ENDPOINT_URL": "planted-url",
        "VLLM_BATCH_INVARIANT": "1",
        "OMP_NUM_THREADS": "2",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    run_job("first", {}, [], ["results/run/a"], write)
    text = Path("results/run/provenance/first.json").read_text()
    assert "planted" not in text
    variables = json.loads(text)["environment"]
    assert variables["VLLM_BATCH_INVARIANT"] == "1" and variables["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "planted") for name in (
            "VLLM_TOKENS", "VLLM_SECRETS", "VLLM_PASS", "VLLM_PWD", "VLLM_JWT", "VLLM_BEARER",
            "VLLM_DSN", "NVIDIA_ACCESSTOKEN", "TORCH_PASSPHRASE", "CUDA_CREDS", "VLLM_HOST_IP",
            "TORCH_MASTER_ADDR", "VLLM_http_proxy", "OMP_AUTHORIZATION", "VLLM_ApiKey",
        )),
        ("VLLM_PLUGINS", "http://user:planted@host"),
        ("LD_PRELOAD", "a.so s3+x://planted@host/b.so"),
    ],
)  # fmt: skip
def test_what_may_be_a_secret_is_left_out(name, value):
    assert provenance.environment({name: value, "VLLM_BATCH_INVARIANT": "1"}) == {
        "VLLM_BATCH_INVARIANT": "1"
    }


@pytest.mark.parametrize(
    ("log", "sidecar"),
    [
        ("results/demo/logs/table.log", "results/demo/provenance/table.json"),
        (
            "results/demo/logs/passes/logs/0-of-1.log",
            "results/demo/provenance/passes/logs/0-of-1.json",
        ),
        ("results/logs/logs/records/a.b.log", "results/logs/provenance/records/a.b.json"),
        ("resources/logs/model/logs.log", "resources/provenance/model/logs.json"),
    ],
)
def test_a_sidecar_has_its_place_whatever_is_called_logs(log, sidecar):
    assert str(provenance.sidecar_path(log)) == sidecar


def test_a_sidecar_of_an_engine_names_its_engine_its_seeds_and_its_sources(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, entry = "resources/models/tiny", {"source": "hub", "revision": "f" * 40}
    write_json(f"{model}/config.json", {})
    write_json(
        "resources/provenance/model/tiny.json",
        {
            "format": provenance.FORMAT,
            "rule": "model",
            "params": {},
            "inputs": {},
            "outputs": {model: provenance.hashes(model)},
            "sources": {model: entry},
        },
    )
    folder = "results/run/trunks/0-of-1"
    write_json(f"{folder}/engine.json", [{"device": "cpu"}])
    write_jsonl(f"{folder}/trunks.jsonl", [{"seed": 7}, {"seed": 8}])
    run_job("first", {"settings": {"engine": {}}}, [model], [folder], lambda: None)
    sidecar = read_json("results/run/provenance/first.json")
    assert sidecar["engine"] == [{"device": "cpu"}]
    seeds = sidecar["seeds"]["trunks.jsonl"]
    assert (seeds["count"], seeds["first"]) == (2, 7)
    assert seeds["sha256"] == hashlib.sha256(b"7\n8\n").hexdigest()
    assert sidecar["sources"] == {model: entry}
    assert list(sidecar["inputs"][model]) == ["config.json"]
    assert {"git", "software", "began", "ended"} <= sidecar.keys()


def test_without_a_checkout_the_commit_is_none_and_says_why(tmp_path, monkeypatch):
    state = provenance.git_state(tmp_path)
    assert state["commit"] is None and "not a git repository" in state["reason"]
    monkeypatch.setenv("PATH", "")
    assert provenance.git_state(tmp_path)["reason"] == "git is not installed"


def test_a_checkout_inside_another_is_not_taken_for_it(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    inner = tmp_path / "inner"
    inner.mkdir()
    assert provenance.git_state(inner)["reason"] == "not a git checkout of its own"


def kv_state(path, blocks=5):
    layers = [torch.arange(blocks * 8).reshape(blocks, 2, 4).to(torch.bfloat16) for _ in range(3)]
    from safetensors.torch import save_file

    metadata = describe([[1] * 16], 16) | {"sha256": json.dumps(block_digests(layers))}
    save_file({f"layer.{i}": layer for i, layer in enumerate(layers)}, path, metadata=metadata)


def test_the_block_of_a_kv_state_that_was_changed_is_named(tmp_path):
    path = tmp_path / "0.safetensors"
    kv_state(path)
    assert damaged_blocks(path) == ([], 5)
    content = bytearray(path.read_bytes())
    block = 2 * 4 * 2  # bytes of a block of one layer
    content[len(content) - 5 * block + 3 * block + 1] ^= 1  # block 3 of the last layer
    path.write_bytes(content)
    assert damaged_blocks(path) == ([3], 5)


@pytest.mark.parametrize(
    "header",
    [
        {"__metadata__": {"sha256": '["a"]'}, "layer.0": {"data_offsets": [-99, 4]}},
        {"__metadata__": {"sha256": '["a"]'}, "layer.0": {"data_offsets": [0, 2**70]}},
        {"__metadata__": {"sha256": '["a"]'}, "layer.0": {"data_offsets": [2**70, 2**70]}},
        {"__metadata__": {"sha256": '["a"]'}, "layer.0": {"data_offsets": [0.5, 4]}},
        {"__metadata__": {"sha256": '["a"]'}, "layer.0": [0, 4]},
        {"__metadata__": {"sha256": "{}"}, "layer.0": {"data_offsets": [0]}},
        {"__metadata__": []},
        [1],
        None,
    ],
)
def test_a_malformed_header_of_a_kv_state_is_said_to_be_none(tmp_path, header):
    path = tmp_path / "0.safetensors"
    text = json.dumps(header).encode() if header else b"[" * 100_000
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"data")
    assert where_changed(str(path)) == ": its header is not one of a KV state"


def test_a_header_that_says_it_is_huge_is_not_read(tmp_path):
    path = tmp_path / "0.safetensors"
    with path.open("wb") as file:
        file.write((10**9).to_bytes(8, "little"))
        file.truncate(2 * 10**9)
    tracemalloc.start()
    said = where_changed(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said == ": its header is not one of a KV state" and peak < 10**6


def test_weights_are_no_kv_state(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_text("resources/models/tiny/model.safetensors", "weights")
    assert where_changed("resources/models/tiny/model.safetensors") == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": None},
        {"outputs": None},
        {"outputs": {"results/run/first.json": 1}},
        {"outputs": {"results/run/first.json": {"a": []}}},
        {"params": [], "format": "replay-provenance/1"},
        {"format": "other"},
        {"rule": ["first"]},
    ],
)
def test_a_malformed_sidecar_says_nothing_of_its_job(chain, changes):
    write_json(chain[0].sidecar, read_json(chain[0].sidecar) | changes)
    assert states(chain)["first"] == "missing"
    assert "results/run/provenance/first.json: no sidecar" in lines(chain)


@pytest.mark.parametrize("content", ["{}", "[]", "[" * 100_000, "\xff", '{"outputs": null}'])
def test_a_stray_file_among_the_sidecars_is_one_error_that_names_it(chain, content):
    stray = Path("results/run/provenance/zz.json")
    stray.write_text(content, encoding="latin-1")
    with pytest.raises(StoredFileError, match=f"^{stray}: .*delete it"):
        provenance.sidecars("run")


def test_differences_are_named_by_dotted_keys():
    was = {"a": {"b": 1, "c": [1]}, "code": "x"}
    assert differences(was, {"a": {"b": 2, "c": [1]}, "code": "x"}) == ["a.b was 1, is 2"]
    assert differences(was, was) == []


def test_hashing_takes_the_same_memory_for_any_size(tmp_path):
    """2 GB, without taking them on the disk: beyond what the process held before, next to none."""
    path = tmp_path / "big.safetensors"
    with path.open("wb") as file:
        file.truncate(2 * 10**9)
    program = (
        "import resource, sys\n"
        f"sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "from replay.provenance import hashes\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\n"
        f"hashes({str(path)!r})\n"
        "print(peak() - before)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert int(result.stdout) < 10_000, "KiB"


def test_the_graph_of_the_rules_is_drawn_alike_each_time():
    program = (
        "import sys\n"
        f"sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "from replay.rule_graph import svg\n"
        "names = [f'rule{i}' for i in range(12)]\n"
        "edges = [(a, b) for i, a in enumerate(names) for b in names[i + 1 : i + 4]]\n"
        "print(svg([*names, 'alone'], edges))\n"
    )
    drawn = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in "123"
    }  # fmt: skip
    (graph,) = drawn
    assert graph.count("<rect") == 13 and ">alone</text>" in graph
