"""The package's logger, logging.getLogger("cachalot").

Warnings come out on stderr where a program has not configured logging: that is Python's default. What is worth knowing
and needs no action is of level INFO, which nobody sees unless a program asks for it.
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
