"""Random numbers on the CPU in place of the GPU's: the same in each run, as the program's seed says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_generator = torch.Generator()


def generator_for(on_device: torch.Generator | None, index: int) -> torch.Generator:
    """A generator in a state that follows from the state of the device's: the program's, or that of the device `index`."""
    device = on_device or torch.cuda.default_generators[index]
    _generator.manual_seed((device.initial_seed() + 0x9E3779B97F4A7C15 * (device.get_offset() + 1)) % 2**63)
    return _generator


@contextmanager
def random_state(index: int) -> Iterator[None]:
    """The CPU's own generator in such a state, for operations that take none; afterwards as it was."""
    state = torch.get_rng_state()
    try:
        torch.set_rng_state(generator_for(None, index).get_state())
        yield
    finally:
        torch.set_rng_state(state)
