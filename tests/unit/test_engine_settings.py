"""What settings become before an engine starts, and what of it an engine must confirm."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from replay.engine import Engine, EngineError, attention, environment
from replay.provenance import installed

SCRIPTS = str(Path(__file__).parents[2] / "workflow" / "scripts")
SETTINGS = {
    "device": "cuda", "numerics": "stock", "threads": 1, "compile": True, "process": "in-process",
    "attention_backend": None, "flash_attn_version": None, "tensor_parallel": 1,
}  # fmt: skip
FLASH2 = {"backend": "FLASH_ATTN", "flash_attn_version": 2}
INVARIANT = {"numerics": "batch-invariant"}


@pytest.mark.parametrize(
    ("changes", "variables"),
    [
        ({}, {"VLLM_BATCH_INVARIANT": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}),
        (INVARIANT, {"VLLM_BATCH_INVARIANT": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}),
        ({"process": "engine-core"}, {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}),
        ({"compile": False}, {"TORCHDYNAMO_DISABLE": "1"}),
        ({"device": "cpu"}, {"VLLM_CPU_ATTN_SPLIT_KV": "1", "TORCHDYNAMO_DISABLE": "0"}),
        ({"device": "cpu"} | INVARIANT, {"VLLM_CPU_ATTN_SPLIT_KV": "0"}),
    ],
)
def test_environment(changes, variables):
    result = environment(SETTINGS | changes)
    assert result.items() >= variables.items()
    assert all(isinstance(value, str) for value in result.values())


def test_a_device_has_the_variables_of_its_own_kind_only():
    cpu, cuda = environment(SETTINGS | {"device": "cpu"}), environment(SETTINGS)
    assert not {"VLLM_BATCH_INVARIANT", "VLLM_USE_FLASHINFER_SAMPLER"} & set(cpu)
    assert not [name for name in cuda if name.startswith("VLLM_CPU")]


def test_a_cpu_engine_is_bound_to_as_many_cpus_as_it_has_threads():
    first = min(os.sched_getaffinity(0))
    bound = environment(SETTINGS | {"device": "cpu"})["VLLM_CPU_OMP_THREADS_BIND"]
    assert bound == str(first)


def test_as_many_threads_compute_whatever_the_environment_says():
    """Snakemake sets MKL's number to the threads of the rule, and torch goes by it."""
    assert environment(SETTINGS | {"device": "cpu"})["MKL_NUM_THREADS"] == "1"


def test_more_threads_than_cpus_is_refused():
    with pytest.raises(EngineError, match=re.escape("engine.threads is 4096")):
        environment(SETTINGS | {"device": "cpu", "threads": 4096})


@pytest.mark.parametrize(
    ("changes", "capability", "expected"),
    [
        ({}, None, {}),
        ({}, 9, {}),
        (INVARIANT, None, {}),
        (INVARIANT, 8, {}),
        (INVARIANT, 9, FLASH2),
        (INVARIANT, 10, FLASH2),
        ({"flash_attn_version": 2}, 9, {"flash_attn_version": 2}),
        ({"attention_backend": "TRITON_ATTN"}, 8, {"backend": "TRITON_ATTN"}),
        (INVARIANT | {"flash_attn_version": 3}, 9, {"flash_attn_version": 3}),
        (INVARIANT | {"attention_backend": "TRITON_ATTN"}, 9, {"backend": "TRITON_ATTN"}),
        ({"attention_backend": "FLASH_ATTN", "flash_attn_version": 2}, 9, FLASH2),
    ],
)
def test_attention_is_what_is_named_else_what_the_numerics_need(changes, capability, expected):
    assert attention(SETTINGS | changes, capability) == expected


def test_what_one_engine_does_to_its_attention_is_not_what_the_next_one_gets():
    attention(SETTINGS | INVARIANT, 9)["flash_attn_version"] = 3
    assert attention(SETTINGS | INVARIANT, 9) == FLASH2


RANK = {
    "attention_backend": "FLASHINFER", "flash_attn_version": None, "linear_rows": "as batched",
    "prefix_caching": True, "threads": 1,
}  # fmt: skip


def engine(ranks, scheduler_caches=True):
    """An engine that never started; its workers and its scheduler answer as given."""
    made = Engine.__new__(Engine)
    made.settings = SETTINGS | INVARIANT
    made.llm = made
    made.collective_rpc = {"numerics_in_force": ranks}.__getitem__
    made._ask = {"prefix_caching": {"on": scheduler_caches}}.__getitem__
    return made


def test_numerics_that_all_ranks_agree_on_are_in_force():
    assert engine([RANK, dict(RANK)])._numerics_in_force() == RANK


@pytest.mark.parametrize(
    ("workers_cache", "scheduler_caches"), [(False, True), (True, False), (False, False)]
)
def test_an_engine_that_caches_no_prefixes_is_refused(workers_cache, scheduler_caches):
    ranks = [RANK | {"prefix_caching": workers_cache}]
    says = "FLASHINFER switched prefix caching off under batch-invariant .*engine.attention_backend"
    with pytest.raises(EngineError, match=says):
        engine(ranks, scheduler_caches)._numerics_in_force()


def test_another_number_of_threads_than_asked_for_is_refused():
    made = engine([RANK])
    made.settings = made.settings | {"device": "cpu", "threads": 2}
    with pytest.raises(EngineError, match="engine.threads is 2, but the engine computes with 1"):
        made._numerics_in_force()


def test_ranks_that_compute_differently_are_refused():
    with pytest.raises(EngineError, match="ranks compute differently: .*TRITON_ATTN"):
        engine([RANK, RANK | {"attention_backend": "TRITON_ATTN"}])._numerics_in_force()


@pytest.mark.skipif(not installed(("vllm-cpu",)), reason="this vLLM is built for a GPU")
def test_a_vllm_that_is_built_for_another_device_is_refused(tmp_path):
    """In a process of its own, as settings become variables that stay; the GPU is only named."""
    program = f"from replay.engine import Engine; Engine('model', {SETTINGS})"
    own = {"CUDA_VISIBLE_DEVICES": "0", "TMPDIR": str(tmp_path), "PYTHONPATH": SCRIPTS}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | own, capture_output=True, text=True
    )
    assert "engine.device is cuda, but the installed vLLM is built for cpu" in done.stderr
