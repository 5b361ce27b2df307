"""The program of `cachalot.estimate_memory`: two steps of a model that was saved in a folder, on the simulated GPU."""

from __future__ import annotations

import multiprocessing.spawn
import pickle
import sys
from pathlib import Path
from typing import Any

STEPS = 2  # most programs use most memory in the second


def main(folder: Path) -> None:
    multiprocessing.spawn.prepare(pickle.loads((folder / "main.pickle").read_bytes()))  # as where the model comes from

    import torch
    from torch.utils._pytree import tree_leaves, tree_map_only

    def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(tensor, device="cuda") if tensor.is_meta else tensor.to("cuda")

    def allocated_on_gpu(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device="cuda") if tensor.is_meta else tensor.to("cuda")

    def load(name: str) -> Any:
        return torch.load(folder / f"{name}.pt", map_location="cpu", weights_only=False)

    def sum_of(output: Any) -> Any:
        if isinstance(getattr(output, "loss", None), torch.Tensor):
            return output.loss
        parts = [leaf.sum() for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if not parts:
            raise ValueError("nothing in the model's output needs gradients: give a loss")
        return sum(parts)

    model, optimizer, loss_of = load("model"), load("optimizer"), load("loss") or sum_of
    model._apply(allocated_on_gpu)
    given = tree_map_only(torch.Tensor, on_gpu, load("input"))

    def call() -> Any:
        if isinstance(given, dict):
            return model(**given)
        return model(*given) if isinstance(given, (tuple, list)) else model(given)

    if optimizer is None:
        with torch.no_grad():
            for _ in range(STEPS):
                output = call()
        return
    steps = optimizer(model.parameters())
    for _ in range(STEPS):
        output = call()
        loss = loss_of(output)
        loss.backward()
        steps.step()
        steps.zero_grad()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
