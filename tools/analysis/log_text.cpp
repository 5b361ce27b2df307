#include "tools/analysis/log_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "tools/analysis/written_sizes.h"
#include "tools/base/text_layout.h"

namespace cachalot::tools {
namespace {

using std::string_view_literals::operator""sv;

enum class Encoding : bool { little_endian, big_endian };

// PowerShell's `>` writes UTF-16. English text in it has a zero in every other byte, which tells it without a byte order mark.
std::optional<Encoding> utf16_of(std::string_view bytes) {
  if (bytes.starts_with("\xff\xfe")) return Encoding::little_endian;
  if (bytes.starts_with("\xfe\xff")) return Encoding::big_endian;
  const std::string_view begin = bytes.substr(0, 512);
  std::array<std::size_t, 2> zeros = {};
  for (std::size_t i = 0; i < begin.size(); ++i) zeros[i % 2] += begin[i] == '\0' ? 1 : 0;
  if (begin.size() < 8) return std::nullopt;
  if (zeros[1] * 3 > begin.size() && zeros[0] * 20 < begin.size()) return Encoding::little_endian;
  if (zeros[0] * 3 > begin.size() && zeros[1] * 20 < begin.size()) return Encoding::big_endian;
  return std::nullopt;
}

std::string from_utf16(std::string_view bytes, Encoding encoding) {
  const auto unit_at = [&](std::size_t at) -> std::uint32_t {
    const std::uint32_t first = static_cast<unsigned char>(bytes[at]);
    const std::uint32_t second = static_cast<unsigned char>(bytes[at + 1]);
    return encoding == Encoding::little_endian ? first | second << 8 : first << 8 | second;
  };
  std::string text;
  text.reserve(bytes.size() / 2);
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
    std::uint32_t point = unit_at(i);
    if (point >= 0xd800 && point < 0xdc00 && i + 3 < bytes.size()) {
      const std::uint32_t low = unit_at(i + 2);
      if (low >= 0xdc00 && low < 0xe000) {
        point = 0x10000 + ((point - 0xd800) << 10 | (low - 0xdc00));
        i += 2;
      }
    }
    if (point != 0xfeff) append_utf8(text, point);
  }
  return text;
}

std::string decoded(std::string_view bytes) {
  const auto encoding = utf16_of(bytes);
  return encoding ? from_utf16(bytes, *encoding) : std::string(bytes);
}

// Docker keeps each line of a program as JSON: {"log":"the line\n","stream":"stderr","time":"…"}.
std::string_view without_docker(std::string_view line) {
  constexpr std::string_view kBegin = "{\"log\":";
  constexpr std::string_view kEnd = "\"stream\":";
  const std::size_t end = line.rfind(kEnd);
  if (!line.starts_with(kBegin) || end == std::string_view::npos) return line;
  line = line.substr(kBegin.size(), end - std::min(end, kBegin.size()));
  line.remove_prefix(std::min(line.find('"'), line.size()));
  line = line.substr(0, line.find_last_of('"') + 1);  // behind it stands ", "
  if (line.size() < 2) return "";
  line = line.substr(1, line.size() - 2);
  for (const std::string_view newline : {"\\n"sv, "\\r"sv}) {
    if (line.ends_with(newline)) line.remove_suffix(newline.size());
  }
  return line;
}

std::string without_docker_lines(std::string text) {
  if (text.find("{\"log\":") == std::string::npos) return text;
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    out += without_docker(std::string_view{text}.substr(at, end - at));
    out += '\n';
    at = end + 1;
  }
  return out;
}

// Reads `digits` hexadecimal digits.
std::optional<std::uint32_t> hex_at(std::string_view text, std::size_t at, std::size_t digits) {
  if (at + digits > text.size()) return std::nullopt;
  std::uint32_t number = 0;
  const char* const begin = text.data() + at;
  const auto [end, error] = std::from_chars(begin, begin + digits, number, 16);
  return error == std::errc() && end == begin + digits ? std::optional(number) : std::nullopt;
}

// Adds the character that backslashes and what follows them stand for, as JSON and Python's repr write it: a log may be escaped more
// than once. Returns how many characters of the text that were.
std::size_t add_escaped(std::string& out, std::string_view text) {
  const std::size_t at = std::min(text.find_first_not_of('\\'), text.size());
  const char kind = at == text.size() ? '\0' : text[at];
  switch (kind) {
    case 'n':
    case 'r':
      out += '\n';
      return at + 1;
    case 't':
      out += ' ';
      return at + 1;
    case '"':
    case '\'':
    case '/':
      out += kind;
      return at + 1;
    case 'u':
    case 'x': {
      const std::size_t digits = kind == 'u' ? 4 : 2;
      const auto point = hex_at(text, at + 1, digits);
      if (!point) break;
      append_utf8(out, *point);
      return at + 1 + digits;
    }
    case 'e':
    case '0': {
      const bool is_escape = text.substr(at).starts_with("e[") || text.substr(at).starts_with("033");
      if (!is_escape) break;
      out += '\x1b';
      return at + (kind == 'e' ? 1 : 3);
    }
    default:
      break;
  }
  out.append(text.substr(0, at));
  return at;
}

