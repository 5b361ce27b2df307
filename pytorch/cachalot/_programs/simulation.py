"""Runs on simulated GPUs: `cachalot fit` from Python, the largest parameters with which a program fits for each GPU and allocator
policy; and the memory that a PyTorch program takes of a GPU (`cachalot simulate`).
"""

from __future__ import annotations

import json
import multiprocessing.spawn
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from .._base import environment
from . import command as _command

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack


class RunOptions(TypedDict, total=False):
    """Options of simulated runs that change what a program allocates.

    Attributes:
        context: what the CUDA context and libraries take of each device: a size such as "1429MiB", "model" (an estimate) or
            "none".
        devices: how many devices there are.
        world_size: the program is one rank of a job with this number of ranks, the others of which are absent.
        rank: which rank it is.
        local_rank: its rank on its machine, which is its device.
        max_seconds: ends each run after this time in seconds.
        compute: which operations of PyTorch are computed: "none", "small" or "all".
        unknown: what sizes are that depend on unknown values, such as of what a mask selects: those of zeros ("zero"), half of
            all elements ("expected"), or all at most ("max").
    """

    context: str | None
    devices: int | None
    world_size: int | None
    rank: int | None
    local_rank: int | None
    max_seconds: float | None
    compute: str | None
    unknown: str | None


def flags(**options: object) -> list[str]:
    """Returns `--max-steps=2` for max_steps=2; nothing for None."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]


def flags_of_run(options: RunOptions) -> list[str]:
    """Raises TypeError for a name that is not an option."""
    unknown = options.keys() - RunOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"{min(unknown)} is no option; these are: {', '.join(RunOptions.__annotations__)}")
    return flags(**options)


def words_of(given: Iterable[object] | str) -> list[str]:
    return [given] if isinstance(given, str) else [str(word) for word in given]


def run(subcommand: str, options: list[str], program: list[str], error: type[RuntimeError]) -> subprocess.CompletedProcess[str]:
    """Runs the command; its standard error is kept. Scripts run with this Python. Raises `error` where there is no command."""
    command = _command.find()
    if command is None:
        raise error("this installation has no `cachalot` command: install a wheel of cachalot")
    child = environment.copied(CACHALOT_PYTHON=sys.executable)
    return subprocess.run([command, subcommand, *options, "--", *program], env=child, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True, errors="replace", check=False)


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the command's message about an error of its own."""
    return done.stderr.strip().rpartition("\n")[2].removeprefix("cachalot: ")


def read(path: Path) -> str:
    """Returns "" where the command was stopped before it wrote."""
    return path.read_text() if path.exists() else ""


class FitError(RuntimeError):
    """`cachalot fit` could not answer; the message is the command's."""


@dataclass(frozen=True)
class Fit:
    """The largest values of a parameter with which a program fits on one GPU; None where none does.

    Attributes:
        gpu: the GPU's key, as `cachalot gpus` lists it.
        name: the name of the product.
        memory_bytes: what CUDA reports as its memory.
        values: the values of the other parameters, if there are several.
        pytorch: the largest value with PyTorch's default policy; of a program that sizes itself to the GPU, with its own policy, and
            then the other two are None.
        expandable_segments: the largest value with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
        page_heap: the largest value with cachalot's page heap, `python -m cachalot run --config heap:pages`.
    """

    gpu: str
    name: str
    memory_bytes: int
    values: Mapping[str, int]
    pytorch: int | None
    expandable_segments: int | None
    page_heap: int | None


