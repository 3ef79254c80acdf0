"""A Slurm cluster of one node on this machine, from Debian's packages, in a folder of its own."""

import os
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
PACKAGES = "munge slurmctld slurmd slurm-client"

# No cgroups (a container has none to give), no accounting database: squeue tells of finished jobs,
# for as long as MinJobAge.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=2,batch_sched_delay=1
MpiDefault=none
ReturnToService=2
MinJobAge=3600
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory_mb} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why no cluster can be started here; None if one can."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=_path())]
    if missing:
        return f"{', '.join(missing)} not found (Debian packages: {PACKAGES})"
    if os.geteuid() != 0:
        return "slurmd starts jobs as their users, which only root may"
    return None


def _path() -> str:
    """Daemons lie in sbin, which not every shell has in its path."""
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Cluster:
    """A running cluster; `environment` is what its commands need. Ends with `stop`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = os.environ | {
            "PATH": f"{folder / 'bin'}:{_path()}",
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        self._wrap("srun")
        self.daemons: list[subprocess.Popen] = []
        folder.chmod(0o755)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        self._configure()
        try:
            self._start_munge()
            self._start("slurmctld", "-D")
            self._start("slurmd", "-D", "-N", socket.gethostname().split(".")[0])
            self._wait(lambda: self.run("sinfo", "-h", "-o", "%T") == "idle\n", "idle node")
        except BaseException:
            self.stop()
            raise

    def _configure(self) -> None:
        pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        text = CONFIGURATION.format(
            host=socket.gethostname().split(".")[0],
            ports=_free_ports(2),
            folder=self.folder,
            cpus=len(os.sched_getaffinity(0)),
            memory_mb=pages * page * 9 // 10 // 2**20,
        )
        (self.folder / "slurm.conf").write_text(text)

    def _wrap(self, command: str) -> None:
        """A way to `command` for a job step, from whose environment the plugin drops SLURM_CONF."""
        script = self.folder / "bin" / command
        script.parent.mkdir(exist_ok=True)
        program = shutil.which(command, path=_path())
        script.write_text(f'#!/bin/sh\nSLURM_CONF={self.folder}/slurm.conf exec {program} "$@"\n')
        script.chmod(0o755)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = {"socket": "munge.socket", "key-file": key.name, "pid-file": "munge.pid",
                 "seed-file": "munge.seed", "log-file": "munge.log"}  # fmt: skip
        options = [f"--{option}={self.folder / name}" for option, name in files.items()]
        self._start("munged", "--foreground", "--force", *options)
        self._wait((self.folder / "munge.socket").exists, "munged")

    def _start(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("w") as output:
            self.daemons.append(
                subprocess.Popen(command, env=self.environment, stdout=output, stderr=output)
            )

    def _wait(self, ready, what: str) -> None:
        deadline = time.monotonic() + 60
        while not ready():
            dead = [daemon.args[0] for daemon in self.daemons if daemon.poll() is not None]
            assert not dead, f"{dead} ended:\n{self.logs()}"
            assert time.monotonic() < deadline, f"no {what} within a minute:\n{self.logs()}"
            time.sleep(0.2)

    def run(self, *command: str) -> str:
        """Output of a Slurm command; of one that fails, nothing."""
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        ).stdout

    def jobs(self) -> dict[str, tuple[str, str]]:
        """Every job that the cluster knows: id -> (rule, state)."""
        rows = (line.split("|") for line in self.run(
            "squeue", "-h", "--states=all", "-o", "%i|%k|%T").splitlines())  # fmt: skip
        return {
            job: (comment.split("_wildcards_")[0].removeprefix("rule_"), state)
            for job, comment, state in rows
        }

    def logs(self) -> str:
        files = sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")])
        return "\n".join(f"--- {file.name}\n{file.read_text()[-3000:]}" for file in files)

    def stop(self) -> None:
        for job, (_rule, state) in self.jobs().items() if len(self.daemons) == 3 else ():
            if state in ("RUNNING", "PENDING"):
                self.run("scancel", "--signal=KILL", "--full", job)
                self.run("scancel", job)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
