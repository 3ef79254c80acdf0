"""The jobs that the workflow would have under a configuration, as Snakemake sees them now."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml
from snakemake.api import SnakemakeApi
from snakemake.settings.types import (
    ConfigSettings,
    DAGSettings,
    OutputSettings,
    Quietness,
    ResourceSettings,
)

from replay.provenance import ROOT, sidecar_path


@dataclass(frozen=True, eq=False)
class Job:
    """A job of the DAG, whether it has run or not."""

    rule: str
    script: str
    params: dict
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sidecar: Path
    needs: frozenset[str]  # rules of the jobs that make its inputs


def jobs(config: dict, targets: list[str]) -> list[Job]:
    """Jobs behind `targets`, those first whose outputs others need; nothing is run.

    Snakemake offers no public way to the jobs of a DAG: this takes the one by which it prints one.
    """
    with tempfile.TemporaryDirectory() as folder, _quiet() as api:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        workflow_api = api.workflow(
            resource_settings=ResourceSettings(cores=1),
            config_settings=ConfigSettings(configfiles=[path]),
            snakefile=ROOT / "Snakefile",
        )
        workflow_api.dag(DAGSettings(targets=frozenset(targets)))
        workflow = workflow_api._workflow
        workflow._prepare_dag(forceall=False, ignore_incomplete=True, lock_warn_only=True)
        workflow._build_dag()
        return _in_order(workflow.dag)


def _quiet() -> SnakemakeApi:
    return SnakemakeApi(OutputSettings(quiet={Quietness.ALL}))


def _in_order(dag) -> list[Job]:
    layers = ([_job(dag, job) for job in layer if job.log] for layer in dag.toposorted())
    return [job for layer in layers for job in sorted(layer, key=lambda j: (j.rule, j.outputs))]


def _job(dag, job) -> Job:
    return Job(
        rule=job.rule.name,
        script=str(job.rule.script),
        params=json.loads(json.dumps(job.params.job)),  # as a sidecar is read back
        inputs=tuple(map(str, job.input)),
        outputs=tuple(map(str, job.output)),
        sidecar=sidecar_path(str(job.log[0])),
        needs=frozenset(needed.rule.name for needed in dag.dependencies[job]),
    )
