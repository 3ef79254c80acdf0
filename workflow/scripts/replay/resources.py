"""What an engine job asks of the machine that it runs on; a profile may say otherwise."""

from replay.devices import gpus

# Longer jobs need no more: one that its time limit ends is retried and goes on where it was.
ENGINE_MINUTES = 24 * 60
ENGINE_MB = 6 * 1024  # on a CPU: Python, torch and vLLM took 3 GB, a model of 2 GB fits as well
RANK_MB = 32 * 1024  # on a GPU they took 5 GB; the weights of a 7B model pass through the host
RANK_CPUS = 4


def cpus(engine: dict) -> int:
    """CPUs of an engine job: the threads of a CPU engine, else a few for each GPU."""
    return RANK_CPUS * gpus(engine) or engine["threads"]


def memory_mb(engine: dict) -> int:
    """Memory of the host in MB: with the KV cache on a CPU, without it on GPUs."""
    return RANK_MB * gpus(engine) or ENGINE_MB + round(1024 * engine["kv_cache_gib"])


def cpu_engines(engine: dict) -> int:
    """Engines that take this host's CPUs: two at once would share the same cores."""
    return 0 if gpus(engine) else 1