def fit(
    program: Sequence[str] | str,
    vary: Mapping[str, Iterable[int]],
    gpus: Iterable[str] = (),
    *,
    memory: Iterable[str] | str = (),
    max_steps: int | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    **run_options: Unpack[RunOptions],
) -> list[Fit]:
    """Finds the largest parameters with which a program fits on GPUs that are simulated.

    The program runs several times in processes of its own, by the command `cachalot fit`; this process needs no GPU and no
    PyTorch. A program that fits with some value is assumed to fit with every smaller one.

        for one in cachalot.fit(["train.py", "--batch", "{batch}"], {"batch": range(1, 257)}, gpus=["t4", "l4"], max_steps=2):
            print(one.gpu, one.pytorch)

    Args:
        program: the program and its arguments, as for `cachalot simulate`, or its path alone. `{batch}` in a word stands for
            the value of the parameter `batch`.
        vary: for each parameter its values. For each combination of the others' values, the largest value of the last is found.
            Where one of the others is a `range`, a program that fits with some value of it is assumed to fit with every
            smaller one, and there are only results above which the largest value falls.
        gpus: the GPUs to answer for, as `cachalot gpus` lists them; without, and without memory, all that PyTorch has kernels
            for.
        memory: a size such as "24GiB", or several, each of which is a GPU like an h100 with this memory.
        max_steps: ends each run after this number of optimizer steps, or forward calls of a program without optimizers.
        jobs: how many runs there are at the same time; without, as many as there are processors, or threads of the
            scheduler's workers; with several devices, one.
        scheduler: the address of a Dask scheduler whose workers make the runs, such as "tcp://host:8786" (docs/tools/fit.md).
        **run_options: `context`, `devices`, `world_size`, `rank`, `local_rank`, `max_seconds`, `compute` and `unknown`, the
            options of `cachalot fit`. With several devices a value fits if it does on each.

    Returns:
        A result for each GPU and combination, the smallest GPU first.

    Raises:
        FitError: the command is missing or failed, or a run of the program did not end well.
    """
    options = [f"--vary={name}={_text_of(values, is_last=name == list(vary)[-1])}" for name, values in vary.items()]
    options += [f"--gpu={gpu}" for gpu in gpus] + [f"--memory={size}" for size in words_of(memory)]
    options += flags(max_steps=max_steps, jobs=jobs, scheduler=scheduler) + flags_of_run(run_options)
    with tempfile.TemporaryDirectory(prefix="cachalot-fit-") as folder:
        path = Path(folder) / "fit.json"
        done = run("fit", [*options, f"--json={path}"], words_of(program), FitError)
        if done.returncode != 0:
            raise FitError(done.stderr.strip().removeprefix("cachalot: "))
        return [Fit(**result) for result in json.loads(path.read_text())["results"]]


def _text_of(values: Iterable[int], *, is_last: bool) -> str:
    """Returns the values as the command reads them: a range in short, because an argument has no room for thousands of numbers.

    Of a parameter before the last a range is more than its numbers (docs/tools/fit.md), and a list of them stays a list.
    """
    numbers = sorted({int(value) for value in values})
    if (is_last or isinstance(values, range)) and len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}..{numbers[-1]}"
    return ",".join(map(str, numbers))


Policy = Literal["pytorch", "expandable_segments", "page_heap"]

_MIB = 1 << 20
_UNLIMITED_GIB, _LEAST_GIB = 4096, 256  # of all devices, and of each, as the runs of `cachalot fit`
_PROGRAM = Path(__file__).with_name("estimate_program.py")  # of estimate_memory


class EstimateError(RuntimeError):
    """The program's memory could not be estimated; the message says why."""


@dataclass(frozen=True)
class Estimate:
    """The memory that a program takes, in MiB; of several devices, on the one where it takes most.

    The parts need not be there at the same time, and their sum is not the total.

    Attributes:
        total_mb: what the device shows as used at the peak, with the CUDA context and libraries.
        reserved_mb: what PyTorch's allocator reserves at its peak.
        allocated_mb: what the tensors take at their peak.
        params_mb: the parameters.
        gradients_mb: the gradients, at most, at the peak or after a step of an optimizer.
        optimizer_mb: the state of optimizers, likewise.
        activations_mb: the activations at the peak.
        context_mb: what the CUDA context and libraries take.
        gpu: the simulated GPU, as `cachalot gpus` lists it.
        steps: how many optimizer steps were run.
        exact: whether the replay, from which `fits` answers, holds what the run held.
    """

    total_mb: float
    reserved_mb: float
    allocated_mb: float
    params_mb: float
    gradients_mb: float
    optimizer_mb: float
    activations_mb: float
    context_mb: float
    gpu: str
    steps: int
    exact: bool
    _cards: list[dict[str, Any]] = field(repr=False)  # each with the same GPUs, for a device
    _left_out: list[str] = field(repr=False)

    def fits(self, gpu: str | None = None, policy: Policy = "pytorch") -> bool:
        """Returns whether the program fits on a GPU with an allocator policy: the answer of `cachalot simulate`'s table.

        Args:
            gpu: its key or name, as `cachalot gpus` lists it; without, the GPU that was simulated, with its own memory.
            policy: "pytorch", PyTorch's default; "expandable_segments", of PYTORCH_CUDA_ALLOC_CONF; or "page_heap", cachalot's.

        Raises:
            ValueError: there is no such GPU or policy, or the installed PyTorch has no kernels for the GPU.
        """
        if policy not in ("pytorch", "expandable_segments", "page_heap"):
            raise ValueError(f"policy {policy!r} is not known: pytorch, expandable_segments and page_heap are")
        name = _plain(gpu or self.gpu)
        if name in map(_plain, self._left_out):
            raise ValueError(f"PyTorch as installed here has no kernels for {gpu or self.gpu}")
        rows = [card for card in self._cards if name == _plain(card["gpu"])]
        rows = rows or [card for card in self._cards if name == _plain(card["name"])]
        if not rows:
            raise ValueError(f"{gpu or self.gpu!r} is not a known GPU: `cachalot gpus` lists them")
        return all(row[policy] for row in rows)


