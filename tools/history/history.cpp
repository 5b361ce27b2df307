#include "tools/history/history.h"

#include <array>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "tools/history/snapshot_history.h"
#include "tools/history/text_histories.h"

namespace cachalot::tools {

const char* name_of(HistoryEvent::Action action) {
  static constexpr std::array kNames = {"alloc",        "free_requested", "free_completed", "segment_alloc",
                                        "segment_free", "segment_map",    "segment_unmap",  "snapshot",
                                        "oom",          "annotate"};
  return kNames[static_cast<std::size_t>(action)];
}

std::string unknown_actions_text(std::size_t count) {
  return format_count(count, "event") + " of an unknown kind, from a newer PyTorch";
}

History read_history(InputFile file) {
  const std::optional<HistoryFormat> text = text_format(file.begin());
  if (!text) return read_snapshot_history(std::move(file));
  return *text == HistoryFormat::rmm_csv ? read_rmm_history(std::move(file)) : read_trace_history(std::move(file));
}

History read_history(const std::string& path) { return read_history(InputFile(path, "history")); }

}  // namespace cachalot::tools
