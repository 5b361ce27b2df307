#!/usr/bin/env python3
"""The page heap's figures on the recorded programs in data/traces/programs: what docs/page_heap.md reports.

    bench/page_heap.py [--build build/release] [--config heap:pages] [--random | --drivers]

For each program, and as mean and worst of each half and group of programs (some minutes):

* N plays: memory held / requested, peaks, after the program was played N times in a row with what it never frees kept, as a training
  loop keeps its weights. Stream hazards are checked.
* floor: the same of an allocator to which pages cost nothing (bench/page_heap.cpp). It lays one block after the other where that takes
  the fewest new pages; an allocator that lays them otherwise may need less. segments: the same of PyTorch's policy, after one play.
* calls, ms: driver calls for memory and simulated driver time of the twelfth play.
* start: driver time until the first play ends, in ms per GiB held. expandable: the same to the time in which PyTorch's expandable segments
  make memory, by a model. reserved: driver time of the first play, in ms per GiB, where `reserve` has made its memory before.
* smallest: the smallest device that completes the first play / requested; its ms/GiB: the driver time there.
* event: host time of an event to that of segments. p99.9: that of an allocation after the first play, also to segments. worst us: the
  longest of these in us, with the simulated driver's own work.
* trim: driver time in ms for each GiB that `trim` gives back after the first play; left: idle memory that trim cannot give back, in
  percent.

--drivers (minutes): two simulated drivers whose costs are not those published, on the half to report of at least 1 GiB with one stream.

--random (minutes): 10 million allocations and frees at random, on 6 streams, 512 B to 32 MiB, with hazards checked.
"""

import argparse
import collections
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "data" / "traces" / "programs"
PLAYS = (1, 12, 100)


def json_of(program, *arguments):
    try:
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"page_heap.py: {program}: {error.strerror}; ./run build makes build/release")
    if done.returncode != 0:
        sys.exit(f"page_heap.py: {done.stderr.strip()}")
    return json.loads(done.stdout)


def replay(options, path, config, *others):
    return json_of(options.build / "tools" / "cachalot", "replay", path, "--config", config, "--json", *others)


def loop_figures(options, path):
    run = replay(options, path, options.config, "--check-hazards", "--iterations", PLAYS[-1])
    figures = {f"{plays} plays": run["ratio_per_iteration"][plays - 1] for plays in PLAYS}
    return figures | {
        "calls": run["memory_calls_per_iteration"][11],
        "ms": run["driver_us_per_iteration"][11] / 1000,
        "start": run["driver_us_per_iteration"][0] / 1000 / gib(run),
        "expandable": run["driver_us_per_iteration"][0] / run["expandable_us"],
    }


def gib(run):
    return run["peak_reserved_bytes"] / 2**30


def device_figures(options, path):
    found = replay(options, path, options.config, "--check-hazards", "--min-device")
    there = replay(options, path, options.config, "--device-memory", found["min_device_bytes"])
    return {"smallest": found["min_device_bytes"] / found["peak_requested_bytes"], "its ms/GiB": there["driver_us"] / 1000 / gib(there)}


def figures_of(options, path):
    own = json_of(options.build / "bench" / "page_heap", path, options.config, *PLAYS)
    figures = loop_figures(options, path) | {f"floor {plays}": ratio for plays, ratio in own["floor"].items()}
    figures |= device_figures(options, path)
    pages, segments = (replay(options, path, config, "--work-us", 0, "--repeat", 15) for config in (options.config, "heap:segments"))
    figures |= {"segments": segments["ratio"], "event": pages["ns_per_event"] / segments["ns_per_event"]}
    figures |= {"p99.9": own["tails"]["p999"], "worst us": own["tails"]["worst_us"]}
    figures["reserved"] = own["reserved"]
    return figures | {"trim": own["trim"]["ms_per_gib"], "left": 100 * (1 - own["trim"]["part"])}


def text_of(name, figure):
    is_ratio = name in ("segments", "smallest") or name.startswith("floor") or name.endswith("plays")
    digits = 4 if is_ratio else 0 if name == "calls" else 2
    return f"{figure:.{digits}f}"


def print_programs(options):
    groups = collections.defaultdict(list)
    for name, program in json.loads((PROGRAMS / "halves.json").read_text())["programs"].items():
        figures = figures_of(options, PROGRAMS / f"{name}.csv.gz")
        if not groups:
            print_row(["program", "half", "group", *figures])
            print("|---" * (3 + len(figures)) + "|")
        groups[program["half"], program["group"]].append(figures)
        print_row([name, program["half"], program["group"], *(text_of(*figure) for figure in figures.items())])
    print("\nMean / worst:")
    for (half, group), rows in sorted(groups.items()):
        print(f"\n{half}, {group}, {len(rows)} programs")
        for name in rows[0]:
            values = [row[name] for row in rows]
            print(f"  {name:<10} {text_of(name, statistics.mean(values)):>8} / {text_of(name, max(values)):>8}")


def print_row(cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def print_drivers(options):
    found = collections.defaultdict(list)
    for name, program in json.loads((PROGRAMS / "halves.json").read_text())["programs"].items():
        if (program["half"], program["group"]) != ("report", "large"):
            continue
        of_program = json_of(options.build / "bench" / "page_heap", "drivers", PROGRAMS / f"{name}.csv.gz")
        for driver, figures in of_program.items():
            found[driver].append(figures)
    for driver, rows in found.items():
        print(f"\n{driver}, {len(rows)} programs")
        for name in rows[0]:
            values = [row[name] for row in rows]
            print(f"  {name:<10} {statistics.mean(values):>9.4f} / {max(values):>9.4f}")


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
        run = replay(options, path, options.config, "--check-hazards")
    print(f"{events} events, no hazard; held / requested {run['ratio']:.4f}; {run['memory_calls']} driver calls for memory")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--config", default="heap:pages")
    parser.add_argument("--random", dest="print_one", action="store_const", const=print_random, default=print_programs)
    parser.add_argument("--drivers", dest="print_one", action="store_const", const=print_drivers)
    options = parser.parse_args()
    options.print_one(options)


if __name__ == "__main__":
    main()