def estimate(
    program: Sequence[str] | str,
    *,
    gpu: str = "h100",
    memory: str | None = None,
    max_steps: int | None = 2,
    **options: Unpack[RunOptions],
) -> Estimate:
    """Estimates the memory that a PyTorch program takes of a GPU.

    The program runs on a simulated GPU, in a process of its own, by the command `cachalot simulate`; this needs no GPU.

        estimate = cachalot.estimate(["train.py", "--batch", "32"], max_steps=2)
        print(estimate.total_mb, estimate.activations_mb, estimate.fits("l4"), estimate.fits("l4", "expandable_segments"))

    Args:
        program: the program and its arguments, as for `cachalot simulate`, or its path alone.
        gpu: the GPU that is simulated, as `cachalot gpus` lists it. Libraries choose kernels and workspaces for it.
        memory: its memory, such as "24GiB"; without, as much as the program takes.
        max_steps: ends the run after this number of optimizer steps, or forward calls of a program without optimizers; None: the
            program ends by itself.
        **options: `context`, `devices`, `world_size`, `rank`, `local_rank`, `max_seconds`, `compute` and `unknown`, the options of
            `cachalot simulate`.

    Raises:
        EstimateError: the command is missing or refuses an option, or the program did not end well or did not use the GPU.
    """
    unlimited = f"{max(_UNLIMITED_GIB // (options.get('devices') or 1), _LEAST_GIB)}GiB"
    words = flags(gpu=gpu, memory=memory or unlimited, max_steps=max_steps) + flags_of_run(options)
    with tempfile.TemporaryDirectory(prefix="cachalot-estimate-") as folder:
        path = Path(folder) / "report.json"
        done = run("simulate", [*words, f"--json={path}"], words_of(program), EstimateError)
        report = read(path)
    if not report:
        raise EstimateError(complaint(done))
    return _estimate_of(json.loads(report), done.stderr, gpu)


