"""ONNX Runtime on the process's heap: cachalot.onnxruntime_options().

Sessions run in processes of their own, in which the simulated cuDNN is found under cuDNN's name: ONNX Runtime opens that library
itself, and the real one does nothing without a GPU.
"""

import ctypes
import os
import textwrap

import onnxruntime
import pytest
from heap import OUT_OF_MEMORY, MiB, live_bytes, run

import cachalot

SESSION = """
    import cachalot, numpy, onnx, onnxruntime
    from onnx import TensorProto, helper

    onnxruntime.preload_dlls(cudnn=False)
    COUNT = 1 << 20

    def model(count=COUNT):
        def tensor(name):
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, [count])
        nodes = [helper.make_node("Add", ["x", "x"], ["twice"]), helper.make_node("Add", ["twice", "x"], ["y"])]
        graph = helper.make_graph(nodes, "sum", [tensor("x")], [tensor("y")])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()

    def session(options, **more):
        quiet = onnxruntime.SessionOptions()
        quiet.log_severity_level = 4
        onnxruntime.set_default_logger_severity(4)
        made = onnxruntime.InferenceSession(model(**more), quiet, providers=[("CUDAExecutionProvider", options)])
        assert made.get_providers()[0] == "CUDAExecutionProvider", made.get_providers()
        return made

    def usage(device=0):
        return next((usage for usage in cachalot.library_usage()
                     if (usage.library, usage.device) == ("onnxruntime", device)), None)

    values = numpy.ones(COUNT, numpy.float32)
"""


@pytest.fixture
def run_session(tmp_path):
    (tmp_path / "libcudnn.so.9").symlink_to(os.environ["LD_PRELOAD"])
    path = f"{os.environ['LD_LIBRARY_PATH']}:{tmp_path}"
    return lambda program: run(textwrap.dedent(SESSION) + textwrap.dedent(program), LD_LIBRARY_PATH=path)


def test_a_session_runs_on_memory_of_the_heap(run_session):
    run_session("""
        made = session(cachalot.onnxruntime_options())
        made.run(None, {"x": values})
        ended = usage()
        assert ended.allocations == ended.frees == 3, ended
        assert ended.peak_bytes == 3 * values.nbytes and ended.live_bytes == 0, ended
    """)


def test_values_that_a_program_keeps_on_the_gpu_are_counted(run_session):
    run_session("""
        made = session(cachalot.onnxruntime_options())
        binding = made.io_binding()
        binding.bind_cpu_input("x", values)
        binding.bind_output("y", "cuda", 0)
        made.run_with_iobinding(binding)
        kept = usage().live_bytes
        assert kept >= values.nbytes, kept
        assert cachalot.memory_report().libraries["onnxruntime"] == kept
        del binding, made
        assert usage().live_bytes == 0
    """)


def test_sessions_of_two_devices_have_memory_of_their_own(run_session):
    run_session("""
        for device in (0, 1):
            session(cachalot.onnxruntime_options(device)).run(None, {"x": values})
        assert usage(0).allocations == usage(1).allocations == 3
    """)


def test_onnx_runtime_works_on_the_default_stream_and_refuses_another(run_session):
    run_session("""
        options = cachalot.onnxruntime_options() | {"user_compute_stream": "1"}
        quiet = onnxruntime.SessionOptions()
        quiet.log_severity_level = 4
        onnxruntime.set_default_logger_severity(4)
        import contextlib, os
        with contextlib.redirect_stdout(open(os.devnull, "w")):  # it falls back to the CPU, and says so
            made = onnxruntime.InferenceSession(model(), quiet, providers=[("CUDAExecutionProvider", options)])
        assert "CUDAExecutionProvider" not in made.get_providers()
    """)


# The protocol: what ONNX Runtime does with the three addresses.


class Functions:
    def __init__(self, options):
        def function(name, result, *arguments):
            return ctypes.CFUNCTYPE(result, *arguments)(int(options[f"gpu_external_{name}"]))

        self.alloc = function("alloc", ctypes.c_void_p, ctypes.c_size_t)
        self.free = function("free", None, ctypes.c_void_p)
        self.empty_cache = function("empty_cache", None)


def test_the_options_are_decimal_addresses_and_the_device():
    options = cachalot.onnxruntime_options(1)
    assert set(options) == {"device_id", "gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache"}
    assert options["device_id"] == "1"
    assert all(value.isdecimal() for value in options.values())
    assert cachalot.onnxruntime_options(1) == options
    assert cachalot.onnxruntime_options(0)["gpu_external_alloc"] != options["gpu_external_alloc"]


def test_memory_is_of_the_options_device_until_it_is_freed():
    functions = Functions(cachalot.onnxruntime_options(1))
    address = functions.alloc(5 * MiB)
    assert (live_bytes("onnxruntime", device=1), live_bytes("onnxruntime")) == (5 * MiB, 0)
    functions.free(address)
    functions.free(None)
    assert live_bytes("onnxruntime", device=1) == 0
    assert functions.alloc(5 * MiB) == address
    functions.free(address)
    assert cachalot.memory_report(1).cached_bytes > 0
    functions.empty_cache()
    assert cachalot.memory_report(1).cached_bytes == 0


def test_without_memory_alloc_returns_null_and_says_why(capfd):
    functions = Functions(cachalot.onnxruntime_options())
    assert functions.alloc(1 << 50) is None
    assert f"cachalot: ONNX Runtime: {OUT_OF_MEMORY}" in capfd.readouterr().err


@pytest.mark.parametrize("bad", [-1, 2, True, None, "0"])
def test_a_device_that_does_not_exist_is_refused(bad):
    with pytest.raises(ValueError, match="there are 2 CUDA devices"):
        cachalot.onnxruntime_options(bad)


def test_the_installed_version_is_one_with_these_options():
    assert tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) >= (1, 17)
