// The figures that a process on cachalot told of itself as its memory ran out (DeviceFacts::Failing), for `cachalot explain`: the
// owners of live memory, the reasons why free memory did not serve the request, and the settings that would have served it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/analysis/causes.h"
#include "tools/analysis/holders.h"
#include "tools/base/report_tree.h"

namespace cachalot::tools {

// The live memory that one object of Python holds.
struct OwnerShare {
  std::string name;  // a module, "GPT.blocks.3"; "": none is known
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
  std::vector<Share> kinds;  // by its part in a module: "parameters"
};

struct TagShare {
  std::string name;
  std::uint64_t reserved_bytes = 0;
  std::uint64_t asleep_bytes = 0;  // not on the device
};

// Free memory that has one reason not to serve the request.
struct Unused {
  enum class Reason : std::uint8_t { pieces, stream, idle_pool, graph_pool, memory_pool, tag, default_pool };

  Reason reason = Reason::pieces;
  Cause cause = Cause::fragmentation;
  std::string name;  // "stream 0x1f40", "MemPool (0, 1)"
  Cached cached;
  std::uint64_t page_bytes = 0;  // in whole pages, which the page heap could map elsewhere
};

// Something else that would have served the request, or would not.
struct WouldServe {
  std::string key;  // of JSON: "page_heap", "no_limit", "use_on_oom", "release_physical" or "smaller_request"
  std::string text;
  std::uint64_t bytes = 0;  // that it could serve
  bool serves = false;
};

struct FailingProcess {
  DeviceFacts::Failing told;
  std::vector<DeviceFacts::Process> other_processes;  // this and the lists below: the largest first
  std::string stream;                                 // of the request: "the default stream"
  std::string pool;                                   // "the default pool"
  std::uint64_t asleep_bytes = 0;
  std::vector<OwnerShare> owners;
  std::vector<TagShare> tags;
  std::vector<Share> libraries;
  std::vector<Unused> unused;
  std::vector<WouldServe> offers;
};

// Adds what the process told, if anything, to the evidence, which has the failure.
void add_told(Evidence& evidence, const Timeline& timeline);

// Returns what the process told, with its sums; nullopt where it told nothing. `live` are the allocations of the moment.
std::optional<FailingProcess> failing_process_of(const Timeline& timeline, const Evidence& evidence,
                                                 std::span<const std::uint32_t> live,
                                                 std::span<const BlockOwner> owners);

// Returns the sentence for a cause that the process's own words explain best; "" for others.
std::string told_sentence(Cause cause, const Evidence& evidence, const FailingProcess& process);

// Returns the one thing to do first, as far as the memory of the moment tells it.
std::string recommendation_of(Cause cause, const Evidence& evidence, const FailingProcess& process);

// Adds lines with labels: the request, and the memory of the device beside this process's allocator.
void add_figures(Section& section, const FailingProcess& process, const Evidence& evidence);
// Adds asleep_bytes, and the tables owners, tags, libraries, unused and would_serve, of at most `top` rows each.
void add_tables(Section& section, const FailingProcess& process, std::size_t top);

}  // namespace cachalot::tools
