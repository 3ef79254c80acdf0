"""From each number of Table 1 to the files that it came from, for the page."""

from pathlib import Path

from replay.protocol import COMPARED, REFERENCE

# What takes which passes: the columns of Table 1 by the comparison that they are about.
COLUMNS = {"refeed": "Re-feed", "exact2": "Floor", "all": "n, excess, t, z"}


def origins(rows: list[dict], records: list[str], passes: list[str], page: str) -> list[dict]:
    """Of each configuration and group of columns: `name`, `label`, `group` and, as paths from the
    page's folder, the `records`, `passes` and `trunks` behind it.

    `rows` are `Study.rows`, `records` their files, `passes` folders `.../<configuration>/<shard>`.
    A run on published records has neither passes nor trunks.
    """
    found = []
    for row, record in zip(rows, records, strict=True):
        folders = [Path(folder) for folder in passes if Path(folder).parent.name == row["name"]]
        trunks = [
            folder.parents[2] / "trunks" / trunk_set / folder.name / "trunks.jsonl"
            for trunk_set in row["trunk_sets"]
            for folder in folders
        ]
        for group in COLUMNS:
            names = [REFERENCE, *(COMPARED if group == "all" else [group])]
            files = [folder / f"{name}.jsonl" for folder in folders for name in names]
            found.append(
                {
                    "name": row["name"],
                    "label": row["label"],
                    "group": group,
                    "records": _from(page, [Path(record)]),
                    "passes": _from(page, files),
                    "trunks": _from(page, trunks),
                }
            )
    return found


def _from(page: str, files: list[Path]) -> list[str]:
    """Paths as seen from the folder of the page, which is one below that of the run."""
    run = Path(page).parents[1]
    return [f"../{file.relative_to(run)}" for file in files]
