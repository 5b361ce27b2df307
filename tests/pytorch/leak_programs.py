"""Programs that leak, with what the leak report has to say, and programs that do not: a table, and the code that runs it.

A program is text in up to three parts, which lines of three dots part: what comes before the loop, what an iteration does,
and what comes after. Its shape says what is around it: `module` and `cell` (a notebook's, compiled anew each time) have
globals, `main` and `class` variables of a function, `loader` is a function that a DataLoader gives a `batch`. The line
that has to be named ends in `# leaks`. Beside the names of _NAMES a program has `block()`, a new tensor on the GPU, and
`weight()`, one with gradients: no frames of Python's, so that the line is the program's own.
"""

import contextlib
import dataclasses
import gc
import json
import linecache
import sys
import textwrap
import traceback
import types

LEAKING_ITERATIONS = 16
SILENT_ITERATIONS = 20
SHAPES = ("module", "main", "class", "cell", "loader")

_NAMES = """
import asyncio, atexit, collections, concurrent.futures, contextvars, copy, dataclasses, functools, gc, heapq, inspect
import itertools, logging, logging.handlers, queue, threading, types, unittest.mock, weakref
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
block = functools.partial(torch.zeros, 16384, device="cuda")
weight = functools.partial(torch.ones, 16384, device="cuda", requires_grad=True)
"""


@dataclasses.dataclass(frozen=True)
class Row:
    """A program, and what is to be said of it."""

    name: str
    shape: str
    text: str
    suspect: str = ""  # its kind and, after a space, its name; "unknown": no holder is named, and the row says why
    cure: str = ""  # words of the text
    operation: str = ""  # of a backward pass, where that allocates and no line does

    @property
    def leaks(self):
        return "# leaks" in self.text or bool(self.operation)


TABLE = []


def leaks(name, shape, suspect, cure, text, operation=""):
    TABLE.append(Row(name, shape, text, suspect, cure, operation))


def silent(name, shape, text):
    TABLE.append(Row(name, shape, text))


# --- lists, dictionaries and what else is filled ------------------------------------------------------------------------

