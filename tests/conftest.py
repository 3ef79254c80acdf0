"""What tests share: the small real model, and where the reference material lies."""

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference material beside the checkout; tests that need it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the reference material is not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The demo's model under resources/, fetched as the workflow fetches it."""
    from replay.models import fetch

    folder = ROOT / "resources" / "models" / "smollm2-135m"
    if not folder.is_dir():
        catalog = yaml.safe_load((ROOT / "config" / "catalog.yaml").read_text(encoding="utf-8"))
        fetch("smollm2-135m", catalog["models"]["smollm2-135m"], folder)
    return folder
