"""A study of seconds, on the real engine, in a copy of the checkout."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from replay.config import with_catalog
from replay.dag import jobs
from replay.provenance import Sidecar

TINY = {
    "run": "tiny",
    "model": "smollm2-135m",
    "cohorts": {
        "primary": {"dataset": "word-problems", "start": 0, "n": 2},
        "screened": {
            "dataset": "word-problems", "start": 3, "n": 1, "screen": {"scan_limit": 8},
        },
    },
    "engine": {
        "device": "cpu", "threads": 2, "max_model_len": 512, "max_num_batched_tokens": 512,
        "kv_cache_gib": 0.5, "compile": False,
    },
    "trunks": {"rollouts": 4, "max_tokens": 96},
    "pivots": {"max_per_rollout": 1},
    "continuations": {"k": 2, "max_tokens": 32, "probe_tokens": 8},
    "pass_order": "random",
    "configurations": {
        "main": {
            "label": "Main pooled", "cohorts": ["primary", "screened"],
            "passes": ["exact1", "exact2", "refeed", "prefill_warm"],
        },
        "batch-invariant": {
            "cohorts": ["primary"], "numerics": "batch-invariant",
            "passes": ["exact1", "exact2", "refeed", "prefill_warm"],
        },
    },
}  # fmt: skip


class Checkout:
    """A copy of the project's tracked files, with the model already there."""

    def __init__(self, root: Path, folder: Path, checkpoint: Path):
        self.folder = folder
        listing = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],
            cwd=root, check=True, capture_output=True, text=True,
        )  # fmt: skip
        for name in listing.stdout.splitlines():
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        models = folder / "resources" / "models"
        models.mkdir(parents=True)
        shutil.copytree(checkpoint, models / checkpoint.name)

    @property
    def results(self) -> Path:
        return self.folder / "results" / "tiny"

    def configure(self, **changes) -> Path:
        path = self.folder / f"{changes.get('run', 'tiny')}.yaml"
        path.write_text(yaml.safe_dump(TINY | changes, sort_keys=False))
        return path

    def copied(self, run: str, *parts: str) -> tuple[Path, tuple[str, str]]:
        """The study under another name, with these folders of the finished run in its results.

        Returns its configuration file, and options for snakemake: the copies have no metadata of
        the jobs that made them, only times.
        """
        for part in parts:
            shutil.copytree(self.results / part, self.folder / "results" / run / part)
        return self.configure(run=run), ("--rerun-triggers", "mtime")

    def config(self, **changes) -> dict:
        """The study as Snakemake hands it to its scripts: with the catalog."""
        return with_catalog(TINY | changes)

    def vouch_for(self, path: str) -> None:
        """Write the sidecar of the job that would have made a copied input."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            (job,) = jobs(self.config(), [path])
            log = str(job.sidecar).replace("provenance", "logs")
            Sidecar(log, job.rule, {}, job.params, []).write(list(job.outputs))

    def command(self, *arguments: str, config: Path | None = None) -> list[str]:
        config = config or self.configure()
        return [
            sys.executable, "-m", "snakemake", "--cores", "1", *arguments,
            "--configfile", str(config),
        ]  # fmt: skip

    def snakemake(self, *arguments: str, config: Path | None = None, ok: bool = True) -> str:
        result = subprocess.run(
            self.command(*arguments, config=config),
            cwd=self.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        output = result.stdout + result.stderr
        assert (result.returncode == 0) == ok, output + self.logs()
        return output

    def logs(self) -> str:
        return "\n".join(
            f"--- {p}\n{p.read_text()[-3000:]}" for p in self.folder.glob("results/*/logs/**/*.log")
        )

    def planned(self, *arguments: str, config: Path | None = None) -> dict[str, int]:
        """Jobs that a dry run would do: rule -> count."""
        output = self.snakemake("-n", *arguments, config=config)
        if "Nothing to be done" in output:
            return {}
        table = output.split("Job stats:")[1].split("\n\n")[0]
        rows = re.findall(r"^(\S+)\s+(\d+)$", table, flags=re.M)
        return {rule: int(count) for rule, count in rows if rule not in ("total", "all")}

    def read(self, path: str):
        return json.loads((self.folder / path).read_text())

    def times(self, *rules: str) -> list[tuple[float, float]]:
        """When each job of these rules started and ended in the finished run; sorted."""
        files = (p for p in (self.folder / ".snakemake" / "metadata").rglob("*") if p.is_file())
        outputs = [json.loads(file.read_text()) for file in files]
        jobs = {
            output["log"][0]: (output["starttime"], output["endtime"])
            for output in outputs
            if output["rule"] in rules and output["log"][0].startswith("results/tiny/")
        }
        return sorted(jobs.values())

    def assert_same(self, run: str, *patterns: str) -> None:
        """The files of the finished run that match have twins, byte by byte, in another run."""
        for pattern in patterns:
            files = sorted(self.results.glob(pattern))
            assert files, pattern
            for file in files:
                twin = self.folder / "results" / run / file.relative_to(self.results)
                assert twin.read_bytes() == file.read_bytes(), f"{twin} differs"