leaks("losses in a list", "main", "container losses", "Keep loss.item()", """
w = weight()
losses = []
...
loss = (w * 2).exp().sum()  # leaks
loss.backward(retain_graph=True)
losses.append(loss)
""")
leaks("outputs of a module's steps", "class", "container self.outputs", "Keep loss.item()", """
self.outputs = []
model = nn.Linear(64, 64).cuda()
x = torch.ones(64, 64, device="cuda")
...
output = model(x).square()  # leaks
self.outputs.append({"loss": output.mean(), "step": i})  # leaks
""")
leaks("predictions of a metric", "loader", "container metric.predictions", "keep what is needed on the host", """
class Accuracy:
    def __init__(self):
        self.predictions = []
    def update(self, prediction):
        self.predictions.append(prediction.argmax(-1))  # leaks
metric = Accuracy()
model = nn.Linear(64, 2048).cuda()
...
with torch.no_grad():
    metric.update(model(batch))
""")
leaks("a list in a dictionary of logs", "module", "container logs['loss']", "Keep loss.item()", """
w = weight()
logs = {}
...
logs.setdefault("loss", []).append((w * 2).exp().sum())  # leaks
""")
leaks("a defaultdict by phase", "cell", "container stats['train']", "keep what is needed on the host", """
stats = collections.defaultdict(list)
...
stats["train"].append(block() + 1)  # leaks
""")
leaks("a dictionary by step", "main", "container outputs", "Empty it", """
outputs = {}
...
outputs[i] = block()  # leaks
""")
leaks("masks by length", "class", "container self.masks", "Empty it", """
self.masks = {}
...
length = 100 + i
if length not in self.masks:
    self.masks[length] = torch.ones(length, length, device="cuda").tril()  # leaks
""")
leaks("a replay buffer without limit", "main", "container buffer.memory", "keep what is needed on the host", """
class ReplayBuffer:
    def __init__(self):
        self.memory = []
    def push(self, *transition):
        self.memory.append(transition)
buffer = ReplayBuffer()
...
buffer.push(block(), i % 4, 1.0)  # leaks
""")
leaks("a deque without maxlen", "module", "container window", "Give it a maxlen", """
window = collections.deque()
...
window.append(block())  # leaks
""")
leaks("a queue that nobody empties", "main", "container results.queue", "empty it", """
results = queue.Queue()
...
results.put((i, block()))  # leaks
""")
leaks("a simple queue that nobody empties", "class", "container self.results", "Empty it", """
self.results = queue.SimpleQueue()
...
self.results.put(block())  # leaks
""")
leaks("a writer's queue of losses", "main", "container writer.events.queue", "Keep loss.item()", """
class Writer:
    def __init__(self):
        self.events = queue.Queue()
    def add_scalar(self, tag, value, step):
        self.events.put((tag, value, step))
writer = Writer()
w = weight()
...
loss = (w * 2).exp().sum()  # leaks
writer.add_scalar("loss", loss, i)
""")
leaks("a heap of beams", "cell", "container beams", "Empty it", """
beams = []
...
heapq.heappush(beams, (-i, block()))  # leaks
""")
leaks("a set of tensors", "main", "container seen", "Empty it", """
seen = set()
...
seen.add(block())  # leaks
""")
leaks("a list of a class", "module", "container Registry.items", "Empty it", """
class Registry:
    items = []
...
Registry.items.append(block())  # leaks
""")
leaks("a list of another module", "main", "container cache", "a global of leaky_utils", """
import sys
utils = sys.modules["leaky_utils"] = types.ModuleType("leaky_utils")
utils.cache = []
...
utils.cache.append(block())  # leaks
...
del sys.modules["leaky_utils"]
""")
leaks("dataclasses in a list", "class", "container self.records", "Keep loss.item()", """
@dataclasses.dataclass
class Record:
    step: int
    loss: torch.Tensor
self.records = []
w = weight()
...
self.records.append(Record(i, (w * 2).exp().sum()))  # leaks
""")
leaks("objects with slots in a list", "main", "container episodes", "Empty it", """
class Step:
    __slots__ = ("state",)
    def __init__(self, state):
        self.state = state
episodes = []
...
episodes.append(Step(block()))  # leaks
""")
leaks("batches of a loader", "loader", "container batches", "Empty it", """
batches = []
...
batches.append(batch * 2)  # leaks
""")
leaks("an attribute of a tensor", "main", "container w.kept", "Empty it", """
w = weight()
w.kept = []
...
w.kept.append(w.detach() * 2)  # leaks
""")
leaks("partial functions in a list", "main", "container callbacks", "Empty it", """
callbacks = []
...
callbacks.append(functools.partial(print, block()))  # leaks
""")
leaks("futures with their results", "main", "container futures", "Empty it", """
pool = concurrent.futures.ThreadPoolExecutor(1)
futures = []
...
futures.append(pool.submit(lambda: block() + 1))  # leaks
futures[-1].result()
...
pool.shutdown()
""")
leaks("records of a logger", "module", "container handler.buffer", "Keep loss.item()", """
logger = logging.Logger("training")
handler = logging.handlers.MemoryHandler(1000)
logger.addHandler(handler)
w = weight()
...
loss = (w * 2).exp().sum()  # leaks
logger.info("loss %s", loss)
...
handler.buffer.clear()
""")
# Two lists of the mock's have all calls: either is right.
leaks("calls of a mock", "main", "container", "`writer._mock_", """
writer = unittest.mock.Mock()
...
writer(block())  # leaks
""")
leaks("states of a recurrent model in a list", "class", "container self.states", "Keep loss.item()", """
self.states = []
hidden = torch.zeros(64, 64, device="cuda")
cell = nn.GRUCell(64, 64).cuda()
...
hidden = cell(torch.ones(64, 64, device="cuda"), hidden.detach())  # leaks
self.states.append(hidden)
""")
leaks("keys and values of past tokens", "main", "container past", "Empty it", """
past = []
...
past.append((block(), block()))  # leaks
""")
leaks("finalizers of a model that lives", "main", "container finalize._registry", "detach() the finalizer", """
model = nn.Linear(4, 4)
...
weakref.finalize(model, print, block())  # leaks
...
for finalizer in list(weakref.finalize._registry): finalizer.detach()
""")
leaks("callbacks of weak references", "module", "container references", "Empty it", """
class Model: pass
model = Model()
references = []
...
references.append(weakref.ref(model, lambda _, kept=block(): None))  # leaks
""")

# --- graphs -------------------------------------------------------------------------------------------------------------

