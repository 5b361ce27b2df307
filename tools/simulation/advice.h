// Advises an allocator policy for a program: its history is replayed under each, in parallel.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/base/report_tree.h"
#include "tools/replay/policies.h"
#include "tools/replay/trace_reader.h"
#include "tools/simulation/card_table.h"

namespace cachalot::tools {

// The device on which programs are replayed.
struct ReplayDevice {
  std::string gpu;               // a key of `cachalot gpus`, or "" for another device
  std::size_t memory_bytes = 0;  // its whole memory
  std::size_t usable_bytes = 0;  // the memory left for the allocator
};

// One program's work on one device.
struct AdvisedProgram {
  std::string file;  // or the program's words
  int device = 0;
  std::shared_ptr<const Trace> trace;
  std::size_t other_bytes = 0;  // of the device, beside the allocator's memory and the context
  Policy policy{};              // that it ran with: PyTorch's default, or its expandable segments
  // PyTorch's reserved memory at its peak, where it is known.
  std::optional<std::size_t> recorded_reserved_bytes;
  bool ends_with_failure = false;  // its last request: its further needs are not known
  // Why there is no advice: the history tells nearly nothing of the program. Empty: it tells enough.
  std::string too_short{};
};

struct AdviceOptions {
  bool sweep = false;
  std::optional<std::size_t> top;  // the number of policies listed; all without
  int jobs = 1;                    // threads
  bool measures_host_time = true;
  std::function<void(double done)> progress;  // 0 to 1; called by one thread at a time
};

// The result of one policy.
struct PolicyAdvice {
  std::string policy;  // key_of
  std::string line;    // line_of
  std::size_t peak_reserved_bytes = 0;
  std::size_t ooms = 0;      // allocations that fail on the device
  double driver_us = 0;      // simulated
  double ns_per_event = 0;   // host time; 0 where it is not known
  std::string smallest_gpu;  // that completes; "": none does
  std::size_t smallest_gpu_bytes = 0;
  bool is_smallest_unsure = false;  // the estimate of the context decides
  std::vector<std::string> gpus;    // that complete, the smallest first
  bool needs_limit = false;         // of one GPU, with no room to spare: it is listed and not recommended
  PolicyOffer offer{};
};

// The policy to take. The reason is the replay's.
struct Recommendation {
  std::string policy;
  std::string line;
  std::size_t saved_bytes = 0;  // reserved, against the program's policy
  std::string sentence;
};

struct Advice {
  std::string file;
  int device = 0;
  std::string error;  // not empty: the file cannot be read, and nothing else is known
  std::size_t events = 0;
  std::size_t peak_requested_bytes = 0;  // with the requests that failed
  std::size_t failed_requests = 0;       // Trace::failed_requests
  ReplayDevice on;
  std::optional<std::size_t> recorded_reserved_bytes;  // AdvisedProgram's
  std::vector<std::string> gpus;                       // those to answer for, the smallest first
  std::size_t settings = 0;                            // settings that have answers
  std::size_t replays = 0;                             // that these took
  std::string policy = key_of(Policy());               // key_of AdvisedProgram's
  bool ends_with_failure = false;                      // AdvisedProgram's: no GPU is known on which it completes
  std::vector<PolicyAdvice> policies;                  // the best first; PyTorch's default and the program's always
  Recommendation recommendation;

  const PolicyAdvice& native() const;
  const PolicyAdvice& of_program() const;
};

// Returns the advice. `gpus` are those to answer for.
//
// The best policy is the one with the fewest failed allocations; among those the least reserved memory, then the least driver
// time. The recommended one is of `choose`. Thread-safe.
Advice advise(const AdvisedProgram& program, const ReplayDevice& on, const std::vector<Card>& gpus,
              const AdviceOptions& options);

// Returns "PyTorch's default" or "expandable_segments:True": the program's policy.
std::string now_text(const Advice& advice);

// Returns the advice as a part of a report: a table of the policies, the best first, and the recommendation.
Section report_of(const Advice& advice);

// Returns a table of many programs with a line for each, first that with most bytes to be saved, at the end those that could
// not be read; and which settings are recommended how often.
Section fleet_report(std::vector<Advice> advices);

// Reads the JSON of report_of. Throws InvalidArgument for other text.
Advice advice_of_json(std::string_view text);

}  // namespace cachalot::tools
