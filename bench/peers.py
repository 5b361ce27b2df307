#!/usr/bin/env python3
"""cachalot and other allocators at the same work in the same run, over the simulated CUDA runtime or a GPU: one table.

    bench/peers.py [<build folder>] [--only hot_pair,traces] [--peers cub,torch] [--quick] [--gpu] [--instructions]
                   [--json FILE] [--markdown] [--update-docs]

bench/peers/README.md says how to install the other allocators; the column of an allocator that is not built is left out.
docs/performance.md describes each figure. A cell is the best measured value: the least time, the most pairs per second.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent
TRACES = "gpt2_varlen gpt2_fp32 llama1b_ckpt moe resnet_multires serve_kv lsm frag_toy streams".split()
LONGEST_SECONDS = 300  # of one program


class Column(typing.NamedTuple):
    name: str
    program: str
    variant: str


C_API = "c_api"
PEERS = [
    Column(C_API, "c_api", "heap:pages,thread_cache:True"),
    Column("mr", "mr", "heap:segments,thread_cache:False"),
    Column("mr+cache", "mr", "heap:pages,thread_cache:True"),
    Column("torch", "torch", ""),
    Column("torch_expandable", "torch", "expandable_segments:True"),
    Column("cub", "cub", "powers of two"),
    Column("rmm_pool", "rmm", "pool"),
    Column("rmm_arena", "rmm", "arena"),
    Column("cuda_async", "cuda_async", "default"),
    Column("cuda_async_keep", "cuda_async", "keep"),
    Column("cuda", "cuda", ""),
]


class Group(typing.NamedTuple):
    name: str
    runs: list  # the requests to the programs, each in a process of its own
    figures: dict  # name: what it is, with its unit
    rounds: int = 1  # cheap ones are run more often, the allocators taking turns
    memory: str = "4TiB"  # of the simulated device: room for a million blocks by cudaMalloc, in units of 2 MiB


def trace_figures(figure, what):
    return {f"trace/{trace}/{figure}": f"{trace}: {what}" for trace in TRACES}


GROUPS = [
    Group("hot_pair", ["hot_pair"], {
        "hot_pair/512": "hot pair, 512 B, ns",
        "hot_pair/4096": "hot pair, 4 KiB, ns",
        "hot_pair/1048576": "hot pair, 1 MiB, ns",
        "hot_pair/8388608": "hot pair, 8 MiB, ns",
    }, rounds=2),
    Group("churn", ["churn"], {"churn/4096": "churn, 4,096 live blocks, ns per pair"}, rounds=2),
    Group("holes", ["no_holes", "holes"], {
        "holes/0": "pair, no holes, ns",
        "holes/65536": "pair, 65,536 holes, ns",
        "holes_churn/65536": "churn among 65,536 holes, ns per pair",
    }),
    Group("threads", ["threads"], {
        "threads/1": "1 thread, million pairs/s",
        "threads/2": "2 threads, million pairs/s",
        "threads/4": "4 threads, million pairs/s",
        "threads_one_stream/2": "2 threads on one stream, million pairs/s",
    }, rounds=2),
    Group("handoff", ["handoff"], {
        "handoff/1+1": "1 allocates, 1 frees, million pairs/s",
        "handoff/2+2": "2 allocate, 2 free, million pairs/s",
    }, rounds=2),
    Group("rmm_random", ["rmm_random"], {
        "rmm_random/first": "RMM's random sequence, empty allocator, ms",
        "rmm_random/again": "RMM's random sequence, again, ms",
    }),
    Group("million", ["million"], {
        "million/grow": "1 million blocks, first, ns each",
        "million/grow_again": "1 million blocks, again, ns each",
        "million/free_in_order": "1 million frees, in order, ns each",
        "million/free_at_random": "1 million frees, at random, ns each",
    }, rounds=2),
    Group("tail", ["tail"], {
        "tail/1": "99.99th percentile of a pair, alone, us",
        "tail/2": "99.99th percentile of a pair, 2 threads, us",
    }, rounds=2),
    Group("traces", [f"trace/{trace}" for trace in TRACES], {
        **trace_figures("time", "ns per event"),
        **trace_figures("memory", "driver memory / requested, at peak"),
        **trace_figures("memory_calls", "memory calls"),
        **trace_figures("event_calls", "event calls"),
    }, rounds=2, memory="256GiB"),
]
NOT_QUICK = {("holes", "rmm_pool"), ("rmm_random", "rmm_pool"), ("rmm_random", "rmm_arena")}  # run and column
INSTRUCTIONS = "instructions/4096"


def fail(message):
    print(f"peers.py: {message}", file=sys.stderr)
    sys.exit(2)


# ---- Running the programs ---------------------------------------------------------------------------------------------


def environment(build, memory):
    """`memory` of the simulated device; None: on a GPU, or on what the caller has put in its place."""
    kept = {name: value for name, value in os.environ.items() if not re.match(r"CACHALOT_|PYTORCH_|LD_PRELOAD$", name)}
    if memory is None:
        return kept | {name: value for name, value in os.environ.items() if name in ("CACHALOT_SIM", "LD_PRELOAD")}
    return kept | {
        "LD_PRELOAD": str(build / "simulator/libcachalot_simulator.so"),
        "LD_LIBRARY_PATH": str(build / "simulator/driver"),
        "CACHALOT_SIM": f"memory:{memory}",
    }


class Programs:
    def __init__(self, build, quick, on_gpu=False):
        self.build = build
        self.quick = quick
        self.on_gpu = on_gpu

    def path(self, column):
        return self.build / "bench/peers" / column.program

    def run(self, column, *runs, memory="256GiB"):
        """The program's finished process, or None where it took too long."""
        words = (["--quick"] if self.quick else []) + (["--gpu"] if self.on_gpu else [])
        arguments = [self.path(column), *words, column.variant, *runs]
        try:
            return subprocess.run(
                arguments, env=environment(self.build, None if self.on_gpu else memory), capture_output=True, text=True, timeout=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def why_not(self, column):
        """Empty where the program is there and takes the variant."""
        if not self.path(column).exists():
            return f"{self.path(column)} is not built"
        tried = self.run(column)
        return "" if tried and tried.returncode == 0 else first_line(tried)

    def figures(self, column, run, memory):
        """Values and reasons for their lack, by the name of the figure."""
        done = self.run(column, run, memory=memory)
        if done is None:
            return {}, {run: f"took more than {LONGEST_SECONDS} s"}
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        values = {line["figure"]: line["value"] for line in lines if "value" in line}
        lacks = {line["figure"]: line["left_out"] for line in lines if "left_out" in line}
        if done.returncode != 0:
            lacks[run] = first_line(done)
        return values, lacks


def first_line(done):
    lines = done.stderr.strip().splitlines() if done else []
    return lines[0] if lines else "it fails without a word"


def our_columns(programs):
    """Both heaps, thread caches off and on; without a word of them where the allocator has none."""
    columns = []
    lacks = {}
    for heap in ("segments", "pages"):
        off = Column(heap, "cachalot", f"heap:{heap},thread_cache:False")
        on = Column(f"{heap}+cache", "cachalot", f"heap:{heap},thread_cache:True")
        if programs.path(on).exists() and programs.why_not(on):
            lacks[on.name] = programs.why_not(on)
            off = Column(heap, "cachalot", f"heap:{heap}")
            columns.append(off)
        else:
            columns += [off, on]
    return columns, lacks


def available(programs, wanted):
    """Columns that can be measured, and why others cannot."""
    columns, lacks = our_columns(programs)
    present = []
    for column in columns + [peer for peer in PEERS if peer.name in wanted]:
        why = programs.why_not(column)
        if why:
            lacks[column.name] = why
        else:
            present.append(column)
    return present, lacks


class Results:
    def __init__(self):
        self.values = {}  # (figure, column): the best
        self.lacks = {}  # (figure or run, column): why there is none

    def get(self, figure, column):
        return self.values.get((figure, column))

    def add(self, column, values, lacks):
        for figure, value in values.items():
            best = max if figure.startswith(("threads", "handoff/")) else min
            self.values[figure, column] = best(value, self.values.get((figure, column), value))
        for figure, why in lacks.items():
            self.lacks[figure, column] = why


def measure(programs, groups, columns):
    results = Results()
    for group in groups:
        for run in group.runs * (1 if programs.quick else group.rounds):
            for column in columns:
                if programs.quick and (run, column.name) in NOT_QUICK:
                    results.add(column.name, {}, {run: "slow, not with --quick"})
                    continue
                progress(f"{run}: {column.name}")
                results.add(column.name, *programs.figures(column, run, group.memory))
    progress("")
    return results


def progress(what):
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


# callgrind's total of many pairs less that of few, of the whole program, as bench/instructions.sh.
def count_instructions(programs, columns, results):
    few, many = 1_000, 11_000
    for column in columns:
        progress(f"instructions: {column.name}")
        counts = [instructions(programs, column, pairs) for pairs in (few, many)]
        if None in counts:
            results.add(column.name, {}, {INSTRUCTIONS: "callgrind could not run it"})
        else:
            results.add(column.name, {INSTRUCTIONS: round((counts[1] - counts[0]) / (many - few))}, {})
    progress("")


def instructions(programs, column, pairs):
    callgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    done = subprocess.run([*callgrind, programs.path(column), column.variant, f"pairs/4096/{pairs}"],
                          env=environment(programs.build, "128GiB"), capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    return int(found[1]) if found and done.returncode == 0 else None


# ---- Targets ------------------------------------------------------------------------------------------------------------


class Verdict(typing.NamedTuple):
    what: str
    target: str
    reached: str
    met: bool


class Targets:
    """The targets; a target that lacks a figure is not judged."""

    def __init__(self, results):
        self.results = results
        self.verdicts = []

    def at_most(self, what, value, limit, unit):
        if value is not None:
            shown = f"{value:.4f}" if unit == "x" else number(value)
            self.verdicts.append(Verdict(what, f"<= {limit:g} {unit}", f"{shown} {unit}", value <= limit))

    def at_least(self, what, value, limit):
        if value is not None:
            self.verdicts.append(Verdict(what, f">= {limit:g} x", f"{value:.2f} x", value >= limit))

    def ratio(self, figure, column, other_figure, other_column):
        values = self.results.get(figure, column), self.results.get(other_figure, other_column)
        return None if None in values else values[0] / values[1]

    def faster(self, figures, column, peer):
        """Returns the speed as a multiple of the peer's, at the figure where it is least."""
        ratios = [self.ratio(figure, peer, figure, column) for figure in figures]
        ratios = [ratio for ratio in ratios if ratio is not None]
        return min(ratios) if ratios else None

    def slower(self, figures, column, other):
        """Returns the units that the column takes more than the other, at the figure where they are most."""
        pairs = [(self.results.get(figure, column), self.results.get(figure, other)) for figure in figures]
        return max((mine - others for mine, others in pairs if None not in (mine, others)), default=None)

    def most_more(self, figures, heap):
        """Returns the ratio of a heap's time with thread caches to that without, where it is greatest."""
        ratios = [self.ratio(figure, f"{heap}+cache", figure, heap) for figure in figures]
        ratios = [ratio for ratio in ratios if ratio is not None]
        return max(ratios) if ratios else None

    def most(self, figures, column):
        values = [self.results.get(figure, column) for figure in figures]
        values = [value for value in values if value is not None]
        return max(values) if values else None


HOT_PAIRS = ["hot_pair/512", "hot_pair/4096", "hot_pair/1048576", "hot_pair/8388608"]


def judge(results):
    targets = Targets(results)
    judge_exact(targets)
    judge_cached(targets)
    judge_c_api(targets)
    judge_mr(targets)
    judge_traces(targets)
    return targets.verdicts


def judge_exact(targets):
    get = targets.results.get
    exact = "segments"
    targets.at_most("hot pair, exact, slowest size", targets.most(HOT_PAIRS, exact), 35, "ns")
    targets.at_least("hot pair, exact, to PyTorch", targets.faster(HOT_PAIRS, exact, "torch"), 4.5)
    targets.at_most("hot pair, exact", get(INSTRUCTIONS, exact), 530, "instructions")
    targets.at_least("churn, exact, to PyTorch", targets.faster(["churn/4096"], exact, "torch"), 5)
    targets.at_least("two threads to one, exact", targets.ratio("threads/2", exact, "threads/1", exact), 0.9)
    for column in (exact, "pages"):
        targets.at_most(f"65,536 holes to none, {column}", targets.ratio("holes/65536", column, "holes/0", column), 1.5, "x")
        targets.at_most(f"churn among 65,536 holes, {column}", get("holes_churn/65536", column), 200, "ns")
        targets.at_most(f"RMM's random sequence, {column}", get("rmm_random/again", column), 20, "ms")
    for figure, limit in (("grow", 250), ("grow_again", 120), ("free_in_order", 120)):
        targets.at_most(f"1 million blocks, {figure.replace('_', ' ')}", get(f"million/{figure}", exact), limit, "ns")
    at_random = targets.faster(["million/free_at_random"], exact, "torch")
    targets.at_least("1 million blocks, free at random, to PyTorch", at_random, 2.5)
    targets.at_most("99.99th percentile, exact, alone", get("tail/1", exact), 5, "us")
    targets.at_most("99.99th percentile, exact, two threads", get("tail/2", exact), 60, "us")


def judge_cached(targets):
    get = targets.results.get
    for cached in ("pages+cache", "segments+cache"):
        targets.at_most(f"hot pair, {cached}, slowest of 512 B and 4 KiB", targets.most(HOT_PAIRS[:2], cached), 10, "ns")
        targets.at_least(f"hot pair, {cached}, to PyTorch", targets.faster(HOT_PAIRS[:2], cached, "torch"), 15)
        targets.at_least(f"hot pair, {cached}, to CUB", targets.faster(HOT_PAIRS[:2], cached, "cub"), 6)
        targets.at_most(f"hot pair, {cached}", get(INSTRUCTIONS, cached), 220, "instructions")
        targets.at_least(f"two threads to one, {cached}", targets.ratio("threads/2", cached, "threads/1", cached), 1.8)
        targets.at_least(f"two threads on one stream to one thread, {cached}",
                         targets.ratio("threads_one_stream/2", cached, "threads/1", cached), 1.5)
        handoff = "handoff/2+2"
        targets.at_least(f"2 allocate, 2 free, {cached}, to PyTorch", targets.ratio(handoff, cached, handoff, "torch"), 25)
        targets.at_least(f"2 allocate, 2 free, {cached}, to one thread",
                         targets.ratio(handoff, cached, "threads/1", cached), 0.4)
        targets.at_most(f"99.99th percentile, {cached}, alone", get("tail/1", cached), 5, "us")


def judge_c_api(targets):
    pair = HOT_PAIRS[1]
    targets.at_most("hot pair through the C API and a thread cache, 4 KiB", targets.results.get(pair, C_API), 10, "ns")
    targets.at_least("hot pair through the C API and a thread cache, to PyTorch", targets.faster([pair], C_API, "torch"), 17)


def judge_mr(targets):
    targets.at_most("hot pair, cuda::mr over the C++ API, exact", targets.slower(HOT_PAIRS, "mr", "segments"), 3, "ns")
    targets.at_most("hot pair, cuda::mr over the C++ API, pages+cache, slowest of 512 B and 4 KiB",
                    targets.slower(HOT_PAIRS[:2], "mr+cache", "pages+cache"), 3, "ns")
    random = ["rmm_random/first"]
    targets.at_least("RMM's random sequence, cuda::mr to RMM's pool", targets.faster(random, "mr", "rmm_pool"), 5)


def judge_traces(targets):
    times = [f"trace/{trace}/time" for trace in TRACES]
    targets.at_least("traces, exact, to PyTorch, the least", targets.faster(times, "segments", "torch"), 5)
    targets.at_least("traces, pages, to PyTorch, the least", targets.faster(times, "pages", "torch"), 3.5)
    wide = ["streams", "frag_toy"]
    narrow = [trace for trace in TRACES if trace not in wide]
    for heap in ("segments", "pages"):
        for traces, limit in ((narrow, 1.001), (wide, 1.003)):
            what = f"thread cache's memory, {heap}, most of {'streams and frag_toy' if traces is wide else 'the others'}"
            targets.at_most(what, targets.most_more([f"trace/{trace}/memory" for trace in traces], heap), limit, "x")


# ---- Tables -------------------------------------------------------------------------------------------------------------


def number(value):
    if value is None:
        return "-"
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def figure_rows(results, figures, columns):
    for figure, what in figures.items():
        cells = [number(results.get(figure, column.name)) for column in columns]
        if any(cell != "-" for cell in cells):
            yield [what, *cells]


def verdict_rows(verdicts):
    for verdict in verdicts:
        yield [verdict.what, verdict.target, verdict.reached, "met" if verdict.met else "MISSED"]


def table(head, rows, markdown):
    rows = [head, *rows]
    if len(rows) == 1:
        return ""
    if markdown:
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([lines[0], "|---" + "|---:" * (len(head) - 1) + "|", *lines[1:]]) + "\n"
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]) + "\n"
        for row in rows)


