#include "tools/snapshot_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"

namespace cachalot::tools {
namespace {

std::uint64_t number(Stream stream) { return reinterpret_cast<std::uintptr_t>(stream); }

bool is_event(const Change& change) {
  return change.action == Change::Action::alloc || change.action == Change::Action::free_requested ||
         change.action == Change::Action::free_completed;
}

struct Request {
  std::size_t bytes = 0;
  Stream stream = nullptr;
};

using Segments = std::vector<const SegmentSnapshot*>;

std::unordered_map<int, Segments> by_device(const std::vector<SegmentSnapshot>& segments) {
  std::unordered_map<int, Segments> devices;
  for (const SegmentSnapshot& segment : segments) devices[segment.device].push_back(&segment);
  return devices;
}

// What lived before the first entry, by address.
std::map<Address, Request> earlier_blocks(const std::vector<Change>& history, const Segments& segments) {
  std::map<Address, Request> earlier;
  std::unordered_set<Address> seen;  // in the history
  for (const Change& change : history) {
    if (!is_event(change) || !seen.insert(change.address).second) continue;
    if (change.action == Change::Action::free_requested) earlier[change.address] = {change.bytes, change.stream};
  }
  for (const SegmentSnapshot* segment : segments) {
    for (const BlockSnapshot& block : segment->blocks) {
      const bool lives = block.state == BlockSnapshot::State::active_allocated;
      if (lives && !seen.contains(block.address)) earlier[block.address] = {block.requested_size, segment->stream};
    }
  }
  return earlier;
}

class HistoryReader {
 public:
  explicit HistoryReader(std::string path) { trace_.path = std::move(path); }

  void allocate(Address address, Request request) {
    free(address);
    const std::uint64_t stream = number(request.stream);
    CACHALOT_REQUIRE(maker_.can_allocate(), "{}: more than {} allocations are alive at once", trace_.path,
                     Trace::kMostSlots);
    CACHALOT_REQUIRE(maker_.can_use(stream), "{}: more than {} streams", trace_.path, Trace::kMostStreams);
    trace_.events.push_back(maker_.allocate(request.bytes, stream));
    live_.emplace(address, trace_.events.back().slot);
    ++trace_.allocation_count;
  }

  // Nothing happens where nothing lives.
  void free(Address address) {
    const auto block = live_.find(address);
    if (block == live_.end()) return;
    trace_.events.push_back(maker_.free(block->second));
    live_.erase(block);
  }

  Trace finish() {
    trace_.event_count = trace_.events.size();
    trace_.slots = maker_.slots();
    trace_.streams = maker_.streams();
    return std::move(trace_);
  }

 private:
  Trace trace_;
  TraceMaker maker_;
  std::unordered_map<Address, std::uint32_t> live_;  // slots, by address
};

Trace trace_of(std::string path, const std::vector<Change>& history, const Segments& segments) {
  HistoryReader reader(std::move(path));
  for (const auto& [address, request] : earlier_blocks(history, segments)) reader.allocate(address, request);
  for (const Change& change : history) {
    if (!is_event(change)) continue;
    if (change.action == Change::Action::alloc) {
      reader.allocate(change.address, {change.bytes, change.stream});
    } else {
      reader.free(change.address);
    }
  }
  return reader.finish();
}

}  // namespace

std::vector<Trace> traces_of(const TorchSnapshot& snapshot) {
  std::vector<int> devices;
  const auto& histories = snapshot.memory.device_traces;
  for (std::size_t device = 0; device < histories.size(); ++device) {
    if (std::ranges::any_of(histories[device], is_event)) devices.push_back(static_cast<int>(device));
  }
  CACHALOT_REQUIRE(!devices.empty(), "{}: the snapshot has no history to replay: {}", snapshot.path,
                   snapshot.unknown_actions == 0 ? "torch.cuda.memory._record_memory_history() was not called before"
                                                 : unknown_actions_text(snapshot));
  std::unordered_map<int, Segments> segments = by_device(snapshot.memory.segments);
  std::vector<Trace> traces;
  for (const int device : devices) {
    std::string path = devices.size() == 1 ? snapshot.path : fmt::format("{} device {}", snapshot.path, device);
    Trace trace = trace_of(std::move(path), histories[static_cast<std::size_t>(device)], segments[device]);
    CACHALOT_REQUIRE(trace.event_count > 0, "{}: the history has no allocation and no free", trace.path);
    traces.push_back(std::move(trace));
  }
  return traces;
}

}  // namespace cachalot::tools
