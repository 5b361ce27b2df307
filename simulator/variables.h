// __device__ and __constant__ variables. Compiled programs register them before main; each is kept in host memory, where
// only copies reach it, and is one for all devices. Thread-safe.
#pragma once

#include <cstddef>

namespace cachalot::simulator {

struct Variable {
  char* start = nullptr;
  std::size_t bytes = 0;
};

// `symbol`: the address by which the program names it.
const Variable& register_variable(const void* symbol, std::size_t bytes);
// Null if none was registered.
const Variable* find_variable(const void* symbol);

}  // namespace cachalot::simulator
