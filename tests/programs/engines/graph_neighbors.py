# requires: torch_geometric
# simulate: --gpu rtx4070
"""Trains a GCN of PyTorch Geometric on batches that a sampler of neighbours draws from a large graph on the host."""

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv
from torch_geometric.utils import k_hop_subgraph

NODES, EDGES, FEATURES, CLASSES, SEEDS, FANOUT = 5000, 40000, 64, 7, 64, 5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(FEATURES, 32), GCNConv(32, CLASSES)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(self.first(x, edges).relu(), edges)


def neighbours(edges: Tensor, nodes: Tensor) -> Tensor:
    """Returns up to FANOUT edges into each of the nodes, as NeighborLoader samples them."""
    into = edges[:, torch.isin(edges[1], nodes)]
    into = into[:, torch.randperm(into.size(1))]
    order = into[1].argsort(stable=True)
    _, counts = into[1][order].unique_consecutive(return_counts=True)
    first = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return into[:, order[torch.arange(order.numel()) - first < FANOUT]]


def batches(edges: Tensor):
    for seeds in torch.randperm(NODES).split(SEEDS)[:6]:
        near = neighbours(edges, seeds)
        far = neighbours(edges, torch.cat([seeds, near[0]]).unique())
        kept = torch.cat([seeds, far.flatten()]).unique()
        number = torch.full((NODES,), -1)
        number[kept] = torch.arange(kept.numel())
        yield kept, number[far], number[seeds]


def main() -> None:
    torch.manual_seed(0)
    features, labels = torch.randn(NODES, FEATURES), torch.randint(0, CLASSES, (NODES,))
    edges = torch.randint(0, NODES, (2, EDGES))
    model = Net().cuda()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    largest = steps = 0
    for nodes, inner, seeds in batches(edges):
        x, inner = features[nodes].pin_memory().cuda(non_blocking=True), inner.cuda()
        out = model(x, inner)
        assert out.shape == (nodes.numel(), CLASSES)
        loss = nn.functional.cross_entropy(out[seeds.cuda()], labels[nodes[seeds]].cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        largest, steps = max(largest, nodes.numel()), steps + 1
    subset, _, mapping, _ = k_hop_subgraph([0, 1], 2, edges.cuda(), num_nodes=NODES)
    assert subset[mapping].tolist() == [0, 1]
    print(f"OK: {steps} batches of up to {largest} of {NODES} nodes")


main()
