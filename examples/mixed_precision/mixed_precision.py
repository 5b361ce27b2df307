"""float32, autocast to bfloat16 and pure bfloat16: what each precision costs in memory, part by part.

    python mixed_precision.py [--batch 32] [--native] …

Ends with an error where what must hold of the figures does not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from common import gpu, table, training
from torch import nn

PRECISIONS = {
    "float32": training.Precision(),
    "autocast": training.Precision(autocast=True),
    "bfloat16": training.Precision(torch.bfloat16),
}


def parse(arguments: list[str] | None = None) -> tuple[argparse.Namespace, training.Shape]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    training.add_shape_options(parser)
    gpu.add_native_option(parser)
    options = parser.parse_args(arguments)
    return options, training.shape_from(parser, options)


def weight_copies(shape: training.Shape, precision: training.Precision) -> dict[str, int]:
    """Bytes of the copies of weights that autocast keeps until it ends, measured; and as they should be.

    Without gradients nothing else lives to the end of a forward pass but its result.
    """
    work = training.Training(shape, precision)
    texts = training.random_texts(shape)
    with training.phase() as kept, torch.no_grad(), precision.computing():
        work.model(texts[:, :-1])
        inside = training.requested_bytes()
    matrices = [layer for layer in work.model.modules() if isinstance(layer, nn.Linear)] if precision.autocast else []
    copied = sum(parameter.numel() for layer in matrices for parameter in layer.parameters())
    return {"measured": inside - kept.before, "left": kept.added, "expected": copied * torch.bfloat16.itemsize}


def check(shape: training.Shape, measured: dict[str, dict[str, int]], copies: dict[str, dict[str, int]]) -> None:
    relations = table.Relations()
    single, mixed, half = (measured[name] for name in PRECISIONS)
    for part in ("parameters", "gradients", "optimizer state"):
        relations.equal(f"{part}: autocast, float32", mixed[part], single[part])
        relations.equal(f"{part}: 2 x bfloat16, float32", 2 * half[part], single[part])
    check_activations(relations, shape, single, mixed, copies["autocast"]["measured"])
    relations.less("activations: bfloat16, autocast", half["activations"], mixed["activations"])
    for name, bytes_of in copies.items():
        relations.equal(f"{name}: weight copies, linear layers in bfloat16", bytes_of["measured"], bytes_of["expected"])
        relations.equal(f"{name}: weight copies after autocast", bytes_of["left"], 0)
        training.check_peak(relations, name, measured[name])
    relations.finish()


def check_activations(relations: table.Relations, shape: training.Shape, single: dict[str, int], mixed: dict[str, int],
                      copied: int) -> None:  # fmt: skip
    """Autocast's bytes are fewer, except for its copies of weights and for the loss, which keeps its scores in both types."""
    scores = shape.batch * shape.length * shape.words
    single_rest = single["activations"] - scores * torch.float32.itemsize
    mixed_rest = mixed["activations"] - scores * (torch.float32.itemsize + torch.bfloat16.itemsize) - copied
    relations.less("activations without scores and weight copies: autocast, float32", mixed_rest, single_rest)


def main() -> None:
    options, shape = parse()
    print(gpu.start(options.native))
    measured, copies = {}, {}
    for name, precision in PRECISIONS.items():
        measured[name] = training.training_memory(shape, precision)
        copies[name] = weight_copies(shape, precision)
    shown = {name: measured[name] | {"kept copies of weights": copies[name]["measured"]} for name in PRECISIONS}
    table.print_columns("bytes", shown)
    saved = measured["float32"]["activations"] - measured["autocast"]["activations"]
    print(f"autocast {'saves' if saved >= 0 else 'costs'} {abs(saved):,} bytes of activations")
    check(shape, measured, copies)


if __name__ == "__main__":
    main()
