"""A server captures a graph for each size of a batch."""

import torch
from watched import block, watch


def main():
    model = torch.nn.Linear(512, 512).cuda()
    with torch.no_grad():
        model(torch.zeros(8, 512, device="cuda"))
        graphs = []
        for rows in (64, 32, 16, 8, 4, 2):
            static = torch.zeros(rows, 512, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                hidden = block(2 * rows)
                hidden = block(2 * rows)
                result = model(static)
                del hidden
            graphs.append((graph, static, result))
        batch = block(500)
        del batch


watch(main)
