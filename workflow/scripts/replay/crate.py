"""A finished run as a Workflow Run RO-Crate: the folder of the run, described where it lies.

It follows the profiles Process, Workflow and Provenance Run Crate 0.5: each job is an action with
its inputs, outputs and times, all taken from its sidecar.
"""

import json
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from mimetypes import guess_type
from pathlib import Path

import yaml
from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

from replay.dag import Job
from replay.provenance import ROOT, git_state
from replay.storage import read_json

PROFILES = {
    f"https://w3id.org/ro/wfrun/{name}/0.5": f"{name.title()} Run Crate 0.5"
    for name in ("process", "workflow", "provenance")
} | {"https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate 1.0"}
CONTEXT = "https://w3id.org/ro/terms/workflow-run/context"
LICENSE = "https://spdx.org/licenses/Apache-2.0"
SNAKEMAKE = "https://snakemake.github.io"
COMPLETED = "http://schema.org/CompletedActionStatus"
# What of the checkout goes into the crate.
CODE = (
    "Snakefile", "LICENSE", "README.md", "CITATION.cff", "workflow", "config", "envs", "profiles",
    "requirements/lock.txt",
)  # fmt: skip


class CrateError(RuntimeError):
    """A run that cannot be described as it is."""


def copy_code(folder: Path, config: dict) -> None:
    """The workflow as it is now and the whole configuration: what runs the crate again."""
    for name in CODE:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
        elif source.exists():
            shutil.copyfile(source, target)
    (folder / "run.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def write_crate(
    jobs: list[Job], config: dict, registration: dict, root: Path, code: Path, page: str
) -> None:
    """Write `ro-crate-metadata.json` into `root`, the folder of the run.

    `registration` is what `registration.assess` found, `code` a folder in `root`, `page` the main
    result. Raises CrateError where a job has no sidecar.
    """
    copy_code(code, config)
    crate = _Crate(root, config, code)
    for position, rule in enumerate(dict.fromkeys(job.rule for job in jobs), start=1):
        crate.add_step(rule, position, [job for job in jobs if job.rule == rule])
    crate.add_run(page, registration)
    crate.write()


