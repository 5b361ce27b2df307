"""Serves requests on two streams; each has a cache that grows, and results wait for the other stream."""

import recording
import torch

recording.begin()
streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
caches: list[torch.Tensor] = []
for request in range(24):
    with torch.cuda.stream(streams[request % 2]):
        caches.append(torch.empty(recording.SIZE, 4, 64 + 32 * (request * 5 % 7), 512, device="cuda"))
        for i, old in enumerate(caches):
            caches[i] = torch.cat([old, torch.empty(recording.SIZE, 4, 16, 512, device="cuda")], dim=2)
            old.record_stream(streams[1 - request % 2])
    if len(caches) > 5:
        del caches[request % 5]
recording.end()
