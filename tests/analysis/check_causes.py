#!/usr/bin/env python3
"""Checks that `cachalot explain` names the planted cause of each program in causes/.

Runs over the simulated CUDA runtime (LD_PRELOAD), with CACHALOT_COMMAND. The programs run in processes that are forked from this one,
which has imported torch. Prints a line for each program; the exit code is 1 if a cause is not named right.
"""

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import torch._dynamo  # noqa: F401  forked processes need not import again what a snapshot needs, and what programs do
import torch.distributed  # noqa: F401

FOLDER = Path(__file__).resolve().parent / "causes"

# Here alone stands which cause each program has.
CAUSES = {
    "program_01": "fragmentation",
    "program_02": "leak",
    "program_03": "private_pool",
    "program_04": "other_stream",
    "program_05": "limit",
    "program_06": "other_process",
    "program_07": "oversize_blocks",
    "program_08": "graph_pools",
    "program_09": "cached_by_rounding",
    "program_10": "pinned",
    "program_11": "nccl",
    "program_12": "too_large",
}
MEMORY = {"program_11": "2GiB"}  # of the device; of others 1 GiB
NEED_MESSAGE = {"program_06", "program_10", "program_11"}  # a snapshot tells nothing of other processes


def run_forked(program: str, stem: Path) -> None:
    """Runs the program in a process of its own on a small device."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            memory = MEMORY.get(program, "1GiB")
            os.environ.update(OUT=str(stem), CACHALOT_SIM=f'devices:2,memory:{memory},context:120MiB,shared:"{stem}.shared"')
            sys.path.insert(0, str(FOLDER))
            runpy.run_path(str(FOLDER / f"{program}.py"), run_name="__main__")
        except SystemExit as end:
            if end.code:
                print(f"{program}: {end.code}", file=sys.stderr)
            status = 0 if not end.code else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"{program} did not run out of memory as planned")


def explained(stem: Path, *options: str) -> dict:
    command = [os.environ["CACHALOT_COMMAND"], "explain", "--json", *options]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)["devices"][0]


def main() -> int:
    wanted = sys.argv[1:] or list(CAUSES)
    right = 0
    with tempfile.TemporaryDirectory() as folder:
        for program in wanted:
            stem = Path(folder) / program
            run_forked(program, stem)
            message = ["--message", f"{stem}.txt"]
            device = explained(stem, f"{stem}.pickle", *(message if program in NEED_MESSAGE else []))
            cause = device["verdict"]["cause"]
            right += cause == CAUSES[program]
            remedies = ", ".join(remedy["key"] for remedy in device["remedies"]) or "none"
            print(f"{program}  planted {CAUSES[program]:<18}  named {cause:<18}  remedies: {remedies}", flush=True)
            if len(device["remedies"]) > 3:
                raise SystemExit("more than three remedies")
    print(f"{right} of {len(wanted)} causes are named right")
    return 0 if right == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
