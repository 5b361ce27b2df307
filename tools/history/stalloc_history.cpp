#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "tools/history/text_histories.h"
#include "tools/history/text_lines.h"

namespace cachalot::tools {
namespace {

class StallocReader {
 public:
  explicit StallocReader(InputFile file)
      : made_(file, HistoryFormat::stalloc), lines_(std::move(file), LineReader::LastLine::may_be_cut) {}

  History read() {
    while (const auto line = lines_.next()) {
      const std::string_view text = trimmed(*line);
      if (text.empty()) continue;
      split(text, ' ', fields_);
      if (fields_.size() == 4 && (fields_[0] == "1" || fields_[0] == "0")) {
        add_event();
      } else {
        add_mark(text);
      }
    }
    change("", iteration_);
    change("", batch_);
    return made_.finish();
  }

 private:
  void add_event() {
    HistoryEvent event;
    event.address = value("pointer", pointer_in(fields_[1]), fields_[1]);
    event.bytes = value("size", number_in(fields_[2]), fields_[2]);
    event.stream = made_.stream(value("stream", pointer_in(fields_[3]), fields_[3]));
    event.time_us = static_cast<std::int64_t>(made_.events());
    lines_.require(event.bytes < kMaxRequestBytes, "size {} is not below 1 EiB", event.bytes);
    if (event.address == 0) return;  // of no bytes
    fields_[0] == "0" ? made_.add_free(event) : made_.add(event);
  }

  std::uint64_t value(const char* what, std::optional<std::uint64_t> number, std::string_view text) const {
    lines_.require(number.has_value(), "{} {} is not a number", what, Quoted{text});
    return *number;
  }

  void add_mark(std::string_view text) {
    const std::size_t colon = text.rfind(':');
    const std::string_view after = colon == std::string_view::npos ? "" : trimmed(text.substr(colon + 1));
    lines_.require(!after.empty(), "{} is neither an event, <0 or 1> <pointer> <bytes> <stream>, nor a mark",
                   Quoted{text});
    if (text.find("Iteration Index") != std::string_view::npos) {
      change("", batch_);
      return change(after == "end" ? "" : fmt::format("iteration {}", after), iteration_);
    }
    if (text.find("micro-batch") != std::string_view::npos) return change(fmt::format("micro-batch {}", after), batch_);
    const std::size_t arrow = text.find("->");
    const std::size_t dash = after.find('-');
    lines_.require(text.find("Layer") != std::string_view::npos && arrow != std::string_view::npos &&
                       dash != std::string_view::npos,
                   "{} is no mark of an iteration, a micro-batch or a layer", Quoted{text});
    mark(fmt::format("{} {}", text.substr(0, arrow), after.substr(0, dash)), after.substr(dash + 1) == "start");
  }

  // A stage that lasts until the next one.
  void change(std::string name, std::string& current) {
    if (!current.empty()) mark(current, false);
    current = std::move(name);
    if (!current.empty()) mark(current, true);
  }

  void mark(std::string_view name, bool begins) {
    made_.budget().charge(2 * sizeof(StageMark) + 2 * name.size());
    made_.history().stages.push_back({.time_us = static_cast<std::int64_t>(made_.events()),
                                      .name = made_.history().texts.add(name),
                                      .begins = begins});
  }

  TextHistory made_;
  LineReader lines_;
  std::vector<std::string_view> fields_;
  std::string iteration_;
  std::string batch_;
};

}  // namespace

History read_stalloc_history(InputFile file) { return StallocReader(std::move(file)).read(); }

}  // namespace cachalot::tools
