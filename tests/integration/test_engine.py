"""Real vLLM on the CPU: restored state, seeds, resets, numerics, and the engine's own process."""

import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import psutil
import pytest
from safetensors.torch import save_file

from replay.datasets import Problem
from replay.engine import Engine, EngineError
from replay.invariance import Size, check_engine, verdict
from replay.kv_state import KVStateError, block_bytes, describe
from replay.passes import pass_order, plan, prepare, retokenised, run_problem
from replay.prompts import load_tokenizer
from replay.protocol import CATALOGUE, PASSES, PROBE
from replay.storage import Workspace
from replay.trunks import TrunkGenerator

pytestmark = pytest.mark.engine

PROBLEM = Problem(0, "Tom has 3 apples. He buys 5 more. How many apples does Tom have now?", 8)
SETTINGS = {
    "engine": {
        "device": "cpu", "numerics": "stock", "threads": 2, "compile": False, "dtype": "bfloat16",
        "block_size": 16, "max_model_len": 512, "max_num_seqs": 64, "max_num_batched_tokens": 512,
        "kv_cache_gib": 0.5, "process": "in-process", "attention_backend": None,
        "flash_attn_version": None, "tensor_parallel": 1,
    },
    "prompt": {"instruction": "\n\nReason step by step.", "system": None},
    "trunks": {
        "rollouts": 4, "temperature": 0.7, "top_p": 0.95, "max_tokens": 96, "logprobs": 5,
    },
    "pivots": {
        "margin_lt": 1.0, "boundary_slack": 2, "max_per_rollout": 2, "ranking": "text",
    },
    "continuations": {
        "k": 2, "temperature": 0.7, "top_p": 0.95, "max_tokens": 24, "probe_tokens": 16,
    },
}  # fmt: skip


SMALL = Size(prompts=2, copies=12, tokens=12)  # of a self-check


BEREFT: list = []  # engines without their worker: to close or to collect one would wait for ever


class Sessions:
    """Engines by kind, one at a time as in a job: vLLM freezes the environment that it reads."""

    def __init__(self, checkpoint, folder):
        self.checkpoint, self.folder = checkpoint, folder
        self.kind, self.session = None, None

    def of(self, kind, start):
        if self.kind != kind:
            self.close()
            self.session = start()
            self.kind = kind
        return self.session

    def close(self):
        if self.kind:
            self.session.engine.close()
        self.kind = None

    def generated(self, numerics):
        """An engine that has just generated the trunks of PROBLEM, and the work planned on them."""
        settings = SETTINGS | {"engine": SETTINGS["engine"] | {"numerics": numerics}}
        workspace = Workspace(self.folder / numerics / "out", "x")
        generator = TrunkGenerator(workspace, self.checkpoint, settings)
        rows = generator.rollouts(PROBLEM)
        tokenizer = load_tokenizer(self.checkpoint)
        special, text = set(tokenizer.all_special_ids), partial(retokenised, tokenizer)
        work = plan(rows, "c", generator.kv_piece(PROBLEM.index), settings, special, text)
        return SimpleNamespace(
            engine=generator.engine, rows=rows, work=work, sampling=settings["continuations"]
        )


@pytest.fixture(scope="module")
def sessions(checkpoint, tmp_path_factory):
    sessions = Sessions(checkpoint, tmp_path_factory.mktemp("engine"))
    yield sessions
    sessions.close()


@pytest.fixture
def stock(sessions):
    return sessions.of("stock", lambda: sessions.generated("stock"))


@pytest.fixture
def invariant(sessions):
    return sessions.of("invariant", lambda: sessions.generated("batch-invariant"))


@pytest.fixture(scope="module")
def alone(sessions):
    """The first pivot's requests, each resumed alone by the engine that generated the trunks."""
    stock = sessions.of("stock", lambda: sessions.generated("stock"))
    work = of_first_pivots(stock, 1)
    session = SimpleNamespace(**vars(stock) | {"work": work})
    return SimpleNamespace(work=work, completions=one_by_one(session))


@pytest.fixture
def engine_core(sessions, alone):
    """An engine in vLLM's own process, on the trunks of the stock engine, which is gone."""

    def start():
        settings = SETTINGS["engine"] | {"process": "engine-core"}
        return SimpleNamespace(
            engine=Engine(sessions.checkpoint, settings),
            work=alone.work, sampling=SETTINGS["continuations"],
        )  # fmt: skip

    return sessions.of("engine-core", start)


