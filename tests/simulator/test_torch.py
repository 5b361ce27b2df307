"""Training by an unmodified PyTorch, of CUDA 12 and of CUDA 13, on the simulated CUDA runtime."""

import ctypes
import os
import subprocess
import sys

import pytest
import torch

CUDA = os.environ.get("CACHALOT_TEST_CUDA")
DEVICE_BYTES = 8 << 30


@pytest.fixture(autouse=True)
def _nothing_is_left():
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    yield
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def small_network():
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 10)).cuda()


@pytest.mark.skipif(CUDA is None, reason="any version of CUDA is right")
def test_the_wheel_is_of_the_version_under_test():
    assert torch.version.cuda.split(".")[0] == CUDA


def test_the_device_is_the_simulated_one():
    assert torch.cuda.device_count() == 2
    properties = torch.cuda.get_device_properties(1)
    assert properties.name == "NVIDIA H100 80GB HBM3"
    assert (properties.major, properties.minor) == (9, 0)
    assert properties.total_memory == DEVICE_BYTES
    assert properties.multi_processor_count == 132
    assert torch.cuda.mem_get_info(1)[1] == DEVICE_BYTES


def test_the_linked_runtime_has_the_version_of_the_wheel():
    version = ctypes.c_int()
    major = torch.version.cuda.split(".")[0]
    assert ctypes.CDLL(f"libcudart.so.{major}").cudaRuntimeGetVersion(ctypes.byref(version)) == 0
    assert version.value // 1000 == int(major)


def test_a_training_step_holds_the_memory_it_needs():
    network = small_network()
    parameter_bytes = sum(parameter.numel() * 4 for parameter in network.parameters())
    optimizer = torch.optim.AdamW(network.parameters())
    batch = torch.randn(32, 64).cuda()
    labels = torch.zeros(32, dtype=torch.long, device="cuda")
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(batch), labels).backward()
        optimizer.step()
    torch.cuda.synchronize()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert torch.cuda.memory_allocated() >= 4 * parameter_bytes  # parameters, gradients and two moments
    stats = torch.cuda.memory_stats()
    assert stats["reserved_bytes.all.current"] >= stats["allocated_bytes.all.current"]
    assert stats["num_ooms"] == 0
    # cuBLAS keeps its workspaces otherwise.
    del network, optimizer, batch, labels
    torch._C._cuda_clearCublasWorkspaces()


def test_a_convolution_runs_forward_and_backward():
    convolution = torch.nn.Conv2d(3, 8, 3).cuda()
    convolution(torch.randn(2, 3, 16, 16, device="cuda")).sum().backward()
    assert convolution.weight.grad.shape == convolution.weight.shape


RECURRENT = [
    ("LSTM", {}),
    ("LSTM", {"num_layers": 3, "bidirectional": True}),
    ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 24}),
    ("LSTM", {"num_layers": 2, "dropout": 0.5, "dtype": torch.half}),
    ("GRU", {"num_layers": 2, "bias": False}),
    ("GRU", {"bidirectional": True}),
    ("RNN", {"num_layers": 2}),
]


@pytest.mark.parametrize("kind, options", RECURRENT)
def test_a_recurrent_network_has_its_parameters_side_by_side_in_one_buffer(kind, options):
    network = getattr(torch.nn, kind)(40, 48, **options).cuda()
    parameters = list(network.parameters())
    buffer = parameters[0].untyped_storage()
    spans = sorted((p.data_ptr(), p.data_ptr() + p.numel() * p.element_size()) for p in parameters)
    assert {p.untyped_storage().data_ptr() for p in parameters} == {buffer.data_ptr()}
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:])), "they do not overlap"
    # PyTorch keeps room for the biases that a network does not have.
    biases = 0 if options.get("bias", True) else 2 * 2 * 3 * 48 * 4
    assert spans[0][0] == buffer.data_ptr() and spans[-1][1] + biases == buffer.data_ptr() + buffer.nbytes()


@pytest.mark.parametrize("kind, options", RECURRENT)
def test_a_recurrent_network_runs_forward_and_backward(kind, options):
    network = getattr(torch.nn, kind)(40, 48, **options).cuda()
    sequences = torch.randn(70, 16, 40, device="cuda", dtype=options.get("dtype"), requires_grad=True)
    output, state = network(sequences)
    held = torch.cuda.memory_allocated()
    output.sum().backward()
    assert output.shape[:2] == (70, 16) and sequences.grad.shape == sequences.shape
    assert all(p.grad is not None for p in network.parameters())
    del output, state
    layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    assert held >= layers * 70 * 16 * 2 * 48 * sequences.element_size(), "what backward needs was kept"


