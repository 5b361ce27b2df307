"""cachalot.TensorPool, PoolSet and their tensors in torch and elsewhere, through DLPack.

The simulated runtime moves the bytes of copies up to 1 MiB and of fills; kernels compute nothing there.
"""

import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import dlpack_consumer
import pytest
import torch
from world import MODE, KiB, MiB, bytes_on_gpu, keep_busy, needs_enable, run_python, succeeds

if MODE == "native":
    pytest.skip("is about cachalot", allow_module_level=True)

import cachalot

ROOT = Path(__file__).parents[2]
DTYPES = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
    "float8_e8m0fnu float16 bfloat16 float32 float64 complex32 complex64 complex128"
).split()
SHAPE = (8, 16)


def live(pool):
    return pool.stats().live


def numbers(dtype=torch.int32):
    return torch.arange(SHAPE[0] * SHAPE[1], dtype=dtype).reshape(SHAPE)


# --- handed-out tensors -----------------------------------------------------------------------------------------------


def test_a_block_has_a_torch_tensor_of_the_pools_memory():
    pool = cachalot.TensorPool(SHAPE, dtype=torch.int32)
    assert (pool.shape, pool.dtype, pool.device) == (SHAPE, torch.int32, torch.device("cuda:0"))
    with pool.acquire() as tensor:
        assert tuple(tensor.shape) == SHAPE
        assert (tensor.dtype, tensor.device) == (torch.int32, torch.device("cuda:0"))
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 512 == 0
        assert torch.cuda.memory_allocated() == 512
        tensor.copy_(numbers())
        assert torch.equal(tensor.cpu(), numbers())


def test_what_comes_back_is_handed_out_again():
    pool = cachalot.TensorPool(SHAPE)
    addresses = set()
    for _ in range(100):
        with pool.acquire() as tensor:
            addresses.add(tensor.data_ptr())
            del tensor
    stats = pool.stats()
    assert len(addresses) == 1
    assert (stats.acquires, stats.hits, stats.allocations, stats.live) == (100, 99, 1, 0)
    assert stats.reuse_rate == 0.99
    assert stats.allocations_avoided == 99
    assert pool.trim() == 512
    assert pool.stats().bytes == 0


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_is_had(name):
    pool = cachalot.TensorPool((4, 2), getattr(torch, name))
    with pool.acquire() as tensor:
        assert tensor.dtype == getattr(torch, name)
        assert tensor.nbytes == tensor.untyped_storage().nbytes()


def test_a_tensor_without_dimensions_has_one_element():
    with cachalot.TensorPool(()).acquire() as tensor:
        assert tensor.dim() == 0
        assert tensor.numel() == 1


def test_tensors_are_zeroed_or_poisoned_where_asked():
    for on_reuse, byte in (("zero", 0), ("poison", 255)):
        pool = cachalot.TensorPool(SHAPE, torch.uint8, on_reuse=on_reuse)
        for _ in range(2):
            with pool.acquire() as tensor:
                assert tensor.cpu().unique().tolist() == [byte]
                tensor.copy_(torch.full(SHAPE, 7, dtype=torch.uint8))
            del tensor


def test_the_other_gpu_has_pools_too():
    pool = cachalot.TensorPool(SHAPE, device="cuda:1")
    with pool.acquire() as tensor:
        assert tensor.device == torch.device("cuda:1")
    assert torch.cuda.current_device() == 0
    del tensor


# --- tensors that outlive their block ---------------------------------------------------------------------------------


def test_a_tensor_that_outlives_its_block_keeps_its_memory_until_it_dies():
    pool = cachalot.TensorPool(SHAPE)
    with pool.acquire() as tensor:
        address = tensor.data_ptr()
    view = tensor[2:4]
    del tensor
    assert live(pool) == 1
    with pool.acquire() as other:
        assert other.data_ptr() != address
    del other
    assert view.data_ptr() == address + 2 * SHAPE[1] * 4
    thread = threading.Thread(target=lambda kept: kept.clear(), args=([view],))
    del view
    thread.start()
    thread.join()
    del thread
    assert live(pool) == 0


