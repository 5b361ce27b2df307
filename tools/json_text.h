// A JSON value as text, of one line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace cachalot::tools {

// Users' texts, paths and names of functions need not be UTF-8, JSON must: what is not is replaced.
inline std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace cachalot::tools