leaks("a running sum", "module", "graph total", ".detach() it between iterations", """
w = weight()
total = 0
...
loss = (w * 2).exp().sum()  # leaks
total = total + loss  # leaks
""")
leaks("a running sum in place", "main", "graph total", ".detach() it between iterations", """
w = weight()
total = torch.zeros((), device="cuda")
...
loss = (w * 2).exp().sum()  # leaks
total += loss
""")
leaks("a hidden state", "loader", "graph hidden", ".detach() it between iterations", """
cell = nn.RNNCell(64, 64).cuda()
hidden = torch.zeros(64, 64, device="cuda")
...
hidden = cell(batch, hidden)  # leaks
""")
leaks("a moving average of the loss", "class", "graph self.average", ".detach() it between iterations", """
w = weight()
self.average = torch.zeros((), device="cuda")
...
loss = (w * 2).exp().sum()  # leaks
loss.backward(retain_graph=True)
self.average = 0.9 * self.average + 0.1 * loss  # leaks
""")
leaks("a buffer of a module", "main", "graph model.mean", ".detach() it between iterations", """
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16384))
        self.register_buffer("mean", torch.zeros(16384))
    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * (x * self.scale).exp()  # leaks
        return x - self.mean.detach()
model = Norm().cuda()
...
model(block()).sum()
""")
leaks("losses written into a tensor", "cell", "graph history", ".detach() it between iterations", """
w = weight()
history = torch.zeros(100, device="cuda")
...
history[i] = (w * 2).exp().sum()  # leaks
""")
leaks("one loss of all with retain_graph", "main", "graph total", ".detach() it between iterations", """
w = weight()
total = 0.0
...
total = total + (w * 2).exp().sum()  # leaks
w.grad = None
total.backward(retain_graph=True)
""")
leaks("a state of an agent in an attribute", "class", "graph agent.state", ".detach() it between iterations", """
agent = types.SimpleNamespace(state=block())
w = weight()
...
agent.state = torch.tanh(agent.state * w)  # leaks
""")
leaks("a nonlocal sum of a closure", "main", "closure", "Let go of it", """
def meter():
    total = 0
    def add(loss):
        nonlocal total
        total = total + loss
    return add
add = meter()
w = weight()
...
add((w * 2).exp().sum())  # leaks
""")
leaks("gradients with graphs", "module", "gradient .grad", "create_graph=True", """
w = weight()
...
w.exp().square().sum().backward(create_graph=True)  # leaks
...
w.grad = None
""")
leaks("penalties with graphs", "main", "container penalties", "Keep loss.item()", """
w = weight()
penalties = []
...
gradient, = torch.autograd.grad((w * 2).exp().sum(), w, create_graph=True)  # leaks
penalties.append(gradient.square().sum())  # leaks
""")
leaks("gradients that are kept", "main", "container history", "keep what is needed on the host", """
w = weight()
history = []
...
(w * 2).exp().sum().backward()
history.append(w.grad)
w.grad = None
""", operation="MulBackward0")
leaks("copies of gradients", "class", "container self.history", "keep what is needed on the host", """
w = weight()
self.history = []
...
(w * 2).exp().sum().backward()
self.history.append(w.grad.clone())  # leaks
w.grad.zero_()
""")
leaks("the output of a function in its ctx", "main", "context Exp", "ctx.save_for_backward()", """
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.out = x.exp()  # leaks
        return ctx.out
    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.out
gc.disable()
w = weight()
...
Exp.apply(w).sum().backward()
w.grad = None
""")
leaks("a replay buffer in an array of objects", "main", "container memory.data", "Empty it", """
import numpy
memory = types.SimpleNamespace(data=numpy.zeros(1000, dtype=object))
...
memory.data[i] = (i, block())  # leaks
""")
leaks("an attribute of parameters", "main", "container model", "the attribute `history` of the parameters", """
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]).cuda()
for parameter in model.parameters():
    parameter.history = []
...
for parameter in model.parameters():
    parameter.history.append(block())  # leaks
del parameter
""")
leaks("hooks of a module deep in objects", "main", "hook net.0.0.1", "call remove()", """
net = nn.Sequential(nn.Sequential(nn.Sequential(nn.Identity(), nn.Identity())))
trainer = types.SimpleNamespace(parts=[types.SimpleNamespace(nets={"teacher": net})])
...
def save(module, inputs, output, kept=[]):
    kept.append(output.square())  # leaks
trainer.parts[0].nets["teacher"][0][0][1].register_forward_hook(save)
trainer.parts[0].nets["teacher"](block())
""")
leaks("a list in an object with slots", "module", "container keeper.kept", "Empty it", """
class Keeper:
    __slots__ = ("kept",)
keeper = Keeper()
keeper.kept = []
...
keeper.kept.append(block())  # leaks
""")
leaks("contexts that are kept", "module", "container after_response", "the list", """
features = contextvars.ContextVar("features")
after_response = []
def handle():
    features.set(block())  # leaks
    after_response.append(contextvars.copy_context())
...
contextvars.copy_context().run(handle)
""")
leaks("a context variable of tasks that wait", "main", "container held", "Empty it", """
held = contextvars.ContextVar("held")
loop = asyncio.new_event_loop()
tasks = set()
async def session():
    held.set(block())  # leaks
    await asyncio.sleep(1000)
...
tasks.add(loop.create_task(session()))
loop.run_until_complete(asyncio.sleep(0))
...
for task in tasks:
    task.cancel()
loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
loop.close()
""")
leaks("answers of tasks that have ended", "main", "container answers", "Empty it", """
loop = asyncio.new_event_loop()
answers = {}
async def answer():
    return {"tokens": [1, 2], "cache": (block(),)}  # leaks
...
answers[i] = loop.create_task(answer())
loop.run_until_complete(answers[i])
...
loop.close()
""")
leaks("futures that failed", "class", "exception self.futures", "ValueError say", """
pool = concurrent.futures.ThreadPoolExecutor(1)
def handle():
    features = block()  # leaks
    raise ValueError(features.shape)
self.futures = []
...
self.futures.append(pool.submit(handle))
self.futures[-1].exception()
...
pool.shutdown()
""")
leaks("a sum of losses of checkpoints", "main", "graph total", ".detach() it between iterations", """
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).cuda()
total = 0
...
x = torch.ones(256, 64, device="cuda") * 2  # leaks
total = total + checkpoint(model, x, use_reentrant=False).sum()
""")
leaks("views of what a model returns", "class", "container self.documents", "clone() what is needed of them", """
self.documents = []
...
hidden = block().view(64, 256) * 2  # leaks
self.documents.append(hidden[0])
""")
leaks("a hook that refers to its own tensor", "main", "cycle", "a hook that refers to its own tensor", """
w = weight()
def forward():
    hidden = w * 2  # leaks
    hidden.register_hook(lambda gradient: gradient / (hidden.norm() + 1))
...
forward()
""")
leaks("hooks of functions of graphs", "class", "container", "grad_fn.register_hook", """
def clear(strategy, *gradients):
    strategy.memo = None
w = weight()
...
strategy = types.SimpleNamespace(memo=w * 2)  # leaks
strategy.memo.grad_fn.register_hook(functools.partial(clear, strategy))
""")
leaks("a state of a model whose loss goes through it", "module", "graph model.context", ".detach() it between iterations", """
model = torch.nn.Linear(64, 64).cuda()
model.context = 0
...
model.context = 0.9 * model.context + torch.tanh(model(torch.ones(256, 64, device="cuda")))  # leaks
loss = model.context.mean()
loss.backward(retain_graph=True)
""")
leaks("timers that were not cancelled", "main", "container _active", "threads that run", """
timers = []
...
timer = threading.Timer(3600, print, args=(block(),))  # leaks
timer.daemon = True
timer.start()
timers.append(weakref.ref(timer))
...
for timer in timers:
    timer().cancel()
""")
leaks("losses of attacks after their backward pass", "main", "container losses", "empty it after backward()", """
w = weight()
losses = []
...
x = block().requires_grad_(True)  # leaks
loss = (w * x).sum()
loss.backward()
losses.append(loss)
""")
leaks("a sum of scores whose images have gradients", "module", "graph total", ".detach() it between iterations", """
w = weight()
total = 0
...
image = block().requires_grad_(True)  # leaks
score = (w * image).sum()
score.backward()
total = total + score
""")
leaks("a tensor in the ctx of a loss that is kept", "module", "container losses", "Keep loss.item()", """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.scale = x * 2  # leaks
        return ctx.scale.sum()
    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.scale
w = weight()
losses = []
...
losses.append(Scaled.apply(w))
""")
leaks("what a pack hook collects", "main", "container packed", "Empty it", """
packed = []
def pack(tensor):
    packed.append(tensor.clone())  # leaks
    return len(packed) - 1
w = weight()
...
with torch.autograd.graph.saved_tensors_hooks(pack, packed.__getitem__):
    w.exp().sum().backward()
w.grad = None
""")

