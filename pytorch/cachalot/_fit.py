"""`cachalot fit` from Python: the largest parameters with which a program fits, for each GPU and allocator policy."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import _simulation
from ._simulation import RunOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
        pytorch: the largest value with PyTorch's default policy.
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
        memory: a size such as "24GiB", or several, each of which is a GPU like an h100 with so much memory.
        max_steps: ends each run after so many optimizer steps, or forward calls of a program without optimizers.
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
    options += [f"--gpu={gpu}" for gpu in gpus] + [f"--memory={size}" for size in _simulation.words_of(memory)]
    options += _simulation.flags(max_steps=max_steps, jobs=jobs, scheduler=scheduler) + _simulation.flags_of_run(run_options)
    with tempfile.TemporaryDirectory(prefix="cachalot-fit-") as folder:
        path = Path(folder) / "fit.json"
        done = _simulation.run("fit", [*options, f"--json={path}"], _simulation.words_of(program), FitError)
        if done.returncode != 0:
            raise FitError(done.stderr.strip().removeprefix("cachalot: "))
        return [Fit(**result) for result in json.loads(path.read_text())["results"]]


def _text_of(values: Iterable[int], *, is_last: bool) -> str:
    """As the command reads them: a range in short, because an argument has no room for thousands of numbers.

    Of a parameter before the last a range is more than its numbers (docs/tools/fit.md), and a list of them stays a list.
    """
    numbers = sorted({int(value) for value in values})
    if (is_last or isinstance(values, range)) and len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}..{numbers[-1]}"
    return ",".join(map(str, numbers))