std::string unescaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '\\') {
      i += add_escaped(out, text.substr(i));
    } else {
      out += text[i++];
    }
  }
  return out;
}

// Web pages write entities, and Chinese and Japanese text has punctuation of its own.
std::string without_entities(std::string text) {
  constexpr std::array kSigns = {
      std::pair{"&nbsp;"sv, " "sv},       std::pair{"&gt;"sv, ">"sv},         std::pair{"&lt;"sv, "<"sv},
      std::pair{"&quot;"sv, "\""sv},      std::pair{"&#39;"sv, "'"sv},        std::pair{"&#x27;"sv, "'"sv},
      std::pair{"&amp;"sv, "&"sv},        std::pair{"\xe3\x80\x82"sv, "."sv}, std::pair{"\xef\xbc\x88"sv, "("sv},
      std::pair{"\xef\xbc\x89"sv, ")"sv}, std::pair{"\xef\xbc\x8c"sv, ","sv}, std::pair{"\xef\xbc\x9a"sv, ":"sv},
      std::pair{"\xef\xbc\x9b"sv, ";"sv}};
  if (text.find_first_of("&\xe3\xef") == std::string::npos) return text;
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = std::string_view{text}.substr(i);
    const auto* const sign = std::ranges::find_if(kSigns, [&](const auto& one) { return rest.starts_with(one.first); });
    out += sign == kSigns.end() ? rest.substr(0, 1) : sign->second;
    i += sign == kSigns.end() ? 1 : sign->first.size();
  }
  return out;
}

// Returns the length of the escape sequence of a terminal that the text begins with; 0: it begins with none. Logs that went through an
// editor, syslog or an issue have other characters in place of ESC, or none: "^[[36m", "#033[36m", "[36m".
std::size_t color_length(std::string_view text) {
  std::size_t at = 0;
  for (const std::string_view escape : {"\x1b"sv, "^["sv, "#033"sv, "\xe2\x90\x9b"sv, "\xef\xbf\xbd"sv}) {
    if (text.starts_with(escape)) at = escape.size();
  }
  const bool has_escape = at > 0;
  if (has_escape && text.substr(at).starts_with("]")) {  // the title of a window, or a link
    const std::size_t end = text.find_first_of("\a\x1b\n"sv, at);
    return end == std::string_view::npos ? text.size() : end + (text[end] == '\a' ? 1 : 0);
  }
  if (!text.substr(at).starts_with("[")) return has_escape && text[0] == '\x1b' ? 1 : 0;
  const std::size_t end = text.find_first_not_of("0123456789;:?"sv, at + 1);
  if (end == std::string_view::npos) return has_escape ? text.size() : 0;
  const bool is_letter = std::isalpha(static_cast<unsigned char>(text[end])) != 0;
  if (has_escape) return is_letter ? end + 1 : end;
  return text[end] == 'm' && end > at + 1 ? end + 1 : 0;  // "[0m", but not "[0]" and not "[main]"
}

std::string without_colors(std::string_view text) {
  constexpr std::string_view kBegins = "\x1b^#[\xe2\xef"sv;
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = kBegins.find(text[i]) == std::string_view::npos ? 0 : color_length(text.substr(i));
    if (length == 0) {
      out += text[i++];
    } else {
      i += length;
    }
  }
  return out;
}

// Words of messages: a prefix ends before them.
constexpr std::array kWordsOfMessages = {"ut of memory"sv, "OutOfMemory"sv, "iB"sv,        " bytes"sv,   "Tried "sv,
                                         "Process "sv,     "Allocator "sv,  "Exhausted"sv, "XHAUSTED"sv, "xhausted"sv,
                                         "ailed to "sv,    "OOM"sv,         "GPU "sv,      "NCCL"sv,     "exceeded"sv,
                                         "Of the "sv,      "Error"sv,       "CUDA "sv};

std::size_t end_of_prefix(std::string_view line) {
  constexpr std::size_t kLongest = 240;
  std::size_t end = std::min(line.size(), kLongest);
  for (const std::string_view words : kWordsOfMessages) end = std::min(end, line.substr(0, end).find(words));
  return std::min(end, line.size());
}