def of_first_pivots(session, rollouts):
    """The work on the first pivot of as many rollouts."""
    first = {request.rollout: request.abs_pos for request in reversed(session.work.requests)}
    chosen = {rollout: first[rollout] for rollout in sorted(first)[:rollouts]}
    assert len(chosen) == rollouts
    return replace(
        session.work,
        requests=[r for r in session.work.requests if chosen.get(r.rollout) == r.abs_pos],
    )


def passes(session, order, work=None):
    """Rows by pass, run in this order."""
    result = run_problem(
        session.engine, work or session.work, session.sampling, list(order), lambda n: None
    )
    assert result["order"] == list(order) and list(result["seconds"]) == list(order)
    return result["passes"]


def requests(session):
    from replay.passes import _parameters

    prompts = [request.prompt for request in session.work.requests]
    parameters = [_parameters(session.engine, r, session.sampling) for r in session.work.requests]
    return prompts, parameters


def one_by_one(session):
    """Restore the state, then run each request alone, so that admission cannot matter."""
    session.engine.restore_kv(session.work.kv_path)
    return [session.engine.generate([p], [q])[0] for p, q in zip(*requests(session), strict=True)]


def channels(completions):
    return [(c.token_ids, c.logprobs, c.finish_reason) for c in completions]


def test_restored_state_equals_resident_state(stock):
    """exact1 straight after the trunk, and from a file with the whole cache overwritten between."""
    # Runs first: the trunk's own blocks must still be the resident ones.
    prompts, parameters = requests(stock)
    resident = stock.engine.generate(prompts, parameters)
    stock.engine.reset()
    stock.engine.llm.collective_rpc("fill_kv_cache", args=(3.0,))
    stock.engine.restore_kv(stock.work.kv_path)
    restored = stock.engine.generate(prompts, parameters)
    assert len(prompts) >= 6
    assert channels(resident) == channels(restored)
    for request, one, other in zip(stock.work.requests, resident, restored, strict=True):
        aligned = request.abs_pos // 16 * 16
        assert one.num_cached_tokens == other.num_cached_tokens == aligned > 0
        assert one.preemptions == other.preemptions == 0


def test_the_garbage_would_have_been_seen(stock):
    """Restoring matters: on overwritten blocks the same batch gives something else."""
    prompts, parameters = requests(stock)
    stock.engine.restore_kv(stock.work.kv_path)
    stock.engine.llm.collective_rpc("fill_kv_cache", args=(3.0,))
    garbage = stock.engine.generate(prompts, parameters)
    stock.engine.restore_kv(stock.work.kv_path)
    assert channels(garbage) != channels(stock.engine.generate(prompts, parameters))


def test_stock_refeed_is_cold_and_not_bit_exact_on_some_probes(stock):
    result = passes(stock, PASSES)
    probes = {name: [r for r in result[name] if r["k"] == PROBE] for name in PASSES}
    assert [r["logprobs"] for r in probes["refeed"]] != [r["logprobs"] for r in probes["exact1"]]
    assert all(r["resumed"] for name in ("exact1", "exact2") for r in result[name])
    assert not any(r["resumed"] for r in result["refeed"])
    # The first request of a cold pass cannot hit anything.
    assert result["refeed"][0]["num_cached_tokens"] == 0 < result["exact2"][0]["num_cached_tokens"]
    for row, other in zip(result["exact1"], result["refeed"], strict=True):
        assert (row["seed"], row["arm"], row["k"]) == (other["seed"], other["arm"], other["k"])


@pytest.fixture(scope="module")
def controls(sessions):
    """Every pass but the serial ones over two rollouts, in the listed and in a random order."""
    stock = sessions.of("stock", lambda: sessions.generated("stock"))
    work = of_first_pivots(stock, 2)
    assert len(work.prefixes(16)) == 2  # they share their prompt
    names = [name for name, kind in CATALOGUE.items() if kind.admission != "serial"]
    shuffled = pass_order(names, "random", PROBLEM.index)
    assert shuffled != names
    return work, passes(stock, names, work), passes(stock, shuffled, work)


def test_passes_are_the_same_in_any_order(controls):
    """In-process a pass is a function of its cache state and its arrivals, so any order replays."""
    _, listed, shuffled = controls
    assert {name: listed[name] for name in shuffled} == shuffled
    assert listed["refeed2"] == listed["refeed"] and listed["exact2"] == listed["exact1"]


