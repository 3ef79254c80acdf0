"""The report: one self-contained HTML page over all configurations of a run.

This module turns analyses into sentences and table cells; ``templates/report.html.j2`` holds the
markup. Nothing is claimed that the numbers passed in do not say.
"""

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jinja2
from markupsafe import Markup

from replay import controls_page
from replay.analysis import MARGIN_SPLIT
from replay.browser import dumped
from replay.config import SECTIONS, VALUES, follow, load_schema
from replay.figures import PNG_DPI
from replay.inference import holm
from replay.origins import COLUMNS
from replay.protocol import CATALOGUE, OUTCOMES, PASSES, REFERENCE
from replay.statistics_table import printed_statistics, statistics_table
from replay.tables import UNDEFINED, attention, excess_pp, marked, number, printed, ungraded

TEMPLATE = Path(__file__).parents[2] / "templates" / "report.html.j2"
REQUIRED = {
    "run",
    "title",
    "question",
    "configurations",
    "engine",
    "counts",
    "table",
    "figures",
    "needed",
    "generated",
    "registration",
    "rule_graph",
    "origins",
}
LEVEL = 0.05
# With fewer problems not even a unanimous sign test over problems reaches the 5% level.
MIN_PROBLEMS = 6
# The answer names up to this many configurations; the list under Table 1 names all.
MAX_NAMED = 3
CONTROLS_FIGURE, OVERLAP_FIGURE = 4, 5
# Anchors and names of the page's sections; those that no run on published records has, and those
# that no other has, are left out where they do not belong.
SECTION_NAMES = {
    "answer": "Answer",
    "registration": "Registration",
    "figures": "Figures",
    "source": "Where the records come from",
    "claims": "The paper, claim by claim",
    "controls": "Why re-feeding changes estimates",
    "words": "Words",
    "browser": "Pivot browser",
    "selection": "Selection of critical tokens",
    "conditions": "Other conditions",
    "bits": "Bit-level account",
    "beyond": "Beyond the paper",
    "cache": "Cache hits and flags",
    "cohorts": "Cohorts and screening",
    "settings": "Settings",
    "engine": "Engine",
    "origins": "Where the numbers come from",
}
PUBLISHED_ONLY, MEASURED_ONLY = ("source", "claims"), ("cohorts", "engine")
# What the screen counts of a problem's trunk rollouts, by its own grader.
SCREENED = {
    "right": "trunk rollouts with the right answer, by the grader of the screen",
    "wrong": "those with another answer",
    "unparsed": "those that ended without an answer that this grader could read",
    "truncated": "those cut off at trunks.max_tokens before an answer",
}
COMPARISONS = {"refeed": "re-feed", "exact2": "replica"}

ENGINE_FACTS = {
    "vllm": "version of the inference engine",
    "torch": "version of PyTorch",
    "device": "the hardware it ran on",
    "driver": "version of the GPU's driver; not set on a CPU",
    "attention_backend": "the attention kernels",
    "flash_attn_version": "version of FlashAttention; not set where the kernels are others",
    "threads": "CPU threads of the engine; they change the bits of a CPU engine",
    "linear_rows": "rows that a matrix product takes at a time; as batched: all that share a step",
    "numerics": "as in Settings",
    "seed": "of the engine itself; each request has its own, stored with it",
    "dtype": "number format of weights and state",
    "block_size": "tokens per block of the KV cache; state is resumed in whole blocks",
    "num_blocks": "blocks in the KV cache",
    "prefix_caching": "whether cached state is reused, which the exact passes need",
    "chunked_prefill": "whether long prompts are split over several steps",
    "max_num_seqs": "requests that run together, at most",
    "max_num_batched_tokens": "tokens computed in one step, at most",
    "max_model_len": "tokens of prompt and answer together, at most",
    "compilation": "how the model code was compiled",
    "cuda_graphs": "which steps a GPU replays as recorded, without launching each kernel anew",
    "tensor_parallel": "GPUs that the model was spread over",
    "engine_process": "in-process: all requests of a pass are admitted before its first step;"
    " engine-core: they are admitted while the engine steps",
    "async_scheduling": "whether a step is planned while the one before it still runs",
}
# What the self-check asks, by the names of `invariance.check_engine`.
QUESTIONS = {
    "repetition": "is a run equal to the same run again?",
    "warm cache": "is it equal to one that finds its prompts in the prefix cache?",
    "batch size": "is a request, decoded or prefilled, equal to itself when it runs alone?",
    "prefill": "does decoding a token give what prefilling all that precedes it gives?",
}


