
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "cachalot/options.h"
#include "policy/shown_text.h"

CACHALOT_BEGIN

namespace {

std::string without_spaces(std::string_view text) {
  std::string kept;
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c)) == 0) kept += c;
  }
  return kept;
}

// At the commas outside of brackets.
std::vector<std::string> split_settings(const std::string& text) {
  std::vector<std::string> settings(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ',' && depth == 0) {
      settings.emplace_back();
    } else {
      settings.back() += c;
    }
  }
  return settings;
}

}  // namespace

PytorchConf parse_pytorch_conf(std::string_view text, const Options& base) {
  PytorchConf conf;
  std::string kept;
  for (const std::string& setting : split_settings(without_spaces(text))) {
    if (setting.empty()) continue;  // PyTorch allows a comma at the end
    const std::string key = setting.substr(0, setting.find(':'));
    if (!is_option(key)) {
      conf.warnings.push_back(
          formatted("'{}' is ignored: this version does not know '{}'", shown(setting), shown(key)));
    } else {
      kept += (kept.empty() ? "" : ",") + setting;
    }
  }
  conf.options = parse_options(kept, base);
  conf.options.text = std::string(text);
  return conf;
}

CACHALOT_END
