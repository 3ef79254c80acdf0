"""Does a row of a matrix product depend on how many rows are computed with it, on this CPU?

Run by `make bench`. For each linear layer shape of the demo's model: the numbers of rows M, out of
1 to 128, for which some row differs in its bits from the same row of a 512-row product, as vLLM
computes it and in products of a fixed number of rows (replay.worker.in_fixed_rows).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "workflow" / "scripts"))

SHAPES = {  # SmolLM2-135M: outputs, inputs
    "query, key, value": (960, 576),
    "attention output": (576, 576),
    "gate and up": (3072, 576),
    "down": (576, 1536),
    "vocabulary": (49152, 576),
}


def main() -> None:
    import torch
    import vllm._custom_ops as ops

    from replay.worker import LINEAR_ROWS, in_fixed_rows

    print(f"AMX tiles: {'yes' if torch.cpu._is_amx_tile_supported() else 'no'}\n")
    print(f"| layer | M that differ, as batched | M that differ, {LINEAR_ROWS} rows at a time |")
    print("|---|---|---|")
    for name, (outputs, inputs) in SHAPES.items():
        torch.manual_seed(0)
        weight = (torch.randn(outputs, inputs) * 0.05).bfloat16()
        x = torch.randn(512, inputs).bfloat16()
        handler = ops.create_onednn_mm(weight.t(), 32)

        def batched(rows, weight, bias, handler=handler):
            return ops.onednn_mm(handler, rows.contiguous(), bias)

        counts = [differing(fn, x, weight) for fn in (batched, in_fixed_rows(batched))]
        print(f"| {name} ({outputs} x {inputs}) | {counts[0]} of 128 | {counts[1]} of 128 |")


def differing(linear, x, weight) -> int:
    import torch

    reference = linear(x, weight, None)
    return sum(not torch.equal(linear(x[:m], weight, None), reference[:m]) for m in range(1, 129))


if __name__ == "__main__":
    main()