def build_report(context: dict) -> str:
    """Render the page.

    ``context`` holds ``run, title, question, generated`` (str), ``configurations`` (list of
    {name, label, model, numerics, analysis, settings, cohorts, note, browser}, and
    ``in_figure3``, false where figure 3 does not show it; ``browser`` is a result of
    ``browser.build``; each cohort {name, dataset, screened, window, requested, found, scanned,
    problems: [{index, accuracy, outcomes, admitted}], note}), ``engine`` (facts by name),
    ``counts`` {trunk_rollouts, trunk_accuracy, pivots, requests}, ``table`` (the result of
    ``tables.table1``, or its CSV read back), ``figures`` {1: png path, 2: ..., up to 5},
    whose data lie beside them as CSV, and ``needed``, the result of ``planning.needed_sentence``.
    A cohort's window is [first, last] problem; ``settings`` are the sections of the configuration
    file under dotted names. Optional: ``main``, the name of the configuration that figure 1 shows
    (default: the first), ``published``, in a run on published records: {repository, commit, files:
    [{name, path, sha256, local}], note, claims (of ``claims.check``)}, and ``invariance``, engines'
    self-checks as ``invariance.run`` stores them, each with the engine's ``name`` and names and
    labels of the ``configurations`` that it ran.

    Raises ValueError if a required key is missing.
    """
    if missing := REQUIRED - context.keys():
        raise ValueError(f"the report's context lacks {', '.join(sorted(missing))}")
    configurations = context["configurations"]
    meanings = _meanings(load_schema())
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE.parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(TEMPLATE.name).render(
        {key: context[key] for key in ("run", "title", "question", "generated")},
        sections=_sections(context.get("published")),
        configurations=[(c["name"], c["label"]) for c in configurations],
        answer=answer(configurations),
        table1_readings=[
            (c["name"], " ".join(_sentences(reading(c), ungraded([c])))) for c in configurations
        ],
        min_problems=MIN_PROBLEMS,
        table1=_table1(context["table"], configurations),
        figures=_figures(context),
        controls=[_by_configuration(**table) for table in controls_page.tables(configurations)],
        controls_readings=controls_page.readings(configurations),
        browser=_browser(configurations),
        selection=_selection(configurations),
        robustness=_robustness(configurations),
        bits=_bits(configurations),
        beyond=_beyond(configurations, context["needed"]),
        outcomes=_outcomes(configurations),
        cache=_cache(configurations),
        cohorts=_cohorts(configurations),
        setup=_setup(configurations),
        settings=_settings(configurations, meanings),
        engine=_engine(context["engine"]),
        self_check=_self_check(context.get("invariance")),
        counts=_counts(context["counts"]),
        published=_published(context.get("published")),
        registration=_registration(context["registration"], configurations),
        origins=[row | {"columns": COLUMNS[row["group"]]} for row in context["origins"]],
        # Inside HTML it needs no name space.
        rule_graph=Markup(re.sub(r' xmlns="[^"]*"', "", context["rule_graph"])),
    )


def _sections(published: dict | None) -> list[tuple[str, str]]:
    absent = MEASURED_ONLY if published else PUBLISHED_ONLY
    return [(anchor, name) for anchor, name in SECTION_NAMES.items() if anchor not in absent]


def _percent(rate: float | None) -> str:
    return UNDEFINED if rate is None else f"{100 * rate:.1f}%"


def _count(value: int | None) -> str:
    return number(value, ",d")


def _joined(parts: list[str]) -> str:
    return UNDEFINED if set(parts) == {UNDEFINED} else " / ".join(parts)


def _nats(value: float | None) -> str:
    return "0" if value == 0 else number(value, ".1e")


def _plural(count: int, noun: str) -> str:
    return f"{count:,d} {noun}" + ("" if count == 1 else "s")


def _names(configurations: list[dict]) -> str:
    labels = [f"“{c['label']}”" for c in configurations]
    return " and ".join([", ".join(labels[:-1]), labels[-1]] if labels[1:] else labels)


def _span(values: list[float], spec: str) -> str:
    low, high = format(min(values), spec), format(max(values), spec)
    return low if low == high else f"{low} to {high}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _sentences(*texts: str | None) -> list[str]:
    return [_sentence(text) for text in texts if text]


def verdict(analysis: dict) -> str:
    """What the numbers of one configuration allow one to say, as one of

    "nothing" (no pivot, or no eligible one), "identical" (both comparisons, every recorded
    channel), "too few" (fewer than MIN_PROBLEMS problems with eligible pivots), "above" or "below"
    (re-feed against the floor, problem-clustered p < LEVEL) and "level" (no difference shown).
    """
    clustered = analysis["clustered"]
    if analysis["n_records"] and all(analysis["identity"][p]["all_identical"] for p in COMPARISONS):
        return "identical"
    if not clustered["n_problems"]:
        return "nothing"
    if clustered["n_problems"] < MIN_PROBLEMS:
        return "too few"
    excess, p = clustered["mean_excess"], clustered["p"]
    if p is None:
        # The same excess on every problem: t is undefined, the sign test over problems is not.
        p = 2 * 0.5 ** clustered["n_problems"] if excess else 1.0
    if p >= LEVEL:
        return "level"
    return "above" if excess > 0 else "below"


def reading(configuration: dict) -> str:
    """One clause, without a full stop, on what one configuration shows."""
    analysis, label = configuration["analysis"], f"“{configuration['label']}”"
    common, clustered = analysis["common_set"], analysis["clustered"]
    pivots = _plural(analysis["n_records"], "pivot")
    kind = verdict(analysis)
    if kind == "nothing":
        return f"in {label} there is nothing to compare: {pivots}, no nonzero estimate"
    n = common["refeed"]["n"]
    if kind == "identical":
        return f"in {label} all passes agreed on every recorded channel ({pivots}, {n:,d} eligible)"
    rates = (
        f"re-feed changed the sign at {_percent(common['refeed']['flip_rate'])} and the replica at"
        f" {_percent(common['floor']['flip_rate'])} of"
        f" {_plural(n, 'eligible pivot')} on"
        f" {_plural(clustered['n_problems'], 'problem')}"
    )
    if kind == "too few":
        return f"in {label} {rates}: too few problems to speak of others"
    test = f"averaged over problems the excess is {100 * clustered['mean_excess']:+z.1f} points"
    if clustered["ci95"]:
        low, high = (100 * bound for bound in clustered["ci95"])
        test += f", 95% interval {low:+z.1f} to {high:+z.1f}, t = {clustered['t']:.2f}"
    conclusion = {
        "above": "more than chance",
        "below": "less than the floor by more than chance",
        "level": "not more than chance over problems",
    }[kind]
    return f"in {label} {rates} ({test}): {conclusion}"


