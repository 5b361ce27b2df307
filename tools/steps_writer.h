// Writes what the allocator decided at every event of a replay, in the format of data/golden:
//
//   <event> <segment> <offset> <reserved> <allocated> <active> <inactive_split>    an allocation
//   <event> oom                                                                    one that failed
//   <event> - - <reserved> <allocated> <active> <inactive_split>                   a free
//
// Segments are numbered in the order of their creation, from 0; the figures are bytes after the event. An allocation of
// 0 bytes has no segment and is written as a free is. The page heap has no segments at all: it is refused.
//
// The file appears in finish() (output_file.h).
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "cachalot/caching_allocator.h"
#include "tools/output_file.h"

namespace cachalot::tools {

class StepsWriter {
 public:
  // Throws InvalidArgument for an allocator on the page heap, before there is any file, and when the file cannot be
  // written. From here on follows the segments of `allocator`, which must be fresh and must not be used any more once
  // the writer is gone.
  StepsWriter(const std::string& path, CachingAllocator& allocator);
  StepsWriter(const StepsWriter&) = delete;
  StepsWriter& operator=(const StepsWriter&) = delete;

  void allocated(std::size_t event, const void* pointer);
  void out_of_memory(std::size_t event);
  void freed(std::size_t event);
  void finish() { file_.finish(); }

 private:
  void follow(const Change& change);
  void print_figures();

  CachingAllocator& allocator_;
  std::map<Address, std::size_t> ordinals_;  // of the segments held, by base address
  std::size_t segments_created_ = 0;
  OutputFile file_;
};

}  // namespace cachalot::tools
