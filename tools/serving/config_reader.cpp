#include "tools/serving/config_reader.h"

#include <algorithm>

#include "base/check.h"
#include "cachalot/errors.h"

namespace cachalot::tools {

const Json* ConfigReader::find(Names names) const {
  for (const std::string_view name : names) {
    const auto found = config_.find(name);
    if (found != config_.end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

std::int64_t ConfigReader::number(Names names) const {
  const Json* const value = find(names);
  CACHALOT_REQUIRE(value != nullptr, "{}: there is no '{}', which models of this type need", path_, *names.begin());
  return as_number(*names.begin(), *value);
}

std::int64_t ConfigReader::number(Names names, std::int64_t otherwise) const {
  const Json* const value = find(names);
  return value == nullptr ? otherwise : as_number(*names.begin(), *value);
}

std::int64_t ConfigReader::as_number(std::string_view name, const Json& value) const {
  constexpr double kMost = 1ULL << 40;
  const bool is_good = value.is_number() && value.get<double>() >= 0 && value.get<double>() <= kMost;
  CACHALOT_REQUIRE(is_good, "{}: '{}' is {:.40}, and must be a number from 0 to 2^40", path_, name, value.dump());
  return value.get<std::int64_t>();
}

bool ConfigReader::flag(Names names, bool otherwise) const {
  const Json* const value = find(names);
  return value != nullptr && value->is_boolean() ? value->get<bool>() : otherwise;
}

std::string ConfigReader::text(Names names, std::string_view otherwise) const {
  const Json* const value = find(names);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string(otherwise);
}

std::vector<std::string> ConfigReader::texts(Names names) const {
  std::vector<std::string> all;
  const Json* const value = find(names);
  if (value == nullptr || !value->is_array()) return all;
  for (const Json& one : *value) {
    if (one.is_string()) all.push_back(one.get<std::string>());
  }
  return all;
}

bool ConfigReader::list_has(Names names, std::int64_t value) const {
  const Json* const list = find(names);
  return list != nullptr && list->is_array() && std::ranges::find(*list, Json(value)) != list->end();
}

}  // namespace cachalot::tools
