"""Configuration, wildcards and helpers; the logic is in workflow/scripts/replay."""

import re
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path.insert(0, str(Path(workflow.basedir) / "workflow" / "scripts"))

from replay.code import code_digest
from replay import published
from replay.config import ConfigError, check_local_sources, load_study
from replay.devices import gpus
from replay.storage import lock_folder


configfile: Path(workflow.basedir) / "config" / "catalog.yaml"


if not workflow.overwrite_configfiles:

    configfile: Path(workflow.basedir) / "config" / "config.yaml"


try:
    STUDY = load_study(config)
    check_local_sources(STUDY)
except ConfigError as error:
    raise WorkflowError(str(error))

TEMPLATES = sorted((Path(workflow.basedir) / "workflow" / "templates").glob("*"))
# Where the records of a published run come from, for its page.
PROVENANCE = (
    published.provenance(STUDY.config["published"], STUDY.config["paper"])
    | {"note": STUDY.note}
    if STUDY.is_published
    else None
)
RESULTS = f"results/{STUDY.config['run']}"
FIGURES = [1, 2, 3, 4, 5]
# The page's pivots with their texts: with the figures it stays below 5 MB.
BROWSER_BYTES = 4_000_000


LOCKS = []  # open files: closing one would release it


def one_of(names):
    return "|".join(map(re.escape, names))


wildcard_constraints:
    configuration=one_of(STUDY.configurations),
    trunk_set=one_of(STUDY.trunk_sets),
    engine_set=one_of(STUDY.engine_sets),
    shard=one_of(STUDY.shards),
    model=one_of(STUDY.config["models"]),
    dataset=one_of(STUDY.config["datasets"]),


def hold_lock(folder):
    """One workflow process in one working folder; the lock ends with the process, even killed."""
    try:
        LOCKS.append(lock_folder(folder))
    except BlockingIOError:
        raise WorkflowError(
            f"another workflow process is at work in this folder; wait for it"
        )


def configuration_of(wildcards):
    return STUDY.configurations[wildcards.configuration]


def trunk_set_of(wildcards):
    return STUDY.trunk_sets[wildcards.trunk_set]


def engine_set_of(wildcards):
    return STUDY.engine_sets[wildcards.engine_set]


def cpu_engines(engine):
    """Engines that take this host's CPUs: two at once would share the same cores."""
    return 0 if gpus(engine) else 1


def trunks_of(wildcards, shards):
    """Trunk folders of a configuration's shards, in the order of its cohorts."""
    trunk_sets = configuration_of(wildcards).trunk_sets
    return [
        f"{RESULTS}/trunks/{t.name}/{shard}" for t in trunk_sets for shard in shards
    ]


def trunk_inputs(wildcards):
    return trunks_of(wildcards, [wildcards.shard])


def all_trunks(wildcards):
    return trunks_of(wildcards, STUDY.shards)


def measured(source):
    """An input that a run on published records has not."""
    return [] if STUDY.is_published else source


def dataset_of(wildcards):
    return f"resources/datasets/{configuration_of(wildcards).dataset}.jsonl"


def model_of(wildcards):
    return f"resources/models/{configuration_of(wildcards).model}"


def local_source(entry):
    """Files that an entry names on this machine: inputs, so that a change of them is seen."""
    if entry["source"] != "local":
        return []
    path = Path(entry["path"])
    return sorted(map(str, path.glob("*"))) if path.is_dir() else [str(path)]


def per_shard(pattern):
    """Input function: `pattern` for every shard."""
    return expand(f"{RESULTS}/{pattern}", shard=STUDY.shards, allow_missing=True)


def per_configuration(pattern):
    return expand(f"{RESULTS}/{pattern}", configuration=STUDY.configurations)


def invariance_checks(_wildcards):
    """Self-checks of the engines of which a row of Table 1 promises batch-invariant numerics."""
    names = [
        name
        for name, engine_set in STUDY.engine_sets.items()
        if engine_set.settings["engine"]["numerics"] == "batch-invariant"
    ]
    return expand(f"{RESULTS}/invariance/{{engine_set}}.json", engine_set=names)


def engine_env(engine):
    return f"../../envs/engine-{engine['device']}.yaml"
