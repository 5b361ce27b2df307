#include "tools/serving/config_reader.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "cachalot/errors.h"

namespace cachalot::tools {

const Json* ConfigReader::find(Names names) const {
  const std::optional<std::string_view> name = find_name(names);
  return name ? &*config_.find(*name) : nullptr;
}

std::optional<std::string_view> ConfigReader::find_name(Names names) const {
  for (const std::string_view name : names) {
    const auto found = config_.find(name);
    if (found != config_.end() && !found->is_null()) return name;
  }
  return std::nullopt;
}

std::int64_t ConfigReader::number(Names names) const {
  CACHALOT_REQUIRE(find(names) != nullptr, "{}: there is no '{}', which models of this type need", path_,
                   *names.begin());
  return number(names, 0);
}

std::int64_t ConfigReader::number(Names names, std::int64_t otherwise) const {
  const std::optional<std::string_view> name = find_name(names);
  if (!name) return otherwise;
  constexpr double kMost = 1ULL << 40;
  const Json& value = *config_.find(*name);
  const double number = value.is_number() ? value.get<double>() : -1;
  CACHALOT_REQUIRE(number >= 0 && number <= kMost && number == std::floor(number),
                   "{}: '{}' is {:.40}, and must be a whole number from 0 to 2^40", path_, *name, value.dump());
  return static_cast<std::int64_t>(number);
}

std::int64_t ConfigReader::positive(Names names, std::int64_t otherwise) const {
  const std::int64_t value = number(names, otherwise);
  CACHALOT_REQUIRE(value > 0, "{}: '{}' is 0, and must be 1 or more", path_, find_name(names).value_or(*names.begin()));
  return value;
}

bool ConfigReader::flag(Names names, bool otherwise) const {
  const std::optional<std::string_view> name = find_name(names);
  if (!name) return otherwise;
  const Json& value = *config_.find(*name);
  CACHALOT_REQUIRE(value.is_boolean(), "{}: '{}' is {:.40}, and must be true or false", path_, *name, value.dump());
  return value.get<bool>();
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
