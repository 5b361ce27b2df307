# requires: torch
# simulate: --gpu l4
"""A process makes tensors on the GPU and sends them to another, by torch.multiprocessing; the other changes one of them."""

import torch
import torch.multiprocessing as multiprocessing

WIDTH = 128


def receive(queue: multiprocessing.Queue, answers: multiprocessing.Queue, done: multiprocessing.Event) -> None:
    whole, part = queue.get()
    assert whole.is_cuda and part.shape == (WIDTH // 2, WIDTH)
    total = whole.sum().item()
    part.fill_(2)
    torch.cuda.synchronize()
    answers.put(total)
    done.wait(60)
    del whole, part


def main() -> None:
    context = multiprocessing.get_context("spawn")
    queue, answers, done = context.Queue(), context.Queue(), context.Event()
    other = context.Process(target=receive, args=(queue, answers, done))
    other.start()
    tensor = torch.ones(WIDTH, WIDTH, device="cuda")
    queue.put((tensor, tensor[WIDTH // 2:]))
    total = answers.get(timeout=120)
    assert total == WIDTH * WIDTH, total
    assert tensor.sum().item() == WIDTH * WIDTH * 3 // 2, "the other process has changed the same memory"
    done.set()
    other.join()
    assert other.exitcode == 0
    print(f"OK: {tensor.nbytes:,} bytes shared")


if __name__ == "__main__":
    main()
