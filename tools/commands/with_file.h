// Files that are given on the command line.
#pragma once

#include <new>
#include <stdexcept>
#include <string>

#include "tools/input_file.h"

namespace cachalot::tools {

// Returns use(file). A file that the host has no memory for is named in the error.
template <typename Use>
auto with_file(const std::string& path, const char* what, Use use) {
  try {
    return use(InputFile(path, what));
  } catch (const std::bad_alloc&) {
    throw std::runtime_error(path + ": the host has no memory for it");
  }
}

}  // namespace cachalot::tools