def test_every_warm_pass_resumes_the_blocks_that_it_was_given(stock, controls):
    work, listed, _ = controls
    for name, rows in listed.items():
        assert all(row["resumed"] == CATALOGUE[name].warm for row in rows), name
    hits = {name: [row["num_cached_tokens"] for row in rows] for name, rows in listed.items()}
    assert hits["prefill_warm"] == hits["exact1"] != hits["refeed"]
    # The blocks of prefill_warm hold what prefill computed, not what was decoded.
    states = []
    for state in ("restored", "prefilled"):
        blocks, contents = prepare(stock.engine, work, state)
        assert contents == stock.engine.contents(blocks)
        states.append(contents)
    restored, prefilled = states
    assert set(prefilled) < set(restored)  # the rollouts with pivots, up to their last pivots
    assert any(prefilled[prefix] != restored[prefix] for prefix in prefilled)


def test_staggered_arrivals_change_the_schedule_and_nothing_else(stock, controls):
    """Each pass came out the same twice; arrivals all at once are the exact pass itself."""
    work, listed, _ = controls
    identities = {name: [(r["arm"], r["k"], r["seed"]) for r in listed[name]] for name in listed}
    assert identities["staggered"] == identities["exact1"]
    prompts, parameters = requests(SimpleNamespace(**vars(stock) | {"work": work}))
    steps = []
    step = stock.engine.llm.llm_engine.step

    def counted():
        steps.append(stock.engine.llm.llm_engine.get_num_unfinished_requests())
        return step()

    stock.engine.restore_kv(work.kv_path)
    stock.engine.llm.llm_engine.step = counted
    try:
        at_once = stock.engine.generate(prompts, parameters, [len(prompts)])
        assert steps[0] == len(prompts)
        steps.clear()
        spread = stock.engine.generate(prompts, parameters, [1, 0, len(prompts) - 1])
        assert steps[:3] == [1, 1, len(prompts)]
    finally:
        del stock.engine.llm.llm_engine.step
    exact = [(row["token_ids"], row["finish_reason"]) for row in listed["exact1"]]
    assert [(c.token_ids, c.finish_reason) for c in at_once] == exact
    assert len(spread) == len(prompts)


def test_serial_passes_take_one_request_at_a_time(stock, alone):
    rows = passes(stock, ["serial_exact", "serial_refeed"], alone.work)
    exact = [(c.token_ids, c.finish_reason, c.num_cached_tokens) for c in alone.completions]
    assert [
        (r["token_ids"], r["finish_reason"], r["num_cached_tokens"]) for r in rows["serial_exact"]
    ] == exact
    assert all(row["resumed"] for row in rows["serial_exact"])
    assert all(row["num_cached_tokens"] == 0 for row in rows["serial_refeed"])


def test_seeds_hold_and_are_what_makes_it_hold(stock):
    """The same batch twice gives the same tokens, beside greedy requests too."""
    prompts = [row["prompt_token_ids"] for row in stock.rows] * 2

    def run(seeds):
        stock.engine.reset()
        sampled = [
            stock.engine.sampled(temperature=1.0, top_p=0.95, max_tokens=24, seed=seed)
            for seed in seeds
        ]
        greedy = [stock.engine.greedy(max_tokens=24) for _ in seeds]
        return [c.token_ids for c in stock.engine.generate(prompts, sampled + greedy)]

    first, again, other = run([1, 2, 3, 4]), run([1, 2, 3, 4]), run([5, 6, 7, 8])
    assert first == again
    assert first[:4] != other[:4] and len({tuple(tokens) for tokens in first[:4]}) == 4
    assert first[4:] == other[4:] == [first[4]] * 4


def test_a_probe_takes_the_most_probable_token(stock):
    stock.engine.restore_kv(stock.work.kv_path)
    prompts, parameters = requests(stock)
    for request, completion in zip(
        stock.work.requests, stock.engine.generate(prompts, parameters), strict=True
    ):
        if request.k == PROBE:
            for token, position in zip(completion.token_ids, completion.logprobs, strict=True):
                assert position[token] == max(position.values())


def test_trunks_say_whose_block_they_resume(stock):
    shared = len(stock.rows[0]["prompt_token_ids"]) // 16
    assert shared >= 1
    for row in stock.rows:
        assert row["block_owners"][:shared] == [0] * shared
        assert set(row["block_owners"][shared + 1 :]) <= {*range(row["rollout"] + 1)}
    assert stock.rows[1]["block_owners"][-1] == 1