# --- hooks --------------------------------------------------------------------------------------------------------------

leaks("forward hooks registered again and again", "main", "hook model", "remove() of its handle", """
model = nn.Linear(64, 64).cuda()
...
model.register_forward_hook(lambda module, x, y, scale=block(): None)  # leaks
""")
leaks("a forward hook that fills a global list", "module", "container features", "Keep loss.item()", """
features = []
model = nn.Linear(64, 256).cuda()
model.register_forward_hook(lambda module, x, y: features.append(y))
x = torch.ones(64, 64, device="cuda")
...
model(x)  # leaks
""")
leaks("a forward hook that fills its own list", "loader", "hook", "Remove the hook", """
def watch(module):
    outputs = []
    module.register_forward_hook(lambda module, x, y: outputs.append(y.detach()))
model = nn.Linear(64, 256).cuda()
watch(model)
...
with torch.no_grad():
    model(batch)  # leaks
""")
leaks("hooks that keep gradients beside those of a model", "main", "hook model.0", "remove() of its handle", """
class Probe:
    def __init__(self, layer):
        self.kept = None
        layer.register_forward_hook(self.keep)
    def keep(self, module, inputs, output):
        self.kept = block() if self.kept is None else self.kept  # leaks
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda()
...
probe = Probe(model[0])
model(torch.ones(4, 8, device="cuda")).sum().backward()
""")
leaks("hooks of a parameter", "class", "hook model.weight", "remove() of its handle", """
model = nn.Linear(64, 64).cuda()
...
model.weight.register_hook(lambda gradient, mask=block(): None)  # leaks
""")
leaks("hooks after a gradient is accumulated", "main", "hook w", "remove() of its handle", """
w = weight()
...
w.register_post_accumulate_grad_hook(lambda parameter, old=block(): None)  # leaks
""")
leaks("hooks of all modules", "main", "hook _global_forward_hooks", "remove() of its handle", """
from torch.nn.modules import module
...
scale = block()  # leaks
module.register_module_forward_hook(lambda module, x, y, scale=scale: None)
...
module._global_forward_hooks.clear()
""")
leaks("a backward hook that collects", "main", "container gradients", "keep what is needed on the host", """
gradients = []
model = nn.Linear(64, 256).cuda()
model.register_full_backward_hook(lambda module, before, after: gradients.append(after[0]))
x = torch.ones(64, 64, device="cuda")
...
model(x).exp().sum().backward()
model.zero_grad()
""", operation="ExpBackward0")

