#!/usr/bin/env python3
"""Compares cachalot.stage with torch's own ways from a file to the GPU: time, and peak memory of the host.

    bench/stage.py [--mib 512] [--repeat 3]

It runs on a GPU, or on the simulated runtime (docs/guides/stage.md has the command). Each way is a process of its own, which has
used the GPU before. The file is in the page cache; every way must bring the right bytes.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy
import torch

import cachalot


def write_safetensors(path, mib):
    """Tensors of 32 MiB, of random bytes."""
    size = 32 << 20
    count = mib // 32
    tensors = {f"layer.{i}": {"dtype": "BF16", "shape": [size >> 11, 1024], "data_offsets": [i * size, (i + 1) * size]}
               for i in range(count)}
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    generator = numpy.random.default_rng(0)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _ in range(count):
            file.write(generator.bytes(size))
    return 8 + len(header)


def by_safetensors(path, offset):
    from safetensors.torch import load_file

    return list(load_file(path, device="cuda").values())


WAYS = {
    "torch.from_numpy(memmap).cuda()": lambda path, offset: [torch.from_numpy(numpy.memmap(path, "uint8", "c", offset)).cuda()],
    "safetensors.torch.load_file": by_safetensors,
    "cachalot.stage(memmap)": lambda path, offset: [cachalot.stage(numpy.memmap(path, "uint8", "r", offset))],
    "cachalot.stage(safetensors)": lambda path, offset: list(cachalot.stage(path).values()),
    "… drop_cached=True": lambda path, offset: list(cachalot.stage(path, drop_cached=True).values()),
}


def peak_of_host():
    """The most memory that the process has had at a time, in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(way, path, offset, expected):
    cachalot.enable()
    small = torch.ones(1 << 20, dtype=torch.uint8).pin_memory().cuda()  # the context, and a first pinned buffer
    torch.empty(path.stat().st_size + (64 << 20), dtype=torch.uint8, device="cuda").fill_(0)  # is reserved from now on
    before = resident()
    way(path, offset)  # imports, threads, pinned memory
    torch.cuda.synchronize()
    numpy.memmap(path, "uint8", "r").sum()  # drop_cached has taken it out of the page cache
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    start = time.perf_counter()
    tensors = way(path, offset)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    peak = peak_of_host() - before
    found = b"".join(tensor.view(-1).view(torch.uint8)[:64].cpu().numpy().tobytes() for tensor in tensors[:1])
    assert small.is_cuda and found == expected, "the bytes are others"
    return seconds, peak


def in_a_child(way, *arguments):
    """Returns the result of `measure` in a forked process; None where a package is missing."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = json.dumps(measure(way, *arguments))
        except ImportError:
            text = "null"
        os.write(send, text.encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        offset = write_safetensors(path, arguments.mib)
        expected = path.read_bytes()[offset : offset + 64]
        print(f"a file of {arguments.mib} MiB                  seconds   peak of the host over what it had")
        for name, way in WAYS.items():
            runs = [in_a_child(way, path, offset, expected) for _ in range(arguments.repeat)]
            if None in runs:
                print(f"{name:<33}  the package is not installed")
                continue
            print(f"{name:<33} {min(seconds for seconds, _ in runs):>9.3f} {max(peak for _, peak in runs) / 2**20:>9.0f} MiB")


if __name__ == "__main__":
    main()
