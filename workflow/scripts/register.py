"""Lock the registration: what it fixes, with the time and the commit, once."""

from replay.job import logged
from replay.registration import lock, lock_path


def main(snakemake):
    with logged(snakemake.log[0]) as console:
        job = snakemake.params.job
        registration = job["registration"]
        content, is_new = lock(registration, job["verdict_code"])
        verb = "Locked" if is_new else "Was locked already, and stays as it is:"
        remedy = ", of a modified checkout: commit, delete the lock and register again"
        dirty = remedy if content["dirty"] else ""
        print(
            f"{verb} {lock_path(registration)}, {content['time']}, commit"
            f" {content['commit']}{dirty}\nsha256 {content['sha256']}\nPublish it before the run:"
            " commit and push the file, or post the sum where others date it.",
            file=console,
        )


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
