// What `cachalot top` does: takes samples, and gives each to all that wants it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/text_layout.h"

namespace cachalot::tools::live {

struct TopOptions {
  std::string directory;  // of pages; "": page_directory
  double interval_s = 1;
  std::uint64_t count = 0;          // samples; 0: until it is ended
  std::vector<std::uint64_t> pids;  // of the processes; empty: all
  bool json = false;
  bool quiet = false;
  std::string textfile;  // of Prometheus; "": none
  std::optional<std::uint16_t> port;
  std::string address = "127.0.0.1";
};

// Returns 0 after `count` samples, when q is pressed, and after a signal that ends programs. Throws InvalidArgument.
int run_top(const TopOptions& options, const Styles& styles);

}  // namespace cachalot::tools::live
