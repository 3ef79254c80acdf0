"""How one problem is run again: by a command that leaves the checkout as it was committed."""

import re
import subprocess
from pathlib import Path

from replay.config import load_study, read_config
from replay.pivot_text import rerun_command

ROOT = Path(__file__).parents[2]


def test_the_file_of_a_rerun_is_among_the_results(tmp_path):
    study = load_study(read_config(ROOT / "config" / "config.yaml"))
    command = rerun_command(study, "config/config.yaml", "main", 0).splitlines()[-1]
    echo, snakemake = command.split(" && ")
    (file,) = re.findall(r"> (\S+)$", echo)
    assert snakemake.split()[-1] == file
    (tmp_path / "results").mkdir()
    subprocess.run(echo, shell=True, check=True, cwd=tmp_path)
    assert (tmp_path / file).parent == tmp_path / "results"
    assert list(read_config(tmp_path / file)["configurations"]) == ["main"]
