#include "policy/option_grammar.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "policy/shown_text.h"

CACHALOT_BEGIN

namespace {

bool is_separator(char c) { return c == ',' || c == ':' || c == '[' || c == ']'; }

// No key and no value is near as long; messages repeat them.
constexpr std::size_t kLongestToken = 256;

// PyTorch's tokens: separators stand alone, whitespace vanishes.
std::vector<std::string> tokenize(std::string_view text) {
  std::vector<std::string> tokens;
  bool glue = false;
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c))) continue;
    if (is_separator(c) || !glue) tokens.emplace_back();
    tokens.back() += c;
    glue = !is_separator(c);
    CACHALOT_REQUIRE(tokens.back().size() <= kLongestToken,
                     "allocator options: '{:.60}...' has more than {} characters, as no key or value has",
                     tokens.back(), kLongestToken);
  }
  return tokens;
}

// Reads settings from tokens.
class Grammar {
 public:
  explicit Grammar(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}

  std::vector<OptionSetting> read() {
    std::vector<OptionSetting> settings;
    if (at_end()) return settings;
    CACHALOT_REQUIRE(at_word(), "allocator options: found {} at the start, where a key is expected", found());
    do {
      settings.push_back(read_setting());
    } while (take_comma(settings.back()));
    return settings;
  }

 private:
  bool at_end() const { return next_ == tokens_.size(); }
  bool at(char separator) const { return !at_end() && tokens_[next_].front() == separator; }
  bool at_word() const { return !at_end() && !is_separator(tokens_[next_].front()); }
  std::string found() const { return at_end() ? "the end" : formatted("'{}'", tokens_[next_]); }

  OptionSetting read_setting() {
    OptionSetting setting;
    setting.key = tokens_[next_++];
    CACHALOT_REQUIRE(at(':'), "option {}: found {} after the key: ':' and a value are expected there", setting.key,
                     found());
    ++next_;
    if (at('[')) {
      read_list(setting);
    } else {
      setting.value = read_word(setting);
    }
    return setting;
  }

  void read_list(OptionSetting& setting) {
    setting.is_list = true;
    do {
      setting.value += tokens_[next_++];  // '[' or ','
      OptionInterval interval;
      interval.boundary = read_word(setting);
      setting.value += interval.boundary;
      expect(':', setting);
      interval.divisions = read_word(setting);
      setting.value += interval.divisions;
      setting.intervals.push_back(std::move(interval));
    } while (at(','));
    expect(']', setting);
  }

  std::string read_word(const OptionSetting& setting) {
    if (!at_word()) refuse(setting, formatted("found {} where a value is expected", found()));
    return tokens_[next_++];
  }

  void expect(char separator, OptionSetting& setting) {
    if (!at(separator)) refuse(setting, formatted("found {} where '{}' is expected", found(), separator));
    setting.value += tokens_[next_++];
  }

  // Between two settings; false at the end.
  bool take_comma(const OptionSetting& before) {
    if (at_end()) return false;
    if (!at(',')) refuse(before, formatted("found {} after it, where ',' or the end is expected", found()));
    ++next_;
    if (!at_word()) refuse(before, formatted("found {} after its ',', where a key is expected", found()));
    return true;
  }

  std::vector<std::string> tokens_;
  std::size_t next_ = 0;
};

}  // namespace

void refuse(const OptionSetting& setting, const std::string& rule) {
  throw InvalidArgument(formatted("option {}: bad value '{}': {}", setting.key, shown(setting.value), rule));
}

bool names_option(std::string_view text, std::string_view key) {
  return std::ranges::any_of(read_settings(text), [&](const OptionSetting& setting) { return setting.key == key; });
}

std::vector<OptionSetting> read_settings(std::string_view text) { return Grammar(tokenize(text)).read(); }

CACHALOT_END