// Returns the length of the mark that ends parts of prefixes: "[rank0]:", "worker |", "name - ", the frame of a box.
std::size_t mark_length(std::string_view text) {
  constexpr std::string_view kFrame = "\xe2\x94\x82";
  if (text.starts_with(kFrame)) return kFrame.size();
  return std::string_view("])|>:-#").find(text.front()) == std::string_view::npos ? 0 : 1;
}

// Returns the length of the prefix of Kubernetes' logs: "2025-07-11T09:30:40.123456789Z stderr F ".
std::size_t kubernetes_prefix(std::string_view line) {
  constexpr std::size_t kFurthest = 50;
  for (const std::string_view stream : {" stderr F "sv, " stderr P "sv, " stdout F "sv, " stdout P "sv}) {
    const std::size_t at = line.substr(0, kFurthest).find(stream);
    if (at != std::string_view::npos) return at + stream.size();
  }
  return 0;
}

// Returns the length of the prefix that the line shares with the one before it, whatever the numbers in it: time stamps.
std::size_t shared_prefix(std::string_view line, std::string_view before) {
  const std::string_view text = line.substr(0, end_of_prefix(line));
  std::size_t prefix = 0;
  for (std::size_t i = 0, j = 0; i < text.size() && j < before.size();) {
    if (is_digit(text[i]) && is_digit(before[j])) {
      while (i < text.size() && is_digit(text[i])) ++i;
      while (j < before.size() && is_digit(before[j])) ++j;
      continue;
    }
    if (text[i] != before[j]) break;
    const std::size_t mark = mark_length(text.substr(i));
    if (mark > 0 && before.substr(j).starts_with(text.substr(i, mark))) {
      i += mark;
      j += mark;
      prefix = i;
      continue;
    }
    ++i;
    ++j;
  }
  return prefix;
}

// Leaves out what stands at the right margin: the frame of a box, and the place in the code that rich's logger writes there.
std::string_view without_margin(std::string_view line) {
  constexpr std::string_view kBlank = " \t";
  line = line.substr(0, line.find_last_not_of(kBlank) + 1);
  for (const std::string_view frame : {"\xe2\x94\x82"sv, "|"sv}) {
    if (line.ends_with(frame)) line.remove_suffix(frame.size());
  }
  line = line.substr(0, line.find_last_not_of(kBlank) + 1);
  const std::size_t blank = line.rfind("  ");
  if (blank == std::string_view::npos) return line;
  const std::string_view place = line.substr(blank + 2);
  const std::size_t name = place.find(".py:");
  const bool is_place = name != std::string_view::npos && std::ranges::all_of(place.substr(name + 4), is_digit);
  return is_place ? line.substr(0, blank) : line;
}

// Returns whether a line begins as those of logs do, with a time or a part of a whole: its number does not go on with that of the line
// before.
bool begins_with_time(std::string_view line) {
  std::size_t end = std::min(line.find_first_not_of("0123456789"), line.size());
  if (end == 0 || end == line.size()) return false;
  if (line[end] != '.') return std::string_view("-/:%|").find(line[end]) != std::string_view::npos;
  end = std::min(line.find_first_not_of("0123456789", end + 1), line.size());  // llama.cpp: "0.01.181.843"
  return end < line.size() && line[end] == '.';
}

// Returns the length of a character of white space, of one that is not seen, or of a mark of Markdown, at the beginning of the text; 0:
// of another.
std::size_t blank_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  if (first <= 0x20 || first == 0x7f || first == '*' || first == '`') return 1;
  for (const std::string_view blank : {"\xc2\xa0"sv, "\xe2\x80\x8b"sv, "\xef\xbb\xbf"sv}) {
    if (text.starts_with(blank)) return blank.size();
  }
  return 0;
}

}  // namespace

LogText::LogText(std::string_view bytes)
    : text_(without_colors(without_entities(unescaped(without_docker_lines(decoded(bytes)))))) {
  for (std::size_t at = text_.find("\r\n"); at != std::string::npos; at = text_.find("\r\n", at + 1)) text_[at] = ' ';
  std::ranges::replace(text_, '\r', '\n');
  squeezed_.reserve(text_.size());
  std::string_view before;
  bool is_after_gap = false;
  for (std::size_t begin = 0; begin < text_.size();) {
    const std::size_t end = std::min(text_.find('\n', begin), text_.size());
    const std::string_view line = std::string_view{text_}.substr(begin, end - begin);
    lines_.push_back({.offset = squeezed_.size(), .begin = begin, .end = end});
    add_line(line, before, is_after_gap);
    is_after_gap = line.empty();
    if (!line.empty()) before = line;
    begin = end + 1;
  }
}

