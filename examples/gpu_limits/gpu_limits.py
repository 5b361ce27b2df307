"""Tests with limits of GPU memory.

    pytest gpu_limits.py --cachalot-simulate a100

Started by itself, the program runs its tests, and checks that the one that takes too much fails.
"""

import sys

import pytest
import torch

MiB = 1 << 20
history: list[torch.Tensor] = []


def step(batch: int) -> torch.Tensor:
    activations = [torch.empty(batch * MiB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    return activations[-1][:1024]


@pytest.mark.gpu_memory_limit("64 MiB")
@pytest.mark.parametrize("batch", [8, 32])
def test_a_step_fits(batch: int) -> None:
    step(batch)


@pytest.mark.gpu_no_leaks
def test_a_step_leaves_nothing() -> None:
    history.append(step(8))


class Outcomes:
    """Counts what the tests end with."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid.rpartition("::")[2])


if __name__ == "__main__":
    outcomes = Outcomes()
    pytest.main(["-q", "-p", "cachalot.pytest_plugin", "-p", "no:cacheprovider", "--cachalot-report", __file__], [outcomes])
    if outcomes.failed != ["test_a_step_fits[32]", "test_a_step_leaves_nothing"]:
        sys.exit(f"other tests failed: {outcomes.failed}")
