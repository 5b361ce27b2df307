// The host memory that what is made of one file may take.
#pragma once

#include <cstddef>

#include "base/bytes.h"
#include "base/check.h"

namespace cachalot::tools {

class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t limit) : limit_(limit) {}

  // Throws InvalidArgument for what would go beyond the limit.
  void charge(std::size_t bytes) {
    CACHALOT_REQUIRE(bytes <= limit_ - used_,
                     "what the file tells of takes more than {}, the most for a file of its size",
                     format_bytes(limit_));
    used_ += bytes;
  }
  // Takes back what was charged.
  void release(std::size_t bytes) { used_ -= bytes; }

 private:
  std::size_t limit_;
  std::size_t used_ = 0;
};

}  // namespace cachalot::tools