void LogText::add_line(std::string_view line, std::string_view before, bool is_after_gap) {
  line = without_margin(line);
  line.remove_prefix(kubernetes_prefix(line));
  before.remove_prefix(kubernetes_prefix(before));
  const std::size_t prefix = std::min(shared_prefix(line, before), line.size());
  line.remove_prefix(prefix);
  const bool is_within_time = prefix > 0 && !line.empty() && is_digit(line.front());
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  const bool is_between_numbers =
      !squeezed_.empty() && is_digit(squeezed_.back()) && !line.empty() && is_digit(line.front());
  if (is_between_numbers && (is_after_gap || is_within_time || begins_with_time(line))) squeezed_ += ' ';
  while (!line.empty()) {
    const std::size_t blank = blank_length(line);
    if (blank == 0) squeezed_ += line.front();
    line.remove_prefix(std::max<std::size_t>(1, blank));
  }
}

std::string_view LogText::line_of(std::size_t offset) const {
  auto line = std::ranges::upper_bound(lines_, offset, std::less<>{}, &Line::offset);
  if (line == lines_.begin()) return "";
  --line;
  return std::string_view{text_}.substr(line->begin, line->end - line->begin);
}

bool LogText::restore_case_of_messages() {
  constexpr std::array kWords = {"Triedtoallocate"sv,
                                 "CUDAoutof"sv,
                                 "HIPoutof"sv,
                                 "Oftheallocated"sv,
                                 "byPyTorch"sv,
                                 "non-PyTorch"sv,
                                 "MiB"sv,
                                 "GiB"sv,
                                 "KiB"sv,
                                 "GPU"sv};
  const auto small = [](std::string_view text) {
    std::string out(text);
    std::ranges::transform(out, out.begin(), [](unsigned char one) { return static_cast<char>(std::tolower(one)); });
    return out;
  };
  std::string text = small(squeezed_);
  if (text.find("memory.triedtoallocate") == std::string::npos) return false;
  for (const std::string_view word : kWords) {
    const std::string written = small(word);
    for (std::size_t at = text.find(written); at != std::string::npos; at = text.find(written, at + 1))
      text.replace(at, word.size(), word);
  }
  squeezed_ = std::move(text);
  return true;
}

namespace {

// Returns the number behind a name: "rank3", "rank=3", "\"rank\": 3".
std::optional<std::uint64_t> number_behind(std::string_view text) {
  const std::size_t digits = text.find_first_not_of(" =:\"'#");
  return digits == std::string_view::npos || digits > 4 ? std::nullopt : integer_at(text.substr(digits));
}

}  // namespace

// Returns which rank or process wrote the line: "[rank3]:", "(VllmWorker rank=3 pid=1090)", "(RayWorker pid=2313)".
std::string source_of(std::string_view line) {
  constexpr std::size_t kLongestPrefix = 400;  // a line may be as long as the log
  line = line.substr(0, kLongestPrefix);
  constexpr std::array kSourceNames = {std::pair{"rank"sv, "rank"sv}, std::pair{"Rank"sv, "rank"sv},
                                       std::pair{"RANK"sv, "rank"sv}, std::pair{" TP"sv, "TP"sv},
                                       std::pair{"pid"sv, "pid"sv}};
  for (const auto& [name, shown] : kSourceNames) {
    for (std::size_t at = line.find(name); at != std::string_view::npos; at = line.find(name, at + 1)) {
      const char last = at == 0 ? ' ' : line[at - 1];
      const bool is_setting = last == '_' && !line.substr(0, at).ends_with("local_");  // "lora_rank: 64"
      if (is_setting || (name.front() != ' ' && std::isalnum(static_cast<unsigned char>(last)) != 0)) continue;
      if (const auto number = number_behind(line.substr(at + name.size()))) return fmt::format("{} {}", shown, *number);
    }
  }
  return "";
}

// Returns ", repeated 6x across cluster" of Ray's "[repeated 6x across cluster]", which stands for the lines of other processes.
std::string repetition_behind(std::string_view text) {
  constexpr std::size_t kReach = 1200;
  constexpr std::string_view kWords = "[repeated";
  constexpr std::string_view kEnd = "xacrosscluster]";
  text = text.substr(0, std::min({text.find("Triedtoallocate", 1), text.find("pid="), kReach}));  // the same line
  const std::size_t at = text.find(kWords);
  const auto times = at == std::string_view::npos ? std::nullopt : integer_at(text.substr(at + kWords.size()));
  return times && text.find(kEnd, at) != std::string_view::npos
             ? fmt::format(", repeated {}x across the cluster", *times)
             : "";
}

}  // namespace cachalot::tools