# --- functions and what keeps their variables ---------------------------------------------------------------------------

leaks("a cache of a function", "module", "cache mask()", "cache_clear()", """
@functools.lru_cache(None)
def mask(length):
    return torch.ones(length, 1000, device="cuda")  # leaks
...
mask(50 + i)
""")
leaks("a cache of a method", "main", "cache", "cache_clear()", """
class Encoder:
    @functools.cache
    def positions(self, step):
        return torch.ones(10, 1000, device="cuda")  # leaks
encoder = Encoder()
...
encoder.positions(i)
""")
leaks("an argument's default", "main", "closure", "has a default argument that holds", """
def collect(x, kept=[]):
    kept.append(x)
...
collect(block())  # leaks
""")
leaks("a closure that collects", "cell", "closure", "Let go of it", """
def collector():
    kept = []
    return lambda tensor: kept.append(tensor)
collect = collector()
...
collect(block())  # leaks
""")
leaks("a generator that collects", "main", "generator collect()", "close()", """
def collect():
    kept = []
    while True:
        kept.append((yield))
sink = collect()
next(sink)
...
sink.send(block())  # leaks
""")
leaks("generators that are not finished", "class", "container self.streams", "Empty it", """
def stream():
    batch = block()  # leaks
    yield batch[:10].cpu()
    yield batch[10:].cpu()
self.streams = []
...
self.streams.append(stream())
next(self.streams[-1])
""")
leaks("a coroutine that collects", "main", "generator collect()", "close()", """
@types.coroutine
def received():
    return (yield)
async def collect():
    kept = []
    while True:
        kept.append(await received())
sink = collect()
sink.send(None)
...
sink.send(block())  # leaks
""")
leaks("an iterator that tee keeps items for", "main", "container second", "read them in step", """
first, second = itertools.tee(block() for _ in itertools.count())  # leaks
...
for _ in range(10):  # in all more than fit into the first of tee's pieces, which both iterators know
    next(first)
""")
leaks("a cycle of itertools over what lies on the GPU", "main", "container batches", "the itertools.cycle", """
batches = itertools.cycle(block() for _ in itertools.count())  # leaks
...
next(batches)
""")
leaks("exceptions that a dictionary keeps", "class", "exception self.failed", "the dict `self.failed`", """
def train():
    batch = block()  # leaks
    raise ValueError(batch.shape)
self.failed = {}
...
try:
    train()
except ValueError as error:
    self.failed[i] = error
""")
leaks("exceptions that are kept", "main", "exception errors", "in a variable `batch` of train()", """
def train():
    batch = block()  # leaks
    raise ValueError(batch.shape)
errors = []
...
try:
    train()
except ValueError as error:
    errors.append(error)
""")
leaks("frames that are kept", "class", "container self.frames", "Empty it", """
def train():
    batch = block()  # leaks
    return inspect.currentframe()
self.frames = []
...
self.frames.append(train())
""")
leaks("a thread's own list", "module", "container local.kept", "Empty it", """
local = threading.local()
local.kept = []
...
local.kept.append(block())  # leaks
""")
leaks("a context's list", "main", "container history", "a context variable", """
history = contextvars.ContextVar("history", default=())
...
history.set((*history.get(), block()))  # leaks
...
history.set(())
""")
leaks("a list in the ctx of a loss that is kept", "main", "container losses", "Keep loss.item()", """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = [x * 2]  # leaks
        return ctx.kept[0].sum()
    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.kept[0]
w = weight()
losses = []
...
losses.append(Scaled.apply(w))
""")
leaks("threads that wait", "main", "container batch", "a variable of work()", """
done = threading.Event()
def work(batch):
    done.wait()
threads = []
...
thread = threading.Thread(target=work, args=(block(),))  # leaks
thread.start()
threads.append(weakref.ref(thread))
...
done.set()
for thread in threads:
    if thread(): thread().join()
""")
leaks("a chain of objects", "main", "container last", "Empty it", """
class Node:
    def __init__(self, value, previous):
        self.value, self.previous = value, previous
last = None
...
last = Node(block(), last)  # leaks
""")
leaks("a long chain with links in both directions", "class", "container self.last", "Empty it", """
class Node:
    def __init__(self, value, previous):
        self.value, self.previous, self.next = value, previous, None
        if previous: previous.next = self
self.last = None
...
for _ in range(5):
    self.last = Node(block(), self.last)  # leaks
""")
leaks("objects that refer to each other", "main", "cycle", "weakref", """
class Parent:
    def __init__(self):
        self.child = types.SimpleNamespace(parent=self, state=block())  # leaks
gc.disable()
...
Parent()
""")

