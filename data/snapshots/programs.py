"""The programs whose memory snapshots are in this folder: short, and each with something else that a snapshot can have.

A program is a function. Its decorator has the required surroundings, such as the size of the device or PyTorch's settings.
`record.py` runs all of them and keeps their snapshots; bench/explain_remedies.py runs those that ran out of memory or wasted it once more.
"""

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

MIB = 1 << 20
NEWER = not torch.__version__.startswith("2.11.")  # than the version of the oldest snapshots


@dataclass
class Program:
    run: Callable[[], None]
    memory: str = "8GiB"  # of each device
    devices: int = 1
    settings: str = ""  # PYTORCH_CUDA_ALLOC_CONF
    history: dict[str, Any] = field(default_factory=dict)  # arguments of _record_memory_history
    is_whole: bool = True  # the history begins with the program
    runs_out: bool = False
    dump: dict[str, Any] = field(default_factory=dict)  # arguments of _snapshot
    since: str = ""  # the first PyTorch that can run it


PROGRAMS: dict[str, Program] = {}
KEPT: list[Any] = []  # objects that a program still has when its snapshot is taken


def program(**around: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(run: Callable[[], None]) -> Callable[[], None]:
        PROGRAMS[run.__name__] = Program(run, **around)
        return run

    return add


def block(mib: float) -> torch.Tensor:
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


def perceptron(width: int = 512) -> nn.Sequential:
    return nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10)).cuda()


def encoder(layers: int = 2) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda()


# ---- training


@program(history={"stacks": "python"})
def perceptron_adam() -> None:
    """Adam trains a perceptron on batches that a loader has copied."""
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        inputs, labels = torch.randn(128, 256).cuda(), torch.zeros(128, dtype=torch.long).cuda()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


@program(history={"stacks": "all"})
def perceptron_all_frames() -> None:
    """A step of Adam, with frames of C++ in the call stacks."""
    model = perceptron(64)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    model(torch.randn(8, 256, device="cuda")).sum().backward()
    optimizer.step()


@program(history={"stacks": "python", "global_record_annotations": True})
def transformer_stages() -> None:
    """A transformer trains in bfloat16; each part of a step is annotated, and backward memory has the frames of its forward call."""
    model = encoder()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(2):
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            with torch.profiler.record_function(f"step {step}: forward"), torch.autocast("cuda", torch.bfloat16):
                loss = model(torch.randn(4, 64, 256, device="cuda")).float().square().mean()
            with torch.profiler.record_function(f"step {step}: backward"):
                loss.backward()
        with torch.profiler.record_function(f"step {step}: optimizer"):
            optimizer.step()
            optimizer.zero_grad()


@program(history={"stacks": "python"})
def checkpoints() -> None:
    """Layers whose activations are computed once more in the backward pass."""
    layers = nn.ModuleList(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(4)).cuda()
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        hidden = torch.randn(1024, 512, device="cuda", requires_grad=True)
        for layer in layers:
            hidden = checkpoint(layer, hidden, use_reentrant=False)
        hidden.sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@program(history={"stacks": "python", "context": "alloc"})
def accumulation() -> None:
    """Gradients of four small batches for each step; the program says by metadata which part of a step it is in."""
    model = perceptron(1024)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(2):
        for part in range(4):
            words: Any = {"step": step, "part": part, "loss": "cross entropy"} if NEWER else f"step {step}, part {part}"
            torch.cuda.memory._set_memory_metadata(words)
            loss = nn.functional.cross_entropy(model(torch.randn(64, 256, device="cuda")), torch.zeros(64, dtype=torch.long, device="cuda"))
            (loss / 4).backward()
        torch.cuda.memory._set_memory_metadata("optimizer")
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.memory._set_memory_metadata("")
    if NEWER:
        for parameter in model.parameters():
            torch.cuda.memory._annotate_tensor(parameter, f"weights of {tuple(parameter.shape)}")


@program(history={"stacks": "python", "compile_context": True}, dump={"augment_with_fx_traces": True})
def compiled() -> None:
    """Two compiled functions, one of them for two shapes; frames in their code name the nodes of their graphs."""
    from torch.fx.experimental import _config

    _config.enrich_profiler_metadata = True
    model = perceptron(256)
    step = torch.compile(lambda batch: model(batch).relu().sum(), backend="aot_eager")
    norm = torch.compile(lambda batch: batch / batch.norm(dim=-1, keepdim=True), backend="eager", dynamic=False)
    for size in (16, 16, 48):
        step(norm(torch.randn(size, 256, device="cuda"))).backward()