def machine():
    model = re.search(r"^model name\s*:\s*(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{model[1] if model else platform.machine()}, {os.cpu_count()} cores"


def all_figures(groups):
    figures = {figure: what for group in groups for figure, what in group.figures.items()}
    return figures | {INSTRUCTIONS: "instructions of a hot pair, 4 KiB"}


def figures_table(results, figures, columns, markdown):
    return table(["", *(column.name for column in columns)], figure_rows(results, figures, columns), markdown)


def targets_table(results, markdown):
    return table(["", "target", "reached", ""], verdict_rows(judge(results)), markdown)


def report(results, groups, columns, markdown):
    return f"{figures_table(results, all_figures(groups), columns, markdown)}\n{targets_table(results, markdown)}"


def print_lacks(results, lacks):
    for column, why in lacks.items():
        print(f"left out: {column}: {why}")
    alike = {}
    for (what, column), why in results.lacks.items():
        alike.setdefault((column, why), []).append(what)
    for (column, why), whats in alike.items():
        print(f"left out: {', '.join(whats)} of {column}: {why}")


def update_docs(results, groups, columns, command):
    taken = f"{machine()}; `{command}`\n\n"
    write_between_marks(ROOT / "docs/performance.md", taken + figures_table(results, all_figures(groups), columns, True))
    write_between_marks(ROOT / "docs/develop/targets.md", taken + targets_table(results, True))


def write_between_marks(path, text):
    begin, end = "<!-- bench/peers.py writes from here -->\n", "<!-- to here -->\n"
    old = path.read_text()
    if old.count(begin) != 1 or old.count(end) != 1:
        fail(f"{path} has not one line '{begin.strip()}' and one '{end.strip()}'")
    before, rest = old.split(begin)
    path.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}")


