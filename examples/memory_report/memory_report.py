"""Reports the places of memory: a table of each GPU that this process uses, with the process's memory on the host beside it.

    python memory_report.py [--json FILE] [--native]                       # of a built-in workload
    python memory_report.py [--json FILE] [--native] train.py arguments…   # of a program, when it has ended

In a program of one's own (this folder on PYTHONPATH):

    import memory_report
    memory_report.reset_peaks()
    …
    print(memory_report.as_table(memory_report.measure()))
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from common import gpu, table, training

try:
    import cachalot
except ImportError:
    cachalot = None


@dataclasses.dataclass(frozen=True)
class DeviceMemory:
    """One GPU, in bytes. None: only cachalot can tell, and it is not this process's allocator."""

    device: str
    requested: int  # by live tensors
    allocated: int  # of the blocks that they lie in
    reserved: int  # held from the device
    peak_requested: int
    peak_allocated: int
    peak_reserved: int
    internal_fragmentation: float  # 1 - requested / allocated
    external_fragmentation: float | None  # 1 - largest free / all free, of held memory
    largest_free: int | None
    device_free: int  # for all processes
    device_total: int


@dataclasses.dataclass(frozen=True)
class HostMemory:
    """This process's pages that are in the host's memory, in bytes: its resident set size."""

    resident: int
    peak_resident: int


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    devices: list[DeviceMemory]
    host: HostMemory


def reset_peaks() -> None:
    """Waits for the GPUs in use; every peak on them begins again from the current figure."""
    for device in devices_in_use():
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)


def measure() -> MemoryReport:
    """Waits for the GPUs in use and asks them; the others are left alone, as to ask one takes memory on it."""
    return MemoryReport([_measure_device(device) for device in devices_in_use()], _measure_host())


def as_table(report: MemoryReport) -> str:
    """A column for each GPU, and a line for the host."""
    rows = [
        [field.name.replace("_", " "), *(_text(getattr(device, field.name)) for device in report.devices)]
        for field in dataclasses.fields(DeviceMemory)
    ]
    lines = table.lines(*rows) if report.devices else ["no GPU is in use"]
    lines.append(f"on the host: {report.host.resident:,} bytes resident, {report.host.peak_resident:,} at most")
    return "\n".join(lines)


def devices_in_use() -> list[int]:
    """The GPUs on which PyTorch has allocated."""
    if not torch.cuda.is_initialized():
        return []
    count = torch.cuda.device_count()
    return [device for device in range(count) if torch.cuda.memory_stats(device).get("reserved_bytes.all.allocated")]


def _measure_device(device: int) -> DeviceMemory:
    torch.cuda.synchronize(device)
    statistics = torch.cuda.memory_stats(device)
    requested, allocated, reserved = (f"{kind}_bytes.all" for kind in ("requested", "allocated", "reserved"))
    inside = cachalot.fragmentation(device) if cachalot and cachalot.is_enabled() else None
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(
        device=f"cuda:{device}",
        requested=statistics[f"{requested}.current"],
        allocated=statistics[f"{allocated}.current"],
        reserved=statistics[f"{reserved}.current"],
        peak_requested=statistics[f"{requested}.peak"],
        peak_allocated=statistics[f"{allocated}.peak"],
        peak_reserved=statistics[f"{reserved}.peak"],
        internal_fragmentation=1 - statistics[f"{requested}.current"] / (statistics[f"{allocated}.current"] or 1),
        external_fragmentation=inside.external if inside else None,
        largest_free=inside.largest_free_bytes if inside else None,
        device_free=free,
        device_total=total,
    )


def _measure_host() -> HostMemory:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return HostMemory(*(int(fields[name].removesuffix("kB")) * 1024 for name in ("VmRSS", "VmHWM")))


def _text(figure: str | float | None) -> str:
    if figure is None:
        return "only cachalot knows"
    if isinstance(figure, str):
        return figure
    return f"{figure:,}" if isinstance(figure, int) else f"{figure:.2%}"


def parse(arguments: list[str] | None = None) -> tuple[argparse.Namespace, training.Shape]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", type=Path, help="for the figures, too")
    parser.add_argument("--steps", type=gpu.at_least(1), default=5, help="of the built-in workload (5)")
    training.add_shape_options(parser)
    gpu.add_native_option(parser)
    parser.add_argument("program", nargs=argparse.REMAINDER, help="a Python program with its arguments")
    options = parser.parse_args(arguments)
    if options.program and not Path(options.program[0]).is_file():
        parser.error(f"argument program: {options.program[0]!r} is not a file")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"argument --json: {str(options.json.parent)!r} is not a folder")
    return options, training.shape_from(parser, options)


def run_program(path: str, *arguments: str) -> dict[str, object]:
    """Runs a program as Python itself would. It lives, with its tensors, as long as the result."""
    sys.argv = [path, *arguments]
    sys.path[0] = str(Path(path).resolve().parent)
    return runpy.run_path(path, run_name="__main__")


def run_workload(shape: training.Shape, steps: int) -> training.Training:
    """A training on texts of varying length; lives, with its tensors, as long as the result."""
    lengths = random.Random(0)
    work = training.Training(shape, training.Precision())
    for _ in range(steps):
        length = lengths.randint(1, shape.length)
        work.step((training.random_texts(dataclasses.replace(shape, length=length)),))
    return work


def check(report: MemoryReport) -> None:
    relations = table.Relations()
    for device in report.devices:
        for less, more in (
            ("requested", "allocated"),
            ("allocated", "reserved"),
            ("requested", "peak_requested"),
            ("allocated", "peak_allocated"),
            ("reserved", "peak_reserved"),
            ("peak_reserved", "device_total"),
        ):
            relations.at_most(f"{device.device}: {less}, {more}", getattr(device, less), getattr(device, more))
        in_use = device.device_total - device.device_free
        relations.at_most(f"{device.device}: reserved, in use", device.reserved, in_use)
        if device.largest_free is not None:
            free = device.reserved - device.allocated
            relations.at_most(f"{device.device}: largest free, free", device.largest_free, free)
    relations.at_most("host: resident, peak", report.host.resident, report.host.peak_resident)
    relations.holds("a GPU is in use", bool(report.devices))
    relations.finish()


def main() -> None:
    options, shape = parse()
    print(gpu.start(options.native), flush=True)
    try:
        alive = run_program(*options.program) if options.program else run_workload(shape, options.steps)
    finally:  # of a program that fails or exits, too
        report = measure()
        print(as_table(report))
        if options.json:
            options.json.write_text(json.dumps(dataclasses.asdict(report), indent=2) + "\n")
    if not options.program:
        check(report)
    del alive


if __name__ == "__main__":
    main()