def test_a_recurrent_network_takes_packed_sequences():
    network = torch.nn.GRU(8, 16).cuda()
    packed = torch.nn.utils.rnn.pack_sequence([torch.randn(steps, 8, device="cuda") for steps in (5, 3, 1)])
    output, _ = network(packed)
    assert output.data.shape == (9, 16)


def test_copies_keep_their_content():
    values = torch.arange(1000)
    assert torch.equal(values.cuda().cpu(), values)
    pinned = values.pin_memory()
    assert pinned.is_pinned()
    assert torch.equal(pinned.to("cuda", non_blocking=True).to("cuda:1").cpu(), values)


def test_a_graph_is_captured_and_replayed():
    values = torch.zeros(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = values * 2
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert doubled.shape == values.shape
    graph.reset()


def test_streams_and_events_have_an_order():
    stream = torch.cuda.Stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        start.record()
        torch.ones(1 << 20, device="cuda").mul_(2)
        end.record()
    torch.cuda.current_stream().wait_stream(stream)
    end.synchronize()
    assert start.elapsed_time(end) > 0


@pytest.mark.parametrize("configuration", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_other_allocators_of_torch_have_their_functions(configuration):
    program = "import torch; x = torch.ones(64 << 20, device='cuda'); del x; torch.cuda.empty_cache(); "
    program += "torch.cuda.synchronize(); print(torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated())"
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": configuration}
    output = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert output.stdout == f"{256 << 20} 0\n"


def test_too_much_memory_is_out_of_memory():
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(2 * DEVICE_BYTES, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["num_ooms"] >= 1


def strict_output(program):
    environment = os.environ | {"CACHALOT_SIM": os.environ["CACHALOT_SIM"] + ",strict:1"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr


TWO_STREAMS = """
import torch
side = torch.cuda.Stream()
pinned = torch.zeros(1 << 16).pin_memory()
device = torch.empty(1 << 16, device="cuda")
torch.cuda.synchronize()
device.copy_(pinned, non_blocking=True)
"""


def test_a_strict_run_has_nothing_to_say_of_a_program_that_keeps_the_rules():
    program = TWO_STREAMS + "side.wait_stream(torch.cuda.current_stream())\n"
    program += "with torch.cuda.stream(side): device.copy_(pinned, non_blocking=True)\n"
    program += "network = torch.nn.Linear(16, 16).cuda()\nnetwork(torch.ones(4, 16, device='cuda')).sum().backward()\n"
    program += "graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph): doubled = device * 2\ngraph.replay()\n"
    assert strict_output(program) == ""


def test_a_strict_run_finds_two_copies_in_no_order():
    output = strict_output(TWO_STREAMS + "with torch.cuda.stream(side): device.copy_(pinned, non_blocking=True)\n")
    assert output.startswith("cachalot simulator: cudaMemcpyAsync writes memory that cudaMemcpyAsync on another stream")
    if sys.version_info < (3, 13):
        assert output.splitlines()[1].strip() == "<module> at <string>:8"
    assert "the other call:" in output


# ---- NVML, which PyTorch 2.13 and newer ask before they map memory ----

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE = 0, 2, 3, 6, 7


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong)]


@pytest.fixture
def nvml():
    library = ctypes.CDLL("libnvidia-ml.so.1")
    assert library.nvmlInit_v2() == SUCCESS
    return library


def handle(nvml, index):
    device = ctypes.c_void_p()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == SUCCESS
    return device


def test_the_devices_are_those_of_cuda(nvml):
    count = ctypes.c_uint()
    assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == SUCCESS
    assert count.value == torch.cuda.device_count() == 2
    assert nvml.nvmlDeviceGetHandleByIndex_v2(2, ctypes.byref(ctypes.c_void_p())) == INVALID_ARGUMENT
    name = ctypes.create_string_buffer(96)
    uuid = ctypes.create_string_buffer(96)
    for index in range(2):
        device = handle(nvml, index)
        properties = torch.cuda.get_device_properties(index)
        assert nvml.nvmlDeviceGetName(device, name, 96) == SUCCESS
        assert name.value.decode() == properties.name
        assert nvml.nvmlDeviceGetName(device, name, 3) == INSUFFICIENT_SIZE
        assert nvml.nvmlDeviceGetUUID(device, uuid, 96) == SUCCESS
        assert uuid.value.decode() == f"GPU-{properties.uuid}"
        major, minor = ctypes.c_int(), ctypes.c_int()
        assert nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor)) == SUCCESS
        assert (major.value, minor.value) == (properties.major, properties.minor)
        same = ctypes.c_void_p()
        assert nvml.nvmlDeviceGetHandleByUUID(uuid.value, ctypes.byref(same)) == SUCCESS
        assert same.value == device.value


