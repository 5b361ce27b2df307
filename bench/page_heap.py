#!/usr/bin/env python3
"""The page heap's figures on the recorded traces, with hazards checked: what docs/page_heap.md reports.

    bench/page_heap.py [--command build/release/tools/cachalot] [--config heap:pages]
                       [--min-device | --scaled | --caches | --cross-stream | --corpus | --plays | --floor | --random]

For each trace: peak reserved / peak requested of the page heap and of PyTorch's policy; simulated driver time; driver calls of the
fourth of four iterations; share of the allocations in the later half that made a driver call; live mappings; host time an event of
both, best of five passes.

--min-device (minutes): the smallest device that completes the trace / peak requested; and on a device of 1.01 of the peak (1.04 for
the three small traces), how many allocations fail, how often the whole device is waited for, and the driver time.
--scaled: the ratio with all blocks above 1 MiB a little smaller or larger.
--caches (minutes): what thread caches add to peak reserved, in percent, of the traces and of the programs in data/traces/programs: on
the trace as it is, and on 16 sizes of its blocks above 64 KiB; one page more or less is 0.2 % of the smaller ones, and where blocks lie
is chance.
--cross-stream: the ratio, the waits of streams for others and the driver time by each value of that option.
--corpus (minutes): of the programs in data/traces/programs and their two halves the ratio, what thread caches add to it, the driver
time to that of PyTorch's expandable segments (a model), driver calls of the fourth iteration, host time an event to that of segments,
and the smallest device / peak requested.
--plays: of the same programs the ratio after 1, 4 and 12 plays in a row, with blocks and cache kept from play to play, and the driver
calls of the 12th.
--floor: of the programs with several streams the ratio, and its floor: what an allocator needs at least that gives a stream's free
memory to another once its work is done, if it can cut memory at will. The host runs ahead of the streams: the faster it is, the more
memory is free and not done. So there are two floors: without the driver's time, and with the page heap's, spread over all events.
--random (minutes): 10 million allocations and frees at random, on 6 streams, 512 B to 32 MiB, with hazards checked.
"""

import argparse
import collections
import gzip
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCALES = (0.93, 0.97, 1, 1.06, 1.15)
NEAR_SCALES = tuple(0.90 + 0.0131 * i for i in range(16))
SMALL = {"lsm", "frag_toy", "streams"}  # a page is much of them
TRACES = "gpt2_varlen gpt2_fp32 llama1b_ckpt moe resnet_multires serve_kv lsm frag_toy streams".split()
CORPUS = ROOT / "data" / "traces" / "programs"


def recorded(trace):
    return (ROOT / "data" / "traces" if trace in TRACES else CORPUS) / f"{trace}.csv.gz"


def corpus():
    return json.loads((CORPUS / "halves.json").read_text())["programs"]


def replay(command, path, config, *options):
    arguments = [command, "replay", str(path), "--config", config, "--json", *options]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"page_heap.py: --command {command}: {error.strerror}; ./run build makes build/release/tools/cachalot")
    if done.returncode != 0:
        sys.exit(f"page_heap.py: {done.stderr.strip()}")
    return json.loads(done.stdout)


def ns_per_event(command, path, config):
    return replay(command, path, config, "--work-us", "0", "--repeat", "5")["ns_per_event"]


def row(command, trace, config, min_device):
    path = recorded(trace)
    pages = replay(command, path, config, "--check-hazards", *(["--min-device"] if min_device else []))
    segments = replay(command, path, "heap:segments")
    repeated = replay(command, path, config, "--check-hazards", "--iterations", "4")
    ns = [ns_per_event(command, path, heap) for heap in (config, "heap:segments")]
    cells = [
        f"{pages['ratio']:.4f}",
        f"{segments['ratio']:.4f}",
        f"{pages['driver_us'] / 1000:.1f}",
        str(repeated["memory_calls_per_iteration"][3]),
        f"{100 * pages['late_driver_allocations'] / pages['late_allocations']:.2f}",
        str(pages["live_mappings"]),
        f"{ns[0]:.0f} / {ns[1]:.0f}",
    ]
    if min_device:
        share = 1.04 if trace in SMALL else 1.01
        small_bytes = int(pages["peak_requested_bytes"] * share) // 2**21 * 2**21
        small = replay(command, path, config, "--device-memory", str(small_bytes))
        cells += [
            f"{pages['min_device_bytes'] / pages['peak_requested_bytes']:.4f}",
            f"{small['ooms']} / {small['device_wide_synchronizations']} / {small['driver_us'] / 1000:.0f}",
        ]
    return pages["ratio"], cells