# ---- streams, pools, devices, the host


@program(history={"stacks": "python"})
def streams() -> None:
    """Batches are copied on one stream, used on another and gathered on a third; memory waits for the last of them."""
    copies, work = torch.cuda.Stream(), torch.cuda.Stream()
    weight, gathered = torch.empty(1024, 1024, device="cuda"), []
    for size in (256, 640, 384, 1024, 512):
        with torch.cuda.stream(copies):
            batch = torch.empty(size, 1024).to("cuda", non_blocking=True)
        work.wait_stream(copies)
        with torch.cuda.stream(work):
            result = batch @ weight
        batch.record_stream(work)
        torch.cuda.current_stream().wait_stream(work)
        gathered.append(result.mean(0))
        result.record_stream(torch.cuda.current_stream())
        del batch, result
    torch.stack(gathered)


@program(history={"stacks": "python"})
def graphs() -> None:
    """Two networks of which CUDA graphs are made, each with a pool of its own, beside calls without a graph."""
    for width in (256, 768):
        model, batch = perceptron(width), torch.randn(64, 256, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(batch)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = model(batch)
        KEPT.append((model, graph, batch, result))
        graph.replay()
        model(torch.randn(96, 256, device="cuda"))


@program(history={"stacks": "python"})
def pools() -> None:
    """Weights in a memory pool of their own, which keeps what it has when they go."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        weights = [torch.empty(512, 1024 * k, device="cuda") for k in (1, 2, 3)]
    states = [torch.empty_like(weight) for weight in weights]
    del weights[1]
    with torch.cuda.use_mem_pool(pool):
        weights.append(torch.empty(300, 300, device="cuda"))
    del states[0]
    states.append(torch.empty(3, 1 << 20, device="cuda"))
    KEPT.append((pool, weights, states))


@program(history={"stacks": "python"}, devices=2)
def two_devices() -> None:
    """A network of two halves, each on a device of its own; activations and gradients are copied between them."""
    first, second = perceptron(), nn.Sequential(nn.Linear(10, 2048), nn.ReLU(), nn.Linear(2048, 10)).to("cuda:1")
    for size in (64, 128):
        second(first(torch.randn(size, 256, device="cuda:0")).to("cuda:1")).sum().backward()


@program(history={"stacks": "python"} | ({"record_pinned_host_memory": True} if NEWER else {}))
def pinned() -> None:
    """Activations wait in pinned memory of the host for the backward pass."""
    model = perceptron()
    for size in (128, 512, 128):
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = model(torch.randn(size, 256, device="cuda")).sum()
        loss.backward()
    buffers = [torch.empty(300 * k, 1000, pin_memory=True) for k in range(1, 5)]
    del buffers[::2]


@program(history={"stacks": "python"}, since="2.15")
def placed() -> None:
    """Memory at addresses that the program has chosen."""
    place = ctypes.CDLL(os.environ["CACHALOT_PLACE_LIBRARY"]).place  # of place.cpp
    place.argtypes, place.restype = (ctypes.c_size_t, ctypes.c_void_p), None
    whole = block(24)
    address = whole.data_ptr()
    beside = block(4)
    del whole
    place(3 * MIB, address + 8 * MIB)
    place(5 * MIB, address)
    del beside


# ---- parts of a history


@program(history={"stacks": "python", "max_entries": 300}, is_whole=False)
def middle() -> None:
    """A server whose recording begins when it has run for a while, and keeps the newest entries alone."""
    torch.cuda.memory._record_memory_history(None)
    live = [block(1 + k % 5) for k in range(8)]
    del live[1::3]
    torch.cuda.memory._record_memory_history(**PROGRAMS["middle"].history)
    for k in range(120):
        live.append(block(0.25 + k * 7 % 23 * 0.375))
        if len(live) > 7:
            del live[k * 5 % 7]


@program(history={"stacks": "python", "context": "state", "skip_actions": ["free_requested"]}, is_whole=False)
def skipped() -> None:
    """A training whose history leaves out when it was asked to free memory."""
    model = perceptron(128)
    for _ in range(2):
        model(torch.randn(32, 256, device="cuda")).sum().backward()


@program(history={"enabled": "state", "stacks": "python"}, is_whole=False)
def state_alone() -> None:
    """Memory with call stacks, without a history."""
    model, live = perceptron(128), [block(k) for k in (3, 0.5, 12)]
    KEPT.append((model, live))
    del live[0]
    model(torch.randn(32, 256, device="cuda"))


# ---- memory that is wasted, or runs out


@program(history={"stacks": "python"})
def varied_lengths() -> None:
    """A transformer trains on batches of varied lengths."""
    model = encoder(1)
    optimizer = torch.optim.AdamW(model.parameters())
    for length in (64, 96, 80, 160, 112, 192, 144, 224):
        model(torch.randn(16, length, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program(history={"stacks": "python"}, settings="expandable_segments:True")
def expandable() -> None:
    """Runs varied lengths with segments that grow."""
    varied_lengths()


@program(history={"stacks": "python"})
def serving() -> None:
    """Requests come and go, and each has a cache that grows with its answer."""
    caches: list[list[torch.Tensor]] = []
    for request in range(14):
        caches.append([torch.empty(2, 8, 64 + 48 * (request * 5 % 7), 512, device="cuda") for _ in range(2)])
        for cache in caches:
            for layer, old in enumerate(cache):
                cache[layer] = torch.cat([old, torch.empty(2, 8, 16, 512, device="cuda")], dim=2)
        if len(caches) > 4:
            del caches[request % 4]


@program(history={"stacks": "python"}, memory="1GiB", runs_out=True)
def fragmented() -> None:
    """Answers of growing length leave summaries behind, until none is served."""
    summaries = []
    for i in range(18):
        length = 20 + 2 * i
        answer = block(length)
        del answer
        first = block(length - 2)
        summaries.append(block(2))
        del first
    block(300)


@program(history={"stacks": "python"}, memory="4GiB", runs_out=True)
def limited() -> None:
    """Half of the device is forbidden, and a batch is too large for the rest."""
    torch.cuda.set_per_process_memory_fraction(0.25)
    model = nn.Sequential(nn.Linear(1024, 8192), nn.ReLU(), nn.Linear(8192, 1024)).cuda()
    for size in (1024, 2048, 4096, 6144):
        model(torch.empty(size, 1024, device="cuda")).sum().backward()
    model[0](torch.empty(30000, 1024, device="cuda"))


@program(history={"stacks": "python"}, memory="1GiB", settings="roundup_power2_divisions:2", runs_out=True)
def rounded() -> None:
    """Requests are rounded to powers of two and what is half between, so that much of each block is not used."""
    live = [block(33 + k * 0.75) for k in range(17)]
    live.append(block(65))


@program(history={"stacks": "python"}, memory="1GiB", settings="max_split_size_mb:64", runs_out=True)
def oversize() -> None:
    """Blocks of more than 64 MiB are not split, so that what requests leave of them serves no other."""
    maps = [block(82) for _ in range(8)]
    maps.clear()
    maps = [block(65) for _ in range(8)]
    maps += [block(16) for _ in range(16)]


@program(history={"stacks": "python"}, memory="1GiB", runs_out=True)
def private_pool() -> None:
    """A pool keeps the memory of its computations."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        parts = [block(90 + 10 * k) for k in range(5)]
    del parts
    live = [block(50) for _ in range(4)]
    live.append(block(320))


@program(history={"stacks": "python"}, memory="1GiB", runs_out=True)
def other_stream() -> None:
    """Memory that a stream has freed is kept for it."""
    side = torch.cuda.Stream()
    headers = []
    with torch.cuda.stream(side):
        for k in range(9):
            content = block(30 + 2 * k)
            del content
            part = block(28 + 2 * k)
            headers.append(block(2))
            del part
    torch.cuda.current_stream().wait_stream(side)
    live = [block(35) for _ in range(15)]
    live.append(block(35))


@program(history={"stacks": "python"}, memory="1GiB", runs_out=True)
def graph_pools() -> None:
    """Each graph has a pool of its own for what it computes between."""
    batch, graphs_of_sizes = torch.empty(4 * MIB, device="cuda"), []
    for size in (16, 14, 12, 10, 8):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            between = torch.empty(size * MIB * 2, device="cuda")
            result = between[:1024] + 1
            del between
        graphs_of_sizes.append((graph, result))
        graph.replay()
    block(460)
    del batch


LEAKS = True  # false to run the program as if it did not keep unneeded memory


@program(history={"stacks": "python"}, memory="1GiB", runs_out=True)
def leak() -> None:
    """The results of every step are kept."""
    model, kept = perceptron(1024), []
    for _ in range(12):
        model(torch.empty(1024, 256, device="cuda")).sum().backward()
        kept.append(block(48))
        if not LEAKS:
            del kept[:-1]
    kept.append(block(340))
