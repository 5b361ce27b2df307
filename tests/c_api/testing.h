// The words of the C API's tests: errors, and JSON that the library returns.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "cachalot/c_api.h"

namespace cachalot::testing {

using nlohmann::json;

inline std::string last_error() { return cachalot_last_error(); }

inline cudaStream_t stream_of(std::uintptr_t value) { return reinterpret_cast<cudaStream_t>(value); }

// Returns the string of a C API function, parsed and freed.
inline json take_json(char* text) {
  if (text == nullptr) return nullptr;
  json parsed = json::parse(text);
  cachalot_string_free(text);
  return parsed;
}

inline ::testing::AssertionResult error_names(std::initializer_list<const char*> parts) {
  const std::string message = last_error();
  for (const char* part : parts) {
    if (message.find(part) == std::string::npos) {
      return ::testing::AssertionFailure() << "'" << part << "' is not in the message: " << message;
    }
  }
  return message.empty() ? ::testing::AssertionFailure() << "no message" : ::testing::AssertionSuccess();
}

}  // namespace cachalot::testing
