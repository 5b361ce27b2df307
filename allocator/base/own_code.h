// Code that is cachalot's altogether: that of libcachalot.so, of the PyTorch plug-in and of its adapter. Call stacks leave its
// frames out by where they lie, since an installed library may have no symbols that tell.
#pragma once

#include <cstdint>

#include "cachalot/version.h"

CACHALOT_BEGIN

// Counts all code of the loaded library around `inside` as cachalot's. Not for programs that the static library is part of:
// their code is not ours. Does nothing where no library is there, nor for more than a handful. Thread-safe.
void add_own_code(const void* inside) noexcept;

// Returns whether the instruction at `address` is cachalot's as far as add_own_code knows. Thread-safe; takes no lock.
bool is_own_code(std::uintptr_t address) noexcept;

CACHALOT_END