def estimate_memory(
    model: torch.nn.Module,
    sample_input: Any,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    *,
    gpu: str = "h100",
    **options: Unpack[RunOptions],
) -> Estimate:
    """Estimates the memory that two steps of a model take of a GPU.

    A process of its own loads a copy of the model, moves it to a simulated GPU, and runs it; the model here stays as it is, and may be
    on the CPU or on the meta device. Each step calls the model, the loss, its backward pass, and the optimizer.

        model = torch.nn.TransformerEncoderLayer(1024, 16)
        estimate = cachalot.estimate_memory(model, torch.empty(128, 32, 1024), torch.optim.AdamW)
        print(estimate.total_mb, estimate.fits("l4"))

    What is given is pickled. A script that defines the model's class must guard what it runs by `if __name__ == "__main__"`, as for
    multiprocessing, because the process imports it; the class must not be defined in a notebook or an interactive session.

    Args:
        model: the model, in the mode (`train` or `eval`) in which it is to run.
        sample_input: the model's input: a tensor, a tuple of arguments, or a dict of arguments by name.
        optimizer: is called with the model's parameters, such as torch.optim.AdamW or functools.partial(torch.optim.SGD, lr=0.1).
            Without it the model runs forward only, by torch.no_grad.
        loss: is called with the model's output, and returns a scalar; without, the output's `loss` if it has one, otherwise the
            sum of the outputs that need gradients.
        gpu: the GPU that is simulated, as `cachalot gpus` lists it.
        **options: as for `cachalot.estimate`.

    Raises:
        EstimateError: as estimate does, or something cannot be pickled.
    """
    import torch

    if Path(getattr(sys.modules["__main__"], "__file__", None) or "") == _PROGRAM:
        raise EstimateError("estimate_memory runs while its own process imports the main script: guard the call there by "
                            "`if __name__ == \"__main__\":`")
    if loss is not None and optimizer is None:
        raise EstimateError("a loss needs an optimizer: without one the model runs forward only")
    with tempfile.TemporaryDirectory(prefix="cachalot-estimate-") as folder:
        settings = multiprocessing.spawn.get_preparation_data("cachalot-estimate")
        settings.pop("authkey", None)
        (Path(folder) / "main.pickle").write_bytes(pickle.dumps(settings))
        parts = {"model": model, "input": sample_input, "optimizer": optimizer, "loss": loss}
        for name, part in parts.items():
            try:
                torch.save(part, Path(folder) / f"{name}.pt")
            except Exception as error:  # noqa: BLE001  # a class may raise anything while it is pickled
                raise EstimateError(f"the {name} cannot be pickled: {error}") from error
        child = [sys.executable, str(_PROGRAM), folder]
        return estimate(child, gpu=gpu, max_steps=None, **options)


def _estimate_of(report: Mapping[str, Any], output: str, gpu: str) -> Estimate:
    ending = report["ending"]
    if not ending["good"]:
        raise EstimateError(f"the program {_how_it_ended(report, output)}")
    devices = [(torch, driver, process) for process in report["processes"] if process["torch"]
               for torch in process["torch"]["devices"]
               for driver in process["driver"]["devices"] if driver["device"] == torch["device"]]
    if not devices:
        raise EstimateError("the program did not use the GPU with PyTorch")
    torch, driver, _ = max(devices, key=lambda device: device[1]["common_peak_bytes"])
    tables = [table for process in report["processes"] for table in process["cards"]]
    cards = [card for table in tables for card in table["cards"] if card["gpu"] != "--memory"]
    at_peak: dict[str, Any] = torch["peak"] or {}
    peak: dict[str, float] = at_peak.get("kinds", {})
    states: list[dict[str, float]] = [peak, *(step["kinds"] for step in torch["steps"])]

    def most(kind: str) -> float:
        return max(state.get(kind, 0) for state in states) / _MIB

    return Estimate(
        total_mb=driver["common_peak_bytes"] / _MIB,
        reserved_mb=torch["peak_reserved_bytes"] / _MIB,
        allocated_mb=torch["peak_allocated_bytes"] / _MIB,
        params_mb=most("parameters"),
        gradients_mb=most("gradients"),
        optimizer_mb=most("optimizer state"),
        activations_mb=peak.get("activations", 0) / _MIB,
        context_mb=(driver["context_bytes"] + sum(driver["library_bytes"].values())) / _MIB,
        gpu=next((card["gpu"] for card in cards if _plain(card["gpu"]) == _plain(gpu)),
                 next((card["gpu"] for card in cards if card["name"] == driver["name"]), gpu)),
        steps=ending["optimizer_steps"],
        exact=all(table["exact"] for table in tables),
        _cards=cards,
        _left_out=[key for table in tables for key in table["left_out"]],
    )


def _how_it_ended(report: Mapping[str, Any], output: str) -> str:
    ending = report["ending"]
    if ending["signal"]:
        return f"ended by signal {ending['signal']}"
    if not ending["error"]:
        return f"ended with exit code {report['exit_code']}"
    kind = ending["error"]["type"]
    told = re.findall(rf"^(?:[\w.]+\.)?{re.escape(kind)}: (.*)$", output, re.MULTILINE)
    text = f"ended with an error of type {kind} at {ending['error']['at']}"
    return f"{text}: {told[-1]}" if told else text


def _plain(name: str) -> str:
    """Returns a name in the form in which the command compares the names of GPUs."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