def write_json(path, results, columns):
    values = {column.name: {} for column in columns}
    for (figure, column), value in results.values.items():
        values[column][figure] = value
    path.write_text(json.dumps({"machine": machine(), "figures": values,
                                "targets": [verdict._asdict() for verdict in judge(results)]}, indent=2) + "\n")


# ---- Arguments ----------------------------------------------------------------------------------------------------------


def names(text, known, option):
    chosen = [name for name in text.split(",") if name]
    for name in chosen:
        if name not in known:
            fail(f"{option}: there is no '{name}'; there are {', '.join(known)}")
    return chosen


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: fail(message)
    parser.add_argument("build", nargs="?", default="build/release", help="the build folder (build/release)")
    parser.add_argument("--only", metavar="GROUPS", help=", ".join(group.name for group in GROUPS))
    parser.add_argument("--peers", metavar="PEERS", help="beside cachalot: " + ", ".join(peer.name for peer in PEERS))
    parser.add_argument("--quick", action="store_true", help="in less than a minute; times are less certain")
    parser.add_argument("--gpu", action="store_true", help="on the machine's GPU, and without what only the simulated runtime counts")
    parser.add_argument("--instructions", action="store_true", help="count a hot pair's, by valgrind")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write all figures there")
    parser.add_argument("--markdown", action="store_true", help="tables as in the documentation")
    parser.add_argument("--update-docs", action="store_true", help="write the tables into docs/performance.md and docs/develop/targets.md")
    options = parser.parse_args()
    groups = [group.name for group in GROUPS]
    peers = [peer.name for peer in PEERS]
    options.only = groups if options.only is None else names(options.only, groups, "--only")
    options.peers = peers if options.peers is None else names(options.peers, peers, "--peers")
    if options.gpu and (options.instructions or options.update_docs):
        fail("--gpu: neither --instructions nor --update-docs, whose figures are of the simulated runtime")
    if options.instructions and not shutil.which("valgrind"):
        fail("--instructions: please install valgrind")
    if options.json and not options.json.resolve().parent.is_dir():
        fail(f"--json {options.json}: there is no folder {options.json.parent}")
    return options


def main():
    options = parse_arguments()
    build = pathlib.Path(options.build).resolve()
    programs = Programs(build, options.quick, options.gpu)
    columns, lacks = available(programs, options.peers)
    if not columns:
        fail(f"no program in {build / 'bench/peers'}: ./run build makes them where a CUDA toolkit is found")
    groups = [group for group in GROUPS if group.name in options.only]
    if options.quick and "million" in options.only:
        groups = [group for group in groups if group.name != "million"]
        lacks["million"] = "slow, not with --quick"
    results = measure(programs, groups, columns)
    if options.instructions:
        count_instructions(programs, columns, results)
    print(f"{machine()}\n")
    print(report(results, groups, columns, options.markdown))
    print_lacks(results, lacks)
    if options.json:
        write_json(options.json, results, columns)
    if options.update_docs:
        update_docs(results, groups, columns, "bench/peers.py" + (" --instructions" if options.instructions else ""))


if __name__ == "__main__":
    main()
