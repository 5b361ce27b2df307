"""cachalot's leak detector and tracks: the line that leaks and the holder of the memory are named, one test per kind of
holder."""

import ctypes
import functools
import gc
import io
import linecache
import os
import re
import sys
import threading
import traceback
import types
import weakref

import pytest
import torch
from torch.overrides import TorchFunctionMode
from world import KiB, bytes_on_gpu, full_only, not_pages, run_python, succeeds

pytestmark = [full_only, not_pages]  # neither the heap nor how it was enabled makes a difference to the searched objects

ITERATIONS = 14
BLOCK = 64 * KiB


@pytest.fixture(autouse=True)
def every_object_is_searched():
    """Python does not report referrers that conftest.py has frozen."""
    gc.unfreeze()


@pytest.fixture
def detector():
    import cachalot

    with cachalot.LeakDetector() as detector:
        yield detector


def the_leak(detector):
    """The only one, which was allocated for this file."""
    [leak] = detector.leaks()
    assert any(frame.file == __file__ for frame in leak.stack), leak
    return leak


def the_suspect(leak):
    assert len(leak.suspects) == 1, [str(suspect) for suspect in leak.suspects]
    return leak.suspects[0]


def test_the_line_that_leaks_is_named(detector):
    kept = []
    for _ in range(ITERATIONS):
        bytes_on_gpu(BLOCK * 2)
        kept.append(torch.empty(BLOCK, dtype=torch.uint8, device="cuda"))  # here
        detector.step()
    leak = the_leak(detector)
    assert leak.frame.source == 'kept.append(torch.empty(BLOCK, dtype=torch.uint8, device="cuda"))  # here'
    assert leak.frame.function == "test_the_line_that_leaks_is_named"
    assert (leak.live_bytes, leak.live_blocks) == (ITERATIONS * BLOCK, ITERATIONS)
    assert leak.bytes_per_iteration == BLOCK
    assert leak.confidence > 0.999
    assert (leak.iterations, leak.oldest_iterations) == (ITERATIONS - 2, ITERATIONS)
    assert set(leak.some_addresses) == {tensor.data_ptr() for tensor in kept}
    assert leak.stack[0].is_script
    report = str(detector.report())
    shown = __file__.removeprefix(os.getcwd() + os.sep)
    assert f"+64.00 KiB an iteration: 896.00 KiB in 14 blocks from {shown}:" in report
    assert "  > kept.append(torch.empty" in report


def test_what_is_given_back_or_constant_or_swings_is_no_leak(detector):
    constant = bytes_on_gpu(BLOCK)
    for i in range(40):
        batch = [bytes_on_gpu(BLOCK) for _ in range(i * 7 % 5)]
        bytes_on_gpu(BLOCK)
        detector.step()
    assert detector.leaks() == ()
    report = detector.report()
    assert report.live_blocks == 1 + len(batch)
    assert report.iterations == 40
    del constant, batch


