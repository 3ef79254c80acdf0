"""One pivot as text: its transcript, both arms, every pass, and how to run its problem again."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

from replay.browser import Texts, stored_texts
from replay.config import Study, load_study
from replay.dag import jobs
from replay.protocol import ARMS, REFERENCE, pivot_key
from replay.storage import read_json

Key = tuple[int, int, int]  # problem, rollout, position in the whole sequence


class PivotError(LookupError):
    """No such pivot, or nothing stored of it."""


def show(config: dict, name: str, key: Key) -> str:
    """Everything that is stored of a pivot. Raises PivotError where there is none.

    `config` is a whole configuration, with its models and datasets.
    """
    study = load_study(config)
    if name not in study.configurations:
        known = ", ".join(study.configurations)
        raise PivotError(f"no configuration {name!r}; known: {known}")
    if study.is_published:
        raise PivotError("the texts of published records are not stored")
    path = Path("results") / study.config["run"] / "records" / f"{name}.json"
    if not path.exists():
        raise PivotError(
            f"{path} is missing: run `snakemake --cores 1 {name}`, with the --configfile of the run"
        )
    records = read_json(path)
    found = {pivot_key(record): record for record in records["pivots"]}
    if key not in found:
        known = "; ".join(" ".join(map(str, k)) for k in sorted(found) if k[:2] == key[:2])
        raise PivotError(f"no pivot {key}; those of this rollout: {known or 'none'}")
    texts = _texts(config, study.config["run"], name, records)
    return "\n".join(_lines(name, records, found[key], texts))


def _texts(config: dict, run: str, name: str, records: dict) -> Texts:
    """The stored texts, from the files that the pivot browser's job of the same name reads."""
    target = f"results/{run}/browser/{name}.json"
    (inputs,) = (job.inputs for job in jobs(config, [target]) if target in job.outputs)

    def under(folder: str) -> list[str]:
        return [path for path in inputs if f"/{folder}/" in path]

    return stored_texts(
        records,
        passes_folders=under("passes"),
        grades_folders=under("grades"),
        trunk_folders=under("trunks"),
        dataset=under("datasets")[0],
        model=under("models")[0],
    )


def _lines(name: str, records: dict, record: dict, texts: Texts) -> Iterator[str]:
    passes = list(texts.raw)
    problem = texts.problems[record["problem_id"]]
    yield (
        f"{name}: problem {record['problem_id']}, rollout {record['rollout']}, position"
        f" {record['abs_pos']} (generated token {record['gen_index']}), margin"
        f" {record['margin']:.3f} nats"
    )
    yield "estimates: " + ", ".join(f"{p} {record[f'A_{p}']:+.3f}" for p in passes)
    yield f"flags: {', '.join(record['flags']) or 'none'}"
    yield f"\nquestion (answer {problem['answer']})\n{indent(problem['question'], '  ')}"
    yield f"\ntranscript ({'right' if record['rollout_correct'] else 'not right'})"
    yield indent(marked(record, texts), "  ")
    for arm, content in zip(ARMS, texts.arms(record), strict=True):
        yield f"\narm {arm}: {content['token']!r}"
        for continuation in content["continuations"]:
            yield f"  k = {continuation['k']}"
            for each, told in zip(passes, continuation["passes"], strict=True):
                yield from _told(each, told, continuation["text"])


def marked(record: dict, texts: Texts) -> str:
    """The transcript with the token of the pivot between brackets."""
    transcript = texts.transcript(record)
    place = 2 * transcript["at"].index(record["abs_pos"]) + 1
    segments = transcript["segments"]
    before, pivot, after = segments[:place], segments[place], segments[place + 1 :]
    return f"{''.join(before)}\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}{pivot}" + (
        f"\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}{''.join(after)}"
    )


def _told(name: str, told: dict | None, text: str) -> Iterator[str]:
    """One pass's continuation: its text under exact 1, elsewhere where it departs from that."""
    if told is None:
        yield f"    {name}: as {REFERENCE}"
        return
    grade = f"{told['outcome']}, answer {told['answer']}" if "outcome" in told else "not graded"
    head = f"    {name}: {grade}, ended by {told['finish']}"
    if name == REFERENCE:
        yield head
        yield indent(text, "      ")
    elif told["token"] is None:
        yield f"{head}; the same tokens as {REFERENCE}"
    else:
        yield f"{head}; departs at token {told['token']}, after {text[: told['shared']][-40:]!r}"
        yield indent(told["rest"], "      ")


def rerun_command(study: Study, configfile: str, name: str, problem: int) -> str:
    """The command that runs one problem of a configuration again, into a run of its own.

    Each problem is a batch of its own, so its numbers do not depend on the others.
    """
    (cohort,) = {
        trunk_set.cohort.name: trunk_set.cohort
        for trunk_set in study.configurations[name].trunk_sets
        if problem in trunk_set.cohort.window
    }.values()
    one = f"problem-{problem}"
    window = {"dataset": cohort.settings["dataset"], "start": problem, "n": 1, "screen": None}
    run = f"{study.config['run']}-{name}-{problem}"[-60:].lstrip("._-")
    changes = {
        "run": run,
        "cohorts": {one: window},
        "configurations": {name: {"cohorts": [one]}},
    }
    # Through a file: Snakemake's --config makes text of every number in a mapping. Among the
    # results, so that the checkout stays as it was committed.
    file = f"results/{run}.yaml"
    command = ["snakemake", "--cores", "1", name, "--configfile", configfile, file]
    return (
        "\nthis problem alone, again:\n"
        f"  echo {shlex.quote(json.dumps(changes))} > {file} && {shlex.join(command)}"
    )
