"""Digest of the code that a rule uses: Snakemake does not see that an imported module changed."""

import ast
import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

SCRIPTS = Path(__file__).parents[1]


def imported_modules(source: Path) -> set[Path]:
    """Files of the `replay` package that a Python file imports, or names in full to vLLM."""
    package = (name for name in _names(source.read_text("utf-8")) if name.startswith("replay."))
    paths = (SCRIPTS / (name.replace(".", "/") + ".py") for name in package)
    return {path for path in paths if path.is_file()}


@cache  # by content: parsing takes most of a digest, and every script reaches the same modules
def _names(text: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"replay(\.\w+)+", str(node.value)):
            names.update({node.value, node.value.rpartition(".")[0]})
    return names


def files_used(script: str) -> list[Path]:
    """The script and every package module that it reaches, sorted."""
    found: set[Path] = set()
    todo = {SCRIPTS / f"{script}.py", SCRIPTS / "replay" / "__init__.py"}
    while todo:
        path = todo.pop()
        found.add(path)
        todo |= imported_modules(path) - found
    return sorted(found)


def code_digest(script: str, data: Iterable[Path] = ()) -> str:
    """sha256 over the script, the modules that it reaches, and `data` files such as templates."""
    sha = hashlib.sha256()
    for path in [*files_used(script), *data]:
        sha.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return sha.hexdigest()
