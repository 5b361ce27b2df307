// This library, as the dynamic linker knows it.
#pragma once

#include <string>
#include <string_view>

namespace cachalot::simulator {

// Returns a function that this library exports, whatever else the process has loaded; null where there is none.
void* own_function(const char* name);
// Returns the path of the library's file, without symbolic links.
const std::string& own_path();

// Returns the last part of a path.
inline std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

}  // namespace cachalot::simulator
