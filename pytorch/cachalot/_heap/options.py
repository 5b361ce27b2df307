"""The options of the process's one heap, which cachalot.enable() and the function of each other library may give."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .._base.errors import EnableError

if TYPE_CHECKING:
    from .._bindings.plug import Plug

_lock = threading.Lock()
_given: str | None = None


def given() -> str | None:
    """Returns the options that the program gave; None if it gave none."""
    return _given


def give(plug: Plug, config: str | None) -> None:
    """Puts options on top of CACHALOT_CONF, for all libraries. None stands for those given before.

    Raises:
        ValueError: `config` or CACHALOT_CONF is invalid; the message names key, value and rule.
        EnableError: the program gave other options before. Nothing was changed.
    """
    global _given
    with _lock:
        if config is not None and _given is not None and config != _given:
            raise EnableError(
                f"cachalot is enabled already, with config {_given!r}, and all libraries share one heap: pass the same "
                f"config or none, not {config!r}"
            )
        in_force = _given if config is None else config
        plug.configure(in_force or "")
        _given = in_force


def restore(plug: Plug, before: str | None) -> None:
    """Puts the options back that `given` returned before."""
    global _given
    with _lock:
        plug.configure(before or "")
        _given = before
