#!/usr/bin/env python3
"""Records what PyTorch's own expandable segments hold on the recorded traces: data/traces/expandable.json.

    bench/pytorch/expandable_segments.py [--build build/release] [--python PYTHON] [--check [--only lsm,streams]]

Plays each trace through PyTorch's allocator with expandable_segments:True, over the simulated CUDA runtime, on devices
large and small, and writes what torch.cuda.memory_stats tells then. --check compares with the recorded file instead of
writing it, and ends with 1 where a figure differs. tools/replay/expandable_segments.h is the model that must reach the same.
"""

import argparse
import gzip
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RECORDED = ROOT / "data/traces/expandable.json"
PLENTY = 262144  # MiB
CASES = [
    ("frag_toy", PLENTY), ("gpt2_fp32", PLENTY), ("gpt2_varlen", PLENTY), ("llama1b_ckpt", PLENTY), ("lsm", PLENTY),
    ("moe", PLENTY), ("resnet_multires", PLENTY), ("serve_kv", PLENTY), ("streams", PLENTY),
    # Runs with scarce memory: pages are unmapped, and allocations fail.
    ("frag_toy", 3300), ("frag_toy", 3100), ("frag_toy", 2500), ("gpt2_varlen", 8800), ("moe", 12400), ("moe", 11000),
    ("resnet_multires", 4100), ("streams", 2400), ("streams", 2000), ("lsm", 200),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="the build folder with the simulated CUDA runtime")
    parser.add_argument("--python", default=os.environ.get("CACHALOT_PYTHON", sys.executable), help="one with PyTorch")
    parser.add_argument("--check", action="store_true", help="compare with the recorded figures")
    parser.add_argument("--only", metavar="TRACES", help="compare these traces alone, separated by commas")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        print(json.dumps(play(options.play)))
        return
    wanted = options.only.split(",") if options.only else [trace for trace, _ in CASES]
    figures = [record(options, trace, mib) for trace, mib in CASES if trace in wanted]
    torch = {figure.pop("torch") for figure in figures}
    if options.check or options.only:
        sys.exit(check(figures, wanted))
    lines = ",\n".join("  " + json.dumps(figure) for figure in figures)
    origin = f"PyTorch {', '.join(torch)}'s own allocator; bench/pytorch/expandable_segments.py writes this file"
    RECORDED.write_text(f'{{"origin": {json.dumps(origin)}, "figures": [\n{lines}\n]}}\n')


def record(options, trace, mib):
    build = pathlib.Path(options.build).resolve()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CACHALOT_", "PYTORCH_"))}
    environment = kept | {
        "LD_PRELOAD": str(build / "simulator/libcachalot_simulator.so"),
        "LD_LIBRARY_PATH": str(build / "simulator/driver"),
        "CACHALOT_SIM": f"memory:{mib}MiB",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    done = subprocess.run([options.python, __file__, "--play", trace], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"expandable_segments.py: {trace} on {mib} MiB: {done.stderr.strip()}")
    return {"trace": trace, "device_mib": mib} | json.loads(done.stdout)


def play(trace):
    import torch

    allocate, free = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    torch.cuda.init()
    streams = {"0": 0}
    kept = []
    live = {}
    with gzip.open(ROOT / f"data/traces/{trace}.csv.gz", "rt") as lines:
        for line in lines:
            kind, ident, *rest = line.rstrip("\n").split(",")
            if kind == "f":
                pointer = live.pop(ident, None)
                if pointer:
                    free(pointer)
                continue
            if rest[1] not in streams:
                kept.append(torch.cuda.Stream())
                streams[rest[1]] = kept[-1].cuda_stream
            try:
                live[ident] = allocate(int(rest[0]), streams[rest[1]])
            except torch.OutOfMemoryError:
                pass
    stats = torch.cuda.memory_stats()
    return {
        "torch": torch.__version__,
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "reserved_bytes": stats["reserved_bytes.all.current"],
        "maps": stats["num_device_alloc"],
        "unmaps": stats["num_device_free"],
        "ooms": stats["num_ooms"],
    }


def check(figures, wanted):
    recorded = [figure for figure in json.loads(RECORDED.read_text())["figures"] if figure["trace"] in wanted]
    for now, then in zip(figures, recorded, strict=True):
        if now != then:
            print(f"expandable_segments.py: recorded {then}, but PyTorch does {now}", file=sys.stderr)
    return int(figures != recorded)


if __name__ == "__main__":
    main()