def test_a_refused_reset_is_an_error(stock, monkeypatch):
    monkeypatch.setattr(stock.engine.llm, "reset_prefix_cache", lambda: False)
    monkeypatch.setattr("replay.engine.RESET_PAUSE_SECONDS", 0)
    with pytest.raises(EngineError, match="refused 5 times"):
        stock.engine.reset()


def check_that_it_does_not_fit(engine, path):
    blocks = engine.cache_config.num_gpu_blocks
    save_file({}, path, metadata=describe([list(range(16 * blocks))], 16))
    with pytest.raises(KVStateError, match=rf"takes {blocks} blocks, .*engine\.kv_cache_gib"):
        engine.restore_kv(path)


def test_a_state_that_does_not_fit_says_what_it_takes(stock, tmp_path):
    check_that_it_does_not_fit(stock.engine, tmp_path / "kv.safetensors")


def test_state_that_is_no_longer_resident_is_not_saved(stock, tmp_path):
    stock.engine.reset()
    sequences = [row["prompt_token_ids"][:32] for row in stock.rows]
    with pytest.raises(KVStateError, match="no longer in the cache"):
        stock.engine.save_kv(sequences, tmp_path / "kv.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_block_restored_wrongly_is_found_and_never_hit(stock, monkeypatch):
    def wrong(worker):
        """The worker's cache, as if it did not hold what was written to it."""
        inner = worker.worker
        read = inner.read_kv_blocks
        inner.read_kv_blocks = lambda ids: [layer + 1 for layer in read(ids)]

    def right(worker):
        del worker.worker.read_kv_blocks

    stock.engine.llm.collective_rpc(wrong)
    with pytest.raises(KVStateError, match="the cache does not hold what was restored: block 0"):
        stock.engine.restore_kv(stock.work.kv_path)
    stock.engine.llm.collective_rpc(right)
    prompts, parameters = requests(stock)
    (completion,) = stock.engine.generate(prompts[:1], parameters[:1])
    assert completion.num_cached_tokens == 0


def of_first_pivot(session):
    return replace(session.work, requests=session.work.requests[: 2 * (session.sampling["k"] + 1)])


def run_disturbed(stock, monkeypatch, before=None, after=None):
    """exact1 of one pivot, with something done before or after the engine's batch."""
    generate = stock.engine.generate

    def disturbed(prompts, parameters):
        held = before() if before else None
        completions = generate(prompts, parameters)
        if after:
            after(held)
        return completions

    monkeypatch.setattr(stock.engine, "generate", disturbed)
    hot = stock.sampling | {"temperature": 3.0, "top_p": 1.0}  # so that few end before their limit
    session = SimpleNamespace(**vars(stock) | {"sampling": hot})
    rows = passes(session, ["exact1"], of_first_pivot(stock))["exact1"]
    monkeypatch.undo()
    return rows


def test_a_pass_whose_blocks_were_overwritten_does_not_count_as_resumed(stock, monkeypatch):
    """Every request hit its blocks, and nothing says what they held by then."""
    overwrite = ("fill_kv_cache", None, (3.0,))
    rows = run_disturbed(
        stock, monkeypatch, after=lambda _: stock.engine.llm.collective_rpc(*overwrite)
    )
    assert all(row["num_cached_tokens"] > 0 and not row["resumed"] for row in rows)


@pytest.fixture
def tight(stock):
    """Takes blocks away until only some are free, and gives them back."""
    scheduler = stock.engine.llm.llm_engine.engine_core.engine_core.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    return SimpleNamespace(
        take=lambda free: pool.get_new_blocks(pool.get_num_free_blocks() - free),
        give_back=pool.free_blocks,
    )


def test_a_preempted_trunk_is_refused_with_the_size_that_it_needs(
    stock, sessions, tight, tmp_path, monkeypatch
):
    trunks = SETTINGS["trunks"] | {"max_tokens": 40}
    settings = SETTINGS | {"engine": stock.engine.settings, "trunks": trunks}
    generator = TrunkGenerator(Workspace(tmp_path / "out", "x"), sessions.checkpoint, settings)
    generator.engine, generate = stock.engine, stock.engine.generate

    def cramped(prompts, parameters):
        held = tight.take(free=12)
        try:
            return generate(prompts, parameters)
        finally:
            tight.give_back(held)

    monkeypatch.setattr(stock.engine, "generate", cramped)
    with pytest.raises(EngineError, match=r"preempted, .*engine\.kv_cache_gib, with 0\.0\d\d none"):
        generator.rollouts(PROBLEM)
    assert not list(tmp_path.rglob("*.json")) and not list(tmp_path.rglob("*.safetensors"))


def test_preemption_and_eviction_in_a_pass_are_recorded(stock, tight, monkeypatch):
    requests = of_first_pivot(stock).requests
    # All are admitted, and one block is left for when each needs another.
    free = requests[0].abs_pos // 16 + len(requests) + 1
    rows = run_disturbed(
        stock, monkeypatch, before=lambda: tight.take(free=free), after=tight.give_back
    )
    assert any(row["preemptions"] for row in rows)
    undisturbed = passes(stock, ["exact1"], of_first_pivot(stock))["exact1"]
    assert all(row["resumed"] and not row["preemptions"] for row in undisturbed)


def test_an_output_that_is_missing_is_an_error(stock, monkeypatch):
    generate = stock.engine.llm.generate
    prompts, parameters = requests(stock)
    monkeypatch.setattr(stock.engine.llm, "generate", lambda *a, **k: generate(*a, **k)[:-1])
    with pytest.raises(EngineError, match=f"{len(prompts)} requests went in, {len(prompts) - 1}"):
        stock.engine.generate(prompts, parameters)
    monkeypatch.setattr(stock.engine.llm, "generate", lambda *a, **k: generate(*a, **k)[::-1])
    with pytest.raises(EngineError, match=r"request 1 of \d+ came back with the prompt of another"):
        stock.engine.generate(prompts, parameters)


def test_nan_logits_are_an_error_and_no_tokens(stock):
    """Sampled continuations carry no logprobs that would show it."""
    prompts, parameters = requests(stock)
    stock.engine.restore_kv(stock.work.kv_path)
    stock.engine.llm.collective_rpc("fill_kv_cache", args=(float("nan"),))
    try:
        assert parameters[0].logprobs is None
        with pytest.raises(EngineError, match="request 1 of 1: the model computed NaN logits"):
            stock.engine.generate(prompts[:1], parameters[:1])
    finally:
        stock.engine.reset()
        stock.engine.llm.collective_rpc("fill_kv_cache", args=(0.0,))


def test_the_size_of_a_cache_is_what_the_state_file_says(stock):
    """By which a cache too small for the trunks is found before an engine starts."""
    size = block_bytes(stock.work.kv_path)
    assert stock.engine.settings["kv_cache_gib"] * 2**30 // size == (
        stock.engine.cache_config.num_gpu_blocks
    )