def print_table(options):
    columns = ["reserved / requested", "segments", "driver ms", "calls, 4th iteration", "late, %", "mappings"]
    columns += ["ns, pages / segments"]
    if options.min_device:
        columns += ["smallest device", "at 1.01 (1.04): failures / waits / driver ms"]
    print_head(columns)
    ratios = []
    for trace in TRACES:
        ratio, cells = row(options.command, trace, options.config, options.min_device)
        ratios.append(ratio)
        print(f"| {trace} | " + " | ".join(cells) + " |", flush=True)
    print(f"\ngeometric mean of the first six: {math.exp(sum(map(math.log, ratios[:6])) / 6):.4f}")


def print_head(columns):
    print("| trace | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")


def write_scaled(trace, scale, path, above=2**20):
    def scaled(line):
        action, *rest = line.split(",")
        if action == "a" and int(rest[1]) > above:
            rest[1] = str(int(int(rest[1]) * scale))
        return ",".join([action, *rest])

    with gzip.open(recorded(trace), "rt") as lines, gzip.open(path, "wt", compresslevel=1) as out:
        out.writelines(map(scaled, lines))


def print_scaled(options):
    print_head([f"blocks x {scale}" for scale in SCALES] + ["mean", "driver ms, mean"])
    with tempfile.TemporaryDirectory() as folder:
        for trace in TRACES:
            runs = []
            for scale in SCALES:
                path = pathlib.Path(folder) / f"{trace}_{scale}.csv.gz"
                write_scaled(trace, scale, path)
                runs.append(replay(options.command, path, options.config))
            ratios = [run["ratio"] for run in runs]
            cells = [f"{ratio:.4f}" for ratio in [*ratios, sum(ratios) / len(ratios)]]
            cells.append(f"{sum(run['driver_us'] for run in runs) / len(runs) / 1000:.0f}")
            print(f"| {trace} | " + " | ".join(cells) + " |", flush=True)


def print_cross_stream(options):
    choices = ("off", "completed", "scarce", "wait")
    print_head(["segments"] + [f"{choice}: ratio / waits / driver ms" for choice in choices])
    for trace in TRACES:
        cells = [f"{replay(options.command, recorded(trace), 'heap:segments')['ratio']:.4f}"]
        for choice in choices:
            run = replay(options.command, recorded(trace), f"{options.config},cross_stream:{choice}", "--check-hazards")
            cells.append(f"{run['ratio']:.4f} / {run['stream_waits']} / {run['driver_us'] / 1000:.1f}")
        print(f"| {trace} | " + " | ".join(cells) + " |", flush=True)


class Judged(typing.NamedTuple):
    ratio: float
    caches_percent: float
    driver: float  # to that of expandable segments
    calls: int
    host: float  # to that of segments
    smallest: float


def judge(options, path):
    run = replay(options.command, path, options.config, "--check-hazards", "--min-device")
    repeated = replay(options.command, path, options.config, "--check-hazards", "--iterations", "4")
    pages_ns, segments_ns = (ns_per_event(options.command, path, config) for config in (options.config, "heap:segments"))
    return Judged(run["ratio"], percent_added(options, path), run["driver_us"] / run["expandable_us"],
                  repeated["memory_calls_per_iteration"][3], pages_ns / segments_ns,
                  run["min_device_bytes"] / run["peak_requested_bytes"])


def print_corpus(options):
    print_head(["half", "group", "reserved / requested", "caches, %", "driver time / expandable", "calls, 4th iteration",
                "ns / segments", "smallest device"])
    groups = collections.defaultdict(list)
    for name, program in corpus().items():
        judged = judge(options, recorded(name))
        groups[program["half"], program["group"]].append(judged)
        print(f"| {name} | {program['half']} | {program['group']} | {judged.ratio:.4f} | {judged.caches_percent:+.2f} "
              f"| {judged.driver:.2f} | {judged.calls} | {judged.host:.2f} | {judged.smallest:.4f} |", flush=True)
    print_means(groups, Judged._fields)


def print_means(groups, columns):
    """Prints the means of the rows of each group of programs, by column."""
    print("\nmean, worst:")
    for (half, group), rows in sorted(groups.items()):
        figures = "; ".join(f"{column} {statistics.mean(values):.4f}, {max(values):.4f}" for column, values in zip(columns, zip(*rows)))
        print(f"{half}, {group}, {len(rows)} programs: {figures}")


PLAYS = (1, 4, 12)


def print_plays(options):
    columns = [f"after {plays}" for plays in PLAYS]
    print_head(["half", "group", *columns, "calls, last play"])
    groups = collections.defaultdict(list)
    for name, program in corpus().items():
        runs = [replay(options.command, recorded(name), options.config, "--iterations", str(plays)) for plays in PLAYS]
        ratios = [run["ratio"] for run in runs]
        groups[program["half"], program["group"]].append(ratios)
        cells = [program["half"], program["group"], *(f"{ratio:.4f}" for ratio in ratios), str(runs[-1]["memory_calls_per_iteration"][-1])]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print_means(groups, columns)


# The costs of cachalot replay: the time of a block's work, the host's time of an event, and the most launches pending on a
# stream.
WORK_US = 10
HOST_US = 1
MOST_PENDING = 1024


