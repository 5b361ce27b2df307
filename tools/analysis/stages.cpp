#include "tools/analysis/stages.h"

#include <algorithm>
#include <map>

namespace cachalot::tools {
namespace {

constexpr std::size_t kDeepest = 64;             // stages in one another: those further in are left out
constexpr std::size_t kMostStages = 1 << 16;     // distinct ones: further ones count as that around them
constexpr std::size_t kLongestStageName = 1000;  // bytes

void follow(const StageMark& mark, std::vector<TextId>& open) {
  if (mark.begins) {
    if (open.size() < kDeepest) open.push_back(mark.name);
    return;
  }
  const auto last = std::find(open.rbegin(), open.rend(), mark.name);
  if (last != open.rend()) open.erase(std::next(last).base());
}

}  // namespace

Stages::Stages(const History& history, const DeviceHistory& device) {
  if (history.stages.empty()) return;
  std::map<std::vector<TextId>, StageId> ids = {{{}, 0}};
  std::vector<TextId> open;
  StageId stage = 0;
  const auto enter = [&] {
    const auto known = ids.find(open);
    if (known != ids.end()) {
      stage = known->second;
      return;
    }
    if (ids.size() >= kMostStages) return;
    stage = static_cast<StageId>(names_.size());
    ids.emplace(open, stage);
    open_.push_back(open);
    std::string name;
    for (const TextId text : open) name += (name.empty() ? "" : " > ") + std::string(history.texts[text]);
    names_.push_back(name.substr(0, kLongestStageName));
  };
  by_event_.reserve(device.events.size());
  auto mark = history.stages.begin();
  for (const HistoryEvent& event : device.events) {
    // In one microsecond, what begins comes before the event, and what ends after it.
    for (; mark != history.stages.end() &&
           (mark->time_us < event.time_us || (mark->time_us == event.time_us && mark->begins));
         ++mark) {
      if (mark->device != device.device) continue;
      follow(*mark, open);
      enter();
    }
    by_event_.push_back(stage);
  }
}

}  // namespace cachalot::tools
