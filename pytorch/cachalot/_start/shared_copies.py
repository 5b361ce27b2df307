"""Storages that are copied to plain memory when they are shared, for receivers without cachalot."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

from .._base.errors import EnableError
from .._base.log import logger

if TYPE_CHECKING:
    from .._bindings.adapter import Adapter

Share = Literal["handles", "copy"]
_SHARES = ("handles", "copy")
_NEEDS_ADAPTER = "share='copy' needs an adapter for this PyTorch: in mode 'plug' PyTorch shares no CUDA memory"

_has_told = False


def require_good(share: Share | None, mode: str) -> None:
    """Raises ValueError or EnableError for an argument of enable() that cannot be served."""
    if share is not None and share not in _SHARES:
        raise ValueError(f"share is {share!r}; it must be one of {', '.join(map(repr, _SHARES))}")
    if share == "copy" and mode == "plug":
        raise EnableError(_NEEDS_ADAPTER)


def require_adapter(share: Share | None, adapter: Adapter | None) -> None:
    """Raises EnableError where storages are to be copied and there is no adapter."""
    if adapter is None and share == "copy":
        raise EnableError(_NEEDS_ADAPTER)


def copy_when_shared(adapter: Adapter) -> None:
    """Has each later `_share_cuda_()` copy a storage to plain memory first, unless it is plain already."""
    import torch

    storages: Any = torch.UntypedStorage
    share = storages._share_cuda_

    @functools.wraps(share)
    def share_cuda(self: Any, *arguments: Any, **named: Any) -> Any:
        copied = adapter.make_plain(self._cdata)
        if copied:
            _tell_once(copied, self.device)
        return share(self, *arguments, **named)

    storages._share_cuda_ = share_cuda


def _tell_once(copied: int, device: Any) -> None:
    global _has_told
    if _has_told:
        return
    _has_told = True
    logger().warning(
        "cachalot: a storage of %s bytes on %s was copied to plain memory to be shared (share='copy'); addresses of it "
        "that were taken before are invalid. Further copies are not told",
        f"{copied:,}", device,
    )