def answer(configurations: list[dict]) -> list[str]:
    """The answer: where re-feeding exceeds the floor, what most continuations lack, all else."""
    groups: dict[str, list[dict]] = {}
    for configuration in configurations:
        groups.setdefault(verdict(configuration["analysis"]), []).append(configuration)
    above = groups.pop("above", [])
    rest = [clause for group in groups.values() for clause in map(reading, group)]
    effect = _effect(above, groups, len(configurations))
    return _sentences(
        effect, ungraded(configurations), "; ".join(rest) or _selection_sentence(above)
    )


def _effect(above: list[dict], others: dict[str, list[dict]], total: int) -> str:
    if not above:
        if set(others) == {"identical"}:
            return "no, re-feeding changed nothing in any configuration"
        changed = [c for group in others.values() for c in group if _only_refeed_changed(c)]
        if changed:
            return _unproven(changed, total)
        if {"level", "below"} & set(others):
            return "no configuration shows re-feeding to change estimates more than the replica"
        return "this run cannot tell whether re-feeding changes estimates more than the replica"
    analyses = [c["analysis"] for c in above]
    refeed, floor = (
        _span([100 * a["common_set"][name]["flip_rate"] for a in analyses], ".1f")
        for name in ("refeed", "floor")
    )
    excess = _span([excess_pp(a) for a in analyses], ".1f")
    eligible = _span([a["common_set"]["refeed"]["n"] for a in analyses], ",d")
    ts = [t for a in analyses if (t := a["clustered"]["t"]) is not None]
    test = f", problem-clustered t {_span(ts, '.2f')}" if ts else ""
    names = f", {_names(above)}" if len(above) <= MAX_NAMED else ""
    return (
        f"yes, in {len(above)} of {_plural(total, 'configuration')}{names}: re-feeding"
        f" changed the sign of the credit estimate at {refeed}% of eligible pivots, {excess}"
        f" percentage points above the replica floor of {floor}% (n = {eligible}{test})"
    )


def _only_refeed_changed(configuration: dict) -> bool:
    sides = configuration["analysis"]["common_set"]
    return sides["refeed"]["flips"] > 0 == sides["floor"]["flips"]


def _unproven(changed: list[dict], total: int) -> str:
    """Sign changes where the replica has none, on too few problems to speak of others."""
    rates = [100 * c["analysis"]["common_set"]["refeed"]["flip_rate"] for c in changed]
    return (
        f"on the problems of this run, yes: in {len(changed)} of"
        f" {_plural(total, 'configuration')} re-feeding changed the sign of the credit estimate at"
        f" {_span(rates, '.1f')}% of eligible pivots, where the replica changed none; beyond these"
        " problems nothing is shown, they are too few or too unlike"
    )


def _selection_sentence(configurations: list[dict]) -> str:
    overlaps = [c["analysis"]["critical_token_jaccard"]["thr_0.5"] for c in configurations]
    refeed, replica = (
        [o[f"{name}_vs_exact1"] for o in overlaps if o[f"{name}_vs_exact1"] is not None]
        for name in ("refeed", "replica")
    )
    if not refeed or not replica:
        return "no pivot has an estimate of 0.5 or more, so nothing is said about selection"
    return (
        "the critical tokens chosen by an estimate of at least 0.5 in size overlap those of the"
        f" first exact pass at Jaccard {_span(refeed, '.2f')} under re-feed and"
        f" {_span(replica, '.2f')} under the replica"
    )


def _figures(context: dict) -> list[dict]:
    configurations = context["configurations"]
    shown = context.get("main") or (configurations[0]["name"] if configurations else None)
    main = [c for c in configurations if c["name"] == shown]
    meanings = {
        1: _figure1(main),
        2: _figure2(configurations),
        3: _figure3(configurations),
        CONTROLS_FIGURE: controls_page.figure4(configurations),
        OVERLAP_FIGURE: _figure5(configurations),
    }
    titles = {
        1: "Joint distribution of the credit estimate",
        2: "Sign changes by configuration",
        3: "Distribution of the first-token logprob difference",
        CONTROLS_FIGURE: "Effect of each control",
        OVERLAP_FIGURE: "Selection overlap against threshold",
    }
    return [
        {
            "number": key,
            "title": titles[key],
            "meaning": meanings[key],
            **_image(Path(path).read_bytes()),
            "csv": base64.b64encode(Path(path).with_suffix(".csv").read_bytes()).decode(),
        }
        for key, path in sorted(context["figures"].items())
    ]


