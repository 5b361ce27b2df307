#include "tools/history/history.h"

#include <array>
#include <utility>

#include "tools/history/snapshot_history.h"

namespace cachalot::tools {

const char* name_of(HistoryEvent::Action action) {
  static constexpr std::array kNames = {"alloc",        "free_requested", "free_completed", "segment_alloc",
                                        "segment_free", "segment_map",    "segment_unmap",  "snapshot",
                                        "oom",          "annotate"};
  return kNames[static_cast<std::size_t>(action)];
}

History read_history(InputFile file) { return read_snapshot_history(std::move(file)); }

History read_history(const std::string& path) { return read_history(InputFile(path, "history")); }

}  // namespace cachalot::tools