def test_a_tensor_outlives_its_pool():
    pool = cachalot.TensorPool(SHAPE, torch.int32)
    tensor = pool.acquire().tensor
    tensor.copy_(numbers())
    del pool
    assert torch.equal(tensor.cpu(), numbers())
    assert torch.cuda.memory_allocated() == 512
    del tensor
    assert torch.cuda.memory_allocated() == 0


def test_a_strict_pool_empties_the_tensor_at_the_end_of_its_block():
    pool = cachalot.TensorPool(SHAPE, max_slots=1, outlive="error")
    for _ in range(10):  # the name is bound to the last one meanwhile
        with pool.acquire() as tensor:
            assert tuple(tensor.shape) == SHAPE
        assert tensor.numel() == 0
    assert pool.stats().live == 0


def test_a_strict_pool_says_that_a_view_is_left():
    pool = cachalot.TensorPool(SHAPE, outlive="error")
    with pytest.raises(RuntimeError, match="the tensor outlives its lease"), pool.acquire() as tensor:
        view = tensor[0]
    assert tensor.numel() == 0
    assert view.numel() == SHAPE[1]
    assert live(pool) == 1
    del view
    assert live(pool) == 0


def test_autograd_says_that_it_has_saved_the_tensor_of_a_strict_pool():
    pool = cachalot.TensorPool(SHAPE, outlive="error")
    weight = torch.ones(SHAPE, device="cuda", requires_grad=True)
    with pool.acquire() as tensor:
        loss = (tensor * weight).sum()
    assert live(pool) == 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_strict_pool_says_that_autograd_has_saved_a_view():
    pool = cachalot.TensorPool(SHAPE, outlive="error")
    weight = torch.ones(SHAPE[1], device="cuda", requires_grad=True)
    with pytest.raises(RuntimeError, match="the tensor outlives its lease"), pool.acquire() as tensor:
        loss = (tensor[0] * weight).sum()
    assert live(pool) == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # it shares the tensor's version
        loss.backward()
    del loss
    assert live(pool) == 0


def test_a_strict_pool_does_not_hide_the_blocks_own_error():
    pool = cachalot.TensorPool(SHAPE, outlive="error")
    with pytest.raises(ZeroDivisionError), pool.acquire() as tensor:
        view = tensor[0]
        1 / 0  # noqa: B018
    assert tensor.numel() == 0
    del view


def test_a_lease_works_without_a_block():
    pool = cachalot.TensorPool(SHAPE)
    lease = pool.acquire()
    assert lease.tensor is lease.tensor
    lease.release()
    assert live(pool) == 0
    for use in (lease.release, lambda: lease.tensor, lease.__enter__, lambda: lease.__dlpack__(stream=-1)):
        with pytest.raises(RuntimeError, match="released already"):
            use()
    assert pool.stats().acquires == 1


def test_a_lease_may_be_released_within_its_block():
    pool = cachalot.TensorPool(SHAPE)
    lease = pool.acquire()
    with lease:
        lease.release()
    assert live(pool) == 0


def test_a_lease_that_is_dropped_is_released():
    pool = cachalot.TensorPool(SHAPE)
    pool.acquire()
    assert live(pool) == 0


def test_a_tensor_of_inference_mode_is_emptied_outside_of_it():
    pool = cachalot.TensorPool(SHAPE, outlive="error")
    lease = pool.acquire()
    with torch.inference_mode():
        tensor = lease.tensor
    lease.release()
    assert tensor.numel() == 0


# --- DLPack -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("versioned", [False, True])
def test_another_library_gets_the_memory_itself(versioned):
    pool = cachalot.TensorPool((2, 3, 5), torch.bfloat16)
    lease = pool.acquire()
    array = dlpack_consumer.from_dlpack(lease, stream=1, versioned=versioned)
    assert array.device == (2, 0)
    assert array.dtype == (4, 16, 1)
    assert array.shape == (2, 3, 5)
    assert array.strides == (15, 5, 1)
    assert array.data == lease.tensor.data_ptr()
    if versioned:
        assert (array.managed.major, array.managed.flags) == (1, 0)
    lease.release()
    assert live(pool) == 1
    thread = threading.Thread(target=array.free)
    thread.start()
    thread.join()
    assert live(pool) == 0


