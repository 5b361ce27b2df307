"""A memory snapshot of a training that never ran: PyTorch's format, any number of events, call stacks, varied lengths.

A small allocator places the blocks: it takes the first free stretch that is large enough, and a new segment without one.
"""

from __future__ import annotations

import argparse
import pathlib
import pickle
import random
import typing

MIB = 1 << 20
Frame = dict[str, typing.Any]


def frame(file: str, line: int, name: str) -> Frame:
    return {"filename": file, "line": line, "name": name}


class Training:
    """Records what a training of a few layers allocates, until there are as many events as asked for."""

    def __init__(self, events: int, layers: int = 12, seed: int = 1, file: str = "/home/you/train/model.py", growth: float = 1.0) -> None:
        self._wanted = events
        self._layers = layers
        self._random = random.Random(seed)
        self._growth = growth
        self.trace: list[dict[str, typing.Any]] = []
        self._segments: list[tuple[int, int]] = []
        self._free: list[tuple[int, int]] = []  # address and bytes, by address
        self._blocks: dict[int, tuple[int, int, list[Frame]]] = {}  # by address: block, requested, stack
        self._next_address = 0x7F0000000000
        self._time = 1_700_000_000_000_000
        main = frame("/home/you/train/train.py", 61, "main")
        step = frame("/home/you/train/train.py", 34, "train_step")
        module = frame("/usr/lib/python3/dist-packages/torch/nn/modules/module.py", 1775, "_call_impl")
        linear = frame("/usr/lib/python3/dist-packages/torch/nn/modules/linear.py", 125, "forward")
        block = frame(file, 88, "forward")
        attention = [frame(file, 40 + i, "attention") for i in range(3)]
        mlp = [frame(file, 60 + i, "mlp") for i in range(2)]
        outer = [block, module, step, main]
        self._setup = [[frame(file, 20, "__init__"), frame("/home/you/train/train.py", 12, "build"), main], [frame(file, 24, "__init__"), main]]
        self._forward = [[linear, module, each, *outer] for each in attention + mlp]
        self._backward: list[list[Frame]] = [[]]
        self._optimizer = [[frame("/usr/lib/python3/dist-packages/torch/optim/adamw.py", 180, "step"), frame("/home/you/train/train.py", 41, "train_step"), main]]

    def record(self) -> dict[str, typing.Any]:
        """Returns the snapshot."""
        parameters = [self._allocate(int(self._random.choice((1, 4, 9)) * MIB * 0.75), self._random.choice(self._setup)) for _ in range(4 * self._layers)]
        state: list[int] = []
        while len(self.trace) < self._wanted:
            length = self._random.choice((96, 128, 160, 256, 384, 512))
            activations = self._forward_pass(length)
            gradients = self._backward_pass(activations, parameters, length)
            if not state:
                state = [self._allocate(self._blocks[each][1], self._optimizer[0]) for each in parameters for _ in range(2)]
            for gradient in gradients:
                self._release(self._allocate(self._blocks[gradient][1], self._optimizer[0]))
                self._release(gradient)
        self._event("oom", 512 * MIB, 900 * MIB, self._forward[0])
        return {"segments": self._segment_dicts(), "device_traces": [self.trace], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""}}

    def _forward_pass(self, length: int) -> list[int]:
        kept = []
        for _ in range(self._layers):
            for stack in self._forward:
                kept.append(self._allocate(int(length * self._random.choice((512, 2048, 6144)) * self._growth), stack))
                temporary = self._allocate(length * 4096 + 512, stack)
                self._release(self._allocate(length * 40, stack))
                self._release(temporary)
        return kept

    def _backward_pass(self, activations: list[int], parameters: list[int], length: int) -> list[int]:
        gradients: list[int] = []
        share = max(1, len(activations) // len(parameters))
        for i, activation in enumerate(reversed(activations)):
            temporary = self._allocate(length * 2048, self._backward[0])
            if i % share == 0 and len(gradients) < len(parameters):
                gradients.append(self._allocate(self._blocks[parameters[-1 - len(gradients)]][1], self._backward[0]))
            self._release(temporary)
            self._release(activation)
        return gradients

    def _event(self, action: str, address: int, size: int, stack: list[Frame]) -> None:
        self._time += self._random.randrange(2, 60)
        place = "device_free" if action == "oom" else "addr"
        self.trace.append({"action": action, place: address, "size": size, "stream": 0, "time_us": self._time, "frames": stack})

    def _allocate(self, requested: int, stack: list[Frame]) -> int:
        size = (max(requested, 1) + 511) // 512 * 512
        place = next((i for i, (_, free) in enumerate(self._free) if free >= size), None)
        if place is None:
            self._add_segment(max(20 * MIB, (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB), stack)
            place = next(i for i, (_, free) in enumerate(self._free) if free >= size)
        address, free = self._free.pop(place)
        if free > size:
            self._free.insert(place, (address + size, free - size))
        self._blocks[address] = (size, requested, stack)
        self._event("alloc", address, requested, stack)
        return address

    def _add_segment(self, size: int, stack: list[Frame]) -> None:
        self._segments.append((self._next_address, size))
        self._free.append((self._next_address, size))
        self._event("segment_alloc", self._next_address, size, stack)
        self._next_address += size + 2 * MIB  # never neighbours

    def _release(self, address: int) -> None:
        size, requested, stack = self._blocks.pop(address)
        self._event("free_requested", address, requested, stack)
        self._event("free_completed", address, requested, stack)
        place = next((i for i, (free, _) in enumerate(self._free) if free > address), len(self._free))
        self._free.insert(place, (address, size))
        for left in (place, place - 1):  # joined with its neighbours
            if 0 <= left < len(self._free) - 1 and sum(self._free[left]) == self._free[left + 1][0]:
                joined = (self._free[left][0], self._free[left][1] + self._free.pop(left + 1)[1])
                self._free[left] = joined

    def _segment_dicts(self) -> list[dict[str, typing.Any]]:
        segments = []
        for address, size in self._segments:
            blocks: list[dict[str, typing.Any]] = [{"address": at, "size": block, "requested_size": requested, "state": "active_allocated", "frames": stack}
                      for at, (block, requested, stack) in self._blocks.items() if address <= at < address + size]
            blocks += [{"address": at, "size": free, "requested_size": 0, "state": "inactive", "frames": []}
                       for at, free in self._free if address <= at < address + size]
            blocks.sort(key=lambda block: block["address"])
            used = sum(block["size"] for block in blocks if block["state"] != "inactive")
            segments.append({"device": 0, "address": address, "total_size": size, "allocated_size": used, "active_size": used, "requested_size": used,
                             "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks})
        return segments


def write_snapshot(path: pathlib.Path, events: int, **options: typing.Any) -> None:
    """Writes the snapshot of a Training."""
    path.write_bytes(pickle.dumps(Training(events, **options).record(), protocol=4))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("events", type=int)
    parser.add_argument("path", type=pathlib.Path)
    arguments = parser.parse_args()
    write_snapshot(arguments.path, arguments.events)
