"""Why a request failed and what would have served it.

Each cause is tested by what would be there without it: cached memory is the cause if all of it, in one piece, would have
served the request; a limit, if the device had the memory; another process, if what it holds would have been enough. The
first that holds, in the order of `_CAUSES`, is the cause.
"""

from __future__ import annotations

from collections.abc import Callable

from .._base.text import bytes_text
from .oom_facts import Cached, Facts, Verdict, pool_name


# Returns the verdict if cached memory would have been enough in one piece: by the reason why the largest part of it could not
# serve.


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


def _idle(facts: Facts, cached: Cached) -> Verdict:
    finding = f"{bytes_text(cached.bytes)} is free in whole segments of {cached.name}, which are given back only with the pool"
    if facts.serves_pages:
        return Verdict("private pool", finding, "use the page heap, which maps them together: CACHALOT_CONF=heap:pages")
    return Verdict("private pool", finding, "allocate the largest first, or delete the pool and use another one")


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
    "idle": _idle,
    "stream": _stream,
    "graph": _graph,
    "pool": _pool,
    "tag": _tag,
    "default": _default,
}


def verdict_of(facts: Facts) -> Verdict:
    """Returns the first cause that explains the failure."""
    for cause in _CAUSES:
        verdict = cause(facts)
        if verdict is not None:
            return verdict
    return _too_large(facts)


def _waking(facts: Facts) -> Verdict | None:
    failure = facts.failure
    if failure.pool not in facts.state.sleeping_pools:
        return None
    name = pool_name(failure.pool, facts.tags)
    lacking = bytes_text(max(0, failure.requested_bytes - facts.room))
    others = [f"{tag!r} ({bytes_text(size)})" for tag, size in facts.awake_tags.items()]
    advice = f", or put another tag to sleep first: {', '.join(others[:3])} is awake" if others else ""
    return Verdict(
        "asleep",
        f"{name} is asleep and its {bytes_text(failure.requested_bytes)} cannot come back: other memory took their place",
        f"free {lacking} of other memory before restore_physical{advice}",
    )


def _refusal(facts: Facts) -> Verdict | None:
    if not facts.failure.is_refusal:
        return None
    cached = bytes_text(facts.state.cached_bytes)
    return Verdict(
        "limit",
        "throw_on_cudamalloc_oom refuses what would exceed per_process_memory_fraction of the device before cached memory "
        f"({cached}) is given back",
        "remove throw_on_cudamalloc_oom, so that cached memory is given back first, or raise per_process_memory_fraction",
    )


def _cached(facts: Facts) -> Verdict | None:
    """Cached memory would have been enough, in one piece and for this request."""
    state, needed = facts.state, facts.failure.requested_bytes
    if not state.cached or needed > state.cached_bytes + facts.room:
        return None
    largest = state.cached[0]
    return VERDICTS[largest.kind](facts, largest)


def _waiting(facts: Facts) -> Verdict | None:
    state, needed = facts.state, facts.failure.requested_bytes
    if not state.waiting_bytes or needed > state.cached_bytes + state.waiting_bytes + facts.room:
        return None
    return Verdict(
        "waiting",
        f"{bytes_text(state.waiting_bytes)} is freed but waits for work on other streams, and is not waited for during a capture",
        "synchronize the streams of record_stream() before this point, or free such tensors before the capture begins",
    )


def _limit(facts: Facts) -> Verdict | None:
    failure, state = facts.failure, facts.state
    free = failure.device_free_bytes
    if not facts.is_limited or free <= facts.room or failure.requested_bytes > state.cached_bytes + free:
        return None
    return Verdict(
        "limit",
        f"this process may hold {bytes_text(failure.allowed_bytes)} and holds {bytes_text(state.reserved_bytes)}, while the "
        f"device has {bytes_text(free)} free",
        f"raise the limit of this process (cachalot.limits() says who set it) to "
        f"{bytes_text(state.reserved_bytes + failure.segment_bytes)} or more",
    )


def _outside(facts: Facts) -> Verdict | None:
    """Memory outside of the allocator would have been enough: the largest part of it is the cause."""
    outside = facts.outside
    base = facts.state.cached_bytes + facts.room
    parts: list[tuple[int, Callable[[Facts], Verdict]]] = [(outside.other_bytes or 0, _other_process)]
    if outside.has_nccl:
        parts.append((outside.own_bytes or 0, _nccl))
    if outside.own_bytes is None and outside.other_bytes is None:
        parts.append((outside.all_bytes, _unknown_outside))
    size, verdict = max(parts, key=lambda part: part[0])
    return verdict(facts) if size and facts.failure.requested_bytes <= base + size else None


def _other_process(facts: Facts) -> Verdict:
    outside = facts.outside
    which = ", ".join(f"process {pid} ({bytes_text(size)})" for pid, size in outside.processes[:3])
    return Verdict(
        "another process",
        f"other processes hold {bytes_text(outside.other_bytes or 0)} of the device" + (f": {which}" if which else ""),
        f"end the other process{f' {outside.processes[0][0]}' if outside.processes else ''} (nvidia-smi lists them), or use "
        "another GPU: CUDA_VISIBLE_DEVICES",
    )


def _nccl(facts: Facts) -> Verdict:
    return Verdict(
        "NCCL",
        f"the CUDA context, NCCL and other libraries of this process hold {bytes_text(facts.outside.own_bytes or 0)}",
        "make NCCL's buffers smaller: fewer process groups, NCCL_MAX_NCHANNELS or NCCL_BUFFSIZE; with NCCL 2.29.7 or newer "
        "ncclCommSuspend gives its memory back while it is idle",
    )


def _unknown_outside(facts: Facts) -> Verdict:
    return Verdict(
        "another process",
        f"{bytes_text(facts.outside.all_bytes)} of the device is held outside of this allocator: by other processes, or by the "
        "context and libraries of this one",
        "look at nvidia-smi for other processes on this GPU, and end them or use another GPU: CUDA_VISIBLE_DEVICES",
    )


def _too_large(facts: Facts) -> Verdict:
    failure, state = facts.failure, facts.state
    lacking = bytes_text(max(0, failure.requested_bytes - state.cached_bytes - facts.room))
    if failure.requested_bytes > failure.device_total_bytes:
        finding = f"the request is larger than the device ({bytes_text(failure.device_total_bytes)})"
    else:
        finding = f"live memory of {bytes_text(state.live_bytes)} and the request do not fit the device together"
    tags = "".join(
        f"; put the tag {tag!r} ({bytes_text(size)}) to sleep if it is idle" for tag, size in list(facts.awake_tags.items())[:1]
    )
    return Verdict(
        "too large",
        finding,
        f"use {lacking} less: a smaller batch with gradient accumulation, checkpointed or saved_tensors_on_host() "
        f"activations, or a larger GPU{tags if failure.has_pages else ''}",
    )


_CAUSES: tuple[Callable[[Facts], Verdict | None], ...] = (_waking, _refusal, _cached, _waiting, _limit, _outside)


def what_would_serve(facts: Facts) -> list[str]:
    """Returns a line for each thing that would have served the request, or would not."""
    failure, state = facts.failure, facts.state
    lines: list[str] = []
    if not failure.has_pages:
        verb = "yes" if facts.serves_pages else "no"
        lines.append(f"the page heap (CACHALOT_CONF=heap:pages): {verb}, it could map {bytes_text(facts.page_bytes)} together now")
    if facts.is_limited:
        free = failure.device_free_bytes
        verb = "yes" if failure.segment_bytes <= free else "no"
        lines.append(f"no limit: {verb}, the limit is {bytes_text(failure.allowed_bytes)} and the device has {bytes_text(free)} free")
    for cached in state.of("pool"):
        verb = "yes" if cached.largest >= failure.requested_bytes else "no"
        lines.append(f"use_on_oom=True of {cached.name}: {verb}, its largest free block is {bytes_text(cached.largest)}")
    for tag, size in list(facts.awake_tags.items())[:2] if failure.has_pages else ():
        verb = "yes" if size + facts.page_bytes >= failure.requested_bytes else "no"
        lines.append(f"release_physical({tag!r}): {verb}, it would free {bytes_text(size)}")
    less = failure.requested_bytes - facts.served_bytes
    if less > 0:
        lines.append(f"a request {bytes_text(less)} smaller: yes, {bytes_text(facts.served_bytes)} is available in one piece")
    return lines