def test_two_consumers_share_a_tensor_and_the_last_one_gives_it_back():
    pool = cachalot.TensorPool(SHAPE, torch.int32)
    lease = pool.acquire()
    first, second = (dlpack_consumer.from_dlpack(lease, stream=1) for _ in range(2))
    third = torch.from_dlpack(lease)
    assert first.data == second.data == third.data_ptr()
    lease.release()
    first.free()
    del third
    assert live(pool) == 1
    second.free()
    assert live(pool) == 0


def test_a_strict_pool_says_that_a_consumer_is_left():
    pool = cachalot.TensorPool(SHAPE, outlive="error")
    lease = pool.acquire()
    array = dlpack_consumer.from_dlpack(lease, stream=1)
    with pytest.raises(RuntimeError, match="a consumer of DLPack"):
        lease.release()
    array.free()
    assert live(pool) == 0


def test_a_capsule_is_consumed_once():
    pool = cachalot.TensorPool(SHAPE)
    lease = pool.acquire()
    capsule = lease.__dlpack__(stream=-1, max_version=(1, 0))
    tensor = torch.from_dlpack(capsule)
    with pytest.raises((RuntimeError, ValueError), match="consumed only once"):
        torch.from_dlpack(capsule)
    with pytest.raises(ValueError, match="consumed already"):
        dlpack_consumer.Array(capsule, versioned=True)
    lease.release()
    del capsule
    assert live(pool) == 1
    del tensor
    assert live(pool) == 0


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0)])
def test_a_capsule_that_nobody_consumes_gives_the_tensor_up(version):
    pool = cachalot.TensorPool(SHAPE)
    capsule = pool.acquire().__dlpack__(stream=-1, max_version=version)
    assert f'"{"dltensor_versioned" if version == (1, 0) else "dltensor"}"' in repr(capsule)
    assert live(pool) == 1
    del capsule
    assert live(pool) == 0


def test_what_a_consumer_cannot_have_is_refused():
    lease = cachalot.TensorPool(SHAPE).acquire()
    with pytest.raises(ValueError, match="stream is 0"):
        lease.__dlpack__(stream=0)
    with pytest.raises(ValueError, match="stream is -7"):
        lease.__dlpack__(stream=-7)
    with pytest.raises(BufferError, match="stream is 2"):
        lease.__dlpack__(stream=2)
    with pytest.raises(TypeError, match="stream is 'x'"):
        lease.__dlpack__(stream="x")
    with pytest.raises(BufferError, match="copy is True"):
        lease.__dlpack__(copy=True)
    with pytest.raises(BufferError, match=r"dl_device is \(1, 0\)"):
        lease.__dlpack__(dl_device=(1, 0))
    lease.__dlpack__(dl_device=(2, 0), copy=False)


