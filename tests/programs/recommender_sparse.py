# requires: torch numpy
# simulate: --gpu a30
# unknown: size value
# sizes: by values
"""Trains a recommender on bags of clicked ids of varied length, with sparse gradients of its tables, and ranks items."""

import numpy
import torch
from torch import Tensor, nn

ROWS, WIDTH, FEATURES = [5000, 300, 40], 16, 13


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True) for rows in ROWS)
        self.bottom = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        pairs = (len(ROWS) + 1) * len(ROWS) // 2
        self.top = nn.Sequential(nn.Linear(WIDTH + pairs, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: Tensor, ids: list[Tensor], offsets: list[Tensor]) -> Tensor:
        x = self.bottom(dense)
        vectors = torch.stack([x] + [table(i, o) for table, i, o in zip(self.tables, ids, offsets)], 1)
        row, column = torch.tril_indices(vectors.size(1), vectors.size(1), -1, device=x.device)
        return self.top(torch.cat([x, (vectors @ vectors.mT)[:, row, column]], 1)).squeeze(1)


def batch(random: numpy.random.Generator, size: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    lengths = [torch.tensor(random.integers(0, 6, size)).cuda() for _ in ROWS]
    ids = [torch.randint(0, rows, (int(length.sum()),), device="cuda") for rows, length in zip(ROWS, lengths)]
    return ids, [length.cumsum(0) - length for length in lengths], lengths


def main() -> None:
    torch.manual_seed(0)
    random = numpy.random.default_rng(0)
    model = Recommender().cuda()
    sparse = torch.optim.SparseAdam(list(model.tables.parameters()), 1e-2)
    dense = torch.optim.Adagrad([*model.bottom.parameters(), *model.top.parameters()], 1e-2)
    touched = 0
    for _ in range(4):
        ids, offsets, lengths = batch(random, 32)
        clicked = torch.randint(0, 2, (32,), device="cuda").float()
        output = model(torch.randn(32, FEATURES, device="cuda"), ids, offsets)
        assert output.shape == (32,)
        loss = nn.functional.binary_cross_entropy_with_logits(output, clicked)
        loss.backward()
        for table, i, rows in zip(model.tables, ids, ROWS):
            gradient = table.weight.grad
            assert gradient.is_sparse and gradient.shape == (rows, WIDTH)
            merged = gradient.coalesce()
            assert merged._nnz() == len(i.unique()) <= len(i), (merged._nnz(), len(i))
            assert torch.equal(merged.indices()[0], i.unique())
            touched += merged._nnz()
        sparse.step()
        dense.step()
        sparse.zero_grad()
        dense.zero_grad()
        assert bool(torch.isfinite(loss))
    pieces = torch.split(ids[0], lengths[0].tolist())
    assert len(pieces) == 32 and sum(map(len, pieces)) == len(ids[0])
    seen = torch.zeros(ROWS[0], dtype=torch.bool, device="cuda").index_fill_(0, ids[0], True)
    scores = (model.tables[0].weight.detach() @ torch.randn(WIDTH, device="cuda")).masked_fill(seen, float("-inf"))
    best = scores.topk(10).indices
    assert best.shape == (10,) and not bool(torch.isin(best, ids[0]).any())
    print(f"4 steps, {touched} rows touched")


main()
