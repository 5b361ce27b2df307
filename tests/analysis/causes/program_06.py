"""Somebody's notebook is open on the same GPU."""

import subprocess
import sys

from watched import block, watch

NOTEBOOK = """
import sys, torch
table = torch.empty(550 << 20, dtype=torch.uint8, device="cuda")
print("ready", flush=True)
sys.stdin.read()
"""


def main():
    notebook = subprocess.Popen([sys.executable, "-c", NOTEBOOK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert notebook.stdout.readline() == b"ready\n"
    try:
        weights = [block(40) for _ in range(3)]
        batch = block(200)
        del weights, batch
    finally:
        notebook.kill()
        notebook.wait()


watch(main)