def test_our_structures_are_dlpacks_own():
    """The structures are compared with PyTorch's copy of the header."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if not compiler:
        pytest.skip("there is no C++ compiler")
    program = """
        #include <cstddef>
        #include <cstdint>
        namespace ours {
        #include "pool/dlpack_abi.h"
        }
        #undef DLPACK_FLAG_BITMASK_READ_ONLY
        #include <ATen/dlpack.h>
        #define SAME(type) static_assert(sizeof(ours::type) == sizeof(type) && alignof(ours::type) == alignof(type))
        #define AT(type, field) static_assert(offsetof(ours::type, field) == offsetof(type, field))
        #define NUMBER(name) static_assert(static_cast<int>(ours::name) == static_cast<int>(name))
        SAME(DLPackVersion); SAME(DLDevice); SAME(DLDataType); SAME(DLTensor);
        SAME(DLManagedTensor); SAME(DLManagedTensorVersioned);
        AT(DLPackVersion, minor); AT(DLDevice, device_id); AT(DLDataType, bits); AT(DLDataType, lanes);
        AT(DLTensor, device); AT(DLTensor, ndim); AT(DLTensor, dtype); AT(DLTensor, shape); AT(DLTensor, strides);
        AT(DLTensor, byte_offset); AT(DLManagedTensor, manager_ctx); AT(DLManagedTensor, deleter);
        AT(DLManagedTensorVersioned, manager_ctx); AT(DLManagedTensorVersioned, deleter);
        AT(DLManagedTensorVersioned, flags); AT(DLManagedTensorVersioned, dl_tensor);
        NUMBER(kDLCPU); NUMBER(kDLCUDA); NUMBER(kDLCUDAHost); NUMBER(kDLCUDAManaged);
        NUMBER(kDLInt); NUMBER(kDLUInt); NUMBER(kDLFloat); NUMBER(kDLBfloat); NUMBER(kDLComplex); NUMBER(kDLBool);
        NUMBER(kDLFloat8_e4m3fn); NUMBER(kDLFloat8_e4m3fnuz); NUMBER(kDLFloat8_e5m2); NUMBER(kDLFloat8_e5m2fnuz);
        NUMBER(kDLFloat8_e8m0fnu);
    """
    torch_headers = Path(torch.__file__).parent / "include"
    command = [compiler, "-std=c++20", "-fsyntax-only", "-I", ROOT, "-I", torch_headers, "-x", "c++", "-"]
    compiled = subprocess.run(command, input=program, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr


# --- streams ----------------------------------------------------------------------------------------------------------


def test_another_stream_waits_on_the_gpu_for_the_last():
    pool = cachalot.TensorPool(SHAPE, max_slots=1)
    side = torch.cuda.Stream()
    pool.acquire(stream=side).release()
    keep_busy(side)
    lease = pool.acquire()
    assert pool.stats().stream_waits == 1
    assert not torch.cuda.current_stream().query()
    lease.release()
    torch.cuda.synchronize()


def test_a_tensor_is_acquired_for_torchs_current_stream():
    pool = cachalot.TensorPool(SHAPE, max_slots=1)
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            pool.acquire().release()
        assert pool.stats().stream_waits <= 1  # its memory came with the stream that was current then
    pool.acquire().release()
    assert pool.stats().stream_waits in (1, 2)


@pytest.mark.parametrize("how", ["tensor", "view", "lease"])
def test_a_recorded_stream_is_waited_for(how):
    pool = cachalot.TensorPool(SHAPE, max_slots=1)
    side = torch.cuda.Stream()
    lease = pool.acquire()
    tensor = lease.tensor
    {"tensor": tensor, "view": tensor[3:], "lease": lease}[how].record_stream(side)
    keep_busy(side)
    lease.release()
    del tensor
    assert torch.cuda.current_stream().query()
    pool.acquire().release()
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


def test_others_memory_may_be_recorded_as_ever():
    block = bytes_on_gpu(MiB)
    block.record_stream(torch.cuda.Stream())
    del block
    torch.cuda.synchronize()


def test_a_consumers_stream_comes_after_the_producers_and_is_waited_for():
    pool = cachalot.TensorPool(SHAPE, max_slots=1)
    side = torch.cuda.Stream()
    lease = pool.acquire()
    keep_busy(torch.cuda.current_stream())
    array = dlpack_consumer.from_dlpack(lease, stream=side.cuda_stream)
    assert not side.query()
    torch.cuda.synchronize()
    keep_busy(side)
    lease.release()
    array.free()
    pool.acquire().release()
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


def test_no_order_is_made_where_a_consumer_wants_none():
    pool = cachalot.TensorPool(SHAPE)
    side = torch.cuda.Stream()
    lease = pool.acquire(stream=side)
    before = pool.stats().stream_waits
    lease.__dlpack__(stream=-1)
    assert pool.stats().stream_waits == before
    lease.__dlpack__(stream=None)  # the default stream
    lease.__dlpack__(stream=1)
    assert pool.stats().stream_waits == before + 2


def test_the_stream_must_be_of_the_tensors_device():
    pool = cachalot.TensorPool(SHAPE)
    other = torch.cuda.Stream("cuda:1")
    with pytest.raises(ValueError, match="the stream is of cuda:1; the tensor is on cuda:0"):
        pool.acquire(stream=other)
    with pytest.raises(ValueError, match="the stream is of cuda:1"):
        pool.acquire().record_stream(other)
    assert live(pool) == 0


# --- bad input, and what cannot be had --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shape": (2, 0)}, ValueError, r"the shape \[2, 0\] has an extent of 0: each is at least 1"),
        ({"shape": -4}, ValueError, "an extent of -4"),
        ({"shape": (1 << 70,)}, ValueError, "each is at most"),
        ({"shape": (1 << 40, 1 << 40)}, ValueError, "more bytes than any allocation"),
        ({"shape": (1.5,)}, TypeError, r"shape is \(1.5,\); it must be of ints"),
        ({"shape": None}, TypeError, "shape is None"),
        ({"dtype": torch.quint8}, ValueError, "'quint8' is not the name of a type"),
        ({"dtype": []}, TypeError, r"dtype is \[\]; it must be a torch.dtype"),
        ({"dtype": "float31"}, TypeError, "dtype is 'float31'; it must be a torch.dtype"),
        ({"device": "cpu"}, ValueError, "cpu"),
        ({"device": 7}, ValueError, "device is 7; there are cuda:0 to cuda:1"),
        ({"device": -3}, ValueError, "device is -3|-3"),
        ({"initial_slots": -1}, ValueError, "initial_slots is -1; it must be at least 0"),
        ({"initial_slots": 1.0}, TypeError, "initial_slots is 1.0; it must be an int"),
        ({"initial_slots": 5, "max_slots": 3}, ValueError, "initial_slots is 5: it is at most max_slots, 3"),
        ({"max_slots": 0}, ValueError, "max_slots is 0; it must be at least 1"),
        ({"growth_step": 0}, ValueError, "growth_step is 0"),
        ({"when_empty": "fail"}, ValueError, "a pool that never grows"),
        ({"when_empty": "hope"}, ValueError, "when_empty is 'hope'; it must be one of 'grow', 'wait', 'fail'"),
        ({"other_stream": 1}, ValueError, "other_stream is 1"),
        ({"on_reuse": "wash"}, ValueError, "on_reuse is 'wash'"),
        ({"high_water": -1}, ValueError, "high_water is -1"),
        ({"alignment": 3}, ValueError, "alignment is 3: it is a power of two"),
        ({"outlive": "never"}, ValueError, "outlive is 'never'; it must be one of 'hand_over', 'error'"),
    ],
)
def test_bad_input_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        cachalot.TensorPool(**{"shape": SHAPE} | arguments)
    assert torch.cuda.memory_allocated() == 0


def test_a_bad_call_leaves_the_pool_as_it_was():
    pool = cachalot.TensorPool(SHAPE, initial_slots=1)
    before = pool.stats()
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout is"):
            pool.acquire(timeout)
    with pytest.raises(ValueError, match="keep is -1"):
        pool.trim(-1)
    assert pool.stats() == before


def test_a_pool_that_may_not_grow_says_so():
    pool = cachalot.TensorPool(SHAPE, max_slots=2)
    leases = [pool.acquire() for _ in range(2)]
    with pytest.raises(torch.OutOfMemoryError, match="may not grow: initial_slots is 0, max_slots 2"):
        pool.acquire()
    assert pool.try_acquire() is None
    del leases[0]
    pool.try_acquire().release()


def test_memory_that_runs_out_is_torchs_error():
    size = torch.cuda.mem_get_info()[1] // 2 + MiB
    pool = cachalot.TensorPool(size, torch.uint8)
    lease = pool.acquire()
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        pool.acquire()
    with pytest.raises(torch.OutOfMemoryError):
        cachalot.TensorPool(size, torch.uint8, initial_slots=1)
    assert pool.stats().live == 1
    lease.release()


def test_cachalot_must_be_enabled_first():
    needs_enable("cachalot.TensorPool(3)", "cachalot.PoolSet(1 << 20)")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="NoSuchThing"):
        cachalot.NoSuchThing


# --- threads, waiting, and the end ------------------------------------------------------------------------------------


def test_a_waiting_thread_gets_what_another_returns():
    pool = cachalot.TensorPool(SHAPE, max_slots=1, when_empty="wait")
    lease = pool.acquire()
    got = []
    thread = threading.Thread(target=lambda: got.append(pool.acquire().tensor.data_ptr()))
    thread.start()
    while pool.stats().host_waits == 0:
        time.sleep(0.001)
    address = lease.tensor.data_ptr()
    lease.release()
    thread.join()
    assert got == [address]
    assert live(pool) == 0


def test_a_wait_counts_once_however_long_it_is():
    pool = cachalot.TensorPool(SHAPE, initial_slots=1, when_empty="wait")
    lease = pool.acquire()
    timer = threading.Timer(1.2, lease.release)  # past the first look for signals
    timer.start()
    pool.acquire().release()
    timer.join()
    assert pool.stats().host_waits == 1


def test_a_wait_ends_with_its_timeout():
    pool = cachalot.TensorPool(SHAPE, initial_slots=1, when_empty="fail")
    lease = pool.acquire()
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="within 0.05 s: all 1 are out"):
        pool.acquire(timeout=0.05)
    assert time.monotonic() - start >= 0.05
    lease.release()
    pool.acquire(timeout=0.05).release()


def test_a_wait_can_be_interrupted():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for programs in the background
    pool = cachalot.TensorPool(SHAPE, initial_slots=1, when_empty="wait")
    lease = pool.acquire()
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        pool.acquire()
    signal.signal(signal.SIGINT, before)
    timer.join()
    assert pool.stats().host_waits == 1
    lease.release()
    pool.acquire().release()


def test_threads_never_share_a_tensor():
    pool = cachalot.TensorPool(64, torch.int32, max_slots=3, when_empty="wait", outlive="error")
    errors = []

    def work(number):
        try:
            mark = torch.full((64,), number, dtype=torch.int32)
            for _ in range(100):
                with pool.acquire() as tensor:
                    tensor.copy_(mark)
                    time.sleep(0)
                    assert torch.equal(tensor.cpu(), mark)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (live(pool), pool.stats().acquires) == (0, 600)
    assert pool.stats().slots <= 3


def test_threads_may_release_one_lease_only_once():
    pool = cachalot.TensorPool(SHAPE)
    for _ in range(50):
        lease = pool.acquire()
        refused = []

        def release(lease=lease, refused=refused):
            try:
                lease.release()
            except RuntimeError as error:
                refused.append(error)

        threads = [threading.Thread(target=release) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == 3
    assert pool.stats().live == 0


def test_a_process_ends_well_with_tensors_and_capsules_out():
    code = """
        import threading
        pool = cachalot.TensorPool((16,), outlive="error")
        pools = cachalot.PoolSet(1 << 20)
        kept = [pool.acquire(), pool.acquire().tensor, pool.acquire().__dlpack__(stream=-1), pools.empty(5)]
        import sys
        sys.kept = kept  # what is left in sys goes last
        cycle = [pool.acquire()]
        cycle.append(cycle)
        torch.kept = pool
    """
    process = run_python(code)
    assert succeeds(process) == ""
    assert process.stderr == ""


def test_a_forked_child_may_drop_its_copies():
    code = """
        import os, sys
        pool = cachalot.TensorPool((16,))
        lease, tensor = pool.acquire(), pool.acquire().tensor
        child = os.fork()
        if child == 0:
            lease.release()
            del tensor
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pool.stats().live == 2
    """
    succeeds(run_python(code))


# --- PoolSet ----------------------------------------------------------------------------------------------------------


def test_a_set_gives_tensors_as_torch_does():
    pools = cachalot.PoolSet(MiB)
    like = torch.ones((3, 5), dtype=torch.float16, device="cuda")
    for tensor, shape, dtype in (
        (pools.empty((2, 3)), (2, 3), torch.float32),
        (pools.empty(7, torch.int8), (7,), torch.int8),
        (pools.zeros((4,), torch.int32), (4,), torch.int32),
        (pools.empty_like(like.t()), (5, 3), torch.float16),
    ):
        assert (tuple(tensor.shape), tensor.dtype) == (shape, dtype)
        assert tensor.is_contiguous()
    assert pools.empty(3, device="cuda:1").device == torch.device("cuda:1")
    del tensor
    assert live(pools) == 0
    by_kind = pools.stats_by_kind()
    assert by_kind[((7,), torch.int8, torch.device("cuda:0"))].acquires == 1
    assert sum(stats.acquires for stats in by_kind.values()) == pools.stats().acquires == 5


def test_intermediates_in_a_set_come_back_as_they_die():
    pools = cachalot.PoolSet(MiB)
    for _ in range(50):
        hidden = pools.empty((16, 16))
        torch.relu_(hidden)
        hidden = pools.empty((32, 8))
    stats = pools.stats()
    assert stats.acquires == 100
    assert stats.allocations <= 4  # a name keeps the last one while the next is made
    assert stats.allocations_avoided >= 96
    del hidden


def test_a_set_keeps_to_its_budget():
    pools = cachalot.PoolSet(512 * KiB)
    assert pools.byte_budget == 512 * KiB
    first = pools.empty(256 * KiB, torch.uint8)
    second = pools.empty(128 * KiB, torch.uint8)
    del second
    third = pools.empty(200 * KiB, torch.uint8)  # the second one's memory goes
    assert pools.stats().bytes <= 512 * KiB
    with pytest.raises(torch.OutOfMemoryError, match="of their budget of 512.00 KiB, all in use"):
        pools.empty(100 * KiB, torch.uint8)
    assert pools.stats().live == 2
    del first, third
    assert pools.trim() > 0
    assert pools.stats().bytes == 0


def test_leases_of_a_set_are_a_pools_leases():
    pools = cachalot.PoolSet(MiB, outlive="error")
    with pools.acquire(SHAPE, torch.int16) as tensor:
        assert tensor.dtype == torch.int16
    assert tensor.numel() == 0
    array = dlpack_consumer.from_dlpack(pools.acquire((3,)), stream=1)
    assert array.shape == (3,)
    array.free()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: cachalot.PoolSet(0), ValueError, "byte_budget is 0"),
        (lambda: cachalot.PoolSet("1"), TypeError, "byte_budget is '1'"),
        (lambda: cachalot.PoolSet(MiB, alignment=5), ValueError, "alignment is 5"),
        (lambda: cachalot.PoolSet(MiB, outlive="no"), ValueError, "outlive is 'no'"),
        (lambda: cachalot.PoolSet(MiB, device="cpu"), ValueError, "cpu"),
        (lambda: cachalot.PoolSet(MiB).empty((3, 0)), ValueError, "an extent of 0"),
        (lambda: cachalot.PoolSet(MiB).empty(3, torch.qint8), ValueError, "'qint8'"),
        (lambda: cachalot.PoolSet(MiB).empty_like(torch.ones(3)), ValueError, "cpu"),
        (lambda: cachalot.PoolSet(MiB).saved_tensors_on_host(min_bytes=-1), ValueError, "min_bytes is -1"),
        (lambda: cachalot.PoolSet(MiB).saved_tensors_on_host(keep=[7]), TypeError, "keep has 7; it must be of tensors"),
    ],
)
def test_a_set_refuses_bad_input(make, error, message):
    with pytest.raises(error, match=message):
        make()
    assert torch.cuda.memory_allocated() == 0
