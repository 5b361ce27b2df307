"""PoolSet.saved_tensors_on_host: what autograd saves goes to the host and comes back as it was.

The simulated runtime moves the bytes of copies up to 1 MiB; kernels compute nothing there.
"""

import ctypes
import threading

import pytest
import torch
from torch import nn
from world import MODE, KiB, MiB, keep_busy

if MODE == "native":
    pytest.skip("is about cachalot", allow_module_level=True)

import cachalot

SIMULATED = hasattr(ctypes.CDLL(None), "cachalot_sim_launch")
SHAPE = (64, 128)  # of int-like floats: 32 KiB


def numbers(shape=SHAPE, start=0.0):
    count = torch.Size(shape).numel()
    return torch.arange(start, start + count).reshape(shape)


class Remember(torch.autograd.Function):
    """Saves tensors; its backward pass shows them to `seen` as the host has them."""

    @staticmethod
    def forward(ctx, anchor, seen, *tensors):
        ctx.seen = seen
        ctx.save_for_backward(*tensors)
        return anchor.sum()

    @staticmethod
    def backward(ctx, gradient):
        tensors = ctx.saved_tensors
        for tensor in tensors:
            ctx.seen.append((tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.cpu()))
        return torch.zeros(1, device=gradient.device), None, *[None] * len(tensors)


def remember(*tensors, seen):
    anchor = torch.zeros(1, device=tensors[0].device, requires_grad=True)
    return Remember.apply(anchor, seen, *tensors)


@pytest.fixture
def pools():
    return cachalot.PoolSet(64 * MiB)


def test_what_was_saved_comes_back_as_it_was(pools):
    seen = []
    tensor = numbers().cuda()
    with pools.saved_tensors_on_host(min_bytes=0) as saved:
        loss = remember(tensor, seen=seen)
    assert (saved.tensors, saved.storages, saved.bytes) == (1, 1, tensor.nbytes)
    tensor.zero_()  # it is the copy that counts
    loss.backward()
    assert torch.equal(seen[0][3], numbers())
    assert pools.stats().acquires == 1
    assert pools.stats().live == 0


def test_the_gpus_memory_is_free_meanwhile(pools):
    tensor = torch.empty(8 * MiB, dtype=torch.uint8, device="cuda")
    with pools.saved_tensors_on_host():
        loss = remember(tensor, seen=[])
    del tensor
    assert torch.cuda.memory_allocated() < MiB
    loss.backward()
    assert pools.stats().peak_bytes == 8 * MiB
    assert torch.cuda.max_memory_allocated() < 9 * MiB


def test_views_keep_their_shapes_strides_and_types(pools):
    seen = []
    tensor = numbers().cuda()
    views = (tensor.t(), tensor[3:9, ::2], tensor.view(torch.int32)[1], tensor[0].expand(5, -1))
    with pools.saved_tensors_on_host(min_bytes=0) as saved:
        loss = remember(*views, seen=seen)
    assert (saved.tensors, saved.storages, saved.bytes) == (4, 1, tensor.nbytes)
    loss.backward()
    for view, (_, shape, strides, content) in zip(views, seen, strict=True):
        assert (shape, strides) == (tuple(view.shape), view.stride())
        assert torch.equal(content, view.cpu())


def test_what_shares_a_storage_is_copied_once_and_shares_one_again(pools):
    seen = []
    tensor = numbers().cuda()
    with pools.saved_tensors_on_host(min_bytes=0) as saved:
        losses = [remember(tensor[i:], tensor, seen=seen) for i in range(3)]
    assert (saved.tensors, saved.storages) == (6, 1)
    for loss in losses:
        loss.backward()
        assert pools.stats().live == 0
    assert [content[0, 0].item() for *_, content in seen] == [0, 0, 128, 0, 256, 0]
    for first, second in zip(seen[::2], seen[1::2], strict=True):
        assert first[0] - second[0] == first[3][0, 0].item() * 4
    assert pools.stats().acquires == 3  # once for each backward pass: in between it was not used


def test_two_streams_share_what_is_back(pools):
    tensor = numbers().cuda()
    with pools.saved_tensors_on_host(min_bytes=0):
        loss = remember(tensor, tensor[1:], seen=[])
    keep_busy(torch.cuda.current_stream())
    first, _ = loss.grad_fn.saved_tensors
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        _, second = loss.grad_fn.saved_tensors
    assert second.data_ptr() == first[1:].data_ptr()
    assert not side.query()
    torch.cuda.synchronize()
    keep_busy(side)
    del first, second, _
    pools.empty(tensor.nbytes, torch.uint8)  # the next user of that memory
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


def test_a_storage_that_is_written_to_is_copied_again(pools):
    seen = []
    tensor = numbers().cuda()
    with pools.saved_tensors_on_host(min_bytes=0) as saved:
        first = remember(tensor, seen=seen)
        tensor.copy_(numbers(start=7))
        second = remember(tensor, seen=seen)
    assert saved.storages == 2
    first.backward()
    second.backward()
    assert torch.equal(seen[0][3], numbers())
    assert torch.equal(seen[1][3], numbers(start=7))


