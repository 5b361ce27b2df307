#include "tools/history/metadata_json.h"

#include <nlohmann/json.hpp>

#include "tools/json_text.h"

namespace cachalot::tools {
namespace {

constexpr int kMostLevels = 16;
constexpr std::size_t kMostJsonValues = 256;
constexpr std::size_t kBytesOfAValue = 16;  // a longer text counts as several values

class MetadataJson {
 public:
  MetadataJson(Parts& parts, const TextTable& texts) : parts_(parts), texts_(texts) {}

  nlohmann::ordered_json of(Part value, int levels) {  // NOLINT(misc-no-recursion): kMostLevels
    value = parts_.resolved(value);
    if (++values_ > kMostJsonValues || levels == 0) return "...";
    switch (value.kind()) {
      case Part::Kind::none:
        return nullptr;
      case Part::Kind::boolean:
        return *value.boolean();
      case Part::Kind::integer:
      case Part::Kind::natural:
        if (const auto natural = value.natural()) return *natural;
        return *value.integer();
      case Part::Kind::real:
        return value.real();
      case Part::Kind::text:
        return std::string(counted(texts_[value.id()]));
      case Part::Kind::metadata:
        return nlohmann::ordered_json::parse(counted(texts_[value.id()]), nullptr, /*allow_exceptions=*/false);
      case Part::Kind::container:
        return of_container(*parts_.find(value), levels);
      default:
        return "...";
    }
  }

 private:
  std::string_view counted(std::string_view text) {
    values_ += text.size() / kBytesOfAValue;
    return text;
  }

  nlohmann::ordered_json of_container(const Container& container, int levels) {  // NOLINT(misc-no-recursion)
    if (container.kind == Container::Kind::dict) return of_dict(container, levels);
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Part part : container.parts) {
      if (values_ > kMostJsonValues) break;
      list.push_back(of(part, levels - 1));
    }
    return list;
  }

  nlohmann::ordered_json of_dict(const Container& dict, int levels) {  // NOLINT(misc-no-recursion)
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i + 1 < dict.parts.size() && values_ <= kMostJsonValues; i += 2) {
      const nlohmann::ordered_json key = of(dict.parts[i], levels - 1);
      object[key.is_string() ? key.get<std::string>() : text_of(key)] = of(dict.parts[i + 1], levels - 1);
    }
    return object;
  }

  Parts& parts_;
  const TextTable& texts_;
  std::size_t values_ = 0;
};

}  // namespace

std::string metadata_json(Parts& parts, const TextTable& texts, Part value) {
  return text_of(MetadataJson(parts, texts).of(value, kMostLevels));
}

}  // namespace cachalot::tools
