"""What the page says of the controls: tables as cells, and sentences."""

from collections.abc import Iterator

from replay.controls import COMPARISONS, PARTS
from replay.controls_table import NOT_APPLICABLE, cell, printed2
from replay.protocol import CATALOGUE
from replay.tables import UNDEFINED, number

NAMES = {name: kind.label for name, kind in CATALOGUE.items()}
MEANINGS = {
    "n": "pivots with a nonzero estimate in any pass that the configuration lists",
    "Re-feed": "percent of n whose sign under re-feed differs from exact 1, with its 95% interval"
    " over problems; like all here for requests in batches (one at a time: Figure 4)",
    "Recomputed state": "the same for prefill, warm: the cache hits of exact 1, on state that"
    " prefill computed",
    "Batch dynamics": "re-feed against prefill, warm: both on recomputed state, in other batches",
    "Sum above total (pp)": "what the two parts sum to above re-feed, in points; never below 0,"
    " since a sign that differs between the ends differs in at least one part",
    "State share": "sign changes of recomputed state per sign change under re-feed, percent",
    "Batch share": "the same of batch dynamics",
    "Floor": "exact 2 against exact 1",
    "Re-feed replica": "re-feed 2 against re-feed",
    "Staggered floor": "staggered 2 against staggered: the noise of arrival, in-process",
}


def tables(configurations: list[dict]) -> Iterator[dict]:
    """Captions, columns with their meanings, and rows of (configuration, cells)."""
    # Eleven columns fit the page where a cell breaks before its interval, and not inside it.
    text = printed2(configurations).replace(", ", ",\N{NO-BREAK SPACE}", regex=True)
    printed = text.drop(columns="Configuration").to_numpy().tolist()
    yield {
        "caption": "Table 2. Why re-feeding changes estimates",
        "columns": MEANINGS,
        "rows": list(zip(configurations, printed, strict=True)),
    }
    used = {name for c in configurations for name in c["analysis"]["passes"]}
    yield {
        "caption": "The passes",
        "columns": {
            "Pass": "; ".join(
                f"{NAMES[n]}: {CATALOGUE[n].purpose}" for n in CATALOGUE if n in used
            ),
            "Resumed": "pivots whose every request found the blocks that the pass was given",
            "Preempted": "pivots with a request that was interrupted and recomputed",
            "Same continuations": "continuations with the tokens that they had under exact 1",
            "Same first logprob": "pivots whose probes' first logprobs in both arms are those of"
            " exact 1, bit for bit",
        },
        "rows": [
            (c, [NAMES[name], *_pass_cells(facts)])
            for c in configurations
            for name, facts in c["analysis"]["passes"].items()
        ],
        "texts": 2,
    }
    if fidelity := list(_fidelity_rows(configurations)):
        yield {
            "caption": "Fidelity: the actual arm's first logprob against the trunk's own",
            "columns": {
                "Pass": "what is compared with the trunk",
                "n": "pivots at which the token is in the top logprobs that the trunk recorded;"
                " in parentheses those where the rollout ends / where the token is not in them",
                "Bit-exact": "pivots with the same logprob",
                "Bit-exact by offset": "the same by tokens past the block boundary, which every"
                " pass computes anew",
                "Median": "of the difference, nats",
                "90th percentile": "of the difference, nats",
            },
            "rows": fidelity,
            "texts": 2,
        }


def _percent(rate: float | None) -> str:
    return UNDEFINED if rate is None else f"{100 * rate:.1f}%"


def _pass_cells(facts: dict) -> list[str]:
    return [
        _percent(facts["resumed_rate"]),
        number(facts["preempted"], ",d"),
        _percent(facts["continuations_equal_rate"]),
        _percent(facts["first_logprob_equal_rate"]),
    ]


def _fidelity_rows(configurations: list[dict]) -> Iterator[tuple[dict, list[str]]]:
    for configuration in configurations:
        for name, row in (configuration["analysis"]["fidelity"] or {}).items():
            by_offset = " / ".join(_percent(part["bit_exact_rate"]) for part in row["by_offset"])
            yield (
                configuration,
                [
                    NAMES[name],
                    f"{row['n']:,d} ({row['rollout_ends']:,d} / {row['not_in_topk']:,d})",
                    _percent(row["bit_exact_rate"]),
                    by_offset or UNDEFINED,
                    *("0" if row[q] == 0 else number(row[q], ".1e") for q in ("median", "p90")),
                ],
            )


