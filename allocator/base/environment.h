// The environment variables of the process. No other file of the product reads them.
#pragma once

#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "cachalot/errors.h"

CACHALOT_BEGIN

// A bad value of an environment variable. The message names the variable.
class BadEnvironment : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// Returns the variable's value, or nullopt if it is not set. It is valid until the variable changes.
inline std::optional<std::string_view> environment(const char* variable) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread of cachalot sets variables
  const char* const value = std::getenv(variable);
  return value == nullptr ? std::nullopt : std::optional<std::string_view>(value);
}

// Returns parse(value), with the value `otherwise` if the variable is not set. Throws BadEnvironment where `parse` throws
// InvalidArgument.
template <typename Parse>
auto parse_environment(const char* variable, std::string_view otherwise, Parse parse) {
  try {
    return parse(environment(variable).value_or(otherwise));
  } catch (const InvalidArgument& error) {
    throw BadEnvironment(formatted("environment variable {}: {}", variable, error.what()));
  }
}

CACHALOT_END
