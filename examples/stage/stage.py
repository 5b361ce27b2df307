"""A table in a file, brought to the GPU whole and in parts, while its mapping takes no memory of the host.

    python stage.py [MIB]

The program makes the file, and checks what arrives.
"""

import sys
import tempfile
from pathlib import Path

import numpy
import torch

import cachalot

CHUNK = 1 << 20  # the default is 16 MiB; the simulated GPU keeps the bytes of copies up to 1 MiB


def sample(tensor: torch.Tensor) -> list[int]:
    """The first and the last bytes, which are compared on the host."""
    flat = tensor.view(-1).view(torch.uint8)
    return [*flat[:8].tolist(), *flat[-8:].tolist()]


def resident_file_pages() -> int:
    """Returns the host memory that the mapping of files takes, in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile"))
    return int(line.split()[1]) << 10


def main() -> None:
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    cachalot.enable()
    torch.cuda.init()
    with tempfile.TemporaryDirectory() as folder:
        table = numpy.arange(mib << 17, dtype="int64").reshape(-1, 1024)
        numpy.save(f"{folder}/table.npy", table)
        mapped = numpy.load(f"{folder}/table.npy", mmap_mode="r")

        before = resident_file_pages()
        on_gpu = cachalot.stage(mapped, chunk_bytes=CHUNK)
        grown = resident_file_pages() - before
        assert on_gpu.shape == table.shape and sample(on_gpu) == sample(torch.from_numpy(table))
        print(f"a table of {mib} MiB is on {on_gpu.device}; the mapping took {grown >> 20} MiB of host memory")
        assert grown < 16 << 20

        del on_gpu
        torch.cuda.reset_peak_memory_stats()
        rows = 0
        for part in cachalot.stage_chunks(mapped, rows=4096, chunk_bytes=CHUNK):  # two parts at a time on the GPU
            assert sample(part) == sample(torch.from_numpy(table[rows : rows + len(part)]))
            rows += len(part)
        print(f"{rows:,} rows came in parts; the most memory of the GPU: {torch.cuda.max_memory_allocated() >> 20} MiB")
        assert rows == len(table)


if __name__ == "__main__":
    main()