def test_a_device_is_found_by_its_place_on_the_bus(nvml):
    properties = torch.cuda.get_device_properties(1)
    place = f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    found = ctypes.c_void_p()
    assert nvml.nvmlDeviceGetHandleByPciBusId_v2(place.encode(), ctypes.byref(found)) == SUCCESS
    assert found.value == handle(nvml, 1).value
    assert nvml.nvmlDeviceGetHandleByPciBusId_v2(b"0000:77:00.0", ctypes.byref(found)) == NOT_FOUND


def test_devices_reach_each_other_without_nvlink(nvml):
    read, write, nvlink = range(3)
    status = ctypes.c_int()
    for capability, expected in ((read, 0), (write, 0), (nvlink, 5)):
        peers = handle(nvml, 0), handle(nvml, 1)
        assert nvml.nvmlDeviceGetP2PStatus(*peers, capability, ctypes.byref(status)) == SUCCESS
        assert status.value == expected
    assert nvml.nvmlDeviceGetP2PStatus(handle(nvml, 0), ctypes.c_void_p(9), read, ctypes.byref(status)) == INVALID_ARGUMENT


def test_memory_and_processes_are_those_of_the_device(nvml):
    kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda:1")
    memory = Memory()
    assert nvml.nvmlDeviceGetMemoryInfo(handle(nvml, 1), ctypes.byref(memory)) == SUCCESS
    assert (memory.free, memory.total) == torch.cuda.mem_get_info(1)
    count, processes = ctypes.c_uint(4), (Process * 4)()
    assert nvml.nvmlDeviceGetComputeRunningProcesses(handle(nvml, 1), ctypes.byref(count), processes) == SUCCESS
    assert [(p.pid, p.used) for p in processes[: count.value]] == [(os.getpid(), memory.total - memory.free)]
    del kept


FORKS = """
import ctypes, os
nvml = ctypes.CDLL("libnvidia-ml.so.1")
device, uuid, memory = ctypes.c_void_p(), ctypes.create_string_buffer(96), (ctypes.c_ulonglong * 3)()
def told():
    assert nvml.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(device)) == nvml.nvmlDeviceGetUUID(device, uuid, 96) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
    return uuid.value.decode()
assert nvml.nvmlInit_v2() == 0
told()
child = os.fork()
if not child:
    import torch
    kept = torch.ones(4, device="cuda")  # the parent has not used CUDA
    assert told() == f"GPU-{torch.cuda.get_device_properties(0).uuid}" and memory[2] >= 2 << 20, told()
    grandchild = os.fork()
    if not grandchild:
        told()  # NVML answers where CUDA does not
        os._exit(3)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_nvml_is_no_use_of_cuda_and_knows_the_whole_machine(nvml):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "1"}
    done = subprocess.run([sys.executable, "-c", FORKS], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr


def test_every_question_of_nvml_has_an_answer(nvml):
    number = ctypes.c_uint()
    answers = {"PerformanceState": 0, "Brand": 14, "Architecture": 9, "NumGpuCores": 132 * 128, "CurrPcieLinkGeneration": 5, "NumaNodeId": 0}
    for name, expected in answers.items():
        assert nvml[f"nvmlDeviceGet{name}"](handle(nvml, 1), ctypes.byref(number)) == SUCCESS
        assert number.value == expected, name
    for name in ("GetNvLinkState", "GetRemappedRows", "GetVbiosVersion"):  # 348 others are not supported, either
        assert nvml[f"nvmlDevice{name}"](handle(nvml, 1), 0, ctypes.byref(number)) == NOT_SUPPORTED
    text = ctypes.create_string_buffer(96)
    assert nvml.nvmlSystemGetDriverVersion(text, 96) == SUCCESS and text.value.startswith(b"580.")
    assert nvml.nvmlSystemGetProcessName(os.getpid(), text, 96) == SUCCESS and b"python" in text.value


def test_pytorchs_own_expandable_segments_work(nvml):
    torch.cuda.empty_cache()
    setter = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if setter is None:
        pytest.skip("this PyTorch sets them another way")
    setter("expandable_segments:True")
    try:
        kept = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
        (segment,) = [s for s in torch.cuda.memory_snapshot() if s["device"] == 0]
        assert segment["is_expandable"] and segment["total_size"] == 40 << 20
        del kept
        torch.cuda.empty_cache()
    finally:
        setter("expandable_segments:False")