def test_facts_of_a_stock_engine(stock):
    facts = stock.engine.facts()
    assert facts["vllm"] == "0.22.1" and facts["attention_backend"] == "CPU_ATTN"
    assert facts["block_size"] == 16 and facts["prefix_caching"] is True
    assert facts["environment"]["VLLM_CPU_ATTN_SPLIT_KV"] == "1"
    assert facts["engine_process"] == "in-process" and facts["async_scheduling"] is False
    assert facts["compilation"] == facts["cuda_graphs"] == "off"
    assert (facts["tensor_parallel"], facts["flash_attn_version"]) == (1, None)


def self_check(session):
    cuts = (len(session.rows[0]["prompt_token_ids"]), -9)
    prompts = [session.rows[0]["prompt_token_ids"][:cut] for cut in cuts]
    checks = check_engine(session.engine, prompts, SMALL)
    return {check.name: check for check in checks}


def test_the_self_check_finds_what_stock_numerics_do(stock):
    checks = self_check(stock)
    assert checks["repetition"].passed
    failed = {name for name, check in checks.items() if not check.passed}
    assert {"prefill", "batch size"} & failed
    for name in failed:
        assert checks[name].max_delta > 0 and checks[name].first["position"] < SMALL.tokens


def test_state_is_resumed_bit_for_bit_by_the_engine_core_process(engine_core, alone):
    facts = engine_core.engine.facts()
    assert facts["engine_process"] == "engine-core"
    client = type(engine_core.engine.llm.llm_engine.engine_core).__name__
    assert client == "SyncMPClient", "the engine must not live in this process"
    completions = one_by_one(engine_core)
    assert len(completions) == 6
    assert channels(completions) == channels(alone.completions)
    for request, completion in zip(alone.work.requests, completions, strict=True):
        assert completion.num_cached_tokens == request.abs_pos // 16 * 16 > 0