class _Crate:
    """The entities of a crate, by what they stand for."""

    def __init__(self, root: Path, config: dict, code: Path):
        self.root, self.code = root, code.relative_to(root)
        self.version = git_state()["commit"] or "unknown"
        self.crate = crate = ROCrate(version="1.1")
        crate.metadata.extra_contexts.append(CONTEXT)
        crate.name = f"{config.get('title', 'Replay-noise audit')}: {config['run']}"
        crate.description = (
            "Replay-noise audit of per-token counterfactual credit, with every file."
        )
        crate.datePublished = datetime.now(UTC)
        crate.license = self.entity(LICENSE, "CreativeWork", name="Apache License 2.0")
        crate.root_dataset["conformsTo"] = [
            self.entity(url, "CreativeWork", name=name, version=url.rpartition("/")[2])
            for url, name in PROFILES.items()
        ]
        bioschemas = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
        self.entity(bioschemas, "CreativeWork", name="Bioschemas ComputationalWorkflow 1.0")
        self.workflow = crate.add_workflow(
            dest_path=f"{self.code}/Snakefile",
            lang="snakemake",
            main=True,
            properties={
                "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
                "name": "Replay-noise audit",
                "version": self.version,
                "conformsTo": {"@id": bioschemas},
            },
        )
        self.actions: list = []
        self.controls: list = []
        self.sidecars: list[dict] = []

    def entity(self, identifier: str, kind: str, **properties) -> ContextEntity:
        """A contextual entity; the same one for the same identifier."""
        known = self.crate.dereference(identifier)
        properties = {"@type": kind} | {n: _flat(v) for n, v in properties.items() if v != []}
        return known or self.crate.add(ContextEntity(self.crate, identifier, properties))

    def file(self, path: str, sha256: str | None = None, **properties):
        """A file of the run, or what stands for one that is not in its folder."""
        if not Path(path).resolve().is_relative_to(self.root.resolve()):
            return self.entity(f"#{path}", "CreativeWork", name=path)
        relative = str(Path(path).relative_to(self.root))
        if known := self.crate.dereference(relative):
            return known
        kind = guess_type(path)[0] or "application/octet-stream"
        properties |= {
            "name": relative,
            "contentSize": str(Path(path).stat().st_size),
            "encodingFormat": "text/markdown" if path.endswith(".md") else kind,
        } | ({"sha256": sha256} if sha256 else {})
        return self.crate.add_file(dest_path=relative, properties=properties)

    def data(self, path: str, recorded) -> list:
        """Entities of an input or output, as a sidecar records it."""
        inside = Path(path).resolve().is_relative_to(self.root.resolve())
        if isinstance(recorded, str) or not inside:
            return [self.file(path, recorded if isinstance(recorded, str) else None)]
        relative = f"{Path(path).relative_to(self.root)}/"
        folder = self.crate.dereference(relative)
        if not folder:
            folder = self.crate.add_dataset(dest_path=relative, properties={"name": relative})
            folder["hasPart"] = _flat([self.file(f"{path}/{n}", s) for n, s in recorded.items()])
        return [folder]

    def add_step(self, rule: str, position: int, jobs: list[Job]) -> None:
        """One rule as a step with its tool, and its jobs as actions."""
        script = self.root / self.code / "workflow" / "scripts" / Path(jobs[0].script).name
        kind = {"@type": ["File", "SoftwareSourceCode"], "version": jobs[0].params["code"]}
        tool = self.file(str(script), **kind)
        step = self.entity(
            f"#step-{rule}", "HowToStep", name=rule, position=str(position), workExample=tool
        )
        self.workflow.append_to("step", step)
        self.workflow.append_to("hasPart", tool)
        actions = [self.action(job, number, tool) for number, job in enumerate(jobs, start=1)]
        self.controls.append(
            self.entity(
                f"#control-{rule}", "ControlAction", name=f"Jobs of {rule}", instrument=step,
                object=actions, actionStatus=COMPLETED,
            )
        )  # fmt: skip

    def action(self, job: Job, number: int, tool) -> ContextEntity:
        if not job.sidecar.exists():
            raise CrateError(f"{job.sidecar} is missing; `snakemake --cores 1 audit` says more")
        sidecar = read_json(job.sidecar)
        self.sidecars.append(sidecar)
        action = self.entity(
            f"#{job.rule}-{number}", "CreateAction",
            name=" ".join([job.rule, *sidecar["wildcards"].values()]),
            description=f"Job of rule {job.rule}; its sidecar says what it ran with.",
            instrument=tool, startTime=sidecar["began"], endTime=sidecar["ended"],
            actionStatus=COMPLETED,
            object=self.all_of(sidecar["inputs"]), result=self.all_of(sidecar["outputs"]),
        )  # fmt: skip
        for path, entry in sidecar["sources"].items():
            pinned = self.file(path)
            pinned["description"] = json.dumps(entry, sort_keys=True)
        if job.sidecar.resolve().is_relative_to(self.root.resolve()):
            self.file(str(job.sidecar))["about"] = action
        self.actions.append(action)
        return action

    def all_of(self, recorded: dict) -> list:
        return [entity for path, sums in recorded.items() for entity in self.data(path, sums)]

    def add_run(self, page: str, registration: dict) -> None:
        """The run as a whole: an action of the workflow, organised by Snakemake."""
        configuration = self.file(str(self.root / self.code / "run.yaml"))
        result = self.file(page)
        for end, kind, entity in (
            ("input", "configuration", configuration),
            ("output", "page", result),
        ):
            parameter = self.entity(
                f"#parameter-{kind}", "FormalParameter", name=kind, additionalType="File",
                workExample=entity,
            )  # fmt: skip
            entity["exampleOfWork"] = parameter
            self.workflow[end] = parameter
        run = self.entity(
            "#run", "CreateAction", name=self.crate.name, instrument=self.workflow,
            description="The run of the workflow, from its first job to its last.",
            startTime=min(s["began"] for s in self.sidecars),
            endTime=max(s["ended"] for s in self.sidecars),
            object=[configuration], result=[result], actionStatus=COMPLETED,
        )  # fmt: skip
        snakemake = self.entity(
            SNAKEMAKE, "SoftwareApplication", name="Snakemake", url=SNAKEMAKE,
            softwareVersion=metadata.version("snakemake"),
        )  # fmt: skip
        organized = self.entity(
            "#organize", "OrganizeAction", name="Snakemake", instrument=snakemake, result=run,
            object=self.controls, actionStatus=COMPLETED,
        )  # fmt: skip
        self.crate.root_dataset["mentions"] = [run, organized, *self.actions]
        self.crate.root_dataset["additionalProperty"] = list(self._statements(registration))

    def _statements(self, registration: dict) -> Iterable[ContextEntity]:
        """What the run states of its registration, configuration by configuration."""
        lock = registration["lock"]
        facts = {"registration digest": registration["registration"]["digest"]}
        facts |= {"registration lock sha256": lock["sha256"]} if lock else {}
        for name, of in registration["configurations"].items():
            facts[f"registration of {name}"] = "; ".join([of["state"], *of["deviations"]])
            facts[f"decision rule on {name}"] = of["verdict"]
        for name, value in facts.items():
            identifier = f"#{name.replace(' ', '-')}"
            yield self.entity(identifier, "PropertyValue", name=name, value=value)

    def write(self) -> None:
        for path in sorted((self.root / self.code).rglob("*")):
            if path.is_file():
                self.file(str(path))
        readme = self.file(str(self.root / self.code / "README.md"))
        readme["about"] = self.crate.root_dataset
        self.crate.metadata.write(self.root)


def _flat(value):
    """A list of one thing as that thing, which is how RO-Crate writes it."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value
