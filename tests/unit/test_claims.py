"""The paper's claims: how a verdict is reached, and that every claim can be recomputed."""

import random
import re
from collections import Counter
from copy import deepcopy

import pytest
from test_published import PAPER, content, pivot, save

from replay import claims
from replay.analysis import analyze
from replay.claims import ALL, CLAIMS, STOCK, as_printed, check
from replay.published import CONFIGURATIONS, pooled, resolve

ESTIMATES = {"main": 4, "k8": 8, "k16": 16, "greedy": 1, "grpo": 4, "phi": 4, "batchinv": 4}
# No record file says what these claim.
NEVER = {
    "abstract.cost", "3.2.probe", "3.4.overlap", "4.engine", "4.hardware", "4.cost", "5.3.probe",
}  # fmt: skip


@pytest.mark.parametrize(
    ("claimed", "values", "recomputed"),
    [
        ("33.8", [33.805], "33.8"),
        ("33.8", [33.86], "33.9"),
        ("+18.7", [18.71], "+18.7"),
        ("+18.7", [-18.7], "-18.7"),
        ("-0.011", [-0.0110063], "-0.011"),
        ("0.0", [-0.0001], "0.0"),
        ("0", [0.4], "0"),
        ("3,434", [3434], "3,434"),
        ("14–28", [13.8, 27.84], "14–28"),
        ("7–21", [7.4, 21.6], "7–22"),
        ("3.7×10^-3", [0.003691], "3.7×10^-3"),
        ("3.7×10^-3", [0.03691], "3.7×10^-2"),
        ("0 and 0", [0, 3], "0 and 3"),
        ("—", [None], "—"),
        ("—", [2.87], "2.87"),
        ("5.51", [None], "—"),
    ],
)
def test_recomputed_reads_as_printed(claimed, values, recomputed):
    assert as_printed(claimed, values) == recomputed


def test_more_values_than_numbers_is_an_error():
    with pytest.raises(ValueError, match="prints fewer numbers"):
        as_printed("14", [14, 28])


def records(name, seed=0, problems=12):
    """Made-up records of a configuration in which re-feed changes more than the replica."""
    draw = random.Random(seed)
    k, instrumented = ESTIMATES[name], name not in ("greedy", "grpo")
    pivots = []
    for problem in range(problems):
        for place in range(5):
            record = pivot(problem, 16 * place, draw.randint(-k, k) / k, instrumented)
            record["margin"] = draw.random()
            changed = {"exact2": 0.1, "refeed": 0.5} if name != "batchinv" else {}
            for p in ("exact2", "refeed"):
                record[f"A_{p}"] = record["A_exact1"]
                if draw.random() < changed.get(p, 0):
                    record[f"A_{p}"] = draw.randint(-k, k) / k
                    record[f"greedy_first_logprob_delta_{p}"] = 0.25
                    if instrumented:
                        record[f"greedy_first_{p}"] = {"actual": [7, -0.75], "alt": [8, 0.0]}
            pivots.append(record)
    return pivots


def contents(folder):
    """(records file, analysis) of all seven configurations."""
    result = {}
    for name, configuration in CONFIGURATIONS.items():
        paths, sums = [], []
        for i, file in enumerate(configuration.files):
            pivots = [p | {"problem_id": p["problem_id"] + 20 * i} for p in records(name, seed=i)]
            value = content(*pivots, k=ESTIMATES[name], cont_temp=0.0 if name == "greedy" else None)
            value["config"] |= {"model": f"Owner/{configuration.model}", "scan_start": 20 * i}
            paths.append(str(folder / f"{file}.json"))
            sums.append(save(folder / f"{file}.json", value))
        pool = pooled(name, paths, sums)
        result[name] = pool, analyze(pool["pivots"], ESTIMATES[name])
    return result


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return contents(tmp_path_factory.mktemp("records"))


def row(table, claim):
    (found,) = table[table["id"] == claim].to_dict("records")
    return found


