// An allocator history recorded on a real GPU: data/gpu_traces/README.md has the format.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "cachalot/device.h"

namespace cachalot {

// Memory as it is at one moment of a log.
struct GpuState {
  struct Segment {
    std::size_t bytes = 0;
    Stream stream = nullptr;
    PoolKind kind = PoolKind::small;
  };
  std::map<Address, Segment> segments;
  std::map<Address, std::size_t> live;  // bytes of each allocated block, without slack where the log does not show it

  // The blocks of one segment in address order, without gaps.
  struct Tile {
    Address address = 0;
    std::size_t bytes = 0;
    bool is_free = false;
  };
  std::vector<Tile> tiles(Address segment) const;
};

struct GpuLog {
  enum class Action { alloc, free_requested, free_completed, segment_alloc };
  struct Event {
    Action action = Action::alloc;
    Address address = 0;
    std::size_t bytes = 0;
    Stream stream = nullptr;
  };

  std::vector<Event> events;
  GpuState start;
  GpuState end;
};

// Returns the state before the events, of that after them.
GpuState rewound(GpuState state, const std::vector<GpuLog::Event>& events);

// Throws std::runtime_error for what the format does not allow.
GpuLog read_gpu_log(const std::string& path);

}  // namespace cachalot