# --- models, optimizers, tensors that grow ------------------------------------------------------------------------------

leaks("groups of an optimizer", "main", "container optimizer.param_groups", "Empty it", """
optimizer = torch.optim.SGD([weight()], lr=0.1)
...
optimizer.add_param_group({"params": [weight()]})  # leaks
""")
leaks("optimizers in a list", "class", "container self.optimizers", "Empty it", """
model = nn.Linear(64, 64).cuda()
self.optimizers = []
...
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
self.optimizers.append(optimizer)
model(torch.ones(64, 64, device="cuda")).sum().backward()
optimizer.step()  # leaks
model.zero_grad()
""")
leaks("states of parameters that were replaced", "main", "container optimizer.state", "Empty it", """
optimizer = torch.optim.Adam([weight()], lr=0.1)
...
w = weight()  # leaks
optimizer.param_groups[0]["params"] = [w]
w.sum().backward()
optimizer.step()  # leaks
w.grad = None
""")
leaks("snapshots of a state_dict", "main", "container snapshots", "keep what is needed on the host", """
model = nn.Linear(64, 64).cuda()
snapshots = []
...
snapshots.append({name: value.clone() for name, value in model.state_dict().items()})  # leaks
""")
leaks("copies of a model", "module", "container averages", "keep what is needed on the host", """
model = nn.Linear(64, 64).cuda()
averages = []
...
averages.append(copy.deepcopy(model))  # leaks
""")
leaks("layers that are added", "class", "container self.layers", "delete those of the past", """
self.layers = nn.ModuleList()
...
self.layers.append(nn.Linear(64, 64, device="cuda"))  # leaks
""")
leaks("rows that are joined", "cell", "variable rows", "keep what is needed on the host", """
rows = block()
...
rows = torch.cat([rows, block()])  # leaks
""")
leaks("keys that are joined in an attribute", "main", "variable cache.keys", "keep what is needed on the host", """
cache = types.SimpleNamespace(keys=block()[None])
...
cache.keys = torch.cat([cache.keys, block()[None]])  # leaks
""")
# The cache belongs to C++, which does not show it: no holder is named, but the block that lets it live is.
leaks("casts of new weights", "main", "unknown", "torch.autocast", """
x = torch.ones(64, 64, device="cuda")
autocast = torch.autocast("cuda", torch.bfloat16)
autocast.__enter__()
weights = collections.deque(maxlen=2)
...
weights.append(torch.ones(64, 64, device="cuda", requires_grad=True))  # leaks
F.linear(x, weights[-1])  # leaks
...
autocast.__exit__(None, None, None)
""")
# atexit keeps its functions in an array of C's, which belongs to no object: nothing refers to them.
leaks("functions that run at exit", "main", "container atexit", "atexit.register()", """
save = functools.partial(lambda tensor: None)
...
atexit.register(save, block())  # leaks
...
atexit.unregister(save)
""")

# --- programs that do not leak ------------------------------------------------------------------------------------------

