// The first line of minimalloc's files.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace cachalot::tools {

struct MinimallocColumns {
  std::size_t count = 0;
  std::size_t lower = 0;
  std::size_t upper = 0;
  std::size_t size = 0;
  bool upper_is_last = false;  // a column "end" has the last moment of the buffer
};

// nullopt: a column is missing.
std::optional<MinimallocColumns> minimalloc_columns(std::string_view header);

}  // namespace cachalot::tools
