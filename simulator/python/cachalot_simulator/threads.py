"""Lets each thread that Python starts prepare itself before it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable


def prepare_threads(prepare: Callable[[], None]) -> None:
    """Calls a function at the beginning of each thread that is started from now on."""
    begin = threading.Thread._bootstrap_inner

    def begin_prepared(thread: threading.Thread) -> None:
        prepare()
        begin(thread)

    threading.Thread._bootstrap_inner = begin_prepared
