"""The settings of a simulated run: what the environment variable CACHALOT_SIM says, as the simulated runtime reads it."""

from __future__ import annotations

import ctypes


def setting(key: str) -> str | None:
    """Returns the value of a key of CACHALOT_SIM. None: it has none, the variable is bad, or the runtime is not simulated."""
    function = getattr(ctypes.CDLL(None), "cachalot_sim_setting", None)
    if function is None:
        return None
    function.restype = ctypes.c_char_p
    value = function(key.encode())
    return None if value is None else value.decode("utf-8", "surrogateescape")
