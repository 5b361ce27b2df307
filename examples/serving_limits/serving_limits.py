"""A server whose GPU memory has bounds: reserved before the first request, shed at a soft limit, trimmed when idle.

Ends with an error where what must hold does not.
"""

from __future__ import annotations

import collections

import cachalot
import torch

MiB = 1 << 20

cachalot.enable("heap:pages")
conversations: collections.OrderedDict[int, torch.Tensor] = collections.OrderedDict()  # the oldest first


def answer(conversation: int, size: int) -> None:
    """Serves a request: keys and values of a conversation, and memory that lasts as long as the request."""
    keys_and_values = torch.empty(size, dtype=torch.uint8, device="cuda")
    torch.empty(size // 4, dtype=torch.uint8, device="cuda")
    conversations[conversation] = keys_and_values


def shed(soft: cachalot.SoftLimit) -> None:
    """Ends the oldest conversations, and gives their memory to other users of the GPU."""
    while torch.cuda.memory_allocated() > soft.soft_limit_bytes // 2:
        conversations.popitem(last=False)
    given = cachalot.trim(keep=soft.soft_limit_bytes // 2)
    print(f"soft limit: {soft.held_bytes // MiB} MiB held, {given // MiB} MiB given back")


def main() -> None:
    cachalot.set_limit("3GiB")
    cachalot.set_soft_limit("2GiB", shed)
    cachalot.reserve("1GiB")
    held, calls = torch.cuda.memory_reserved(), torch.cuda.memory_stats()["num_device_alloc"]
    for conversation in range(40):
        answer(conversation, (4 + conversation % 20) * MiB)
    calls = torch.cuda.memory_stats()["num_device_alloc"] - calls
    print(f"40 requests from {held // MiB} MiB reserved: {calls} requests of memory to the driver")
    assert calls == 0, "the reservation serves"
    for conversation in range(40, 100):
        answer(conversation, 64 * MiB)
    try:
        answer(100, 4096 * MiB)
        raise AssertionError("4 GiB exceed the limit of 3")
    except torch.OutOfMemoryError as error:
        print(f"refused, and the server goes on: …{str(error)[str(error).index(' 3.00 GiB allowed') :].split(';')[0]}")
    conversations.clear()
    given = cachalot.trim(keep="1GiB")
    print(f"idle: {given // MiB} MiB given back, {torch.cuda.memory_reserved() // MiB} MiB held")
    assert torch.cuda.memory_reserved() >= 1024 * MiB, "trim keeps what it is to keep"


main()