def test_memory_that_is_used_again_is_not_taken_for_what_lay_there(pools):
    seen, losses = [], []
    with pools.saved_tensors_on_host(min_bytes=0) as saved:
        for i in range(4):
            tensor = numbers(start=i).cuda()  # where the one before was
            losses.append(remember(tensor, seen=seen))
            del tensor
    assert saved.storages == 4
    for loss in losses:
        loss.backward()
    assert [content[0, 0].item() for *_, content in seen] == [0, 1, 2, 3]


def test_a_graph_that_is_retained_brings_them_back_again(pools):
    seen = []
    tensor = numbers().cuda()
    with pools.saved_tensors_on_host(min_bytes=0):
        loss = remember(tensor, tensor[1:], seen=seen)
    for _ in range(2):
        loss.backward(retain_graph=True)
        assert pools.stats().live == 0
    assert len(seen) == 4
    assert pools.stats().acquires == 2
    for *_, content in seen[::2]:
        assert torch.equal(content, numbers())


def test_parameters_small_tensors_and_what_is_to_be_kept_stay(pools):
    weight = nn.Parameter(torch.ones(512, 512, device="cuda"))
    kept, bias = torch.ones(512, 512, device="cuda"), torch.ones(512, device="cuda", requires_grad=True)

    def layer():
        scaled = weight.t() * kept  # saves both
        return scaled * weight * bias  # saves all factors and the first product
    with pools.saved_tensors_on_host(keep=[kept]) as saved:
        loss = layer().sum()
    assert (saved.storages, saved.bytes) == (2, 2 * MiB)
    loss.backward()
    with pools.saved_tensors_on_host(min_bytes=2 * MiB) as saved:
        layer()
    assert saved.tensors == 0


def test_the_host_and_other_kinds_of_tensors_are_left_alone(pools):
    class Mine(torch.Tensor):
        pass

    def double(tensor):
        return tensor * tensor

    with pools.saved_tensors_on_host(min_bytes=0) as saved:
        double(torch.ones(3, requires_grad=True))
        double(torch.ones(3, device="cuda").as_subclass(Mine).requires_grad_() * 1.0)
        remember(torch.ones(3, dtype=torch.complex64, device="cuda").conj(), seen=[])
    assert saved.tensors == 0


def test_views_of_frozen_parameters_stay(pools):
    frozen = nn.Parameter(torch.ones(512, 512, device="cuda"), requires_grad=False)
    with pools.saved_tensors_on_host() as saved:
        remember(frozen.t(), frozen[1:], seen=[])
    assert saved.tensors == 0


def test_nothing_is_left_when_the_graph_is_gone(pools):
    kept = torch.ones(1000, device="cuda")
    with pools.saved_tensors_on_host(min_bytes=0, keep=[kept]):
        loss = remember(numbers().cuda(), seen=[])
    del loss, kept
    assert torch.cuda.memory_allocated() == 0


def test_the_context_ends(pools):
    with pools.saved_tensors_on_host(min_bytes=0) as saved:
        pass
    remember(torch.ones(3, device="cuda"), seen=[])
    assert saved.tensors == 0


def test_a_budget_that_is_too_small_is_said_in_the_backward_pass(pools):
    small = cachalot.PoolSet(16 * KiB)
    seen = []
    with small.saved_tensors_on_host(min_bytes=0):
        loss = remember(numbers().cuda(), seen=seen)
    with pytest.raises(torch.OutOfMemoryError, match="of their budget of 16.00 KiB"):
        loss.backward(retain_graph=True)
    assert seen == []
    assert small.stats().live == 0


def test_another_stream_waits_for_the_copies(pools):
    seen = []
    side = torch.cuda.Stream()
    tensor = numbers().cuda()
    keep_busy(torch.cuda.current_stream())
    with pools.saved_tensors_on_host(min_bytes=0):
        loss = remember(tensor, seen=seen)
    with torch.cuda.stream(side):
        (back,) = loss.grad_fn.saved_tensors
    assert not side.query()
    assert torch.equal(back.cpu(), numbers())


def test_several_threads_save_and_bring_back(pools):
    errors = []

    def work(number):
        try:
            for i in range(10):
                seen = []
                tensor = numbers(start=100 * number + i).cuda()
                with pools.saved_tensors_on_host(min_bytes=0):
                    loss = remember(tensor, seen=seen)
                del tensor
                loss.backward()
                assert torch.equal(seen[0][3], numbers(start=100 * number + i))
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert pools.stats().live == 0


def test_the_second_gpus_tensors_come_back_to_it(pools):
    seen = []
    with pools.saved_tensors_on_host(min_bytes=0):
        loss = remember(numbers().to("cuda:1"), seen=seen)
    loss.backward()
    assert torch.equal(seen[0][3], numbers())
    assert next(iter(pools.stats_by_kind()))[2] == torch.device("cuda:1")


@pytest.mark.skipif(SIMULATED, reason="kernels compute nothing")
def test_gradients_are_what_they_are_without_to_the_bit(pools):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256)).cuda()
    batch = torch.randn(128, 256, device="cuda")

    def gradients():
        model.zero_grad()
        model(batch).square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    without = gradients()
    with pools.saved_tensors_on_host(min_bytes=0) as saved:
        with_host = gradients()
    assert saved.tensors > 4
    assert all(torch.equal(a, b) for a, b in zip(without, with_host, strict=True))
    torch._C._cuda_clearCublasWorkspaces()
