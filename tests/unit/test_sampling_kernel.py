"""The kernel draws what `replay.sampling` draws: on a GPU where there is one, else interpreted."""

import importlib
import math
import os
import signal
import subprocess
import sys

import pytest
import torch

from replay import sampling

VOCABULARY = 9000  # two blocks of the kernel and a part of one
SECONDS = 60  # that no launch comes near
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
    signal.alarm(SECONDS)  # a kernel that does not end is a failure
    function(named, *(values.to(DEVICE) for values in (rows, *arguments)))
    named = named.cpu()
    signal.alarm(0)
    tokens = named.argmax(1)
    assert (named != logits).sum(1).tolist() == [int(row in rows) for row in range(len(logits))]
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


def test_each_row_has_settings_of_its_own(kernel):
    logits = torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(8)) * 3
    rows = torch.arange(ROWS)
    shares = torch.tensor([1e-6, 0.3, 0.9, 0.99, 1.0], dtype=torch.float64)[rows % 5]
    arguments = rows, 0.1 * (1 + rows % 12).double() ** 1.5, shares, inputs(1.0)[2]
    expected = winners(sampling.name_winners, logits, *arguments)
    assert winners(kernel.name_winners, logits, *arguments) == expected


def test_a_token_is_out_where_what_is_above_it_has_the_whole_share(kernel):
    half = math.log(0.5)
    logits = torch.tensor([[0.0, half, half]]).repeat(ROWS, 1)
    rows, one = torch.arange(ROWS), torch.ones(ROWS, dtype=torch.float64)
    drawn = winners(kernel.name_winners, logits, rows, one, *inputs(0.5)[1:])
    assert set(drawn) == {0}
    drawn = winners(kernel.name_winners, logits, rows, one, *inputs(math.nextafter(0.5, 1))[1:])
    assert set(drawn) == {0, 1, 2}


def stream_of(bits, token):
    """The stream in which `token` has these hashed bits: splitmix64 backwards."""
    golden, first, second = (n % 2**64 for n in (sampling.GOLDEN, sampling.FIRST, sampling.SECOND))
    state = _unshifted(bits, 31) * pow(second, -1, 2**64) % 2**64
    state = _unshifted(state, 27) * pow(first, -1, 2**64) % 2**64
    state = (_unshifted(state, 30) - golden - token) % 2**64
    return state - 2**64 if state >= 2**63 else state


def _unshifted(value, shift):
    found = value
    for _ in range(64 // shift):
        found = value ^ found >> shift
    return found


@pytest.mark.parametrize(("middle", "first"), [(3.75, True), (3.25, False)])
def test_the_smallest_noise_is_as_exact_as_any(kernel, middle, first):
    """Token 5's is 3.5 * 2**-53; token 1 is that much lighter that `middle` would be a draw."""
    streams = torch.tensor([stream_of(3 << 11, 5)])
    other = float(sampling.exponential(streams, torch.tensor(1)))
    logits = torch.full((1, 8), -torch.inf)
    logits[0, 1], logits[0, 5] = 0.0, math.log(middle * 2.0**-53 / other)
    one = torch.ones(1, dtype=torch.float64)
    arguments = logits, torch.tensor([0]), one, one, streams
    assert winners(sampling.name_winners, *arguments) == [5 if first else 1]
    assert winners(kernel.name_winners, *arguments) == [5 if first else 1]


def test_logits_may_be_a_view(kernel):
    wide = torch.randn(ROWS, 2 * VOCABULARY, generator=torch.Generator().manual_seed(8)).to(DEVICE)
    arguments = torch.arange(ROWS), *inputs(0.95)
    narrow = wide[:, :VOCABULARY].cpu().contiguous()
    expected = winners(sampling.name_winners, narrow, *arguments)
    named = wide.clone()
    kernel.name_winners(named[:, :VOCABULARY], *(values.to(DEVICE) for values in arguments))
    assert named[:, :VOCABULARY].argmax(1).tolist() == expected
    assert (named != wide).sum() == ROWS


def test_tokens_of_no_weight_are_never_named(kernel):
    logits = torch.full((ROWS, VOCABULARY), -torch.inf)
    logits[:, 6500] = -3.0
    arguments = torch.arange(ROWS), *inputs(1.0)
    assert set(winners(kernel.name_winners, logits, *arguments)) == {6500}


@pytest.mark.parametrize("token", [0, 7])
@pytest.mark.parametrize("form", ["definition", "kernel"])
def test_a_nan_stays_and_changes_no_other_row(kernel, form, token):
    function = {"definition": sampling, "kernel": kernel}[form].name_winners
    logits = torch.randn(ROWS, 50, generator=torch.Generator().manual_seed(4))
    arguments = torch.arange(ROWS), *inputs(0.95)
    expected = winners(function, logits, *arguments)
    logits[1], logits[3, token], logits[5, [0, 7]] = torch.nan, torch.nan, torch.nan
    named = logits.to(DEVICE, copy=True)
    function(named, *(values.to(DEVICE) for values in arguments))
    assert named.isnan().sum(1)[[1, 3, 5]].tolist() == [50, 1, 2]
    assert named[[1, 3, 5], 0].isfinite().sum() == 0  # token 0, as the definition says
    intact = [row for row in range(ROWS) if row not in (1, 3, 5)]
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
