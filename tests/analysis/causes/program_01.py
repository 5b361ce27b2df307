"""Answers of growing length, each of which leaves a summary behind."""

from watched import block, watch


def main():
    summaries = []
    for i in range(20):
        length = 20 + 2 * i
        answer = block(length)
        del answer
        first = block(length - 2)
        summaries.append(block(2))
        del first
    whole = block(300)
    del whole


watch(main)