def changed(full, name, path, value):
    """The contents with one value of one analysis replaced."""
    result = dict(full)
    pool, analysis = result[name]
    analysis = deepcopy(analysis)
    *parents, last = path.split("/")
    target = analysis
    for key in parents:
        target = target[key]
    target[last] = value
    result[name] = pool, analysis
    return result


def test_every_claim_has_a_name_of_its_own_and_a_section():
    assert max(Counter(c.id for c in CLAIMS).values()) == 1
    sections = {"abstract", "3.1", "3.2", "3.3", "3.4", "4", "Table 1", "Figure 1", "Figure 2",
                "Figure 3", "5.1", "5.2", "5.3", "5.4", "5.5"}  # fmt: skip
    assert {c.section for c in CLAIMS} == sections


def test_with_all_files_every_claim_is_decided_that_records_can_decide(full):
    table = check(full, {})
    assert list(table.columns) == ["id", "section", "quantity", "claimed", "recomputed", "verdict"]
    assert set(table["verdict"]) == {"match", "differs", "not derivable"}
    assert set(table["id"][table["verdict"] == "not derivable"]) == NEVER
    assert not table.map(lambda cell: cell == "" or "nan" in cell.split()).any(axis=None)


def test_every_number_that_a_claim_prints_is_recomputed(full):
    for claim in CLAIMS:
        if claim.id in NEVER:
            continue
        result = claim.recompute(claims.Evidence(full, {}))
        if not isinstance(result, claims.Decided):
            as_printed(claim.claimed, result)  # raises if the counts differ


def test_a_value_decides_its_claim(full):
    path = "common_set/refeed/flip_rate"
    for value, recomputed, verdict in ((0.338, "33.8", "match"), (0.339, "33.9", "differs")):
        found = row(check(changed(full, "main", path, value), {}), "table1.main.refeed")
        assert (found["claimed"], found["recomputed"]) == ("33.8", recomputed)
        assert found["verdict"] == verdict


def test_both_ends_of_a_range_count(full):
    path = "common_set/floor/flip_rate"
    inside = full
    for name in STOCK:
        inside = changed(inside, name, path, {"k16": 0.2301, "grpo": 0.0912}.get(name, 0.15))
    assert row(check(inside, {}), "5.5.floor")["verdict"] == "match"
    for name, value, recomputed in (("grpo", 0.08, "8–23"), ("k16", 0.24, "9–24")):
        found = row(check(changed(inside, name, path, value), {}), "5.5.floor")
        assert (found["recomputed"], found["verdict"]) == (recomputed, "differs")
    beyond = changed(inside, "batchinv", path, 0.9)
    assert row(check(beyond, {}), "5.5.floor")["verdict"] == "match", "stock configurations only"


def test_exactly_one_is_not_rounded(full):
    claim = "5.2.jaccard.batchinv.refeed"
    assert row(check(full, {}), claim)["verdict"] == "match"
    path = "critical_token_jaccard/thr_0.5/refeed_vs_exact1"
    found = row(check(changed(full, "batchinv", path, 0.999), {}), claim)
    assert (found["recomputed"], found["verdict"]) == ("0.999", "differs")


def test_a_miss_of_the_cache_is_seen(full):
    path = "cache_instrumentation/flagged/exact2_cache_miss"
    found = row(check(changed(full, "k8", path, 1), {}), "abstract.hits")
    assert found["recomputed"].startswith("0 and 1 misses") and found["verdict"] == "differs"