def _image(png: bytes) -> dict:
    """The image for a data URL, and the widths that show all figures at one scale.

    The width in pixels is in bytes 16 to 19 of a PNG file; in inches it is the printed one.
    """
    pixels = int.from_bytes(png[16:20], "big")
    data = base64.b64encode(png).decode()
    return {"data": data, "width": pixels * 2 // 3, "inches": pixels / PNG_DPI}


def _figure1(main: list[dict]) -> str:
    what = (
        "Each cell counts the eligible pivots with one estimate under exact pass 1 (across) and one"
        " under the comparison pass (up); red outlines mark the cells whose two signs differ."
    )
    if not main or not main[0]["analysis"]["common_set"]["refeed"]["n"]:
        return f"{what} There is no eligible pivot to show."
    sides = main[0]["analysis"]["common_set"]
    refeed, floor = (
        f"{sides[name]['zero_crossings']} sign changes have a zero on one side and"
        f" {sides[name]['polarity_reversals']} are polarity reversals"
        for name in ("refeed", "floor")
    )
    return f"{what} Under re-feed {refeed}; under the replica {floor}."


def _figure2(configurations: list[dict]) -> str:
    what = (
        "The red, hatched bar is the share of eligible pivots at which re-feed changed the sign,"
        " the grey bar the same share for the replica: the difference is what re-feeding adds."
    )
    known = [e for c in configurations if (e := excess_pp(c["analysis"])) is not None]
    if not known:
        return f"{what} No configuration has an eligible pivot."
    taller = sum(excess > 0 for excess in known)
    return (
        f"{what} The red bar is the taller in {taller} of"
        f" {_plural(len(known), 'configuration')} with eligible pivots, and the difference is"
        f" {_span(known, '+z.1f')} percentage points."
    )


def _figure3(configurations: list[dict]) -> str:
    what = (
        "A curve further to the left and higher up means logprobs closer to those of exact pass 1;"
        " the stems on the left are the pivots that reproduce them bit for bit."
    )
    probes = [c["analysis"]["greedy_probe"] for c in configurations]
    exact, refeed = (
        [100 * rate for g in probes if (rate := g[p]["bit_exact_rate"]) is not None]
        for p in ("exact2", "refeed")
    )
    if not exact or not refeed:
        return f"{what} No configuration has recorded probes."
    outside = [c for c in configurations if not c.get("in_figure3", True)]
    drawn = f" Not drawn: {_names(outside)}." if outside else ""
    return (
        f"{what} Over the configurations with probes the replica does so at"
        f" {_span(exact, '.1f')}% of pivots and re-feed at {_span(refeed, '.1f')}%.{drawn}"
    )


def _figure5(configurations: list[dict]) -> str:
    what = (
        "Pivots are selected where the estimate is at least the threshold in size, at every"
        " multiple of 1/K; n counts eligible pivots. Bars are 95% intervals from resampled"
        " problems, and a hollow marker has none because it is undefined there, as where all"
        " problems agree. Where nothing is selected there is no marker."
    )
    points = [
        point
        for c in configurations
        for point in c["analysis"]["jaccard_curve"]
        if point["refeed"]["estimate"] is not None and point["replica"]["estimate"] is not None
    ]
    if not points:
        return f"{what} No configuration selects anything."
    below = sum(p["refeed"]["estimate"] < p["replica"]["estimate"] for p in points)
    return (
        f"{what} Re-feed lies below the replica at {below} of"
        f" {_plural(len(points), 'threshold')} over all configurations."
    )


def _browser(configurations: list[dict]) -> dict:
    """Data of the pivot browser as JSON that can stand in a script element, and what is absent."""
    named = [{"name": c["name"], "label": c["label"], **c["browser"]} for c in configurations]
    passes = {
        name: {"name": name, "label": kind.label, "warm": kind.warm, "reference": name == REFERENCE}
        for name, kind in CATALOGUE.items()
    }
    data = dumped({"passes": passes, "configurations": named}).decode()
    return {
        "data": Markup(data.replace("<", r"\u003c")),
        "texts": any(selection["problems"] for selection in named),
        "left_out": [
            (s["name"], f"“{s['label']}”: {len(s['pivots']):,d} of {_plural(s['total'], 'pivot')}")
            for s in named
            if len(s["pivots"]) < s["total"]
        ],
    }


def _table(
    caption: str,
    columns: dict[str, str],
    rows: list[list[str]],
    texts: int = 1,
    row_of: list[str] | None = None,
    column_of: list[str] | None = None,
    links: list[list[str]] | None = None,
) -> dict:
    """A table for the template; ``columns`` maps each heading to what it means.

    ``links`` are where cells lead to, empty for those that lead nowhere.
    The first ``texts`` columns hold text, the others numbers. ``row_of`` and ``column_of`` name
    the configurations that a row or column is about, separated by spaces: the page's filter goes
    by them.
    """
    return {
        "caption": caption,
        "columns": columns,
        "rows": rows,
        "texts": texts,
        "row_of": row_of or [""] * len(rows),
        "column_of": column_of or [""] * len(columns),
        "links": links or [[""] * len(columns)] * len(rows),
    }


def _by_configuration(
    caption: str, columns: dict[str, str], rows: list[tuple[dict, list[str]]], texts: int = 1
) -> dict:
    """A table whose rows are configurations, each with its cells; their labels are put first."""
    cells = [[configuration["label"], *row] for configuration, row in rows]
    owners = [configuration["name"] for configuration, _ in rows]
    return _table(caption, {"Configuration": "as in Table 1"} | columns, cells, texts, owners)


def _table1(table, configurations: list[dict]) -> dict:
    labels = {c["name"]: c["label"] for c in configurations}
    checks = table.get("invariance", [None] * len(table))
    names = [
        marked({"label": labels.get(name, name), "invariance": check})
        for name, check in zip(table["configuration"], checks, strict=True)
    ]
    text = printed(table.set_axis(names, axis=0))
    meanings = [
        "what was run, see Settings",
        "the language model",
        "eligible pivots: those with a nonzero estimate in at least one of the three passes",
        "eligible pivots whose sign under re-feed differs from exact pass 1; in parentheses the"
        " polarity reversals among them, percent of n",
        "the same for the second exact pass: the replica floor",
        "re-feed minus floor, percentage points, from unrounded values",
        "paired t statistic over problems of the difference between the two rates, which counts"
        " the pivots of one problem as one observation",
        "McNemar's statistic over single pivots, which ignores that pivots of one problem are"
        " alike; given for comparison only",
    ]
    columns = dict(zip(text.columns, meanings, strict=True))
    caption = "Table 1. How often the sign of the credit estimate differs from exact pass 1"
    owners = table["configuration"].tolist()
    groups = ["", "", "all", "refeed", "exact2", "all", "all", "all"]
    links = [[f"#from-{owner}-{group}" if group else "" for group in groups] for owner in owners]
    return _table(caption, columns, text.to_numpy().tolist(), texts=2, row_of=owners, links=links)


def _registration(found: dict, configurations: list[dict]) -> dict:
    """What may be said of the registration, and what its decision rule says."""
    statements, decision = found["configurations"], found["registration"]["decision"]
    columns = {
        "Registration": "registered: settings as locked, data generated after the lock",
        "Decision rule": "on the share of eligible pivots whose sign re-feeding changes",
    }
    rows = [
        (c, [statements[c["name"]]["state"], statements[c["name"]]["verdict"]])
        for c in configurations
    ]
    deviations = [
        (c, [text]) for c in configurations for text in statements[c["name"]]["deviations"]
    ]
    return {
        "digest": found["registration"]["digest"],
        "lock": found["lock"],
        "low": decision["negligible_below_pct"],
        "high": decision["material_above_pct"],
        "table": _by_configuration("Registration and decision rule", columns, rows, texts=3),
        "deviations": _by_configuration(
            "Deviations", {"Deviation": "what was registered, and what is"}, deviations, texts=2
        ),
    }


def _selection(configurations: list[dict]) -> dict:
    columns = {
        "Threshold": "a pivot is selected if its estimate is at least this large in size",
        "Selected": "pivots selected under exact pass 1",
        "Re-feed": "Jaccard overlap of the selections under re-feed and exact pass 1; two empty"
        " selections have none",
        "Replica": "the same for the second exact pass: the overlap one can hope for",
        "Differ": "pivots selected in one of re-feed and exact pass 1 only",
        "Near": "those of them with an estimate at most 1/K from the threshold",
    }
    rows = [
        (
            c,
            [
                key.removeprefix("thr_"),
                _count(overlap["n_exact1"]),
                number(overlap["refeed_vs_exact1"], ".2f"),
                number(overlap["replica_vs_exact1"], ".2f"),
                _count(overlap["refeed_disagreements"]),
                _count(overlap["refeed_within_quantum"]),
            ],
        )
        for c in configurations
        for key, overlap in c["analysis"]["critical_token_jaccard"].items()
    ]
    return _by_configuration("Overlap of the critical-token selections", columns, rows)


def _robustness(configurations: list[dict]) -> dict:
    columns = {
        "Excess given exact 1": "re-feed minus floor over pivots with a nonzero estimate in exact"
        " pass 1 (their number in parentheses), a set that the re-feed pass cannot enlarge",
        "Only re-feed": "eligible pivots with a nonzero estimate under re-feed alone",
        "Only replica": "the same for the second exact pass",
        "Bias": "mean of the re-feed minus the exact 1 estimate over eligible pivots, with its 95%"
        " interval",
        "Problems": "problems on which re-feed changes more signs than the replica / fewer / as"
        " many",
        "Low margin": "re-feed / floor rates over eligible pivots with a margin below"
        f" {MARGIN_SPLIT}",
        "Higher margin": f"the same from {MARGIN_SPLIT} up",
    }
    rows = [(c, _robust(c)) for c in configurations]
    return _by_configuration("Does it hold under other conditions?", columns, rows)


def _robust(configuration: dict) -> list[str]:
    a = configuration["analysis"]
    given, bias, problems = a["exact1_conditioned"], a["bias"], a["clustered"]
    excess = excess_pp({"common_set": given})
    interval = bias["ci95"] and " [{:+z.3f}, {:+z.3f}]".format(*bias["ci95"])
    return [
        f"{number(excess, '+z.1f')} ({given['refeed']['n']:,d})",
        _count(a["eligibility_sources"]["only_refeed_nonzero"]),
        _count(a["eligibility_sources"]["only_exact2_nonzero"]),
        number(bias["mean_diff"], "+z.3f") + (interval or ""),
        _joined(
            [str(problems[f"problems_{key}"]) for key in ("refeed_worse", "floor_worse", "equal")]
        ),
        *(
            _joined([_percent(a[margin][side]["flip_rate"]) for side in ("refeed", "floor")])
            for margin in (f"margin_lt_{MARGIN_SPLIT}", f"margin_ge_{MARGIN_SPLIT}")
        ),
    ]


def _bits(configurations: list[dict]) -> dict:
    columns = {
        "Pass": "the pass compared with exact pass 1",
        "Probes diverge": "pivots at which a probe of either arm takes other tokens",
        "First logprob equal": "pivots at which the logprob of the probes' first token is equal to"
        " the last bit on both arms",
        "… unsaturated": "the same without the pivots at which all compared logprobs are exactly"
        " 0.0: there the probability rounds to 1 and equality says little (their number in"
        " parentheses)",
        "… decoded": "the same without the pivots whose resumed blocks hold prompt tokens only, see"
        " Cache hits and flags",
        "90th percentile": "of the largest first-token logprob difference over the two arms, nats",
        "Median nonzero": "median of the differences that are not zero, nats",
        "Whole probes equal": "pivots at which all tokens and logprobs of both probes are equal",
        "Continuations equal": "sampled continuations that are the same token for token",
        "Estimates equal": "pivots with the same credit estimate",
    }
    rows = [(c, _bit_row(c, p)) for c in configurations for p in ("refeed", "exact2")]
    return _by_configuration("What is equal to the last bit", columns, rows, texts=2)


def _bit_row(configuration: dict, compared: str) -> list[str]:
    probe = configuration["analysis"]["greedy_probe"][compared]
    unsaturated = _percent(probe["bit_exact_rate_unsaturated"])
    if probe["n_saturated"] is not None:
        unsaturated += f" ({probe['n_saturated']:,d})"
    same = configuration["analysis"]["identity"][compared]
    return [
        COMPARISONS[compared],
        _percent(probe["divergence_rate"]),
        _percent(probe["bit_exact_rate"]),
        unsaturated,
        _percent(probe["bit_exact_rate_decoded"]),
        _nats(probe["p90_delta"]),
        _nats(probe["median_nonzero_delta"]),
        *(_percent(same[name]["share"]) for name in ("probes", "continuations", "estimates")),
    ]


def _outcomes(configurations: list[dict]) -> dict | None:
    columns = {
        "Pass": "as explained under Why re-feeding changes estimates",
        "Right": "continuations whose final answer is the reference answer",
        "Wrong": "continuations with another final answer",
        "Unparsed": "continuations that ended without a readable answer",
        "Truncated": "continuations that reached the token limit",
    }
    rows = [
        (c, [CATALOGUE[p].label, *(_percent(share) for share in rates.values())])
        for c in configurations
        for p, rates in c["analysis"]["rates"].items()
        if rates
    ]
    caption = "How the continuations were graded"
    return _by_configuration(caption, columns, rows, texts=2) if rows else None


def _cache(configurations: list[dict]) -> dict:
    columns = {
        "Instrumented": "pivots with recorded cache hits",
        "Exact 1 hits": "instrumented pivots whose every exact 1 request found the whole trunk"
        " prefix, up to the last full block, in the cache, and where blocks are restored, on those",
        "Exact 2 hits": "the same for exact 2",
        "Misses": "pivots without such a hit in exact 1 / exact 2",
        "Preempted": "pivots with a request that the engine interrupted and recomputed, in exact 1"
        " / exact 2 / re-feed",
        "Flagged": "pivots with any miss or preemption; none is left out of the statistics",
        "Borrowed": "pivots that resumed blocks of another rollout with the same tokens; the"
        " rollouts of a problem share at least the prompt's",
        "Prompt only": "pivots so early that the resumed blocks hold no decoded token (in"
        " parentheses the eligible ones): there exact passes and re-feed resume the same prefill",
    }
    rows = [(c, _cache_row(c)) for c in configurations]
    return _by_configuration("Were the passes what they claim to be?", columns, rows)


def _cache_row(configuration: dict) -> list[str]:
    cache = configuration["analysis"]["cache_instrumentation"]
    early = configuration["analysis"]["prompt_only"]
    flagged = {name: _count(count) for name, count in cache["flagged"].items()}
    return [
        _count(cache["n_instrumented"]),
        _percent(cache["exact1_ok_rate"]),
        _percent(cache["exact2_ok_rate"]),
        _joined([flagged[f"{p}_cache_miss"] for p in ("exact1", "exact2")]),
        _joined([flagged[f"{p}_preempted"] for p in PASSES]),
        flagged["pivots_flagged"],
        _count(cache["pivots_with_borrowed_blocks"]),
        f"{_count(early['n'])} ({_count(early['eligible'])})",
    ]


def _cohorts(configurations: list[dict]) -> list[dict]:
    """Every cohort once, with the configurations that use it."""
    users: dict[str, list[dict]] = {}
    for configuration in configurations:
        for cohort in configuration["cohorts"]:
            users.setdefault(json.dumps(cohort, sort_keys=True), []).append(configuration)
    return [_cohort(json.loads(text), used_by) for text, used_by in users.items()]


def _cohort(cohort: dict, used_by: list[dict]) -> dict:
    first, last = cohort["window"]
    rule = (
        "only problems that some trunk rollouts solve and others do not"
        if cohort["screened"]
        else "every problem in order"
    )
    scanned = f" {cohort['scanned']} scanned," if cohort["screened"] else ""
    # A fixed window has no outcomes, nor has what an earlier version wrote.
    graded = [counts for p in cohort["problems"] if (counts := p.get("outcomes"))]
    columns = {
        "Problem": "its position in the data set",
        "Trunk accuracy": "share of its trunk rollouts with the right answer",
        "Admitted": "whether its pivots were measured",
        **({_heading(name): SCREENED[name] for name in OUTCOMES} if graded else {}),
    }
    rows = [
        [
            str(p["index"]),
            _percent(p["accuracy"]),
            "yes" if p["admitted"] else "no",
            *(_count(p["outcomes"][name]) for name in OUTCOMES if graded),
        ]
        for p in cohort["problems"]
    ]
    return {
        "name": cohort["name"],
        "of": _of(used_by),
        "summary": f"Used by {_names(used_by)}. Data set {cohort['dataset']}, problems {first} to"
        f" {last}, {rule}: {cohort['requested']} requested,{scanned} {cohort['found']} found."
        + _screened(graded),
        "note": cohort["note"],
        "problems": _table(f"Problems scanned for cohort {cohort['name']}", columns, rows),
    }


def _screened(graded: list[dict]) -> str:
    """Sums over the problems that a screen looked at."""
    if not graded:
        return ""
    sums = {name: sum(counts[name] for counts in graded) for name in OUTCOMES}
    listed = ", ".join(f"{count:,d} {name}" for name, count in sums.items())
    return (
        f" Their {_plural(sum(sums.values()), 'trunk rollout')}, by the screen's grader: {listed}."
    )


def _of(configurations: list[dict]) -> str:
    return " ".join(c["name"] for c in configurations)


def _text(value: object) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _meanings(schema: dict) -> dict[str, str]:
    """What the configuration schema says of each setting, by its dotted name in the records."""
    definitions = schema["$defs"]
    meanings = {name: definitions[name]["description"] for name in VALUES}
    for section in SECTIONS:
        meanings |= _described(section, definitions[section], schema)
    return meanings | {"engine.numerics": definitions["numerics"]["description"]}


def _described(name: str, schema: dict, root: dict) -> Iterator[tuple[str, str]]:
    for key, child in schema.get("properties", {}).items():
        child = follow(child, root)
        yield f"{name}.{key}", child.get("description", "")
        yield from _described(f"{name}.{key}", child, root)


def _setup(configurations: list[dict]) -> dict:
    columns = {
        "Name": "its name in the configuration file and in file names",
        "Model": "the language model",
        "Numerics": "how the engine computes: stock, or batch-invariant, in which a result does not"
        " depend on what else is in the batch",
        "Note": "a remark on this configuration",
    }
    rows = [
        (c, [c["name"], c["model"], c["numerics"], c.get("note") or UNDEFINED])
        for c in configurations
    ]
    return _by_configuration("The configurations", columns, rows, texts=len(columns) + 1)


def _settings(configurations: list[dict], meanings: dict[str, str]) -> list[dict]:
    """Two tables: the settings in which the configurations differ, and those they share."""
    names = dict.fromkeys(name for c in configurations for name in c["settings"])
    values = {
        name: [_text(c["settings"][name]) if name in c["settings"] else UNDEFINED
               for c in configurations]
        for name in names
    }  # fmt: skip
    shared = [name for name in names if len(set(values[name])) == 1]
    differing = [name for name in names if name not in shared]
    headings = ["Setting", *(c["name"] for c in configurations), "Meaning"]
    return [
        _table(
            "Settings in which the configurations differ",
            dict.fromkeys(headings, ""),
            [[name, *values[name], meanings.get(name, "")] for name in differing],
            texts=len(headings),
            column_of=["", *(c["name"] for c in configurations), ""],
        ),
        _table(
            "Settings that are the same in all configurations",
            dict.fromkeys(("Setting", "Value", "Meaning"), ""),
            [[name, values[name][0], meanings.get(name, "")] for name in shared],
            texts=3,
        ),
    ]


def _engine(facts: dict) -> dict:
    rows = [[name, _text(value), ENGINE_FACTS.get(name, "")] for name, value in facts.items()]
    columns = dict.fromkeys(("Fact", "Value", "Meaning"), "")
    return _table("Facts about the engine", columns, rows, texts=3)


def _self_check(results: list[dict] | None) -> dict | None:
    """The self-checks of engines, None where there are none."""
    if not results:
        return None
    columns = {
        "Engine": "by the name of the file of its self-check",
        "Ran": "the configurations that it ran",
        "Attention": "the attention kernels, with their version where they have one",
        "Process": "as among the facts above",
        **{_heading(name): meaning for name, meaning in QUESTIONS.items()},
        "Verdict": "invariant if every answer is yes, else the questions answered with no",
    }
    owners = [_of(result["configurations"]) for result in results]
    rows = [
        [
            result["name"],
            " / ".join(c["label"] for c in result["configurations"]),
            attention(result["engine"]),
            result["engine"]["engine_process"],
            *(_answer(check) for check in result["checks"]),
            result["verdict"],
        ]
        for result in results
    ]
    return _table("Engine self-check", columns, rows, texts=len(columns), row_of=owners)


def _heading(name: str) -> str:
    return name[0].upper() + name[1:]


def _answer(check: dict) -> str:
    text = f"{check['identical']:,d} of {check['sequences']:,d}"
    return text if check["passed"] else f"{text}, from {check['first']['position']:,d}"


def _counts(counts: dict) -> list[tuple[str, str]]:
    return [
        ("trunk rollouts", _count(counts["trunk_rollouts"])),
        ("of them right", _percent(counts["trunk_accuracy"])),
        ("pivots", _count(counts["pivots"])),
        ("continuation and probe requests", _count(counts["requests"])),
    ]


STATISTICS = {
    "Intervals": "95%, from 10,000 resamples of whole problems (bias-corrected and accelerated"
    " bootstrap). Where one is undefined the reason stands in its place: “no variance” where all"
    " problems show the same, “one problem”, or “empty resamples” where a resample has nothing to"
    " divide by. With a handful of problems they are too narrow: go by the exact tests then",
    "Excess": "re-feed minus replica sign changes, percentage points of eligible pivots",
    "re-feed / replica": "two values in one cell are those of re-feed and of the replica",
    "Offset": "tokens past the block boundary, which both exact passes compute anew as well",
    "Margin decile": "tenths of the eligible pivots by margin, the least decided first; equal"
    " margins stay together, so there can be fewer. tables/statistics.csv has their bounds and n",
    "Floor share": "replica sign changes as a share of re-feed sign changes: the part of the"
    " re-feed disagreement that repeating the measurement shows as well. Above 100% the replica"
    " disagrees more often than re-feed, and nothing is left for re-feeding to explain",
    "Sign test, sign-flip permutation": "two-sided, over problems: could as many problems lean the"
    " same way, or as large a mean difference arise, if each problem's difference were as likely"
    " to have the other sign? Exact up to 40 problems that differ, else seeded sampling",
    "McNemar": "the exact test over single pivots, which takes pivots of one problem as unrelated",
    "after Holm": "adjusted for testing every configuration that has a p",
    "unsaturated": "without pivots at which all compared logprobs are exactly 0.0",
    "Pivots only under the published ranking": "whose most probable token has a logprob of exactly"
    " 0.0, which pivots.ranking: published passes over; where top-k logprobs are stored",
    "Detectable excess": "the smallest mean difference over problems that as many problems, as"
    " unlike each other as these, show with 80% power at the 5% level",
    "K for a Jaccard of 0.9": "continuations from which two exact passes select sets at 0.5 that"
    " overlap this much, by a model of the stored outcomes that goes up to twice their K: with the"
    " same seeds, and with other seeds in the second pass. Without stored outcomes, or with one an"
    " arm, there is none",
    "Grader": "the same continuations, graded by another rule, on the pivots eligible under it",
}


def _beyond(configurations: list[dict], needed: str) -> dict:
    labels = {c["name"]: c["label"] for c in configurations}
    text = printed_statistics(statistics_table(configurations), labels)
    columns = dict.fromkeys(text.columns, "")
    cells = text.to_numpy().tolist()
    owners = ["", *(c["name"] for c in configurations)]
    adjusted = holm(c["analysis"]["tests"]["sign_flip"]["p"] for c in configurations)
    return {
        "table": _table(
            "Table 3. Intervals, tests and conditions", columns, cells, column_of=owners
        ),
        "meanings": STATISTICS,
        "readings": [
            (c["name"], _sentence(_beyond_reading(c, p)))
            for c, p in zip(configurations, adjusted, strict=True)
        ]
        + [("", needed)],
    }


def _beyond_reading(configuration: dict, adjusted: float | None) -> str:
    """One clause on what intervals and tests add for one configuration."""
    analysis, label = configuration["analysis"], f"“{configuration['label']}”"
    intervals, test = analysis["intervals"], analysis["tests"]["sign_flip"]
    if intervals["excess"]["estimate"] is None:
        return f"in {label} no pivot is eligible, so there is nothing to test"
    excess = f"the excess is {_with_interval(intervals['excess'], '+z.1f', ' points')}"
    if test["p"] is None:
        return f"in {label} {excess}, and no problem differs, so there is nothing to test"
    parts = [f"in {label} {excess}", _sign_flips(test, adjusted)]
    if intervals["floor_share"]["estimate"] is not None:
        parts.append(_floor_share(intervals["floor_share"]))
    if power := analysis["detectable_excess"]["excess"]:
        parts.append(
            f"{_plural(analysis['detectable_excess']['n_problems'], 'problem')} like these can show"
            f" an excess of {100 * power:.1f} points or more"
        )
    return "; ".join(parts)


def _sign_flips(test: dict, adjusted: float) -> str:
    text = (
        f"the two rates differ on {_plural(test['n'], 'problem')}: sign-flip p = {test['p']:.2g}"
        f" ({test['method']}), {adjusted:.2g} after Holm"
    )
    if test["n"] >= MIN_PROBLEMS:
        return text
    return f"{text}; with so few p cannot be below {2 * 0.5 ** test['n']:.2g}"


def _floor_share(share: dict) -> str:
    if share["estimate"] > 1:
        return "the replica disagrees more often than re-feed, so the floor explains all of it"
    return f"the floor explains {_with_interval(share, '.0f', '%')} of the re-feed sign changes"


def _with_interval(result: dict, spec: str, unit: str) -> str:
    text = f"{format(100 * result['estimate'], spec)}{unit}"
    if not result["ci95"]:
        return f"{text} (no interval: {result['undefined']})"
    low, high = (format(100 * bound, spec) for bound in result["ci95"])
    return f"{text} (95% interval {low} to {high})"


def _published(facts: dict | None) -> dict | None:
    """Where published records come from, and what they say of the paper's claims."""
    if facts is None:
        return None
    columns = {
        "File": "as this workflow names it",
        "Path": "in the repository",
        "Taken from": "a local folder, or downloaded",
        "sha256": "the pinned one, which the file has",
    }
    rows = [
        [f["name"], f["path"], "local folder" if f["local"] else "download", f["sha256"]]
        for f in facts["files"]
    ]
    return {
        **{name: facts[name] for name in ("repository", "commit", "note")},
        "files": _table("Record files", columns, rows, texts=len(columns)),
        "claims": _claims(facts["claims"]),
    }


def _claims(claims) -> dict:
    columns = {
        "Claim": "section of the paper and what it says there",
        "Quantity": "what is recomputed, or the condition that decides a statement",
        "Claimed": "as the paper prints it",
        "Recomputed": "at the precision of the claim, or why it cannot be",
        "Verdict": "match: equal at the printed precision",
    }
    texts = claims[["id", "quantity", "claimed", "recomputed", "verdict"]]

    def table(caption: str, rows) -> dict:
        return _table(caption, columns, rows.to_numpy().tolist(), texts=len(columns))

    differing = texts[claims["verdict"] == "differs"]
    counts = Counter(claims["verdict"])
    return {
        "summary": f"{_plural(len(claims), 'claim')} in the abstract, sections 3 to 5 and the"
        f" captions; match: {counts['match']}, differs: {counts['differs']}, not derivable:"
        f" {counts['not derivable']}.",
        "differing": table("Claims that differ", differing) if len(differing) else None,
        "every": table("Every claim", texts),
    }
