"""The process's statistics for other processes: cachalot.publish() and stop_publishing(). `cachalot top` shows them."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._plug import process_plug

if TYPE_CHECKING:
    from ._plug import Functions, Plug

_FUNCTIONS: Functions = {
    "publish": (ctypes.c_int, ctypes.c_char_p),
    "stop_publishing": (ctypes.c_int,),
}

_plug: Plug | None = None  # which knows the functions
_published_json: Any = None


def publish(directory: str | os.PathLike[str] | None = None) -> Path:
    """Publishes the statistics of cachalot's allocator on a page in shared memory, until the process ends.

    `cachalot top`, Prometheus and other readers see it (docs/reference/statistics_page.md). Allocations do nothing for it: a thread
    takes the figures once a second, and ten times a second while a reader reads. CACHALOT_PUBLISH=1 in the environment does the
    same when the allocator is first used. Call it after enable(): it makes the allocator. It may be called from any thread; a
    further call does nothing. A forked child publishes nothing of its parent.

    Args:
        directory: the folder of the page; None: the one that CACHALOT_PUBLISH_DIR names, or /dev/shm.

    Returns:
        The path of the page.

    Raises:
        ValueError: the page cannot be made, or `directory` is the path of no folder; the message says why.
        EnableError: the library cannot be loaded.
    """
    _known_plug().call("publish", None if directory is None else _encoded(directory), bad_input=ValueError)
    return Path(_known_plug().parsed(_published_json)["path"])


def _encoded(directory: str | os.PathLike[str]) -> bytes:
    try:
        encoded = os.fsencode(directory)
    except UnicodeEncodeError:  # half of a surrogate pair
        encoded = b"\0"
    if b"\0" in encoded:
        raise ValueError(f"directory is {directory!r}; it must be the path of a folder, without a character 0")
    return encoded


def stop_publishing() -> None:
    """Ends publishing and removes the page. Does nothing if nothing is published."""
    _known_plug().call("stop_publishing")


def _known_plug() -> Plug:
    """Returns the plug, which knows the functions from its first use on."""
    global _plug, _published_json
    if _plug is None:
        plug = process_plug()
        plug.declare(_FUNCTIONS)
        _published_json = plug.function("published_json", ctypes.c_long, ctypes.c_char_p, ctypes.c_long)
        _plug = plug
    return _plug
