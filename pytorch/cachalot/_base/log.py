"""The package's logger, logging.getLogger("cachalot").

Warnings come out on stderr where a program has not configured logging: that is Python's default. Messages that need no action are
of level INFO, which is not shown unless a program asks for it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


@functools.cache
def logger() -> logging.Logger:
    """Imports logging when it is first needed: `import cachalot` is to take no time."""
    import logging

    return logging.getLogger("cachalot")
