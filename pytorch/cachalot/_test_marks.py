"""The arguments of the marks gpu_memory_limit and gpu_no_leaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ._sizes import bytes_of

if TYPE_CHECKING:
    import pytest

    from ._test_memory import Kind


class Limit(NamedTuple):
    limit: int
    kind: Kind
    device: int | None


class NoLeaks(NamedTuple):
    threshold: int
    device: int | None


class Asked(NamedTuple):
    """What the marks of a test ask for."""

    limits: tuple[Limit, ...]
    no_leaks: tuple[NoLeaks, ...]

    @property
    def devices(self) -> set[int | None]:
        """Returns the devices to measure; None is the current one."""
        return {limit.device for limit in self.limits} | {asked.device for asked in self.no_leaks}


def asked_by_marks(item: pytest.Item) -> Asked | None:
    """Returns what a test's marks ask for; None where it has none. Raises ValueError or TypeError, which names the mark."""
    limits, no_leaks = tuple(_limits(item)), tuple(_no_leaks(item))
    return Asked(limits, no_leaks) if limits or no_leaks else None


def _limits(item: pytest.Item) -> Iterator[Limit]:
    """The closest limit of each device and kind."""
    def read(size: object, of: Kind = "allocated", device: object = None) -> Limit:
        if of not in ("allocated", "reserved"):
            raise ValueError(f"gpu_memory_limit: of is {of!r}; it must be 'allocated' or 'reserved'")
        return Limit(bytes_of("gpu_memory_limit: size", size), of, _device("gpu_memory_limit", device))

    seen: set[tuple[str, int | None]] = set()
    for mark in item.iter_markers("gpu_memory_limit"):
        try:
            limit = read(*mark.args, **mark.kwargs)
        except TypeError as error:
            raise TypeError(f"gpu_memory_limit takes size, of and device: {error}") from None
        if (limit.kind, limit.device) not in seen:
            seen.add((limit.kind, limit.device))
            yield limit


def _no_leaks(item: pytest.Item) -> Iterator[NoLeaks]:
    def read(threshold: object = 0, device: object = None) -> NoLeaks:
        return NoLeaks(bytes_of("gpu_no_leaks: threshold", threshold), _device("gpu_no_leaks", device))

    seen: set[int | None] = set()
    for mark in item.iter_markers("gpu_no_leaks"):
        try:
            asked = read(*mark.args, **mark.kwargs)
        except TypeError as error:
            raise TypeError(f"gpu_no_leaks takes threshold and device: {error}") from None
        if asked.device not in seen:
            seen.add(asked.device)
            yield asked


def _device(mark: str, device: object) -> int | None:
    text = str(device).removeprefix("cuda:")
    if device is not None and not (text.isdecimal() and not isinstance(device, bool)):
        raise ValueError(f"{mark}: device is {device!r}; it must be a number such as 1, or 'cuda:1'")
    return None if device is None else int(text)
