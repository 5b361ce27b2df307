#include "tests/exactness/gpu_log.h"

#include <cstdint>
#include <sstream>
#include <stdexcept>

#include "policy/torch_policy.h"
#include "tests/tools/temporary_file.h"

namespace cachalot {
namespace {

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
  return fields;
}

void require(bool holds, const std::string& line) {
  if (!holds) throw std::runtime_error("not a line of a GPU trace: " + line);
}

// Decimal, or hexadecimal with 0x.
std::uint64_t number(const std::string& text) {
  std::size_t used = 0;
  const std::uint64_t value = std::stoull(text, &used, 0);
  require(used == text.size(), text);
  return value;
}

Stream stream_of(const std::string& text) { return reinterpret_cast<Stream>(number(text)); }

void read_end_line(const std::vector<std::string>& fields, const std::string& line, GpuState& end) {
  const Address address = number(fields.at(2));
  const std::size_t bytes = number(fields.at(3));
  if (fields.at(1) == "seg") {
    require(fields.at(6) == "0", line);  // not expandable
    const PoolKind kind = fields.at(5) == "small" ? PoolKind::small : PoolKind::large;
    end.segments[address] = {bytes, stream_of(fields.at(4)), kind};
  } else {
    require(fields.at(1) == "blk", line);
    require(fields.at(5) == "active_allocated" || fields.at(5) == "inactive", line);
    if (fields.at(5) == "active_allocated") end.live[address] = bytes;
  }
}

GpuLog::Event read_event(const std::vector<std::string>& fields, const std::string& line) {
  static const std::map<std::string, GpuLog::Action> kActions = {
      {"alloc", GpuLog::Action::alloc},
      {"free_requested", GpuLog::Action::free_requested},
      {"free_completed", GpuLog::Action::free_completed},
      {"segment_alloc", GpuLog::Action::segment_alloc},
  };
  require(kActions.contains(fields.at(1)), line);
  return {kActions.at(fields.at(1)), number(fields.at(2)), number(fields.at(3)), stream_of(fields.at(4))};
}

}  // namespace

// Undoes the events, last first.
GpuState rewound(GpuState state, const std::vector<GpuLog::Event>& events) {
  for (auto event = events.rbegin(); event != events.rend(); ++event) {
    switch (event->action) {
      case GpuLog::Action::alloc:
        state.live.erase(event->address);
        break;
      case GpuLog::Action::free_completed:
        state.live[event->address] = round_to_block(event->bytes);
        break;
      case GpuLog::Action::free_requested:
        break;
      case GpuLog::Action::segment_alloc:
        state.segments.erase(event->address);
        break;
    }
  }
  return state;
}

std::vector<GpuState::Tile> GpuState::tiles(Address segment) const {
  const PoolKind kind = segments.at(segment).kind;
  const Address end = segment + segments.at(segment).bytes;
  std::vector<Tile> tiles;
  Address at = segment;
  const auto add_gap = [&](Address gap_end) {
    if (gap_end == at) return;
    // A gap too small for a free block of the large pool is the slack of the block before it.
    if (kind == PoolKind::large && gap_end - at <= kMinLargeRemainder && !tiles.empty()) {
      tiles.back().bytes += gap_end - at;
    } else {
      tiles.push_back({at, gap_end - at, true});
    }
  };
  for (auto block = live.lower_bound(segment); block != live.end() && block->first < end; ++block) {
    add_gap(block->first);
    tiles.push_back({block->first, block->second, false});
    at = block->first + block->second;
  }
  add_gap(end);
  return tiles;
}

GpuLog read_gpu_log(const std::string& path) {
  GpuLog log;
  std::istringstream lines(tools::read_gzip(path));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    const std::vector<std::string> fields = split(line);
    require(fields.size() >= 5 && (fields[0] == "END" || fields[0] == "EV"), line);
    if (fields[0] == "END") {
      read_end_line(fields, line, log.end);
    } else {
      log.events.push_back(read_event(fields, line));
    }
  }
  log.start = rewound(log.end, log.events);
  return log;
}

}  // namespace cachalot