def test_a_list_of_losses_keeps_their_graphs(detector):
    class Trainer:
        def __init__(self):
            self.history = []

    trainer = Trainer()
    weight = torch.ones(BLOCK // 4, device="cuda", requires_grad=True)
    for _ in range(ITERATIONS):
        loss = (weight * 2).exp().sum()
        loss.backward(retain_graph=True)
        trainer.history.append(loss)
        detector.step()
    leak = the_leak(detector)
    assert leak.frame.source == "loss = (weight * 2).exp().sum()"
    assert leak.bytes_per_iteration == BLOCK + 512  # the tensor that exp saves for the backward pass, and the loss itself
    suspect = the_suspect(leak)
    assert (suspect.kind, suspect.name, suspect.blocks) == ("container", "trainer.history", 2 * ITERATIONS)
    assert f"holds {ITERATIONS} tensors with autograd graphs" in suspect.text
    assert "Keep loss.item()" in suspect.text


def test_attributes_of_an_object_are_named_each_where_one_holds_most(detector):
    class Log:
        def __init__(self):
            self.hits, self.misses = [], []

    log = Log()
    for i in range(ITERATIONS):
        (log.misses if i % 3 == 0 else log.hits).append(bytes_on_gpu(BLOCK))
        detector.step()
    suspects = the_leak(detector).suspects
    misses = (ITERATIONS + 2) // 3
    assert [(each.kind, each.name, each.blocks) for each in suspects] == [
        ("container", "log.hits", ITERATIONS - misses), ("container", "log.misses", misses)
    ]


def test_a_dictionary_without_graphs_is_named_without_that_advice(detector):
    by_step = {}
    for i in range(ITERATIONS):
        by_step[f"step {i}"] = bytes_on_gpu(BLOCK)
        detector.step()
    suspect = the_suspect(the_leak(detector))
    assert (suspect.kind, suspect.name, suspect.blocks) == ("container", "by_step", ITERATIONS)
    assert suspect.text.startswith("the dict `by_step` (a variable of test_a_dictionary_without")
    assert "autograd" not in suspect.text


_everywhere = []


def test_tuples_in_a_global_list_lead_to_the_list(detector):
    try:
        for i in range(ITERATIONS):
            _everywhere.append((i, bytes_on_gpu(BLOCK)))
            detector.step()
        suspect = the_suspect(the_leak(detector))
        assert (suspect.kind, suspect.name, suspect.blocks) == ("container", "_everywhere", ITERATIONS)
        assert f"a global of {__name__}" in suspect.text
    finally:
        _everywhere.clear()


def test_variables_of_one_name_in_two_modules_are_told_apart(detector, monkeypatch):
    trainer, evaluator = types.ModuleType("trainer"), types.ModuleType("evaluator")
    for module in (trainer, evaluator):
        module.losses = []
        monkeypatch.setitem(sys.modules, module.__name__, module)
    weight = torch.ones(BLOCK // 4, device="cuda", requires_grad=True)
    for _ in range(ITERATIONS):
        for module in (trainer, trainer, evaluator):
            module.losses.append((weight * 2).exp().sum())
        detector.step()
    first, second = the_leak(detector).suspects
    assert (first.name, first.blocks) == ("losses", 2 * 2 * ITERATIONS) and "a global of trainer" in first.text
    assert (second.name, second.blocks) == ("losses", 2 * ITERATIONS) and "a global of evaluator" in second.text


def test_a_tensor_that_grows_is_named_as_the_variable(detector):
    rows = bytes_on_gpu(BLOCK)
    for _ in range(ITERATIONS):
        rows = torch.cat([rows, bytes_on_gpu(BLOCK)])
        detector.step()
    suspect = the_suspect(the_leak(detector))
    assert (suspect.kind, suspect.name, suspect.blocks) == ("variable", "rows", 1)
    assert f"{(ITERATIONS + 1) * BLOCK:,} bytes" in suspect.text


def test_a_hidden_state_that_is_not_detached_keeps_its_graph(detector):
    weight = torch.ones(BLOCK // 4, device="cuda", requires_grad=True)
    hidden = torch.zeros(BLOCK // 4, device="cuda")
    for _ in range(ITERATIONS):
        hidden = torch.tanh(hidden * weight)
        detector.step()
    leak = detector.leaks()[0]
    suspect = the_suspect(leak)
    assert (suspect.kind, suspect.name) == ("graph", "hidden")
    assert suspect.blocks >= ITERATIONS - 1
    assert ".detach() it between iterations" in suspect.text


@pytest.mark.parametrize("maxsize", [None, 1000])
def test_a_functools_cache_is_named_by_its_function(detector, maxsize):
    @functools.lru_cache(maxsize)
    def mask(step):
        return bytes_on_gpu(BLOCK)

    for i in range(ITERATIONS):
        mask(i)
        detector.step()
    suspect = the_suspect(the_leak(detector))
    assert (suspect.kind, suspect.blocks) == ("cache", ITERATIONS)
    assert "mask()" in suspect.name and "cache_clear()" in suspect.text


def test_a_generator_that_a_loop_waits_for_is_named_with_its_variable_and_line(detector):
    class Stream:
        def __init__(self):
            self.seen = []

        def __iter__(self):
            for i in range(ITERATIONS):
                self.seen.append(bytes_on_gpu(BLOCK))
                yield i  # here it waits

    suspect = None
    for _, i in enumerate(Stream()):
        detector.step()
        if i == ITERATIONS - 1:
            suspect = the_suspect(the_leak(detector))
    assert (suspect.kind, suspect.name, suspect.blocks) == ("generator", "__iter__()", ITERATIONS)
    assert "through `self.seen`" in suspect.text
    line = re.search(r"which waits at .*test_leaks\.py:(\d+) \(a generator\)", suspect.text)
    assert "# here it waits" in linecache.getline(__file__, int(line[1]))


def test_a_list_that_no_variable_has_yet_is_told_of_as_that(detector):
    def scored(i):
        detector.step()
        if i == ITERATIONS - 1:
            suspects.append(the_suspect(the_leak(detector)))
        return bytes_on_gpu(BLOCK)

    suspects = []
    assert len([scored(i) for i in range(ITERATIONS)]) == ITERATIONS
    assert suspects[0].kind == "container" and "a list to which no variable refers holds 13 tensors" in suspects[0].text


def test_a_variable_that_walks_along_a_chain_comes_after_the_chains_owner(detector):
    def read(memory):
        node = memory.head
        detector.step()
        return the_suspect(the_leak(detector)) if node[2] == ITERATIONS - 1 else None

    memory = types.SimpleNamespace(head=None)
    suspect = None
    for i in range(ITERATIONS):
        memory.head = [bytes_on_gpu(BLOCK), memory.head, i]
        suspect = read(memory)
    assert (suspect.name, suspect.blocks) == ("memory.head", ITERATIONS)


def test_an_exception_that_ends_the_program_is_no_suspect():
    program = """
class Collector:
    def __init__(self):
        self.kept = []
def fails():
    collector = Collector()
    weight = torch.ones(100, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight])
    for i in range(14):
        weight.sum().backward()
        optimizer.step()
        collector.kept.append(torch.empty(1000, device="cuda"))
    raise KeyboardInterrupt
fails()
"""
    process = run_python(program, CACHALOT_LEAK_REPORT=1)
    assert "the list `collector.kept` (a variable of fails() in <string>) holds 14 tensors" in process.stderr
    assert "an exception that is kept" not in process.stderr and "last_" not in process.stderr


def test_what_hangs_on_a_graph_that_another_ends_is_no_further_suspect(detector):
    hidden = torch.ones(BLOCK // 4, device="cuda", requires_grad=True)
    for _ in range(ITERATIONS):
        hidden = torch.tanh(hidden)
        loss = hidden.sum()
        detector.step()
    suspects = the_leak(detector).suspects
    assert [suspect.kind for suspect in suspects] == ["graph"]
    del loss


def test_exceptions_that_are_kept_hold_tensors_through_their_tracebacks(detector):
    def fails():
        batch = bytes_on_gpu(BLOCK)
        raise ArithmeticError(batch.numel())

    errors = []
    for _ in range(ITERATIONS):
        try:
            fails()
        except ArithmeticError as error:
            errors.append(error)
        detector.step()
    suspect = the_suspect(the_leak(detector))
    assert (suspect.kind, suspect.name, suspect.blocks) == ("exception", "errors", ITERATIONS)
    assert "in a variable `batch` of fails()" in suspect.text
    traceback.clear_frames(errors[0].__traceback__)
    assert the_suspect(the_leak(detector)).blocks == ITERATIONS - 1, "the advice helps"


def test_a_forward_hook_that_collects_outputs_is_named(detector):
    model = torch.nn.Linear(256, 256, device="cuda")

    def watch(module):
        outputs = []

        def remember(module, inputs, output):
            outputs.append(output.detach())

        return module.register_forward_hook(remember)

    handle = watch(model)
    with torch.no_grad():
        for _ in range(ITERATIONS):
            model(torch.empty(64, 256, device="cuda"))
            detector.step()
    suspect = the_suspect(the_leak(detector))
    assert (suspect.kind, suspect.blocks) == ("hook", ITERATIONS)
    assert suspect.name.endswith("remember()") and "_forward_hooks" in suspect.text
    handle.remove()
    torch._C._cuda_clearCublasWorkspaces()


def test_a_closure_is_named_by_its_function(detector):
    def collector():
        kept = []
        return lambda tensor: kept.append(tensor)

    collect = collector()
    for _ in range(ITERATIONS):
        collect(bytes_on_gpu(BLOCK))
        detector.step()
    suspect = the_suspect(the_leak(detector))
    assert (suspect.kind, suspect.blocks) == ("closure", ITERATIONS)
    assert "collector" in suspect.name and "`collect`" in suspect.text


def test_gradients_with_graphs_come_from_create_graph(detector):
    weight = torch.ones(BLOCK // 4, device="cuda", requires_grad=True)
    for _ in range(ITERATIONS):
        weight.exp().square().sum().backward(create_graph=True)
        detector.step()
    kinds = {suspect.kind for leak in detector.leaks() for suspect in leak.suspects}
    texts = [suspect.text for leak in detector.leaks() for suspect in leak.suspects if suspect.kind == "gradient"]
    assert "gradient" in kinds
    assert all("create_graph=True" in text for text in texts)
    weight.grad = None


def test_reference_cycles_are_named_where_nothing_else_leads_to_the_tensors(detector):
    class Node:
        def __init__(self):
            self.me = self
            self.tensor = bytes_on_gpu(BLOCK)

    gc.collect()
    gc.disable()
    try:
        for _ in range(ITERATIONS):
            Node()
            detector.step()
        suspect = the_suspect(the_leak(detector))
    finally:
        gc.enable()
    assert (suspect.kind, suspect.blocks) == ("cycle", ITERATIONS)
    assert "Node" in suspect.text
    gc.collect()
    assert detector.leaks() == (), "the advice is right: the collector frees them"


def test_hooks_that_are_registered_again_and_again_are_named_with_what_they_are_on(detector):
    module = torch.nn.Linear(4, 4).cuda()
    for _ in range(ITERATIONS):
        kept = bytes_on_gpu(BLOCK)
        module.weight.register_hook(lambda gradient, kept=kept: None)
        detector.step()
    del kept
    suspect = the_suspect(the_leak(detector))
    assert (suspect.kind, suspect.name, suspect.blocks) == ("hook", "module.weight", ITERATIONS)
    assert f"{ITERATIONS} hooks on `module.weight` hold" in suspect.text and "remove()" in suspect.text


def test_a_context_that_keeps_its_functions_output_is_named(detector):
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.out = x.exp()
            return ctx.out

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.out

    weight = torch.ones(BLOCK // 4, device="cuda", requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        for _ in range(ITERATIONS):
            Exp.apply(weight).sum().backward()
            detector.step()
        suspect = the_suspect(the_leak(detector))
    finally:
        gc.enable()
    assert (suspect.kind, suspect.name, suspect.blocks) == ("context", "Exp", ITERATIONS)
    assert "`ctx.out` of the autograd function Exp keeps its own output" in suspect.text
    assert "save_for_backward" in suspect.text
    weight.grad = None
    gc.collect()


def test_who_keeps_less_than_half_of_the_blocks_is_no_suspect(detector):
    kept_by_c = []
    for _ in range(ITERATIONS):
        last = bytes_on_gpu(BLOCK)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(last))
        kept_by_c.append(id(last))
        detector.step()
    suspect = the_suspect(the_leak(detector))
    assert (suspect.kind, suspect.name, suspect.blocks) == ("unknown", "", 1)
    assert "no object is known that keeps most of these 14 blocks (of those found, one keeps 1)" in suspect.text
    last = None
    for address in kept_by_c:
        ctypes.pythonapi.Py_DecRef(ctypes.cast(address, ctypes.py_object))


def test_the_search_keeps_nothing_alive(detector):
    kept = []
    for _ in range(ITERATIONS):
        kept.append(bytes_on_gpu(BLOCK))
        detector.step()
    last = weakref.ref(kept[-1])
    leaks = detector.leaks()
    assert leaks[0].suspects
    kept.clear()
    assert last() is None
    assert detector.report().live_blocks == 0


def test_the_search_runs_no_code_of_the_programs(detector):
    calls = []

    def refuse(*arguments, **keywords):
        calls.append(arguments)
        raise ArithmeticError("the program's code was called")

    class Proxy:
        __class__ = __dict__ = property(refuse)

        def __init__(self, held):
            self.held = held

    class Mapping(dict):
        __contains__ = __iter__ = get = items = keys = values = refuse

    class List(list):
        __iter__ = __getitem__ = __len__ = refuse

    class Key:
        __repr__ = __str__ = refuse

    class Tensor(torch.Tensor):
        __torch_function__ = classmethod(refuse)
        untyped_storage = refuse
        is_cuda = is_leaf = requires_grad = grad = grad_fn = property(refuse)

    class Mode(TorchFunctionMode):
        __torch_function__ = refuse

    class Trainer:
        pass

    trainer = Trainer()
    key = (Key(), 1)
    trainer.history = Mapping({key: List()})
    neighbour = Proxy(vars(trainer))
    weight = torch.ones(BLOCK // 4, device="cuda", requires_grad=True)
    for _ in range(ITERATIONS):
        trainer.history[key].append(Proxy((weight * 2).exp().sum().as_subclass(Tensor)))
        detector.step()
    with Mode():
        leak = the_leak(detector)
    assert not calls
    found = {(suspect.name, suspect.blocks) for suspect in leak.suspects}
    assert len(found) == 1 and found <= {(f"{owner}.history[tuple]", 2 * ITERATIONS) for owner in ("trainer", "neighbour")}
    del neighbour


def test_a_tensor_whose_graph_autograd_does_not_tell_is_passed_by(detector):
    base = torch.ones(2, device="cuda", requires_grad=True) * 1
    views = base.unbind()
    base.mul_(2)
    with pytest.raises(RuntimeError, match="modified inplace"):
        _ = views[0].grad_fn
    hidden = weight = torch.ones(BLOCK // 4, device="cuda", requires_grad=True)
    for _ in range(ITERATIONS):
        hidden = torch.tanh(hidden * weight)
        detector.step()
    assert the_suspect(detector.leaks()[0]).name == "hidden"


def test_other_threads_may_change_what_is_searched(detector):
    registry = dict.fromkeys(range(1_000_000))
    registry["losses"] = []
    for _ in range(ITERATIONS):
        registry["losses"].append(bytes_on_gpu(BLOCK))
        detector.step()

    def change():
        while not done.is_set():  # where threads take turns: it has one entry more or less each time
            if "another" in registry:
                del registry["another"]
            else:
                registry["another"] = None

    done = threading.Event()
    thread = threading.Thread(target=change)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        thread.start()
        assert the_suspect(the_leak(detector)).name == "registry['losses']"
    finally:
        sys.setswitchinterval(interval)
        done.set()
        thread.join()


def test_files_have_their_whole_names_where_the_current_folder_was_removed(detector, tmp_path, monkeypatch):
    kept = bytes_on_gpu(BLOCK)
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    [site] = detector.report().sites
    assert f" from {site.frame.file}:{site.frame.line} in " in str(site)
    del kept


def test_a_backward_pass_allocates_outside_of_python(detector):
    x = torch.ones(BLOCK // 4, device="cuda", requires_grad=True)
    kept = []
    for _ in range(ITERATIONS):
        kept.append(torch.autograd.grad((x * 2).exp().sum(), x)[0])
        detector.step()
    [leak] = detector.leaks()
    assert not leak.frame.is_script and "MulBackward0::apply" in leak.frame.function
    assert " from MulBackward0 in a backward pass" in str(leak)
    assert the_suspect(leak).name == "kept"
    assert leak.live_blocks == ITERATIONS


def test_a_track_tells_what_a_block_allocated_freed_and_left():
    import cachalot

    before = bytes_on_gpu(BLOCK)
    out = io.StringIO()
    with cachalot.track("evaluation", file=out) as tracked:
        bytes_on_gpu(4 * BLOCK)
        del before
        left = bytes_on_gpu(2 * BLOCK)
        assert tracked.report.left_blocks == 1
    report = tracked.report
    assert (report.allocated_blocks, report.allocated_bytes) == (2, 6 * BLOCK)
    assert (report.freed_blocks, report.freed_bytes) == (2, 5 * BLOCK)
    assert (report.freed_earlier_blocks, report.freed_earlier_bytes) == (1, BLOCK)
    assert (report.left_blocks, report.left_bytes, report.peak_bytes) == (1, 2 * BLOCK, 4 * BLOCK)
    [site] = report.sites
    assert site.frame.source == "left = bytes_on_gpu(2 * BLOCK)" or site.frame.function == "bytes_on_gpu"
    assert any(frame.source == "left = bytes_on_gpu(2 * BLOCK)" for frame in site.stack)
    text = out.getvalue()
    assert text.startswith("cachalot track 'evaluation': allocated 384.00 KiB in 2 blocks, freed 320.00 KiB in 2 blocks, ")
    assert "64.00 KiB in 1 block of it from before, left 128.00 KiB in 1 block; peak +256.00 KiB" in text
    del left


def test_a_track_decorates_a_function_and_sees_other_threads(capsys):
    import cachalot

    kept = []

    @cachalot.track()
    def load():
        thread = threading.Thread(target=lambda: kept.append(bytes_on_gpu(BLOCK)))
        thread.start()
        thread.join()

    load()
    printed = capsys.readouterr().err
    assert "cachalot track 'test_a_track_decorates" in printed and "left 64.00 KiB in 1 block" in printed
    assert "in bytes_on_gpu" in printed


def test_a_track_is_quiet_when_asked_and_reports_after_an_exception(capsys):
    import cachalot

    tracked = cachalot.track("quiet", quiet=True)
    with pytest.raises(RuntimeError, match="was not begun"):
        _ = tracked.report
    with pytest.raises(ZeroDivisionError), tracked:
        left = bytes_on_gpu(BLOCK)
        1 / 0
    assert tracked.report.left_blocks == 1
    assert capsys.readouterr().err == ""
    del left


def test_bad_options_are_refused_by_name():
    import cachalot

    with pytest.raises(ValueError, match="window is 3; a leak detector needs at least 8"):
        cachalot.LeakDetector(window=3)
    with pytest.raises(ValueError, match="min_confidence is 1"):
        cachalot.LeakDetector(min_confidence=1.0)
    with pytest.raises(ValueError, match="warm_up is -1"):
        cachalot.LeakDetector(warm_up=-1)


def test_a_closed_detector_says_so():
    import cachalot

    detector = cachalot.LeakDetector()
    detector.close()
    detector.close()
    with pytest.raises(RuntimeError, match="was closed"):
        detector.step()
    with pytest.raises(RuntimeError, match="was closed"):
        detector.report()


def test_an_exception_that_is_on_its_way_survives_an_allocation(detector):
    class Manager:
        def __exit__(self, *exception):
            bytes_on_gpu(BLOCK)
            return False

        def __enter__(self):
            return self

    with pytest.raises(KeyError, match="mine"), Manager():
        raise KeyError("mine")


def test_history_of_pytorch_is_left_as_it_is(detector):
    torch.cuda.memory._record_memory_history()
    kept = bytes_on_gpu(BLOCK)
    detector.close()
    [trace, *_] = torch.cuda.memory._snapshot()["device_traces"]
    assert [entry["action"] for entry in trace if entry["action"] == "alloc"]
    torch.cuda.memory._record_memory_history(None)
    del kept


LEAKING = """
kept = []
weight = torch.ones(100, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight])
for i in range(14):
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
    kept.append(torch.empty(1000, device="cuda"))
"""


def test_the_processs_detector_counts_optimizer_steps():
    succeeds(
        run_python(
            """
try:
    cachalot.leaks()
except RuntimeError as error:
    assert "watch_leaks()" in str(error)
else:
    assert False
detector = cachalot.watch_leaks()
assert cachalot.watch_leaks() is detector
"""
            + LEAKING
            + """
[leak] = [leak for leak in cachalot.leaks() if leak.bytes_per_iteration == 4096]
assert leak.suspects[0].name == "kept", leak
assert detector.report().iterations == 14
detector.step()
optimizer.step()
assert detector.report().iterations == 15, "who steps himself is not helped any more"
"""
        )
    )


def test_a_report_at_exit_is_printed_on_request():
    process = run_python(LEAKING, CACHALOT_LEAK_REPORT=1)
    succeeds(process)
    assert "cachalot leaks: " in process.stderr and "+4.00 KiB an iteration: 56.00 KiB in 14 blocks" in process.stderr
    assert "the list `kept` (a global of __main__) holds 14 tensors" in process.stderr
    assert "still live at exit:" in process.stderr
    assert "cachalot leaks" not in run_python(LEAKING).stderr
    process = run_python(LEAKING, CACHALOT_LEAK_REPORT="yes")
    assert process.returncode != 0
    assert "CACHALOT_LEAK_REPORT is 'yes'; it must be 0 or 1" in process.stderr


def test_what_a_function_has_let_go_of_is_reported_as_it_grew():
    body = LEAKING.strip().splitlines()
    program = "def main():\n" + "".join(f"    {line}\n" for line in body) + "main()\n"
    process = run_python(program, CACHALOT_LEAK_REPORT=1)
    succeeds(process)
    assert "+4.00 KiB an iteration: 52.00 KiB in 13 blocks" in process.stderr
    assert "  all given back since the last iteration" in process.stderr
    assert "the list `kept` (a variable of main() in <string>) holds 9 tensors" in process.stderr
    assert "(seen at iteration 10, when 9 of its blocks were live)" in process.stderr


def test_a_program_without_iterations_is_told_so_and_judged_by_its_allocations():
    process = run_python("""
def main():
    kept = []
    for _ in range(40):
        passed = torch.empty(1000, device="cuda")
        kept.append(torch.empty(2000, device="cuda"))  # here
main()
passed = torch.empty(1000, device="cuda")
""", CACHALOT_LEAK_REPORT=1)
    succeeds(process)
    assert "cachalot leaks: no iteration was seen" in process.stderr and "1 of 1 sites grows" in process.stderr
    assert "every 2 allocations: 312.00 KiB in 39 blocks from <string>:" in process.stderr
    assert "the list `kept` (a variable of main() in <string>) holds " in process.stderr
    assert "(seen at sample 40, when " in process.stderr


def test_what_grew_over_the_iterations_is_reported_however_long_the_program_goes_on():
    after = "for _ in range(200):\n    passed = torch.empty(1000, device='cuda')\n"
    process = run_python(LEAKING + after, CACHALOT_LEAK_REPORT=1)
    succeeds(process)
    assert "14 iterations seen, and the program went on for long after the last. Judged by these and" in process.stderr
    assert "+4.00 KiB an iteration: 56.00 KiB in 14 blocks" in process.stderr
    assert "the list `kept` (a global of __main__) holds 14 tensors" in process.stderr


def test_after_a_close_nobody_watches_until_somebody_does_again():
    closed = """
with cachalot.watch_leaks(report_at_exit=True) as closed:
    pass
try:
    cachalot.leaks()
except RuntimeError as error:
    assert "nobody watches for leaks" in str(error)
else:
    assert False
"""
    process = run_python(closed)
    succeeds(process)
    assert "Traceback" not in process.stderr and "cachalot leaks" not in process.stderr
    again = """
detector = cachalot.watch_leaks(report_at_exit=True)
assert detector is not closed
detector.step()
assert cachalot.leaks() == ()
"""
    process = run_python(closed + again)
    succeeds(process)
    assert "Traceback" not in process.stderr
    assert process.stderr.count("cachalot leaks: ") == 1 and "1 iteration seen, too few to judge by. " in process.stderr


def test_a_forked_child_counts_nothing_and_reports_nothing():
    process = run_python(
        """
import os, sys
kept = torch.empty(1000, device="cuda")
child = os.fork()
if child == 0:
    def refuse(*arguments, **options):
        raise RuntimeError("the parent's detector was called")
    cachalot._leaks.leaks.Plug.call = refuse
    weight = torch.ones(1, requires_grad=True)
    weight.grad = torch.ones(1)
    torch.optim.SGD([weight]).step()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
""",
        CACHALOT_LEAK_REPORT=1,
    )
    succeeds(process)
    assert "Traceback" not in process.stderr
    assert process.stderr.count("cachalot leaks: ") == 1


def test_a_forked_child_leaves_its_parents_block_in_peace():
    process = run_python(
        """
import os, sys
with cachalot.track("both"):
    kept = torch.empty(1000, device="cuda")
    child = os.fork()
    if child == 0:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    )
    succeeds(process)
    assert process.stderr.count("cachalot track 'both'") == 1


def test_threads_that_python_does_not_know_and_threads_at_the_end_do_no_harm():
    process = run_python(
        """
import threading
cachalot.watch_leaks()
def work():
    while not done.is_set():
        torch.empty(1000, device="cuda")
done = threading.Event()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for _ in range(50):
    x = torch.ones(1000, device="cuda", requires_grad=True)
    (x * 2).exp().sum().backward()
    cachalot.leaks()
done.set()
for thread in threads: thread.join()
""",
        timeout=300,
    )
    succeeds(process)
