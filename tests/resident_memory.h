// Returns the host memory that a process holds.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>

#include "tests/sanitizers.h"

namespace cachalot {

// ThreadSanitizer keeps a shadow of all memory that was touched, larger than it, and keeps it when the memory goes: then
// the figures below say nothing about the program.
constexpr bool kResidentMemoryIsThePrograms = !kThreadSanitizer;

inline std::size_t resident_bytes() {
  std::size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// The most there ever were.
inline std::size_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

}  // namespace cachalot
