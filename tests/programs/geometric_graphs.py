# requires: torch_geometric
# simulate: --gpu rtx4070
# sizes: by values
"""Trains graph networks of PyTorch Geometric, whose pooling, samples and dense batches have sizes that values decide."""

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, TopKPooling, global_max_pool, global_mean_pool
from torch_geometric.utils import (add_self_loops, coalesce, degree, dropout_edge, negative_sampling, remove_self_loops,
                                   to_dense_batch, to_undirected)

CLASSES = 3
NODES = [12, 20, 7, 15]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = GCNConv(8, 32), SAGEConv(32, 32), GATConv(32, 16, heads=2)
        self.pool, self.last = TopKPooling(32, ratio=0.5), nn.Linear(64, CLASSES)

    def forward(self, data: Data) -> tuple[Tensor, Tensor]:
        x = self.first(data.x, data.edge_index).relu()
        x, edges, _, batch, _, _ = self.pool(x, data.edge_index, None, data.batch)
        x = self.third(self.second(x, edges).relu(), edges)
        return self.last(torch.cat([global_mean_pool(x, batch), global_max_pool(x, batch)], 1)), batch


def graphs() -> Batch:
    found = []
    for i, nodes in enumerate(NODES):
        edges = to_undirected(coalesce(torch.randint(0, nodes, (2, 3 * nodes))))
        found.append(Data(torch.randn(nodes, 8), edges, y=torch.tensor(i % CLASSES)))
    return Batch.from_data_list(found)


def main() -> None:
    torch.manual_seed(0)
    data = graphs().to("cuda")
    model = Net().cuda()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(5):
        output, kept = model(data)
        assert output.shape == (len(NODES), CLASSES)
        assert torch.bincount(kept).tolist() == [(nodes + 1) // 2 for nodes in NODES]
        loss = nn.functional.cross_entropy(output, data.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    dense, mask = to_dense_batch(data.x, data.batch)
    assert dense.shape == (4, max(NODES), 8) and mask.sum(1).tolist() == NODES
    plain, _ = remove_self_loops(data.edge_index)
    looped, _ = add_self_loops(plain, num_nodes=data.num_nodes)
    assert looped.size(1) == plain.size(1) + sum(NODES)
    assert int(degree(plain[0], data.num_nodes).sum()) == plain.size(1)
    fewer, chosen = dropout_edge(plain, p=0.5)
    assert fewer.size(1) == int(chosen.sum()) <= plain.size(1)
    others = negative_sampling(plain, data.num_nodes, num_neg_samples=30)
    assert others.shape == (2, 30)
    known = set(map(tuple, plain.t().tolist()))
    assert not known & set(map(tuple, others.t().tolist()))
    assert all(torch.isfinite(torch.tensor(losses)))
    print(f"{len(losses)} steps, {plain.size(1)} edges, {fewer.size(1)} kept")


main()
