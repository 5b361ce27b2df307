// What a process holds of the host's memory.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace cachalot {

inline std::size_t resident_bytes() {
  std::size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace cachalot
