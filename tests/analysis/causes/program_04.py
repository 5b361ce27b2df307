"""A loader copies on a stream of its own and keeps a header of each file."""

import torch
from watched import block, watch


def main():
    loading = torch.cuda.Stream()
    headers = []
    with torch.cuda.stream(loading):
        for i in range(9):
            content = block(30 + 2 * i)
            del content
            part, header = block(28 + 2 * i), block(2)
            headers.append(header)
            del part
    loading.synchronize()
    torch.cuda.current_stream().wait_stream(loading)
    layers = [block(35) for _ in range(20)]
    del layers


watch(main)
