"""Keeps a part of each answer, with expandable segments."""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import recording  # noqa: E402

recording.begin()
kept = []
for i in range(20):
    length = recording.SIZE + 2 * i
    answer = recording.block(length)
    del answer
    first = recording.block(length - 3)
    kept.append(recording.block(3))
    del first
recording.end()
