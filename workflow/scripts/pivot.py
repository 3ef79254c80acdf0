"""Everything about one pivot, on the terminal:

python workflow/scripts/pivot.py [--configfile FILE] CONFIGURATION PROBLEM ROLLOUT POSITION
"""

import argparse
import sys

from replay.config import ConfigError, load_study, read_config
from replay.pivot_text import PivotError, rerun_command, show
from replay.storage import StoredFileError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configfile", default="config/config.yaml", help="of the run")
    parser.add_argument("configuration", help="its name in the configuration file")
    for name in ("problem", "rollout", "position"):
        parser.add_argument(name, type=int, help="as in the records; position: abs_pos")
    asked = parser.parse_args()
    try:
        config = read_config(asked.configfile)
        key = asked.problem, asked.rollout, asked.position
        print(show(config, asked.configuration, key))
        study = load_study(config)
        print(rerun_command(study, asked.configfile, asked.configuration, asked.problem))
    except (PivotError, ConfigError, StoredFileError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
