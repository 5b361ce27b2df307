"""Two leaks of a training loop, found one after the other by cachalot.LeakDetector.

    python leak_hunt.py [--steps 20]

The loop validates as it trains, and keeps the losses of that, which is easily seen, and an average of them, which is not: no
backward pass frees what their graphs have saved. Ends with an error where the detector does not name the line and the holder of
the memory, or names one too many.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from common import gpu, table
from torch import nn

LEAST_STEPS = 12  # two to warm up, eight to be sure, and two


class Training:
    """The training of a small network, with the bookkeeping that one finds around such loops."""

    def __init__(self, keeps_losses: bool, keeps_average: bool) -> None:
        self.model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.losses: list = []
        self.average = torch.zeros((), device="cuda")
        self.keeps_losses = keeps_losses
        self.keeps_average = keeps_average

    def step(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(batch).square().mean().backward()
        self.optimizer.step()

    def validate(self, batch: torch.Tensor) -> None:
        loss = self.model(batch).square().mean()
        self.losses.append(loss if self.keeps_losses else loss.detach().cpu())
        self.average = 0.9 * self.average + 0.1 * (loss if self.keeps_average else loss.detach())


def hunt(training: Training, steps: int):
    """Returns the report after `steps` steps of training, and the bytes that are allocated then."""
    import cachalot

    batch = torch.randn(512, 256, device="cuda")
    with cachalot.LeakDetector() as detector:
        for _ in range(steps):
            training.step(batch)
            training.validate(batch)
            detector.step()
        return detector.report()


def show(title: str, report) -> None:
    print(f"\n{title}: {report.leak_count} of {report.site_count} sites grow, {report.live_bytes:,} bytes live")
    for leak in report.leaks:
        print(f"  +{round(leak.bytes_per_iteration):,} bytes a step: {leak.live_blocks} blocks from {leak.frame}")
        print(f"    > {leak.frame.source}")
    suspects = sorted((suspect for leak in report.leaks for suspect in leak.suspects), key=lambda found: found.blocks)
    for suspect in {suspect.name: suspect for suspect in suspects}.values():  # the one with most blocks of each name
        print(textwrap.fill(suspect.text, 110, initial_indent="  ", subsequent_indent="    "))


def names(report) -> set[str]:
    return {suspect.name for leak in report.leaks for suspect in leak.suspects}


def check(both, second, none, steps: int) -> None:
    relations = table.Relations()
    lines = {leak.frame.source for leak in both.leaks}
    forward = "loss = self.model(batch).square().mean()"
    relations.holds(f"both: '{forward}' is among the lines that leak: {lines}", forward in lines)
    relations.holds(f"both: the list is named: {names(both)}", "training.losses" in names(both))
    relations.holds(f"both: the average is named: {names(both)}", "training.average" in names(both))
    lines = {leak.frame.source for leak in second.leaks}
    relations.holds(f"second: '{forward}' still leaks: {lines}", forward in lines)
    relations.holds(f"second: the average alone is named: {names(second)}", names(second) == {"training.average"})
    relations.equal("none: sites that grow", none.leak_count, 0)
    relations.less("none: live blocks, steps", none.live_blocks, steps)
    relations.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=gpu.at_least(LEAST_STEPS), default=20, help="of each training (20)")
    options = parser.parse_args()
    print(gpu.start())
    training = Training(keeps_losses=True, keeps_average=True)
    both = hunt(training, options.steps)
    show("as it is", both)
    training = Training(keeps_losses=False, keeps_average=True)
    second = hunt(training, options.steps)
    show("losses are kept detached and on the host", second)
    training = Training(keeps_losses=False, keeps_average=False)
    none = hunt(training, options.steps)
    show("and the average is of detached losses", none)
    print()
    check(both, second, none, options.steps)


if __name__ == "__main__":
    main()
