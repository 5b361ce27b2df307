# requires: ray
# simulate: --gpu h100 --devices 2
"""Ray's workers have a GPU each: an actor that ends with the program, another that is killed, and a task after it on its GPU.

Each process of Ray's is in the report, however it ends: with the bytes that the worker tells here.
"""

import os
import sys

import ray
import torch

MIB = 1 << 20


def allocate(mib: int) -> torch.Tensor:
    return torch.zeros(mib * MIB, dtype=torch.uint8, device="cuda")


@ray.remote(num_gpus=1)
class Keeper:
    def __init__(self, mib: int) -> None:
        self.kept = [allocate(mib)]

    def grow(self, mib: int) -> tuple[str, int, int]:
        self.kept.append(allocate(mib))
        return os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count(), torch.cuda.memory_allocated() // MIB


@ray.remote(num_gpus=1)
def take(mib: int) -> tuple[list[int], int]:
    taken = allocate(mib)
    return ray.get_gpu_ids(), taken.numel() // MIB


def use_page_heap() -> None:
    import cachalot

    cachalot.enable("heap:pages")


if __name__ == "__main__":
    # `cachalot run` is of this process alone.
    runtime = {"worker_process_setup_hook": use_page_heap} if "cachalot" in sys.modules else {}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env=runtime)
    assert ray.cluster_resources()["GPU"] == 2, ray.cluster_resources()
    keepers = [Keeper.remote(200), Keeper.remote(300)]
    (first, *seen), (second, *others) = ray.get([keeper.grow.remote(50) for keeper in keepers])
    assert {first, second} == {"0", "1"} and (seen, others) == ([1, 250], [1, 350])
    ray.kill(keepers[1])
    assert ray.get(take.remote(700)) == ([int(second)], 700)
    ray.shutdown()
    print("OK: 250, 350 and 700 MiB of three workers", flush=True)
