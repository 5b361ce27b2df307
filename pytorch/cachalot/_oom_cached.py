"""What is said where cached memory would have been enough in one piece: by the reason why the largest part of it could not serve."""

from __future__ import annotations

from collections.abc import Callable

from ._oom_facts import Facts, Verdict
from ._oom_state import Cached, pool_name
from ._text import bytes_text


def _fragmentation(facts: Facts, cached: Cached) -> Verdict:
    finding = (
        f"{bytes_text(cached.bytes)} is free in {cached.blocks:,} pieces of at most {bytes_text(cached.largest)} between live blocks"
    )
    if facts.serves_pages:
        advice = "use the page heap, which maps free pieces together: CACHALOT_CONF=heap:pages"
    elif facts.failure.has_pages:
        advice = "allocate long-lived small tensors first or in a cachalot.region: they pin the pages that they share"
    else:
        advice = "allocate what lives long before what lives shortly, so that it does not pin segments"
    return Verdict("fragmentation", finding, advice)


def _stream(facts: Facts, cached: Cached) -> Verdict:
    if facts.serves_pages:
        advice = "use the page heap, where free memory of one stream serves others: CACHALOT_CONF=heap:pages"
    elif facts.failure.has_pages:
        advice = "let the streams wait for each other, or set cross_stream:scarce, so that their memory serves others"
    else:
        advice = f"allocate on one stream, or free what {cached.name} still has in those segments"
    return Verdict("stream", f"{bytes_text(cached.bytes)} is free, but cached for {cached.name}", advice)


def _graph(facts: Facts, cached: Cached) -> Verdict:
    return Verdict(
        "graph pool",
        f"{bytes_text(cached.bytes)} is free, but in {cached.name}: replays of its graphs may use it",
        "share one pool among graphs (torch.cuda.graph(…, pool=…)), capture the largest first, and delete graphs not in use",
    )


def _pool(facts: Facts, cached: Cached) -> Verdict:
    return Verdict(
        "private pool",
        f"{bytes_text(cached.bytes)} is free, but in {cached.name}, which serves only allocations within use_mem_pool",
        "delete the MemPool when it is done, or make it with torch.cuda.MemPool(use_on_oom=True), which lends its memory",
    )


def _tag(facts: Facts, cached: Cached) -> Verdict:
    return Verdict(
        "private pool",
        f"{bytes_text(cached.bytes)} is free, but in {cached.name}, which serves only allocations within its region",
        f"call cachalot.release_physical for {cached.name} while it is idle, or allocate temporaries outside of its region",
    )


def _default(facts: Facts, cached: Cached) -> Verdict:
    return Verdict(
        "private pool",
        f"{bytes_text(cached.bytes)} is free in the default pool, but the request is for "
        f"{pool_name(facts.failure.pool, facts.tags)}",
        "allocate within the pool before the default pool grows, or call torch.cuda.empty_cache() before",
    )


VERDICTS: dict[str, Callable[[Facts, Cached], Verdict]] = {
    "fragmentation": _fragmentation,
    "small": _fragmentation,
    "stream": _stream,
    "graph": _graph,
    "pool": _pool,
    "tag": _tag,
    "default": _default,
}
