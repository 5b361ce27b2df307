"""The value of NUMBA_CUDA_MEMORY_MANAGER: `NUMBA_CUDA_MEMORY_MANAGER=cachalot.numba` makes cachalot the manager of Numba's
GPU memory, with the options of CACHALOT_CONF.
"""

from .integrations.numba import MemoryManager as _numba_memory_manager

__all__ = ["_numba_memory_manager"]