silent("a bounded deque", "main", """
window = collections.deque(maxlen=5)
...
window.append(block())
""")
silent("a cache that is full", "module", """
@functools.lru_cache(maxsize=4)
def mask(step):
    return torch.ones(64, 1000, device="cuda").roll(step)
...
mask(i)
""")
silent("a dictionary by few shapes", "class", """
self.masks = {}
...
length = 100 + i * 7 % 4
self.masks.setdefault(length, torch.ones(length, length, device="cuda"))
""")
silent("losses as numbers", "loader", """
model = nn.Linear(64, 64).cuda()
losses = []
...
loss = model(batch).square().mean()
loss.backward()
model.zero_grad()
losses.append(loss.item())
""")
silent("outputs on the host", "cell", """
outputs = []
w = weight()
...
outputs.append((w * 2).exp().detach().cpu())
""")
silent("gradients that are accumulated", "loader", """
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
...
model(batch).sum().backward()
if i % 4 == 3:
    optimizer.step()
    optimizer.zero_grad()
""")
silent("an evaluation without gradients", "main", """
model = nn.Linear(64, 64).cuda()
x = torch.ones(64, 64, device="cuda")
total = torch.zeros((), device="cuda")
...
with torch.no_grad():
    total = total + model(x).square().mean()
""")
silent("a sum in inference mode", "class", """
w = weight()
self.total = 0
...
with torch.inference_mode():
    self.total = self.total + (w * 2).exp().sum()
""")
silent("batches of different sizes", "main", """
model = nn.Linear(64, 64).cuda()
...
batch = torch.ones(16 + i * 37 % 23, 64, device="cuda")
model(batch).sum().backward()
model.zero_grad()
""")
silent("an average of weights in place", "main", """
model = nn.Linear(64, 64).cuda()
average = copy.deepcopy(model)
...
with torch.no_grad():
    for mean, parameter in zip(average.parameters(), model.parameters()):
        mean.lerp_(parameter, 0.1)
""")
silent("pinned buffers", "module", """
staging = [torch.ones(16384, pin_memory=True) for _ in range(2)]
...
x = staging[i % 2].to("cuda", non_blocking=True)
""")
silent("a schedule of learning rates", "main", """
w = weight()
optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
...
w.exp().sum().backward()
optimizer.step()
scheduler.step()
optimizer.zero_grad()
""")
silent("checkpointing", "class", """
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
x = torch.ones(64, 64, device="cuda", requires_grad=True)
...
checkpoint(model, x, use_reentrant=False).sum().backward()
model.zero_grad()
x.grad = None
""")
silent("autocast with a scaler", "loader", """
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
...
with torch.autocast("cuda", torch.float16):
    loss = model(batch).mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()
""")
silent("the states of Adam", "main", """
w = weight()
optimizer = torch.optim.Adam([w], lr=0.1)
...
w.exp().sum().backward()
optimizer.step()
optimizer.zero_grad()
""")
silent("ping-pong buffers", "cell", """
buffers = [block(), block()]
...
buffers[i % 2] = buffers[1 - i % 2] * 2
""")
silent("hooks that are removed", "main", """
model = nn.Linear(64, 64).cuda()
x = torch.ones(64, 64, device="cuda")
...
handle = model.register_forward_hook(lambda module, x, y, scale=block(): None)
model(x)
handle.remove()
""")
silent("exceptions that are handled", "class", """
def train():
    batch = block()
    raise ValueError(batch.shape)
...
try:
    train()
except ValueError as error:
    message = str(error)
""")
silent("a hidden state that is detached", "loader", """
cell = nn.RNNCell(64, 64).cuda()
hidden = torch.zeros(64, 64, device="cuda")
...
hidden = cell(batch, hidden.detach())
hidden.sum().backward()
cell.zero_grad()
""")
silent("a graph that is cut every four steps", "main", """
w = weight()
hidden = block()
...
hidden = torch.tanh(hidden * w)
if i % 4 == 3:
    hidden = hidden.detach()
""")
silent("a ring of transitions", "main", """
states = torch.zeros(8, 16384, device="cuda")
...
states[i % 8] = block() + i
""")
silent("the best state so far", "module", """
model = nn.Linear(64, 64).cuda()
best = None
...
if i % 3 == 0:
    best = copy.deepcopy(model.state_dict())
""")
silent("a queue that is emptied", "main", """
results = queue.Queue()
...
results.put(block())
results.get()
""")
silent("a target that is synchronized", "class", """
model, target = nn.Linear(64, 64).cuda(), nn.Linear(64, 64).cuda()
...
if i % 5 == 0:
    target.load_state_dict(model.state_dict())
""")
silent("a penalty on gradients", "main", """
w = weight()
...
gradient, = torch.autograd.grad((w * 2).exp().sum(), w, create_graph=True)
gradient.square().sum().backward()
w.grad = None
""")
silent("cycles that are collected", "main", """
class Parent:
    def __init__(self):
        self.child = types.SimpleNamespace(parent=self, state=block())
...
Parent()
if i % 4 == 3:
    gc.collect(0)
""")
silent("a list that is emptied", "loader", """
outputs = []
...
outputs.append(batch * 2)
if len(outputs) == 6:
    total = torch.stack(outputs).sum()
    outputs.clear()
""")
silent("weak values", "main", """
known = weakref.WeakValueDictionary()
...
known[i] = block()
""")
silent("a pool of threads", "main", """
pool = concurrent.futures.ThreadPoolExecutor(2)
...
results = list(pool.map(lambda _: block() + 1, range(4)))
...
pool.shutdown()
""")
silent("a generator that is read to its end", "cell", """
def stream():
    kept = []
    for _ in range(3):
        kept.append(block())
        yield kept[-1]
...
total = sum(batch.sum() for batch in stream())
""")
silent("tensors saved for backward", "main", """
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = x.exp()
        ctx.save_for_backward(out)
        return out
    @staticmethod
    def backward(ctx, gradient):
        out, = ctx.saved_tensors
        return gradient * out
gc.disable()
w = weight()
...
Exp.apply(w).sum().backward()
w.grad = None
""")
silent("gradients that are clipped", "main", """
model = nn.Linear(64, 64).cuda()
norms = collections.deque(maxlen=4)
...
model(torch.ones(64, 64, device="cuda")).sum().backward()
norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
model.zero_grad()
""")
silent("two optimizers in turns", "class", """
self.first, self.second = weight(), weight()
optimizers = [torch.optim.Adam([self.first], lr=0.1), torch.optim.Adam([self.second], lr=0.1)]
...
optimizer = optimizers[i % 2]
(self.first * self.second.detach() + self.first.detach() * self.second).exp().sum().backward()
optimizer.step()
self.first.grad = self.second.grad = None
""")


