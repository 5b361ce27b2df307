#include "policy/options_without_effect.h"

#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/locks.h"

CACHALOT_BEGIN

namespace {

struct Printed {
  SleepingMutex mutex;
  std::set<std::string> sentences CACHALOT_GUARDED_BY(mutex);
};

}  // namespace

void warn_of_options_without_effect(const Options& options, const Options& before) {
  static auto& printed = *new Printed;
  const std::vector<std::string> known = options_without_effect(before);
  for (const std::string& sentence : options_without_effect(options)) {
    if (std::ranges::find(known, sentence) != known.end()) continue;
    const Lock lock(printed.mutex);
    if (printed.sentences.insert(sentence).second) print_error("cachalot: {}\n", sentence);
  }
}

CACHALOT_END
