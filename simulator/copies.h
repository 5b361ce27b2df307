// Copies and fills of memory, wherever it is, as far as they are done: simulator/README.md, "Content".
#pragma once

#include <cstddef>
#include <cstdint>

#include "simulator/config.h"
#include "simulator/content.h"
#include "simulator/devices.h"
#include "simulator/lock.h"

namespace cachalot::simulator {

class Copies {
 public:
  Copies(const Config& config, ContentStore& content, Devices& devices)
      : config_(config), content_(content), devices_(devices) {}

  // `whole_bytes`, the size of a copy or fill in several parts, decides whether it is done.
  void copy(void* to, const void* from, std::size_t bytes, std::size_t whole_bytes) CACHALOT_LOCKED;
  void fill(void* to, std::uint64_t pattern, std::size_t pattern_bytes, std::size_t bytes,
            std::size_t whole_bytes) CACHALOT_LOCKED;
  // Copies however large it is.
  void copy_now(void* to, const void* from, std::size_t bytes) CACHALOT_LOCKED;
  // Throws cudaErrorInvalidValue unless the device reaches all of the range, which is device memory.
  void require_access(const void* start, std::size_t bytes) CACHALOT_LOCKED;

 private:
  template <typename Access>
  void for_each_piece(const void* start, std::size_t bytes, Access&& access) CACHALOT_LOCKED;

  const Config& config_;
  ContentStore& content_ CACHALOT_UNDER_LOCK;
  Devices& devices_;
};

}  // namespace cachalot::simulator
