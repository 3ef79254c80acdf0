"""Configuration, wildcards and helpers; the logic is in workflow/scripts/replay."""

import gc
import re
import sys
from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path.insert(0, str(Path(workflow.basedir) / "workflow" / "scripts"))

from replay.code import code_digest
from replay import published, registration
from replay.config import ConfigError, check_keys, check_local_sources, load_study
from replay.devices import gpus, shortage
from replay.resources import ENGINE_MINUTES, cpu_engines, cpus, memory_mb
from replay.storage import clear_workspace, lock_folder


configfile: Path(workflow.basedir) / "config" / "catalog.yaml"


if not workflow.overwrite_configfiles:

    configfile: Path(workflow.basedir) / "config" / "config.yaml"


try:
    check_keys(workflow.configfiles)
    STUDY = load_study(config)
    check_local_sources(STUDY)
    REGISTRATION = registration.load()
except (ConfigError, registration.RegistrationError) as error:
    raise WorkflowError(str(error))

TEMPLATES = tuple(sorted((Path(workflow.basedir) / "workflow" / "templates").glob("*")))
# Where the records of a published run come from, for its page.
PROVENANCE = (
    published.provenance(STUDY.config["published"], STUDY.config["paper"])
    | {"note": STUDY.note}
    if STUDY.is_published
    else None
)
RESULTS = f"results/{STUDY.config['run']}"
FIGURES = [1, 2, 3, 4, 5]
TARGET = "published" if STUDY.is_published else "all"
RULES = (
    Path(workflow.basedir) / "Snakefile",
    *sorted((Path(workflow.basedir) / "workflow" / "rules").glob("*.smk")),
)
# What is made on demand: audited where it is there.
OPTIONAL = [f"{RESULTS}/tables/{name}.csv" for name in ("plan", "invariance")]
OPTIONAL.append(f"{RESULTS}/ro-crate-metadata.json")
# The page's pivots with their texts: with the figures it stays below 5 MB.
BROWSER_BYTES = 4_000_000


# Every job of a grid asks for it, and it parses modules, which takes longer than the rest of a plan.
code_digest = cache(code_digest)
# The lock of the registration, where there is one: what is measured before it is not registered.
LOCK_FILE = [str(p) for p in [registration.lock_path(REGISTRATION)] if p.exists()]

# The millions of objects of a large plan stay: to look for garbage among them as often as Python
# does takes a tenth of the time. What a plan leaves meanwhile is some 100 MB.
gc.set_threshold(1_000_000)

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
    except OSError as error:
        raise WorkflowError(
            f"{folder}: cannot be written ({error}); make room or correct its permissions"
        )


ENTRIES = {
    "configuration": STUDY.configurations,
    "trunk_set": STUDY.trunk_sets,
    "engine_set": STUDY.engine_sets,
}


def of(wildcard, quantity):
    """A quantity of the entry which a job's wildcard names. Where all entries agree in it, it is no
    function: Snakemake takes long over functions.
    """
    values = {name: quantity(entry) for name, entry in ENTRIES[wildcard].items()}
    first, *others = values.values()
    if all(value == first for value in others):
        return first
    return lambda wildcards: values[wildcards[wildcard]]


def of_engine(wildcard, quantity):
    return of(wildcard, lambda entry: quantity(entry.engine))


def trunks_of(configuration, shards):
    """Trunk folders of a configuration's shards, in the order of its cohorts."""
    names = [trunk_set.name for trunk_set in configuration.trunk_sets]
    return [f"{RESULTS}/trunks/{name}/{shard}" for name in names for shard in shards]


def trunk_inputs(configuration):
    return trunks_of(configuration, ["{shard}"])


def all_trunks(configuration):
    return trunks_of(configuration, STUDY.shards)


def measured(source):
    """An input that a run on published records has not."""
    return [] if STUDY.is_published else source


def dataset_of(entry):
    return f"resources/datasets/{entry.dataset}.jsonl"


def model_of(entry):
    return f"resources/models/{entry.model}"


def local_source(entry):
    """Files that an entry names on this machine: inputs, so that a change of them is seen."""
    if entry["source"] != "local":
        return []
    path = Path(entry["path"])
    files = sorted(map(str, path.glob("*"))) if path.is_dir() else [str(path)]
    return [local(file) for file in files]  # also where a storage holds all other files


def per_shard(pattern):
    """Input function: `pattern` for every shard."""
    return expand(f"{RESULTS}/{pattern}", shard=STUDY.shards, allow_missing=True)


def per_configuration(pattern):
    return expand(f"{RESULTS}/{pattern}", configuration=STUDY.configurations)


def engine_jobs(configuration):
    """Log by output of the engine jobs whose data a configuration's records are."""
    names = [trunk_set.name for trunk_set in configuration.trunk_sets]
    sharded = [f"trunks/{name}" for name in names] + [f"passes/{configuration.name}"]
    jobs = {f"screen/{name}/cohort.json": f"screen/{name}" for name in names}
    jobs |= {
        f"{of}/{shard}": f"{of}/{shard}" for of in sharded for shard in STUDY.shards
    }
    return {
        f"{RESULTS}/{path}": f"{RESULTS}/logs/{log}.log" for path, log in jobs.items()
    }


ENGINE_JOBS = {name: engine_jobs(c) for name, c in STUDY.configurations.items()}


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
