// The text of a log, without the parts that consoles, loggers and terminals put between the words of a message: encodings,
// colours, escapes of JSON, what containers write around each line, a prefix on each, and the ends of lines at which a long message
// was wrapped.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot::tools {

class LogText {
 public:
  // `bytes` may be UTF-8 or UTF-16, with or without a byte order mark.
  explicit LogText(std::string_view bytes);

  // Returns the text without white space, so that a message reads the same wherever its lines were broken, within words and numbers,
  // too. The prefix of a line is left out where the line before begins with the same one. A space stands between two numbers of which
  // the second begins a line of its own.
  std::string_view squeezed() const { return squeezed_; }

  // Writes PyTorch's messages with its letters where squeezed() has them in others: forms and programs that compare texts write small
  // ones. Returns whether there are any. All other letters become small.
  bool restore_case_of_messages();

  // Returns the line that the character of squeezed() at `offset` comes from, with its prefix, and the lines before it.
  // Requires offset <= squeezed().size().
  std::string_view line_of(std::size_t offset) const;

 private:
  struct Line {
    std::size_t offset = 0;  // in squeezed_
    std::size_t begin = 0;   // in text_
    std::size_t end = 0;
  };

  void add_line(std::string_view line, std::string_view before, bool is_after_gap);

  std::string text_;      // decoded, without colours and escapes
  std::string squeezed_;  // the same without prefixes and white space
  std::vector<Line> lines_;
};

// Returns which rank or process wrote the line, "rank 3", or "".
std::string source_of(std::string_view line);

// Returns ", repeated 6x across the cluster" of what Ray adds to a line for those of other processes, or "". `text` is squeezed.
std::string repetition_behind(std::string_view text);

}  // namespace cachalot::tools
