// Texts that the library returns, for its tests.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "cachalot/c_api.h"

namespace cachalot {

// Returns the JSON of a text that a function returned, which is freed.
inline nlohmann::json taken(char* text) {
  EXPECT_NE(text, nullptr) << cachalot_last_error();
  const std::string copy = text == nullptr ? "null" : text;
  cachalot_string_free(text);
  return nlohmann::json::parse(copy);
}

}  // namespace cachalot
