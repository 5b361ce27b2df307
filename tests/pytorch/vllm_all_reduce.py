"""A rank of two whose graph has vLLM's all-reduce: vllm_all_reduce.py RANK FILE_OF_THE_GROUP. It begins as a worker of vLLM does."""

import sys

import torch
import torch.distributed as dist
from cachalot._start.vllm_sleep import serve
from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce


def main():
    rank = int(sys.argv[1])
    serve(offload_graphs=False)
    torch.cuda.set_device(rank)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
    reduce = CustomAllreduce(dist.group.WORLD, torch.device("cuda", rank), register_graph_buffers=True)
    assert not reduce.disabled
    graph, ones = torch.cuda.CUDAGraph(), torch.ones(1024, device="cuda")
    with reduce.capture(), torch.cuda.graph(graph):
        result = reduce.custom_all_reduce(ones * 2)
    assert result is not None
    graph.replay()
    torch.cuda.synchronize()
    dist.barrier()
    print("captured")


if __name__ == "__main__":
    main()
