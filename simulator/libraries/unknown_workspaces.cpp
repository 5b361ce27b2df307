#include "simulator/libraries/unknown_workspaces.h"

#include <atomic>
#include <vector>

#include "base/json_writer.h"

namespace cachalot::simulator {
namespace {

// For each library, whether it was asked. Needs no destructor, as the report is written late.
std::array<std::atomic<bool>, kAskedLibraries.size()> asked{};

}  // namespace

void note_unknown_workspace(std::string_view function) {
  asked[library_of(function)].store(true, std::memory_order_relaxed);
}

void write_unknown_workspaces(JsonWriter& json) {
  std::vector<std::string_view> names;
  for (std::size_t place = 0; place < kAskedLibraries.size(); ++place) {
    if (asked[place].load(std::memory_order_relaxed)) names.push_back(kAskedLibraries[place].name);
  }
  json.list(names);
}

}  // namespace cachalot::simulator
