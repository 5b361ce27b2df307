#!/usr/bin/env python3
"""Time and memory of reading large snapshots: makes pickles as PyTorch writes them, in a temporary folder, and reads them.

    bench/history.py                       # 7 MB and 2 GB
    bench/history.py --megabytes 200

Each entry has what PyTorch 2.12 writes: action, addr, size, stream, time_us, compile_context and user_metadata as texts of
their own, pool_id, and a list of 28 frames that were named before. 190 call stacks of 540 frames come again and again, as in
a recorded training step.
"""

import argparse
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEP_EVENTS = 9000
BATCH = 1000  # as Python's pickler has it: the items before they go into their list


def text(value: str) -> bytes:
    """Returns an opcode of a text of its own, with its place in the memo."""
    data = value.encode()
    head = b"\x8c" + bytes([len(data)]) if len(data) < 256 else b"X" + struct.pack("<I", len(data))
    return head + data + b"\x94"


def integer(value: int) -> bytes:
    """Returns an integer as the pickler writes it."""
    if value < 256:
        return b"K" + bytes([value])
    if value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


def recall(index: int) -> bytes:
    """Returns the opcode that names what is in the memo."""
    return b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)


class Memo:
    """Numbers of written objects, in the order of the MEMOIZE opcodes."""

    def __init__(self) -> None:
        """Begins with an empty memo."""
        self.count = 0
        self.known: dict[str, int] = {}

    def text(self, value: str) -> bytes:
        """Returns the text the first time, then its name."""
        if value in self.known:
            return recall(self.known[value])
        self.known[value] = self.count
        self.count += 1
        return text(value)


def frames(memo: Memo) -> tuple[bytes, list[int]]:
    """Returns the opcodes of a list of all frames, and the number of each in the memo."""
    memo.count += 1  # the list's
    out, numbers = [b"]\x94("], []
    for number in range(540):
        numbers.append(memo.count)
        memo.count += 1
        out += [b"}\x94(", memo.text("name"), memo.text(f"torch::autograd::function_{number}(at::Tensor const&)")]
        out += [memo.text("filename"), memo.text(f"/home/user/model/part_{number % 40}.py")]
        out += [memo.text("line"), integer(number), b"u"]
    return b"".join([*out, b"e"]), numbers


def entry(memo: Memo, stack: list[int], action: str, address: int, size: int, moment: int) -> bytes:
    """Returns the opcodes of one entry; each key and action is in the memo already."""
    key = {name: recall(number) for name, number in memo.known.items() if len(name) < 20}
    listed = b"]\x94(" + b"".join(recall(number) for number in stack) + b"e"
    return b"".join(
        [
            b"}\x94(", key["action"], key[action], key["addr"], integer(address), key["size"], integer(size),
            key["stream"], integer(0), key["time_us"], integer(moment), key["compile_context"], text("N/A"),
            key["user_metadata"], key[""], key["pool_id"], b"K\x00K\x00\x86\x94", key["frames"], listed, b"u",
        ]
    )  # fmt: skip


def step(memo: Memo, numbers: list[int]) -> list[bytes]:
    """Returns the entries of one step: what it allocates it frees, so that steps may follow each other."""
    choose = random.Random(7)
    stacks = [choose.sample(numbers, 28) for _ in range(190)]
    live: list[tuple[int, int]] = []
    entries: list[bytes] = []
    moment, address = 1_783_874_422_287_973, 1 << 34
    while len(entries) < STEP_EVENTS - 2 * len(live):
        moment += 11
        if live and choose.random() < 0.45:
            place, size = live.pop(choose.randrange(len(live)))
            for action in ("free_requested", "free_completed"):
                entries.append(entry(memo, choose.choice(stacks), action, place, size, moment))
        else:
            size = 512 * choose.randrange(1, 40_000)
            live.append((address, size))
            entries.append(entry(memo, choose.choice(stacks), "alloc", address, size, moment))
            address += size
    for place, size in live:
        for action in ("free_requested", "free_completed"):
            entries.append(entry(memo, stacks[0], action, place, size, moment))
    return entries


def write_snapshot(path: pathlib.Path, megabytes: int) -> None:
    """Writes a pickle of protocol 4 of about `megabytes` megabytes."""
    memo = Memo()
    memo.count = 1  # the dict's
    head = [b"\x80\x04}\x94(", memo.text("segments"), b"]\x94"]
    memo.count += 1
    head.append(memo.text("words"))
    head.append(b"]\x94(")
    memo.count += 1
    for word in ("action", "addr", "size", "stream", "time_us", "compile_context", "user_metadata", "", "pool_id", "frames",
                 "alloc", "free_requested", "free_completed"):  # fmt: skip
        head.append(memo.text(word))
    head += [b"e", memo.text("all_frames")]
    listed, numbers = frames(memo)
    head += [listed, memo.text("device_traces"), b"]\x94]\x94"]
    entries = step(memo, numbers)
    batches = [b"(" + b"".join(entries[at : at + BATCH]) + b"e" for at in range(0, len(entries), BATCH)]
    whole = b"".join(batches)
    with path.open("wb") as file:
        file.write(b"".join(head))
        for _ in range(max(1, megabytes * 1_000_000 // len(whole))):
            file.write(whole)
        file.write(b"au.")


def run(command: list[str]) -> None:
    """Runs a program and prints its time and its peak of memory."""
    begin = time.monotonic()
    process = subprocess.run(["/usr/bin/env", "time", "-f", "%M", *command], capture_output=True, text=True, check=False)
    *errors, kilobytes = process.stderr.strip().splitlines() or ["0"]
    seconds = time.monotonic() - begin
    peak = f"{int(kilobytes) * 1024 / 1e6:.1f} MB at most" if kilobytes.isdigit() else "memory not known"
    print(f"{pathlib.Path(command[0]).name} {command[1]:<10} {seconds:>8.3f} s  {peak}  {' '.join(errors)[:100]}")


def main() -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[7, 2000], help="sizes of the snapshots")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release", help="the folder of the build")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in options.megabytes:
            path = pathlib.Path(folder) / f"snapshot_{megabytes}.pickle"
            write_snapshot(path, megabytes)
            print(f"a snapshot of {path.stat().st_size / 1e6:.1f} MB", flush=True)
            subprocess.run([options.build / "bench/history", path], check=True)
            command = options.build / "tools/cachalot"
            helped = subprocess.run([command, "explain", "--help"], capture_output=True, check=False)
            if helped.returncode == 0:
                run([str(command), "explain", str(path)])
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
