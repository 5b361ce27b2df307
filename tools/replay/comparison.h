// One trace under three policies: PyTorch's, PyTorch's with expandable segments, and cachalot's page heap.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tools/base/report_tree.h"
#include "tools/replay/policies.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::tools {

struct Comparison {
  std::string trace;  // its path
  std::size_t events = 0;
  std::size_t peak_requested_bytes = 0;             // the most that lives at once, with the requests that failed
  std::size_t failed_requests = 0;                  // Trace::failed_requests
  std::array<PolicyFigures, kHeapCount> figures{};  // by heap

  const PolicyFigures& of(Policy::Heap heap) const { return figures[index_of(heap)]; }
};

// Returns what the policies do on a device of this size. `progress` is called now and then with the part done, 0 to 1.
Comparison compare_policies(const Trace& trace, std::size_t device_bytes, const std::function<void(double)>& progress);

// Returns the sentence: "On these 9 traces together the page heap holds 17.0 % less memory than PyTorch's policy …".
std::string conclusion(const std::vector<Comparison>& comparisons);

// Returns the figures of one comparison, for programs.
Section report_of(const Comparison& comparison);

// Returns, for people, a table with one line for each trace, what its columns mean, and the sentence that sums it up.
Section report_of(const std::vector<Comparison>& comparisons);

}  // namespace cachalot::tools