@pytest.mark.parametrize(
    ("claim", "name", "path", "value"),
    [
        ("5.2.quantum.k16", "k16", "critical_token_jaccard/thr_0.5/refeed_within_quantum", -1),
        ("5.1.k8_strongest", "k16", "common_set/refeed/flip_rate", 1.0),
        ("5.1.conditioned_smaller", "phi", "exact1_conditioned/refeed/flip_rate", 1.0),
        ("5.1.mean_zero", "main", "bias/ci95", [0.01, 0.02]),
        ("abstract.zero_crossings", "grpo", "common_set/refeed/zero_crossings", 0),
        ("abstract.identical", "batchinv", "identity/refeed/estimates/identical", 1),
        ("figure1.mass", "main", "common_set/floor/zero_crossings", 0),
        ("figure2.greedy", "greedy", "clustered/p", 0.2),
        ("figure2.phi", "phi", "common_set/refeed/flip_rate", 0.0),
        ("5.2.share", "grpo", "critical_token_jaccard/thr_0.5/replica_vs_exact1", 1.0),
    ],
)  # fmt: skip
def test_a_statement_can_fail(full, claim, name, path, value):
    found = row(check(changed(full, name, path, value), {}), claim)
    assert found["verdict"] == "differs" and re.search(r"\d", found["recomputed"])


def test_steps_of_k(full):
    path = "critical_token_jaccard/thr_0.5/{}_vs_exact1"
    values = {"main": (0.68, 0.84), "k8": (0.70, 0.88), "k16": (0.90, 0.96)}
    for name, pair in values.items():
        for compared, value in zip(("refeed", "replica"), pair, strict=True):
            full = changed(full, name, path.format(compared), value)
    table = check(full, {})
    found = [row(table, f"5.2.{claim}") for claim in ("finer", "finer_steps", "finer_gap")]
    assert [r["recomputed"] for r in found] == [
        "pooled main 0.680, K=16 0.900",
        "pooled main 0.680, K=8 0.700, K=16 0.900",
        "pooled main 0.160, K=8 0.180, K=16 0.060",
    ]
    assert [r["verdict"] for r in found] == ["match", "match", "differs"]


def test_share_of_the_gap():
    analysis = {"critical_token_jaccard": {"thr_0.5": {"refeed_vs_exact1": 0.5,
                                                       "replica_vs_exact1": 0.75}}}  # fmt: skip
    evidence = claims.Evidence({"main": ({}, analysis)}, {})
    assert claims.refeed_share_of_gap("main")(evidence) == [0.5]


def with_pivots(full, name, change):
    """The contents with the records of one configuration changed, and its analysis left."""
    result = dict(full)
    pool, analysis = result[name]
    result[name] = (
        pool | {"pivots": [change(i, dict(p)) for i, p in enumerate(pool["pivots"])]},
        analysis,
    )
    return result


@pytest.mark.parametrize(
    ("claim", "name", "change"),
    [
        ("3.1.margin", "phi", lambda i: {"margin": 1.0}),
        ("3.1.offset", "k8", lambda i: {"abs_pos": 16 * i + 3}),
        ("3.1.per_rollout", "main", lambda i: {"problem_id": 0, "abs_pos": 16 * i}),
        ("3.2.delta", "k16", lambda i: {"greedy_first_logprob_delta_refeed": 0.125}),
        ("figure3.replica", "main", lambda i: {"greedy_first_logprob_delta_exact2": 1.0}),
    ],
)  # fmt: skip
def test_records_decide(full, claim, name, change):
    assert row(check(full, {}), claim)["verdict"] == "match"
    found = row(check(with_pivots(full, name, lambda i, p: p | change(i)), {}), claim)
    assert found["verdict"] == "differs"


def test_flat_in_margin(full):
    def steep(i, record):
        changes = record["margin"] < 0.3 and i % 7 > 0
        return record | {"A_exact1": 0.5, "A_exact2": 0.5, "A_refeed": 0.0 if changes else 0.5}

    found = row(check(with_pivots(full, "main", steep), {}), "5.1.flat")
    assert re.match(r"\d\d\.\d% below, 0\.0% from 0\.3 up, p = 0\.00", found["recomputed"])
    assert found["verdict"] == "differs"


def test_what_is_absent_is_named(full):
    present = {name: full[name] for name in ALL if name not in ("phi", "main")}
    absent = {"main": ["campaign2_screened.json"], "phi": ["campaign2_phi.json"]}
    table = check(present, absent)
    assert row(table, "table1.phi.n")["recomputed"] == "absent: campaign2_phi.json"
    excess = row(table, "abstract.excess")
    assert excess["recomputed"] == "absent: campaign2_screened.json, campaign2_phi.json"
    assert excess["verdict"] == "not derivable"
    assert row(table, "table1.k8.n")["verdict"] in ("match", "differs")


