"""Files that are there as a whole or not at all, also for readers while they are written."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Writes or replaces the file in one step. OSError leaves the file as it was, and nothing beside it."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        scratch.unlink(missing_ok=True)  # the name can be guessed: a link planted by another user is removed, not its target
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(scratch, flags, 0o666), "wb") as file:
            file.write(content)
        scratch.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise
