"""A small transformer, and the memory that each part of its training takes."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

from common import gpu, table

HEAD_WIDTH = 64


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of the model and of its batches: `batch` texts of `length` words out of `words`."""

    width: int
    layers: int
    words: int
    length: int
    batch: int


@dataclasses.dataclass(frozen=True)
class Precision:
    parameters: torch.dtype = torch.float32
    autocast: bool = False  # to bfloat16, of what PyTorch holds to be safe in it

    def computing(self) -> contextlib.AbstractContextManager:
        return torch.autocast("cuda", torch.bfloat16, enabled=self.autocast)


def add_shape_options(parser: argparse.ArgumentParser) -> None:
    for name, default, help_text in (
        ("width", 512, f"of the model, a multiple of {HEAD_WIDTH}"),
        ("layers", 4, "of the model"),
        ("words", 8192, "that the model knows"),
        ("length", 128, "of a text, in words"),
        ("batch", 32, "texts in a step"),
    ):
        parser.add_argument(f"--{name}", type=gpu.at_least(1), default=default, help=f"{help_text} ({default})")


def shape_from(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Shape:
    if options.width % HEAD_WIDTH:
        parser.error(f"argument --width: is {options.width}; it must be a multiple of {HEAD_WIDTH}")
    return Shape(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Shape)})


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, -1, HEAD_WIDTH).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class Transformer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.words, shape.width)
        self.positions = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.Sequential(*(Block(shape.width) for _ in range(shape.layers)))
        self.head = nn.Linear(shape.width, shape.words, bias=False)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        places = torch.arange(texts.shape[1], device=texts.device)
        return self.head(self.blocks(self.embedding(texts) + self.positions(places)))


class Training:
    """A model with its optimizer, one step at a time."""

    def __init__(self, shape: Shape, precision: Precision) -> None:
        self.precision = precision
        with torch.device("cuda"):
            self.model = Transformer(shape).to(precision.parameters)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def loss(self, texts: torch.Tensor, share: float = 1.0) -> torch.Tensor:
        """Returns the loss of the words that follow, times the share that this micro-batch has in the step."""
        with self.precision.computing():
            scores = self.model(texts[:, :-1])
            return functional.cross_entropy(scores.flatten(0, 1), texts[:, 1:].flatten()) * share

    def step(self, micro_batches: tuple[torch.Tensor, ...]) -> None:
        for texts in micro_batches:
            self.loss(texts, 1 / len(micro_batches)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def random_texts(shape: Shape) -> torch.Tensor:
    """Texts of one word more than the model reads, as the last one is only to be foreseen."""
    return torch.randint(shape.words, (shape.batch, shape.length + 1), device="cuda")


@dataclasses.dataclass
class Phase:
    """Bytes that live tensors asked for, at the borders of a part of the program and at most within."""

    before: int = 0
    after: int = 0
    peak: int = 0

    @property
    def added(self) -> int:
        return self.after - self.before

    @property
    def temporary(self) -> int:
        """Returns the memory needed beyond the larger border."""
        return self.peak - max(self.before, self.after)


def requested_bytes(when: str = "current") -> int:
    """Returns torch.cuda.memory_allocated without the rounding of blocks beyond their requests."""
    return torch.cuda.memory_stats()[f"requested_bytes.all.{when}"]


@contextlib.contextmanager
def phase() -> Iterator[Phase]:
    """Measures what runs within; the figures are there at its end. All peaks of PyTorch's statistics begin anew."""
    torch.cuda.reset_peak_memory_stats()
    measured = Phase(before=requested_bytes())
    yield measured
    measured.after, measured.peak = requested_bytes(), requested_bytes("peak")


def warm_up(precision: Precision) -> None:
    """A step of a tiny model: cuBLAS takes its workspaces now, not in the first phase that is measured."""
    tiny = Shape(width=HEAD_WIDTH, layers=1, words=8, length=8, batch=1)
    Training(tiny, precision).step((random_texts(tiny),))


def training_memory(shape: Shape, precision: Precision, micro_batches: int = 1) -> dict[str, int]:
    """Bytes of each part of a training, in steps of `micro_batches`, which divide the batch.

    What a part is follows from the phases that it lives through; examples/gradient_accumulation/README.md says how.
    """
    warm_up(precision)
    gpu.begin_anew()
    first, *others = batch = random_texts(shape).chunk(micro_batches)
    with phase() as making:
        training = Training(shape, precision)
    with phase() as forward:
        loss = training.loss(first, 1 / micro_batches)
    with phase() as backward:
        loss.backward()
        del loss
    for texts in others:
        training.loss(texts, 1 / micro_batches).backward()
    gradients_bytes = requested_bytes() - forward.before
    with phase() as optimizer:
        training.optimizer.step()
    training.optimizer.zero_grad()
    gpu.begin_anew()
    with phase() as later_step:
        training.step(batch)
    return {
        "parameters": making.added,
        "gradients": gradients_bytes,
        "optimizer state": optimizer.added,
        "activations": forward.added,
        "temporary, forward": forward.temporary,
        "temporary, backward": backward.temporary,
        "temporary, optimizer": optimizer.temporary,
        "batch and workspaces": making.before,
        "peak requested": later_step.peak,
        "peak allocated": torch.cuda.max_memory_allocated(),
        "peak reserved": torch.cuda.max_memory_reserved(),
    }


def check_peak(relations: table.Relations, name: str, memory: dict[str, int]) -> None:
    """The peak of a step lies between what lives at the end of the forward pass and the sum of all parts."""
    always = memory["batch and workspaces"] + memory["parameters"] + memory["optimizer state"]
    forward_end = always + memory["activations"]
    temporary = max(memory[f"temporary, {where}"] for where in ("forward", "backward", "optimizer"))
    relations.at_most(f"{name}: what must live, peak", forward_end, memory["peak requested"])
    all_parts = forward_end + memory["gradients"] + temporary
    relations.at_most(f"{name}: peak, all parts", memory["peak requested"], all_parts)
    relations.at_most(f"{name}: requested, allocated", memory["peak requested"], memory["peak allocated"])
    relations.at_most(f"{name}: allocated, reserved", memory["peak allocated"], memory["peak reserved"])
