"""Every profile plans the same jobs, which ask for the machine that their configuration needs."""

import re
import subprocess
import sys

import pytest
import yaml

STUDY = {
    "run": "profiles",
    "model": "smollm2-135m",
    "shards": 2,
    "cohorts": {"c": {"dataset": "word-problems", "start": 0, "n": 4}},
    "engine": {"max_model_len": 2048},
    "configurations": {
        "on-cpu": {
            "cohorts": ["c"],
            "engine": {"device": "cpu", "threads": 3, "kv_cache_gib": 0.5},
        },
        "on-gpu": {"cohorts": ["c"], "engine": {"device": "cuda"}},
    },
}
ON_CPU = {"threads": 3, "gpu": 0, "cpu_engine": 1, "mem_mb": 6656, "runtime": 1440}
ON_GPU = {"threads": 4, "gpu": 1, "cpu_engine": 0, "mem_mb": 32768, "runtime": 1440}
PROFILES = {"default": [], "slurm": [], "kubernetes": ["--container-image", "image"]}


def read_profile(root, name: str) -> dict:
    return yaml.safe_load((root / "profiles" / name / "profile.yaml").read_text(encoding="utf-8"))


def plan(root, folder, study: dict, profile: str, *options: str) -> dict[str, list[str]]:
    """What a dry run prints of each job, by rule."""
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(study))
    result = subprocess.run(
        # A dry run without --cores shows the threads of one core.
        [sys.executable, "-m", "snakemake", "-n", "all", "--cores", "8",
         "--workflow-profile", profile, *PROFILES[profile], *options, "--configfile", str(config)],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    jobs: dict[str, list[str]] = {}
    for rule, text in re.findall(
        r"^(?:local)?rule (\S+):\n(.*?\n    resources: [^\n]*)", result.stdout, re.M | re.S
    ):
        jobs.setdefault(rule, []).append(text)
    return jobs


def asked(job: str) -> dict[str, int]:
    found = dict(re.findall(r"\b(\w+)(?:=|: )(\d+)\b", job.partition("    wildcards:")[2]))
    return {name: int(found[name]) for name in ON_CPU}


@pytest.mark.parametrize("profile", PROFILES)
def test_shards_are_jobs_that_ask_for_what_their_engine_needs(root, tmp_path, profile):
    jobs = plan(root, tmp_path, STUDY, profile)
    for rule, shards in (("screen", 1), ("trunks", 2), ("passes", 2)):
        quantities = sorted(map(asked, jobs[rule]), key=lambda job: job["gpu"])
        assert quantities == [ON_CPU] * shards + [ON_GPU] * shards
        if profile == "kubernetes":
            assert all("gpu_manufacturer=nvidia, scale=0" in job for job in jobs[rule])
    assert len(jobs["grade"]) == len(jobs["records"]) == len(jobs["analyze"]) == 2


def test_one_engine_at_a_time_unless_told_of_more_gpus(root, tmp_path):
    """An engine takes the whole limit on GPUs, or that on CPU engines, whatever --cores says."""
    assert read_profile(root, "default")["resources"] == {"gpu": 1, "cpu_engine": 1}
    large = {"cohorts": ["c"], "engine": {"device": "cuda", "tensor_parallel": 2}}
    study = STUDY | {"configurations": {"two-gpus": large}}
    jobs = plan(root, tmp_path, study, "default", "--resources", "gpu=2", "cpu_engine=1")
    for rule in ("screen", "trunks", "passes"):
        assert [asked(job)["gpu"] for job in jobs[rule]] == [2] * len(jobs[rule])


def test_profiles_agree_on_when_a_job_is_run_again(root):
    """One workflow profile replaces the other: none adds to profiles/default."""
    shared = {
        name: value for name, value in read_profile(root, "default").items() if name != "resources"
    }
    names = {path.name for path in (root / "profiles").iterdir()}
    assert names == set(PROFILES)
    for name in names:
        assert read_profile(root, name).items() >= shared.items()
