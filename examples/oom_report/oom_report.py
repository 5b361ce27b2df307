"""Runs out of memory by fragmentation, takes the one recommendation of the report, and runs again.

    oom_report.py            the program on PyTorch's segments, then on the heap that the report recommends
    oom_report.py --inner    the program itself
"""

import os
import subprocess
import sys

MiB = 1 << 20


def program() -> None:
    """Keeps the small ends of large pieces, then asks for more than any gap between them."""
    import torch

    import cachalot

    def block(mib: int) -> torch.Tensor:
        return torch.empty(mib * MiB, dtype=torch.uint8, device="cuda")

    def on_failure(report: cachalot.OutOfMemoryReport) -> None:
        print(f"{report.cause}: {report.recommendation}", flush=True)

    cachalot.enable()
    cachalot.on_out_of_memory(call=on_failure)
    total = torch.cuda.mem_get_info()[1] // MiB
    pieces = []
    for _ in range(total * 9 // 10 // 48):
        whole = block(48)
        del whole
        pieces.append((block(40), block(8)))
    kept = [small for _, small in pieces]
    del pieces
    try:
        block(total // 2)
        print("served")
    except torch.OutOfMemoryError:
        print(f"out of memory, with {len(kept) * 8} MiB live of {total} MiB")


def run(conf: str) -> str:
    """Returns what the program prints with these options."""
    environment = os.environ | {"CACHALOT_CONF": conf}
    done = subprocess.run([sys.executable, __file__, "--inner"], env=environment, text=True, stdout=subprocess.PIPE, check=True)
    print(f"CACHALOT_CONF={conf}:\n  " + done.stdout.strip().replace("\n", "\n  "))
    return done.stdout


if "--inner" in sys.argv:
    program()
else:
    assert "CACHALOT_CONF=heap:pages" in run("heap:segments")
    assert run("heap:pages") == "served\n"