def readings(configurations: list[dict]) -> list[tuple[str, str]]:
    """Sentences by the name of the configuration that they are about."""
    said = []
    for configuration in configurations:
        analysis, label = configuration["analysis"], f"“{configuration['label']}”"
        parts = [
            _parts(analysis),
            _floors(configuration, configurations),
            _order(analysis["order_effect"]),
            _text(analysis["text_tokens"]),
        ]
        said += [(configuration["name"], f"In {label} {part}") for part in parts if part]
    return said


def _parts(analysis: dict) -> str:
    if analysis["decomposition"]["missing"]:
        return f"the decomposition is {NOT_APPLICABLE}: there is no pass on prefilled state."
    total = analysis["comparisons"]["refeed"]
    if not total["flips"]:
        return "re-feeding changed no sign, so there is nothing to divide."
    shares, surplus = (analysis["decomposition"][name] for name in ("shares", "surplus"))
    state_share, batch_share = (cell(shares[name], ".0f", "%") for name in PARTS)
    verdicts = {
        True: "they add up",
        False: "they do not add up",
        None: "too few problems to tell more",
    }
    verdict = verdicts[analysis["decomposition"]["adds_up"]]
    means = {n: analysis["comparisons"][n]["mean_difference"] for n in ("refeed", *PARTS)}
    refeed, state, batch = (f"{means[n]['estimate']:+z.3f}" for n in means)
    return (
        f"recomputed state alone changes {state_share} as many signs as re-feeding and batch"
        f" dynamics alone {batch_share}; the parts sum to {cell(surplus, '.1f')} points above the"
        f" total: {verdict}. The signed mean difference, {refeed}, is {state} of state and {batch}"
        " of batches."
    )


def _floors(configuration: dict, configurations: list[dict]) -> str:
    """The floor of seeded arrivals beside that of engines whose arrivals depend on timing."""
    seeded = configuration["analysis"]["comparisons"].get("staggered_floor")
    if seeded is None:
        return ""
    timed = [
        f"{cell(other['analysis']['comparisons']['floor']['rate'], '.1f', '%')} in"
        f" “{other['label']}”"
        for other in configurations
        if other["settings"].get("engine.process") == "engine-core"
        and all(other[key] == configuration[key] for key in ("model", "numerics"))
    ]
    beside = f"; where admission depends on timing it is {' and '.join(timed)}" if timed else ""
    return f"seeded arrivals make a replica floor of {cell(seeded['rate'], '.1f', '%')}{beside}."


def _order(effect: dict) -> str:
    if effect["p"] is None:
        return ""
    return (
        f"the passes ran in a random order for every problem; for each place that a pass ran later,"
        f" the share of signs that differ from exact 1 changes by {100 * effect['slope']:+z.1f}"
        f" points (permutation test over {effect['n_problems']} problems, p = {effect['p']:.2g})."
    )


def _text(text: dict | None) -> str:
    if text is None:
        return ""
    changed, same = (
        f"{text[kind]['flips']} of {text[kind]['n']}" for kind in ("with_change", "without_change")
    )
    return (
        f"{text['changed']:,d} of {text['n']:,d} pivots have other token ids after their way"
        f" through text; re-fed as text the sign differs from re-feed's at {changed} eligible"
        f" pivots with such a change, and at {same} without."
    )


def figure4(configurations: list[dict]) -> str:
    """The caption of Figure 4."""
    floors = " and ".join(
        f"{c.label} ({NAMES[c.compared]} against {NAMES[c.reference]})"
        for c in COMPARISONS.values()
        if c.floor and any(_has(k, c) for k in configurations)
    )
    effects = "; ".join(
        f"{c.label}: {NAMES[c.compared]} against {NAMES[c.reference]}"
        for c in COMPARISONS.values()
        if not c.floor and any(_has(k, c) for k in configurations)
    )
    return (
        "The share of eligible pivots, those with a nonzero estimate in any pass, whose sign"
        " differs between two passes, with 95% intervals from resampled problems; a hollow marker"
        f" has none because it is undefined, as where all problems agree. Red squares are effects:"
        f" {effects}. Grey circles are replica floors: {floors}."
    )


def _has(configuration: dict, comparison) -> bool:
    pairs = configuration["analysis"]["comparisons"].values()
    return any(
        (pair["reference"], pair["compared"]) == (comparison.reference, comparison.compared)
        for pair in pairs
    )