class FluidHeap:
    """Free memory of each stream, which can be cut at will."""

    def __init__(self):
        self.free = collections.defaultdict(list)  # by stream: [when its work is done, bytes], in order
        self.reserved = 0

    def give_back(self, stream, done_us, size):
        self.free[stream].append([done_us, size])

    # Takes first the pages that other streams cannot use yet.
    def take(self, stream, now_us, wanted):
        wanted = self.take_from(self.free[stream], -1, wanted, lambda _: True)
        for other, parts in self.free.items():
            if other != stream:
                wanted = self.take_from(parts, 0, wanted, lambda done_us: done_us <= now_us)
        self.reserved += wanted

    @staticmethod
    def take_from(parts, end, wanted, is_done):
        while wanted and parts and is_done(parts[end][0]):
            taken = min(wanted, parts[end][1])
            wanted -= taken
            parts[end][1] -= taken
            if parts[end][1] == 0:
                parts.pop(end)
        return wanted


def floor(path, host_us):
    heap = FluidHeap()
    now = live = peak = 0
    blocks = {}
    ends = collections.defaultdict(lambda: collections.deque([0], MOST_PENDING))  # of the last launches, by stream
    with gzip.open(path, "rt") as lines:
        for action, slot, *rest in (line.strip().split(",") for line in lines if line[0] in "af"):
            now += host_us
            if action == "f":
                size, stream = blocks.pop(slot)
                live -= size
                heap.give_back(stream, ends[stream][-1], size)
                continue
            size, stream = int(rest[0]), rest[1]
            blocks[slot] = size, stream
            live += size
            peak = max(peak, live)
            heap.take(stream, now, size)
            if len(ends[stream]) == MOST_PENDING:
                now = max(now, ends[stream][0])
            ends[stream].append(max(now, ends[stream][-1]) + WORK_US)
    return heap.reserved / peak


def print_floor(options):
    names = ["streams", *(name for name, program in corpus().items() if program["group"] == "streams")]
    print_head(["reserved / requested", "floor", "floor with the driver's time"])
    for name in names:
        path = recorded(name)
        run = replay(options.command, path, options.config)
        host_us = HOST_US + run["driver_us"] / run["events"]
        print(f"| {name} | {run['ratio']:.4f} | {floor(path, HOST_US):.4f} | {floor(path, host_us):.4f} |", flush=True)


def write_random(path, events):
    generator = random.Random(7)
    live = []
    with open(path, "w") as out:
        for i in range(events):
            if live and (len(live) > 3000 or generator.random() < 0.47):
                at = generator.randrange(len(live))
                live[at], live[-1] = live[-1], live[at]
                out.write(f"f,{live.pop()}\n")
            else:
                size = int(math.exp(generator.uniform(math.log(512), math.log(32 * 2**20))))
                out.write(f"a,{i},{size},{generator.randrange(6)}\n")
                live.append(i)


def print_random(options):
    events = 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "random.csv"
        write_random(path, events)
        run = replay(options.command, path, options.config, "--check-hazards")
    print(f"{events} events, no hazard; reserved / requested {run['ratio']:.4f}; {run['memory_calls']} driver calls for memory")


def percent_added(options, path):
    without, with_caches = (
        replay(options.command, path, f"{options.config},thread_cache:{on}")["peak_reserved_bytes"] for on in (False, True)
    )
    return 100 * (with_caches / without - 1)


def print_caches(options):
    print_head(["as it is, %", "mean of 16 sizes", "median", "least", "most"])
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "scaled.csv.gz"
        halves = {name: program["half"] for name, program in corpus().items()}
        means = collections.defaultdict(list)
        for trace in [*TRACES, *halves]:
            added = []
            for scale in NEAR_SCALES:
                write_scaled(trace, scale, path, above=2**16)
                added.append(percent_added(options, path))
            figures = [percent_added(options, recorded(trace)), statistics.mean(added), statistics.median(added)]
            means[halves.get(trace, "traces")].append(statistics.mean(added))
            print(f"| {trace} | " + " | ".join(f"{x:+.2f}" for x in [*figures, min(added), max(added)]) + " |", flush=True)
        print("\nmean over 16 sizes: mean, worst:")
        for name, values in means.items():
            print(f"{name}: {statistics.mean(values):+.3f}, {max(values):+.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", default=str(ROOT / "build/release/tools/cachalot"))
    parser.add_argument("--config", default="heap:pages")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--min-device", action="store_true")
    for print_one in (print_scaled, print_caches, print_cross_stream, print_corpus, print_plays, print_floor, print_random):
        name = print_one.__name__.removeprefix("print_").replace("_", "-")
        what.add_argument(f"--{name}", dest="print_one", action="store_const", const=print_one, default=print_table)
    options = parser.parse_args()
    options.print_one(options)


if __name__ == "__main__":
    main()
