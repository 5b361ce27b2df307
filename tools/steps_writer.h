// Writes what the allocator decided at every event of a replay, in the format of data/golden:
//
//   <event> <segment> <offset> <reserved> <allocated> <active> <inactive_split>    an allocation
//   <event> oom                                                                    one that failed
//   <event> - - <reserved> <allocated> <active> <inactive_split>                   a free
//
// Segments are numbered in the order of their creation, from 0; the figures are bytes after the event. An allocation of
// 0 bytes has no segment and is written as a free is. The page heap has no segments at all: it is refused.
//
// The text goes to a file beside `path`, which takes its place in finish(): a file that was there stays whole until
// then, and nothing is left behind by a writer that never finished. What is no regular file is written in place.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdio>
#include <map>
#include <string>

#include "cachalot/caching_allocator.h"

namespace cachalot::tools {

class StepsWriter {
 public:
  // Throws InvalidArgument for an allocator on the page heap, before there is any file, and when the file cannot be
  // written. From here on follows the segments of `allocator`, which must be fresh and must not be used any more once
  // the writer is gone.
  StepsWriter(const std::string& path, CachingAllocator& allocator);
  ~StepsWriter();
  StepsWriter(const StepsWriter&) = delete;
  StepsWriter& operator=(const StepsWriter&) = delete;

  void allocated(std::size_t event, const void* pointer);
  void out_of_memory(std::size_t event);
  void freed(std::size_t event);
  void finish();

 private:
  void follow(const Change& change);
  void append_figures();
  void write_buffer();
  [[noreturn]] void fail();

  CachingAllocator& allocator_;
  std::map<Address, std::size_t> ordinals_;  // of the segments held, by base address
  std::size_t segments_created_ = 0;

  std::string path_;          // as given
  std::string final_path_;    // where links lead
  std::string written_path_;  // the same, or a temporary file beside it
  std::FILE* file_ = nullptr;
  fmt::memory_buffer buffer_;
};

}  // namespace cachalot::tools
