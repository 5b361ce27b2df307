#include "policy/option_grammar.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/check.h"
#include "base/format.h"

CACHALOT_BEGIN

namespace {

bool is_separator(char c) { return c == ',' || c == ':' || c == '[' || c == ']'; }

struct Token {
  std::string text;
  bool is_separator = false;
};

// Takes the quoted part off the text, which begins with the quote.
std::string take_quoted(std::string_view& text, const Dialect& dialect) {
  const std::string_view all = text;
  const char quote = text.front();
  std::string quoted;
  for (text.remove_prefix(1); !text.empty(); text.remove_prefix(1)) {
    if (text.front() == quote) {
      text.remove_prefix(1);
      if (text.empty() || text.front() != quote) return quoted;
    }
    quoted += text.front();
  }
  throw InvalidArgument(formatted("{}: the quote before '{:.60}' has no end", dialect.name, all.substr(1)));
}

// PyTorch's tokens: separators stand alone, whitespace vanishes.
std::vector<Token> tokenize(std::string_view text, const Dialect& dialect) {
  std::vector<Token> tokens;
  bool glue = false;
  while (!text.empty()) {
    const char c = text.front();
    if (!glue && dialect.quotes.find(c) != std::string_view::npos) {
      tokens.push_back({take_quoted(text, dialect)});
      continue;
    }
    text.remove_prefix(1);
    if (std::isspace(static_cast<unsigned char>(c))) continue;
    if (is_separator(c) || !glue) tokens.push_back({"", is_separator(c)});
    tokens.back().text += c;
    glue = !is_separator(c);
    CACHALOT_REQUIRE(tokens.back().text.size() <= dialect.longest_token,
                     "{}: '{:.60}...' has more than {} characters, as no key or value has", dialect.name,
                     tokens.back().text, dialect.longest_token);
  }
  return tokens;
}

// Reads settings from tokens.
class Grammar {
 public:
  Grammar(std::vector<Token> tokens, const Dialect& dialect) : tokens_(std::move(tokens)), dialect_(dialect) {}

  std::vector<OptionSetting> read() {
    std::vector<OptionSetting> settings;
    if (at_end()) return settings;
    CACHALOT_REQUIRE(at_word(), "{}: found {} at the start, where a key is expected", dialect_.name, found());
    do {
      settings.push_back(read_setting());
    } while (take_comma(settings.back()));
    return settings;
  }

 private:
  bool at_end() const { return next_ == tokens_.size(); }
  bool at(char separator) const {
    return !at_end() && tokens_[next_].is_separator && tokens_[next_].text.front() == separator;
  }
  bool at_word() const { return !at_end() && !tokens_[next_].is_separator; }
  std::string found() const { return at_end() ? "the end" : formatted("'{}'", tokens_[next_].text); }

  OptionSetting read_setting() {
    OptionSetting setting;
    setting.key = tokens_[next_++].text;
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
      setting.value += tokens_[next_++].text;  // '[' or ','
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
    return tokens_[next_++].text;
  }

  void expect(char separator, OptionSetting& setting) {
    if (!at(separator)) refuse(setting, formatted("found {} where '{}' is expected", found(), separator));
    setting.value += tokens_[next_++].text;
  }

  // Between two settings; false at the end.
  bool take_comma(const OptionSetting& before) {
    if (at_end()) return false;
    if (!at(','))
      refuse(before, formatted("found {} after it, where ',' or the end is expected{}", found(),
                               dialect_.quotes.empty() ? "" : "; a value with ',' or ':' stands in quotes"));
    ++next_;
    if (!at_word()) refuse(before, formatted("found {} after its ',', where a key is expected", found()));
    return true;
  }

  std::vector<Token> tokens_;
  const Dialect& dialect_;
  std::size_t next_ = 0;
};

}  // namespace

void refuse(const OptionSetting& setting, const std::string& rule) {
  throw InvalidArgument(formatted("option {}: bad value '{}': {}", setting.key, shown(setting.value), rule));
}

bool names_option(std::string_view text, std::string_view key) {
  return std::ranges::any_of(read_settings(text), [&](const OptionSetting& setting) { return setting.key == key; });
}

std::string without_spaces(std::string_view text) {
  std::string kept(text);
  std::erase_if(kept, [](unsigned char character) { return std::isspace(character) != 0; });
  return kept;
}

std::vector<OptionSetting> read_settings(std::string_view text, const Dialect& dialect) {
  return Grammar(tokenize(text, dialect), dialect).read();
}

CACHALOT_END
