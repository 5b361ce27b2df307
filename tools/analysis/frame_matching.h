// Which code of one run of a program is which code of another, although files lie elsewhere and lines have moved.
//
//   files      the same path; else the same file name, with the longest common end of the two paths first
//   functions  the same name in such files
//   lines      in such functions: moved by as much as makes most lines of one those of the other, by the least of equals;
//              then, where as many lines are left between two that belong together, in their order
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>

#include "tools/history/history.h"

namespace cachalot::tools {

class FrameMatching {
 public:
  // The frames are those that are to be matched. Takes a time of at most a million steps for each file name and function
  // beyond the number of frames: where there are more pairs than that, equal paths and lines alone are matched.
  FrameMatching(const History& a, std::span<const FrameId> frames_a, const History& b,
                std::span<const FrameId> frames_b);

  // Returns the frame of `b`, or nullopt for code that is not in it.
  std::optional<FrameId> in_b(FrameId frame_of_a) const;

 private:
  std::map<FrameId, FrameId> matched_;
};

}  // namespace cachalot::tools
