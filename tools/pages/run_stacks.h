// The call stacks of a run as a tree of calls, in the order in which a page decodes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/analysis/sites.h"
#include "tools/history/history.h"
#include "tools/pages/column_writer.h"

namespace cachalot::tools {

// The history must outlive it. Not thread-safe.
class RunStacks {
 public:
  static constexpr std::size_t kDeepest = 512;  // calls further in are left out

  explicit RunStacks(const History& history) : history_(history), sites_(history) {}

  // Returns the page's number of the stack in which the allocation was asked for.
  std::uint64_t add(StackId stack, DetailsId details);
  // Adds the columns node, parent, frame, file, function, line and origin.
  void write(std::string_view prefix, ColumnWriter& columns, TextTable& texts);

 private:
  std::uint64_t node_of(StackId stack);
  std::uint64_t child_of(std::uint64_t parent, FrameId frame);

  const History& history_;
  Sites sites_;
  std::map<StackId, std::uint64_t> numbers_;
  std::vector<std::uint64_t> nodes_;  // by the page's number
  std::map<std::pair<std::uint64_t, FrameId>, std::uint64_t> ids_;
  std::map<FrameId, std::uint64_t> frame_numbers_;
  std::vector<FrameId> frames_;
  std::vector<std::uint64_t> parents_;
  std::vector<std::uint64_t> node_frames_;
};

}  // namespace cachalot::tools