# --- running them -------------------------------------------------------------------------------------------------------


class _Watch:
    """The detectors of a program, and their findings when the last iteration ends: one detector is notified of iterations, the
    other is not."""

    def __init__(self, iterations):
        import cachalot

        self.answer = None
        self._left = iterations
        self._told, self._untold = cachalot.LeakDetector(), cachalot.LeakDetector()

    def step(self):
        self._told.step()
        self._left -= 1
        if self._left == 0:  # the program's variables are still there
            reports = [self._told.report(), self._untold.report(suspects=False)]
            self.answer = [[_said(leak) for leak in report.leaks] for report in reports]

    def close(self):
        self._told.close()
        self._untold.close()


def _said(leak):
    suspects = [dataclasses.asdict(suspect) for suspect in leak.suspects]
    frame = leak.frame
    source = "" if frame is None else frame.source if frame.is_script else frame.function
    return {"source": source, "slope": leak.bytes_per_iteration, "suspects": suspects, "text": str(leak)}


def answer_for(row):
    """Returns the report after the program's run, or the text of its error."""
    iterations = LEAKING_ITERATIONS if row.leaks else SILENT_ITERATIONS
    watch = _Watch(iterations)
    module = types.ModuleType(f"program_{TABLE.index(row)}")
    vars(module).update(step=watch.step, __builtins__=__builtins__)
    try:
        _run(row, module, iterations)
        return watch.answer
    except Exception:
        return traceback.format_exc()
    finally:
        watch.close()
        vars(module).clear()
        gc.enable()
        gc.collect()


def _run(row, module, iterations):
    before, each, *after = row.text.strip("\n").split("\n...\n")
    _execute("names", _NAMES, module)
    if row.shape == "cell":
        _execute(f"{row.name} 1", before, module)
        for i in range(iterations):
            _execute(f"{row.name} 2", f"i = {i}\n{each}\nstep()", module)
    else:
        _execute(row.name, _program(row.shape, before, each, iterations, "\n".join(after)), module)


def _program(shape, before, each, iterations, after):
    head = f"for i in range({iterations}):"
    if shape == "loader":
        data = f"torch.ones({64 * iterations}, 64)"
        head = f"for i, batch in enumerate(DataLoader({data}, batch_size=64)):\n    batch = batch.cuda()"
    body = f"{before}\n{head}\n{_indented(each)}\n    step()\n{after}\n"
    if shape == "class":
        return f"class Program:\n    def run(self):\n{_indented(_indented(body))}\nProgram().run()\n"
    return body if shape == "module" else f"def main():\n{_indented(body)}\nmain()\n"


def _indented(text):
    return textwrap.indent(text, "    ")


def _execute(name, text, module):
    """Runs text in the module's globals, to which no variable of this file may refer: it would name the memory that they hold."""
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), vars(module))


def trouble(row, answer, where=None):
    """Returns the error in an answer of answer_for; "" if there is none. `where` the memory comes from is in the row."""
    if not isinstance(answer, list):
        return f"{row.name}: {answer}"
    if not row.leaks:
        return _text(row, "is no leak", sum(answer, [])) if any(answer) else ""
    where = (row.operation or "# leaks") if where is None else where
    for said, share in zip(answer, (1, 0.9)):  # samples of a detector that is not told lie at random places of an iteration
        if not any(leak["slope"] >= share * said[0]["slope"] and where in leak["source"] for leak in said):
            return _text(row, f"the steepest is not at {where!r}", said)
    told = answer[0]
    suspects = next(leak["suspects"] for leak in told if where in leak["source"])
    suspect = suspects[0] if suspects else {"kind": "", "name": "", "text": ""}
    kind, _, name = row.suspect.partition(" ")
    if suspect["kind"] != kind or name not in ("", suspect["name"]) or row.cure not in suspect["text"]:
        return _text(row, f"the suspect is not {row.suspect!r} with {row.cure!r}", told)
    return ""


def _text(row, what, said):
    return "\n".join([f"{row.name}: {what}", *(leak["text"] for leak in said)])


def main(names):
    """Prints a line of JSON for each of these programs: its name and the answer."""
    with contextlib.redirect_stderr(sys.stdout):
        for row in TABLE:
            if row.name in names:
                print(json.dumps([row.name, answer_for(row)]))
