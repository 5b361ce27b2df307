#include "policy/option_warnings.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"

namespace cachalot {

void warn_of_options_without_effect(const Options& options, const Options& before) {
  static auto& mutex = *new std::mutex;
  static auto& printed = *new std::set<std::string>;
  const std::vector<std::string> known = options_without_effect(before);
  for (const std::string& sentence : options_without_effect(options)) {
    if (std::ranges::find(known, sentence) != known.end()) continue;
    const std::lock_guard<std::mutex> lock(mutex);
    if (printed.insert(sentence).second) print_error("cachalot: {}\n", sentence);
  }
}

}  // namespace cachalot