def test_undefined_ends_make_a_range_not_derivable(full):
    found = row(check(changed(full, "k16", "clustered/t", None), {}), "abstract.t")
    assert (found["recomputed"], found["verdict"]) == ("undefined for K=16", "not derivable")


def test_the_published_records_bear_the_claims_out(shared):
    """Whatever record files are at hand: no claim that they decide differs."""
    folder = str(shared / "published")
    present, absent = resolve({"records_dir": folder, "download": False})
    found = {}
    for name, configuration in present.items():
        sums = [PAPER["records"][file]["sha256"] for file in configuration.files]
        pool = pooled(name, [f"{folder}/{file}.json" for file in configuration.files], sums)
        found[name] = pool, analyze(pool["pivots"], pool["config"]["k"])
    table = check(found, absent)
    decided = table[table["verdict"] != "not derivable"]
    assert len(decided) >= 85 and set(decided["verdict"]) == {"match"}
    undecided = table[table["verdict"] == "not derivable"].set_index("id")["recomputed"]
    assert all(text.startswith("absent: ") for text in undecided.drop(list(NEVER)))


def noise(pivot, k):
    draw = random.Random(str(sorted(pivot.items(), key=str)))
    for p in ("exact1", "exact2", "refeed"):
        pivot[f"A_{p}"] = draw.randint(-k, k) / k


def other_fields(pivot, k):
    pivot["margin"] += 1
    pivot["abs_pos"] += 5
    pivot["problem_id"] = pivot["rollout"] = 7
    if "cache_ok_exact1" in pivot:
        pivot |= {"cache_ok_exact1": False, "cache_ok_exact2": False, "cohort": "same"}
    else:
        pivot |= {"cache_ok_exact1": True, "cache_ok_exact2": True}
    for p in ("exact2", "refeed"):
        pivot[f"greedy_divergence_{p}"] = not pivot[f"greedy_divergence_{p}"]
        pivot[f"greedy_first_logprob_delta_{p}"] += 0.125


def other_settings(pool):
    sections = pool["config"]["sections"]
    sections["trunks"] |= {"rollouts": 3, "temperature": 0.6}
    sections["continuations"] |= {"k": 3, "temperature": 0.6}
    sections["model"] = "Owner/Other"
    pool["config"]["published"]["campaign2_screened"] = {"scan_start": 5}
    for problem in pool["per_problem"]:
        problem |= {"problem_id": 3 + problem["problem_id"] % 3, "rollout_accuracy": 1.0}
    del pool["per_problem"][0]


def nonzero_in_the_replica_alone(pivot, k):
    pivot |= {"A_exact1": 0.0, "A_exact2": 1.0, "A_refeed": 0.0}


def far_from_the_threshold(pivot, k):
    pivot |= {"A_exact1": 1.0, "A_exact2": 0.0, "A_refeed": 0.0}


@pytest.mark.filterwarnings("ignore:Precision loss")
def test_what_is_recomputed_depends_on_the_records(full):
    before = check(full, {}).set_index("id")["recomputed"]
    unchanged = set(before.index)
    for change in (
        noise,
        other_fields,
        nonzero_in_the_replica_alone,
        far_from_the_threshold,
    ):
        altered = deepcopy({name: pool for name, (pool, _) in full.items()})
        for name, pool in altered.items():
            for place, record in enumerate(pool["pivots"]):
                change(record, ESTIMATES[name])
                record["abs_pos"] += 16 * place  # still a pivot of its own
            other_settings(pool)
            del pool["pivots"][::7]
        after = check({n: (p, analyze(p["pivots"], ESTIMATES[n])) for n, p in altered.items()}, {})
        unchanged &= {row.id for row in after.itertuples() if row.recomputed == before[row.id]}
    assert sorted(unchanged - NEVER) == []
