// torch's answer to code that asks whether segments are expandable, such as ProcessGroupNCCL's registration of segments.
#pragma once

#include <c10/core/AllocatorConfig.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string>

namespace cachalot::torch_adapter {

// torch ignores all spaces in settings.
inline std::string without_spaces(const std::string& settings) {
  std::string text;
  std::copy_if(settings.begin(), settings.end(), std::back_inserter(text),
               [](unsigned char c) { return std::isspace(c) == 0; });
  return text;
}

// torch has one flag. To cachalot it is the program's wish; whoever asks wants to know which heap there is, which other options
// decide as well. So the flag is the answer, and the wish is kept here.
class ExpandableSegments {
 public:
  // Returns the program's wish after torch has read `settings`, with the flag in it that torch keeps from earlier ones.
  bool wish(const std::string& settings) {
    if (without_spaces(settings).find(kKey) != std::string::npos || !has_answered_)
      wish_ = Config::use_expandable_segments();
    return wish_;
  }

  // Makes torch answer `has_pages` from now on. Only reading settings can change its flag, and it reads those in force again:
  // where they name the flag, they say the other value from now on.
  void answer(bool has_pages) {
    has_answered_ = true;
    if (Config::use_expandable_segments() == has_pages) return;
    const std::string settings = c10::CachingAllocator::getAllocatorSettings();
    const std::string right = std::string(kKey) + (has_pages ? "True" : "False");
    const std::string wrong = std::string(kKey) + (has_pages ? "False" : "True");
    std::string text = without_spaces(settings);
    const std::size_t at = text.find(wrong);
    if (at != std::string::npos) return Config::instance().parseArgs(text.replace(at, wrong.size(), right));
    Config::instance().parseArgs(text.empty() ? right : right + "," + text);
    Config::instance().parseArgs(settings);  // which leaves the flag alone
  }

 private:
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  static constexpr const char* kKey = "expandable_segments:";

  bool wish_ = false;
  bool has_answered_ = false;
};

}  // namespace cachalot::torch_adapter
