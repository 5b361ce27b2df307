// Reads the statistics pages of this machine's processes (cachalot/statistics_page.h).
//
// Nothing on a page is believed: sizes and counts are checked, texts are as long as their arrays, and a page must belong to the
// user of the process that it names. Pages are read by system calls: a file that somebody truncates is an error, no signal.
#pragma once

#include <string>
#include <vector>

#include "tools/live/sample.h"

namespace cachalot::tools::live {

// Returns the folder of pages: `given`, or else CACHALOT_PUBLISH_DIR, or else /dev/shm.
std::string page_directory(const std::string& given);

struct ReadPages {
  std::vector<ProcessSample> processes;  // by pid and page
  std::vector<std::string> removed;      // paths of pages of processes that are no more
  std::vector<std::string> refused;      // "<path>: <why it is not shown>"
};

// Reads all pages in the folder, tells their publishers that they are read, and removes those of dead processes of this user.
// Throws InvalidArgument if there is no such folder. Blocks: for some milliseconds where a page is being written.
ReadPages read_pages(const std::string& directory);

}  // namespace cachalot::tools::live
