"""Programs that use memory on two streams, each a function: those named bad_… have a race, those named ok_… have none.

test_races.py runs all of them in one process. Each begins with an empty cache, so that its blocks are its own; BYTES are a large
block's.
"""

from __future__ import annotations

import ctypes
import sys
import threading

import torch
import torch.nn.functional as F

BYTES = 4 << 20
side, other = torch.cuda.Stream(), torch.cuda.Stream()
main = torch.cuda.current_stream()


def floats(count: int = BYTES // 4) -> torch.Tensor:
    return torch.ones(count, device="cuda")


def fork() -> None:
    """The side stream waits for the main one."""
    side.wait_stream(main)


# ---- races: a block of the main stream that the side stream used ----


def bad_used_and_freed() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        y = x * 2
    del x
    floats()
    del y


def bad_freed_by_leaving_a_function() -> None:
    def use() -> None:
        x = floats()
        fork()
        with torch.cuda.stream(side):
            x.add_(1)

    use()
    floats()


def bad_rebound() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        x.mul_(2)
    x = None
    x = floats()


def bad_view_of_a_block() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        x[1000:2000].zero_()
    del x
    floats()


def bad_smaller_blocks_come_after() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        x.exp_()
    del x
    parts = [floats(BYTES // 8) for _ in range(2)]
    del parts


def bad_larger_block_comes_after() -> None:
    a, b = floats(), floats()
    fork()
    with torch.cuda.stream(side):
        b.sin_()
    del a, b
    floats(BYTES // 2)


def bad_small_pool() -> None:
    x = floats(256)
    fork()
    with torch.cuda.stream(side):
        x.cos_()
    del x
    floats(256)


def bad_matrix_product() -> None:
    x = floats().view(1024, 1024)
    fork()
    with torch.cuda.stream(side):
        y = x @ x
    del x
    floats()
    del y


def bad_convolution() -> None:
    x = floats().view(1, 4, 512, 512)
    weight = torch.ones(4, 4, 3, 3, device="cuda")
    fork()
    with torch.cuda.stream(side):
        y = F.conv2d(x, weight)
    del x
    floats()
    del y


def bad_embedding() -> None:
    table = floats().view(4096, 256)
    indices = torch.zeros(16, dtype=torch.int64, device="cuda")
    fork()
    with torch.cuda.stream(side):
        rows = F.embedding(indices, table)
    del table
    floats()
    del rows


def bad_lists_of_tensors() -> None:
    x, y = floats(), floats()
    fork()
    with torch.cuda.stream(side):
        torch._foreach_add_([x, y], 1)
    del x, y
    floats()


def bad_result_of_an_out_argument() -> None:
    x, result = floats(), floats()
    fork()
    with torch.cuda.stream(side):
        torch.add(x, 1, out=result)
    del result
    again = floats()
    del again
    torch.cuda.synchronize()


def bad_copy_to_the_host() -> None:
    host = torch.empty(BYTES // 4, pin_memory=True)
    x = floats()
    fork()
    with torch.cuda.stream(side):
        host.copy_(x, non_blocking=True)
    del x
    floats()


def bad_backward_on_a_side_stream() -> None:
    weight = floats().requires_grad_()
    fork()
    with torch.cuda.stream(side):
        loss = (weight * 2).sum()
        loss.backward()
    main.wait_stream(side)
    x = floats()
    fork()
    with torch.cuda.stream(side):
        loss = (weight * x).sum()
    del x, loss
    floats()
    side.synchronize()


def bad_recorded_on_another_stream() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        x.tanh_()
    x.record_stream(other)
    del x
    floats()


def bad_event_recorded_too_early() -> None:
    x = floats()
    fork()
    event = torch.cuda.Event()
    event.record(side)
    with torch.cuda.stream(side):
        x.neg_()
    main.wait_event(event)
    del x
    floats()


def bad_waits_for_another_stream() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        x.neg_()
    main.wait_stream(other)
    del x
    floats()


def bad_wait_comes_too_late() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        x.neg_()
    del x
    floats()
    main.wait_stream(side)


def bad_exception_frees() -> None:
    try:
        x = floats()
        fork()
        with torch.cuda.stream(side):
            x.neg_()
        raise ValueError
    except ValueError:
        del x
    floats()


def bad_chain_of_streams() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        y = x + 1
    other.wait_stream(side)
    with torch.cuda.stream(other):
        z = y + x
    main.wait_stream(side)  # not for the other one
    del x
    floats()
    del y, z
    torch.cuda.synchronize()


def bad_thread_uses() -> None:
    x = floats()
    fork()

    def work() -> None:
        with torch.cuda.stream(side):
            x.neg_()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    del x, work, thread
    floats()


def bad_dtype_conversion() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        y = x.half()
    del x
    floats()
    del y


def bad_sort() -> None:
    x = floats(BYTES // 16)
    fork()
    with torch.cuda.stream(side):
        y = x.sort()
    del x
    floats(BYTES // 16)
    del y


def bad_index_put() -> None:
    x = floats()
    indices = torch.zeros(4, dtype=torch.int64, device="cuda")
    fork()
    with torch.cuda.stream(side):
        x[indices] = 5
    del x
    floats()


def bad_cat_of_parts() -> None:
    parts = [floats(BYTES // 16) for _ in range(4)]
    fork()
    with torch.cuda.stream(side):
        whole = torch.cat(parts)
    del parts
    floats(BYTES // 16)
    del whole


def bad_attention() -> None:
    q = torch.ones(1, 8, 1024, 64, device="cuda", dtype=torch.float16)
    fork()
    with torch.cuda.stream(side):
        y = F.scaled_dot_product_attention(q, q, q)
    del q
    torch.ones(1, 8, 1024, 64, device="cuda", dtype=torch.float16)
    del y


def bad_mask_selects() -> None:  # the host waits for the count, and only then x is read
    x = floats()
    mask = x > 0.5
    fork()
    with torch.cuda.stream(side):
        y = x[mask]
    del x
    floats()
    del y


def bad_composite_with_a_kernel() -> None:
    x = floats().view(1024, 1024)
    fork()
    with torch.cuda.stream(side):
        y = F.rms_norm(x, (1024,))
    del x
    floats()
    del y


def bad_copy_by_a_call_of_cuda() -> None:
    x, to = floats(), floats()
    fork()
    cuda = ctypes.CDLL("libcudart.so.13")
    copied = cuda.cudaMemcpyAsync(*map(ctypes.c_void_p, (to.data_ptr(), x.data_ptr(), BYTES)), 3, ctypes.c_void_p(side.cuda_stream))
    assert copied == 0
    del x
    floats()
    del to


def bad_given_to_another_library() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        assert x.__cuda_array_interface__["data"][0] == x.data_ptr()
    del x
    floats()


def bad_optimizer_steps_on_a_side_stream() -> None:
    weight = floats().requires_grad_()
    weight.grad = floats()
    optimizer = torch.optim.SGD([weight], lr=0.1)
    fork()
    with torch.cuda.stream(side):
        optimizer.step()
    weight.grad = None
    floats()
    torch.cuda.synchronize()


# ---- races: a block of a side stream that the main stream used ----


def bad_prefetched_batch() -> None:  # a copy on a side stream, as torchrec's, without record_stream
    host = torch.ones(BYTES // 4, pin_memory=True)
    for _ in range(2):
        with torch.cuda.stream(side):
            batch = host.to("cuda", non_blocking=True)
        main.wait_stream(side)
        batch.sum()
        del batch


def bad_made_on_a_side_stream() -> None:
    with torch.cuda.stream(side):
        x = floats()
    main.wait_stream(side)
    x.neg_()
    del x
    with torch.cuda.stream(side):
        floats()


def bad_gathered_on_a_side_stream() -> None:  # as parameters that are gathered ahead
    with torch.cuda.stream(side):
        weight = floats().view(1024, 1024)
    main.wait_stream(side)
    y = weight @ weight
    del weight
    with torch.cuda.stream(side):
        weight = floats()
    del y, weight


# ---- races: the next block's first use is on a stream that does not wait for the last block's ----


def bad_next_use_does_not_wait() -> None:
    x = floats()
    x.neg_()
    del x
    x = torch.empty(BYTES // 4, device="cuda")
    with torch.cuda.stream(side):
        x.zero_()
    x.record_stream(side)


def bad_copy_does_not_wait() -> None:
    host = torch.ones(BYTES // 4, pin_memory=True)
    floats().neg_()
    x = torch.empty(BYTES // 4, device="cuda")
    with torch.cuda.stream(side):
        x.copy_(host, non_blocking=True)
    x.record_stream(side)


# ---- programs without a race ----


def ok_recorded() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        x.neg_()
    x.record_stream(side)
    del x
    floats()


def ok_main_waits() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        x.neg_()
    main.wait_stream(side)
    del x
    floats()


def ok_waits_after_the_free() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        x.neg_()
    del x
    main.wait_stream(side)
    floats()


def ok_waits_before_the_first_use() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        x.neg_()
    del x
    x = torch.empty(BYTES // 4, device="cuda")
    main.wait_stream(side)
    x.zero_()


def ok_host_synchronizes() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        x.neg_()
    side.synchronize()
    del x
    floats()


def ok_host_waits_for_the_device() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        x.neg_()
    torch.cuda.synchronize()
    del x
    floats()


def ok_host_asks_an_event() -> None:
    x = floats()
    fork()
    event = torch.cuda.Event()
    with torch.cuda.stream(side):
        x.neg_()
        event.record()
    while not event.query():
        pass
    del x
    floats()


def ok_host_reads_a_value() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        x.sum().item()
    del x
    floats()


def ok_operation_waits_at_its_end() -> None:
    x = floats(BYTES // 16)
    fork()
    with torch.cuda.stream(side):
        y = x.unique()
    del x
    floats(BYTES // 16)
    del y


def ok_copy_to_pageable_memory() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        x.cpu()
    del x
    floats()


def ok_events_of_a_double_buffer() -> None:
    host = torch.ones(BYTES // 4, pin_memory=True)
    buffers = [torch.empty(BYTES // 4, device="cuda") for _ in range(2)]
    events = [torch.cuda.Event() for _ in range(2)]
    fork()
    for i in range(4):
        with torch.cuda.stream(side):
            side.wait_event(events[i % 2])
            buffers[i % 2].copy_(host, non_blocking=True)
        main.wait_stream(side)
        buffers[i % 2].sum()
        events[i % 2].record(main)
    side.wait_stream(main)


def ok_order_by_a_third_stream() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        x.neg_()
    other.wait_stream(side)
    main.wait_stream(other)
    del x
    floats()


def ok_used_by_its_own_stream_alone() -> None:
    for _ in range(4):
        with torch.cuda.stream(side):
            floats().neg_()


def ok_memory_of_each_stream() -> None:
    for stream in (side, other, main, side, main):
        with torch.cuda.stream(stream):
            floats().exp()


def ok_like_another_tensor() -> None:  # neither kernel reads it
    x = floats()
    with torch.cuda.stream(side):
        torch.zeros_like(x)
        torch.empty_like(x)
    del x
    floats()


def ok_another_part_of_the_block() -> None:
    x = floats()
    fork()
    with torch.cuda.stream(side):
        x[: BYTES // 8].neg_()
    whole = x[BYTES // 8 :].clone()
    del x
    x = torch.empty(BYTES // 4, device="cuda")
    x[BYTES // 8 :].zero_()
    main.wait_stream(side)
    x[: BYTES // 8].zero_()
    del whole


def ok_emptied_cache() -> None:
    x = floats(BYTES)
    fork()
    with torch.cuda.stream(side):
        x.neg_()
    del x
    torch.cuda.empty_cache()
    floats(BYTES)


def ok_captured_graph() -> None:
    x = floats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = y + 1
        torch.cuda.current_stream().wait_stream(side)
        del y
        z.add_(x)
    graph.replay()
    z.sum()


def ok_backward_on_the_streams_of_forward() -> None:
    weight = floats().requires_grad_()
    fork()
    with torch.cuda.stream(side):
        y = weight * 2
    main.wait_stream(side)
    y.record_stream(main)
    y.sum().backward()
    torch.cuda.synchronize()


def run(prefix: str) -> None:
    for name, program in list(globals().items()):
        if name.startswith(prefix):
            program()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    run("bad_")
    run("ok_")
    sys.exit(0)
