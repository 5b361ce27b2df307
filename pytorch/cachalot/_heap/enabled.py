"""The way in which cachalot is enabled in this process. enable() sets it; functions that work only then ask here."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, Union

from .._base.errors import EnableError
from .._bindings.plug import Plug

if TYPE_CHECKING:
    import torch

    Device = Union[torch.device, str, int, None]


@dataclasses.dataclass(frozen=True)
class Enabled:
    mode: Literal["full", "plug"]
    config: str | None
    plug: Plug
    share: Literal["handles", "copy"] = "handles"


_enabled: Enabled | None = None


def set_enabled(enabled: Enabled) -> None:
    global _enabled
    _enabled = enabled


def enabled() -> Enabled | None:
    return _enabled


def is_enabled() -> bool:
    """Returns True if cachalot is PyTorch's allocator."""
    return _enabled is not None


def enabled_mode() -> Literal["full", "plug"] | None:
    """Returns the mode, "full" or "plug"; None if cachalot is not enabled."""
    return _enabled.mode if _enabled else None


def require_enabled() -> Enabled:
    """Returns how cachalot is enabled; EnableError when it is not."""
    if _enabled is None:
        raise EnableError("cachalot is not enabled: call cachalot.enable() first")
    return _enabled


def index_of(device: Device) -> int:
    """Returns the number of the device, or of the current device for None. Raises ValueError for other devices than CUDA's."""
    from torch.cuda._utils import _get_device_index

    return _get_device_index(device, optional=True)
