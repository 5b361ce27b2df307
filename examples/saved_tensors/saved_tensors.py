"""A training step that does not fit a card, and does once what autograd saves waits on the host.

    python saved_tensors.py [--card 1100] [--budget 256] [--min-bytes 1048576] [--batch 32] …

Ends with an error where what must hold of the figures does not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from common import gpu, table, training

STEPS = 3


class Work:
    """Steps of a training. Tensors that autograd saves go to the host if there are pools for their return."""

    def __init__(self, options: argparse.Namespace, shape: training.Shape, on_host: bool) -> None:
        import cachalot  # by now gpu.start has said what is wrong where that fails

        self.pools = cachalot.PoolSet(options.budget * gpu.MiB) if on_host else None
        self.min_bytes = options.min_bytes
        self.copied_bytes = 0  # in the latest step
        self.texts = training.random_texts(shape)
        self.training = training.Training(shape, training.Precision())

    def forward(self) -> torch.Tensor:
        if self.pools is None:
            return self.training.loss(self.texts)
        with self.pools.saved_tensors_on_host(min_bytes=self.min_bytes) as saved:
            loss = self.training.loss(self.texts)
        self.copied_bytes = saved.bytes
        return loss

    def step(self) -> None:
        self.forward().backward()
        self.training.optimizer.step()
        self.training.optimizer.zero_grad()

    def gradients(self) -> list[torch.Tensor]:
        self.forward().backward()
        gradients = [parameter.grad for parameter in self.training.model.parameters()]
        self.training.optimizer.zero_grad()
        return gradients


def parse(arguments: list[str] | None = None) -> tuple[argparse.Namespace, training.Shape]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    training.add_shape_options(parser)
    parser.add_argument("--card", type=gpu.at_least(1), default=1100, metavar="MiB", help="that there is (1100)")
    parser.add_argument("--budget", type=gpu.at_least(1), default=256, metavar="MiB",
                        help="for what has come back from the host (256)")  # fmt: skip
    parser.add_argument("--min-bytes", type=gpu.at_least(0), default=gpu.MiB,
                        help="what is smaller stays on the GPU (1048576)")  # fmt: skip
    options = parser.parse_args(arguments)
    return options, training.shape_from(parser, options)


def measured(work: Work) -> dict[str, int]:
    """Bytes of the step after the first ones."""
    for _ in range(STEPS - 1):
        work.step()
    gpu.begin_anew()
    with training.phase() as forward:
        loss = work.forward()
    del loss
    gpu.begin_anew()
    work.step()
    return {
        "activations on the GPU": forward.added,
        "copied to the host": work.copied_bytes,
        "back at once, at most": work.pools.stats().peak_bytes if work.pools else 0,
        "peak allocated": torch.cuda.max_memory_allocated(),
        "peak reserved": torch.cuda.max_memory_reserved(),
    }


@contextlib.contextmanager
def card_of(size: int):
    """Sets a limit of `size` bytes in place of the device's own."""
    torch.cuda.set_per_process_memory_fraction(min(1.0, size / torch.cuda.mem_get_info()[1]))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def fits(options: argparse.Namespace, shape: training.Shape, on_host: bool) -> bool:
    gpu.begin_anew()
    with card_of(options.card * gpu.MiB):
        try:
            work = Work(options, shape, on_host)
            for _ in range(STEPS):
                work.step()
        except torch.OutOfMemoryError:
            return False
    return True


def same_gradients(work: Work) -> bool:
    """With the pools and without, by algorithms that add in the same order each time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about operations that are never deterministic
        torch.use_deterministic_algorithms(True, warn_only=True)
        on_host = work.gradients()
        pools, work.pools = work.pools, None
        on_gpu = work.gradients()
        work.pools = pools
        torch.use_deterministic_algorithms(False)
    return all(torch.equal(a, b) for a, b in zip(on_host, on_gpu))


def check(on_gpu: dict[str, int], on_host: dict[str, int], fit: tuple[bool, bool], options: argparse.Namespace) -> None:
    relations = table.Relations()
    for name in ("activations on the GPU", "peak allocated", "peak reserved"):
        relations.less(f"{name}: host, GPU", on_host[name], on_gpu[name])
    relations.less("back at once, copied", on_host["back at once, at most"], on_host["copied to the host"])
    relations.at_most("back at once, budget", on_host["back at once, at most"], options.budget * gpu.MiB)
    relations.holds(f"a card of {options.card:,} MiB is too small without", not fit[0])
    relations.holds(f"a card of {options.card:,} MiB is large enough with", fit[1])
    relations.finish()


def measure_on_host(options: argparse.Namespace, shape: training.Shape) -> dict[str, int]:
    """And says what the pools did, and whether the gradients are the same, where kernels compute any."""
    work = Work(options, shape, on_host=True)
    figures = measured(work)
    stats = work.pools.stats()
    print(f"pools: {stats.acquires} tensors by {stats.allocations} allocations, {stats.reuse_rate:.0%} reused")
    if gpu.simulator():
        print("gradients: not compared, kernels compute nothing")
    elif same_gradients(work):
        print("gradients: equal to the bit")
    else:
        sys.exit("does not hold: gradients are equal to the bit")
    return figures


def main() -> None:
    options, shape = parse()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for gradients that can be compared
    print(gpu.start())
    training.warm_up(training.Precision())
    gpu.begin_anew()
    on_gpu = measured(Work(options, shape, on_host=False))
    gpu.begin_anew()
    on_host = measure_on_host(options, shape)
    table.print_columns("bytes", {"saved on the GPU": on_gpu, "saved on the host": on_host})
    fit = (fits(options, shape, on_host=False), fits(options, shape, on_host=True))
    for where, fitted in zip(("GPU", "host"), fit):
        print(f"a card of {options.card:,} MiB, saved on the {where}: {'fits' if fitted else 'out of memory'}")
    check(on_gpu, on_host, fit, options)


if __name__ == "__main__":
    main()
