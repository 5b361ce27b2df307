// The sources of a page, which the build puts into the command (cmake/CachalotPages.cmake).
#pragma once

#include <span>
#include <string_view>

namespace cachalot::tools {

struct EmbeddedFile {
  std::string_view name;        // "page.css"
  std::string_view text;        // UTF-8
  std::string_view sha256_hex;  // of the text
};

std::span<const EmbeddedFile> embedded_files();  // in the order in which a page has them

}  // namespace cachalot::tools