def test_every_exact_request_is_resumed_in_the_engine_core_process(engine_core):
    order = [*PASSES, "prefill_warm"]
    rows = passes(engine_core, order)
    assert [len(rows[name]) for name in order] == [6] * 4
    for name in order:
        assert all(row["resumed"] == CATALOGUE[name].warm for row in rows[name])
        assert all(row["preemptions"] == 0 for row in rows[name])
    assert rows["refeed"][0]["num_cached_tokens"] == 0


def test_after_a_damaged_state_the_engine_goes_on_and_hits_no_garbage(engine_core, alone, tmp_path):
    engine, path = engine_core.engine, tmp_path / "damaged.safetensors"
    data = bytearray(engine_core.work.kv_path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(KVStateError, match=r"damaged\.safetensors: the file is damaged: block"):
        engine.restore_kv(path)
    prompts, parameters = requests(engine_core)
    (after,) = engine.generate(prompts[:1], parameters[:1])
    assert after.num_cached_tokens == 0
    engine.reset()
    assert channels([after]) == channels(engine.generate(prompts[:1], parameters[:1]))
    engine.restore_kv(engine_core.work.kv_path)
    resumed = engine.generate(prompts[:1], parameters[:1])
    assert channels(resumed) == channels(alone.completions[:1])


def test_the_engine_core_process_refuses_a_reset_while_a_request_runs(engine_core, monkeypatch):
    monkeypatch.setattr("replay.engine.RESET_PAUSE_SECONDS", 0)
    engine = engine_core.engine
    core = engine.llm.llm_engine
    parameters = engine.sampled(temperature=0.7, top_p=0.95, max_tokens=96, seed=1)
    core.add_request(
        "running", {"prompt_token_ids": engine_core.work.requests[0].prompt}, parameters
    )
    core.step()  # returns when the engine has made its first step
    with pytest.raises(EngineError, match="refused 5 times"):
        engine.reset()
    while core.has_unfinished_requests():
        core.step()
    engine.reset()


def test_too_small_a_cache_is_said_by_the_engine_core_process_too(engine_core, tmp_path):
    check_that_it_does_not_fit(engine_core.engine, tmp_path / "kv.safetensors")


def kill_amid_a_batch(session, name):
    """kill -9 of the process of the engine so named, while it computes; it is not started again."""
    processes = psutil.Process().children(recursive=True)
    (process,) = (p for p in processes if p.name().startswith(name))
    sampled = session.engine.sampled
    parameters = [sampled(temperature=1.0, top_p=1.0, max_tokens=400, seed=i) for i in range(16)]
    prompts = [session.work.requests[0].prompt] * len(parameters)
    killer = threading.Timer(1.0, process.kill)
    killer.start()
    try:
        with pytest.raises(EngineError, match="failed during a batch of 16 requests .*are kept"):
            session.engine.generate(prompts, parameters)
    finally:
        killer.join()


def test_an_engine_core_process_that_dies_ends_the_job(engine_core):
    kill_amid_a_batch(engine_core, "VLLM::Engine")


def test_facts_of_a_batch_invariant_engine(invariant):
    facts = invariant.engine.facts()
    assert facts["environment"]["VLLM_CPU_ATTN_SPLIT_KV"] == "0"
    assert facts["linear_rows"] == 32


def test_the_self_check_of_batch_invariant_numerics_finds_nothing(invariant):
    checks = self_check(invariant)
    assert verdict(list(checks.values())) == "invariant"
    assert [check.sequences for check in checks.values()] == [24, 24, 4, 2]


def test_batch_invariant_passes_are_identical_on_every_channel(invariant):
    work = of_first_pivots(invariant, 1)
    assert all(request.text_prompt == request.prompt for request in work.requests)
    # Serial passes take longer than all others together.
    names = [name for name, kind in CATALOGUE.items() if kind.admission != "serial"]
    rows = passes(invariant, names, work)
    ignored = {"num_cached_tokens", "resumed"}  # how much was resumed is what differs by design
    found = {
        name: [{k: v for k, v in row.items() if k not in ignored} for row in rows[name]]
        for name in names
    }
    assert len(found["exact1"]) == 6
    assert all(found[name] == found["exact1"] for name in names)


def test_a_worker_that_dies_ends_the_job(sessions, invariant):
    kill_amid_a_batch(invariant, "VLLM::Worker")
    sessions.kind = None
    BEREFT.append(invariant)
