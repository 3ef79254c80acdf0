"""The kernel draws what `replay.sampling` draws: on a GPU where there is one, else interpreted."""

import importlib
import os
import subprocess
import sys

import pytest
import torch

from replay import sampling

VOCABULARY = 9000  # two blocks of the kernel and a part of one
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS = 256 if DEVICE == "cuda" else 12
pytestmark = pytest.mark.filterwarnings("ignore::Warning:triton.runtime.interpreter")
COMPILE = """
import replay.sampling_kernel as kernel
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

names = ("logits", "stride", "vocabulary", "rows", "temperature", "top_p", "streams")
types = ("*fp32", "i32", "i32", "*i64", "*fp64", "*fp64", "*i64")
constants = {"UNIT": float(kernel.UNIT), "BLOCK": kernel.BLOCK}
signature = dict(zip(names, types), UNIT="constexpr", BLOCK="constexpr")
for capability in (80, 90):
    source = ASTSource(kernel._name_winner, signature, constants)
    target = GPUTarget("cuda", capability, 32)
    compiled = compile(source, target, {"num_warps": kernel.WARPS})
    print(capability, len(compiled.asm["cubin"]) > 0)
"""


@pytest.fixture(scope="module")
def kernel():
    language = pytest.importorskip("triton.language", reason="Triton is installed on Linux only")
    if DEVICE == "cuda":
        yield importlib.import_module("replay.sampling_kernel")
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        # What is a kernel's function is decided where it is defined, Triton's own ones included.
        reload(language.standard, language)
        yield importlib.import_module("replay.sampling_kernel")
    reload(language.standard, language)


def reload(*modules):
    for module in modules:
        importlib.reload(module)


def inputs(top_p, seed=0, rows=ROWS):
    return (
        torch.full((rows,), 0.7, dtype=torch.float64),
        torch.full((rows,), top_p, dtype=torch.float64),
        sampling.noise_streams(1000 * seed + torch.arange(rows), torch.tensor(7)),
    )


def winners(function, logits, rows, *arguments):
    """The token that is named in each row, after checking that nothing else changed."""
    named = logits.to(DEVICE, copy=True)
    function(named, *(values.to(DEVICE) for values in (rows, *arguments)))
    named = named.cpu()
    tokens = named.argmax(1)
    changed = (named != logits) & ~named.isnan()
    assert changed.sum(1).tolist() == [int(row in rows) for row in range(len(logits))]
    assert torch.isinf(named[rows, tokens[rows]]).all()
    return tokens[rows].tolist()


@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 12.0])
@pytest.mark.parametrize("ties", [False, True])
def test_the_kernel_names_the_winners_of_the_definition(kernel, top_p, spread, ties):
    seed = int(1000 * spread + 10 * top_p) + ties
    logits = torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * spread
    logits = logits.round() if ties else logits
    arguments = torch.arange(ROWS), *inputs(top_p, seed)
    expected = winners(sampling.name_winners, logits, *arguments)
    assert winners(kernel.name_winners, logits, *arguments) == expected


def test_rows_that_are_not_drawn_stay_as_they_are(kernel):
    logits = torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(1))
    rows = torch.tensor([5, 2, 11])
    arguments = inputs(0.95, rows=3)
    expected = winners(sampling.name_winners, logits, rows, *arguments)
    assert winners(kernel.name_winners, logits, rows, *arguments) == expected


def test_a_token_is_out_where_what_is_above_it_has_the_whole_share(kernel):
    logits = torch.tensor([[0.0, -1.0, -1.0]]).repeat(ROWS, 1)
    weights = (logits[0] / 0.7).exp()
    share = float(weights[0] / weights.sum())
    arguments = torch.arange(ROWS), *inputs(share * 0.999)
    assert set(winners(kernel.name_winners, logits, *arguments)) == {0}
    arguments = torch.arange(ROWS), *inputs(share * 1.001)
    assert set(winners(kernel.name_winners, logits, *arguments)) == {0, 1, 2}


def test_tokens_of_no_weight_are_never_named(kernel):
    logits = torch.full((ROWS, VOCABULARY), -torch.inf)
    logits[:, 6500] = -3.0
    arguments = torch.arange(ROWS), *inputs(1.0)
    assert set(winners(kernel.name_winners, logits, *arguments)) == {6500}


def test_a_row_of_nan_ends_with_a_token_and_changes_no_other_row(kernel):
    logits = torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(4))
    rows, arguments = torch.arange(ROWS), inputs(0.95)
    expected = winners(kernel.name_winners, logits, rows, *arguments)
    logits[1], logits[3, 7] = torch.nan, torch.nan
    named = logits.to(DEVICE, copy=True)
    kernel.name_winners(named, *(values.to(DEVICE) for values in (rows, *arguments)))
    intact = [row for row in range(ROWS) if row not in (1, 3)]
    assert named[intact].argmax(1).tolist() == [expected[row] for row in intact]


def test_the_kernel_compiles_for_ampere_and_hopper(tmp_path):
    """Without a GPU: what is interpreted above need not be what a compiler takes."""
    pytest.importorskip("triton", reason="Triton is installed on Linux only")
    own = {
        "PYTHONPATH": sampling.__file__.rsplit("/replay/", 1)[0],
        "TRITON_CACHE_DIR": str(tmp_path),
        "TRITON_INTERPRET": "0",
    }
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | own)
    assert done.stdout.split() == ["80", "True", "90", "True"], done.stderr
