"""A large batch at once, and the same batch in micro-batches whose gradients are accumulated: where the memory goes.

    python gradient_accumulation.py [--batch 32] [--micro-batches 4] [--native] …

Ends with an error where what must hold of the figures does not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import gpu, table, training


def parse(arguments: list[str] | None = None) -> tuple[argparse.Namespace, training.Shape]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    training.add_shape_options(parser)
    parser.add_argument("--micro-batches", type=gpu.at_least(1), default=4, help="that the batch is cut into (4)")
    gpu.add_native_option(parser)
    options = parser.parse_args(arguments)
    if options.batch % options.micro_batches:
        parser.error(f"argument --micro-batches: is {options.micro_batches}; it must divide --batch, {options.batch}")
    return options, training.shape_from(parser, options)


def check(whole: dict[str, int], parts: dict[str, int], micro_batches: int) -> None:
    relations = table.Relations()
    for name, memory in (("at once", whole), ("accumulated", parts)):
        relations.equal(f"{name}: gradients, parameters", memory["gradients"], memory["parameters"])
        relations.equal(f"{name}: optimizer state, 2 x parameters", memory["optimizer state"], 2 * memory["parameters"])
        training.check_peak(relations, name, memory)
    for same in ("parameters", "gradients", "optimizer state"):
        relations.equal(f"{same}: accumulated, at once", parts[same], whole[same])
    relations.equal(
        f"activations: {micro_batches} x accumulated, at once",
        micro_batches * parts["activations"],
        whole["activations"],
        tolerance=0.05,
    )
    relations.finish()


def main() -> None:
    options, shape = parse()
    print(gpu.start(options.native))
    count = options.micro_batches
    whole = training.training_memory(shape, training.Precision())
    parts = training.training_memory(shape, training.Precision(), count)
    heads = (f"{shape.batch} texts at once", f"{count} x {shape.batch // count} texts")
    table.print_columns("bytes", dict(zip(heads, (whole, parts))))
    saved = whole["peak reserved"] - parts["peak reserved"]
    print(f"accumulation {'saves' if saved >= 0 else 'costs'} {abs(saved):,} bytes of what is reserved")
    check(whole, parts, count)


if __name__ == "__main__":
    main()
