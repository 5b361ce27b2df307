// Every block address recorded on real GPUs is predicted: given the addresses cudaMalloc returned for segments, our
// allocator places each block where PyTorch's did, and holds the bytes that PyTorch held, at each event.
// data/gpu_traces/README.md describes the logs.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cachalot/caching_allocator.h"
#include "policy/torch_policy.h"
#include "tests/exactness/gpu_log.h"
#include "tests/tools/recorded_figures.h"
#include "tools/history/history.h"

namespace cachalot {
namespace {

const std::string kLogs = CACHALOT_DATA_DIR "/gpu_traces/";

// Hands out the segments of a log. Asked for one that the log does not have, invents an address and remembers it.
class LoggedDevice final : public Device {
 public:
  void offer(Address address, std::size_t bytes) { offers_.emplace_back(address, bytes); }
  // Returns whether every offered segment was requested, and no other.
  bool in_step() const { return offers_.empty() && !invented_; }

  std::optional<Address> malloc(std::size_t bytes) override {
    if (offers_.empty() || offers_.front().second != bytes) {
      invented_ = true;
      return next_invention_ += Address{1} << 40;
    }
    const Address address = offers_.front().first;
    offers_.pop_front();
    return address;
  }
  void free(Address) override {}

  int index() const override { return 0; }
  DeviceProperties properties() const override { return {"a GPU of the past", std::size_t{80} << 30}; }
  MemoryInfo memory_info() override { return {std::size_t{80} << 30, std::size_t{80} << 30}; }
  CaptureStatus capture_status(Stream) override { return {}; }
  std::int64_t clock_us() override { return 0; }
  void synchronize() override {}

  std::optional<Address> reserve(std::size_t) override { return std::nullopt; }
  void unreserve(Address, std::size_t) override { not_needed(); }
  std::optional<MemoryHandle> create(std::size_t) override { return std::nullopt; }
  void release(MemoryHandle) override { not_needed(); }
  void map(Address, std::size_t, MemoryHandle) override { not_needed(); }
  void unmap(Address, std::size_t) override { not_needed(); }
  void set_access(Address, std::size_t, const std::vector<int>&) override { not_needed(); }
  void* host_malloc(std::size_t) override { not_needed(); }
  void host_free(void*) override { not_needed(); }
  void copy_to_host(void*, Address, std::size_t) override { not_needed(); }
  void copy_from_host(Address, const void*, std::size_t) override { not_needed(); }
  void fill(Address, unsigned char, std::size_t, Stream) override { not_needed(); }
  void copy(CopyKind, Address, Address, std::size_t, Stream) override { not_needed(); }
  bool has_stream(Stream) override { return true; }
  std::uint64_t stream_id(Stream) override { return 0; }
  Stream new_stream() override { not_needed(); }
  void stream_destroy(Stream) override { not_needed(); }
  Event event_create() override { not_needed(); }
  void event_destroy(Event) override { not_needed(); }
  void event_record(Event, Stream) override { not_needed(); }
  bool event_query(Event) override { not_needed(); }
  void event_synchronize(Event) override { not_needed(); }
  std::optional<std::uint64_t> completion_hint(Stream) override { return std::nullopt; }
  void stream_wait(Stream, Event) override { not_needed(); }
  IpcHandle ipc_export(Address) override { not_needed(); }
  Address ipc_import(const IpcHandle&) override { not_needed(); }
  void ipc_close(Address) override { not_needed(); }
  ShareableHandle export_handle(MemoryHandle) override { not_needed(); }
  MemoryHandle import_handle(const ShareableHandle&) override { not_needed(); }
  void enable_peer_access(int) override { not_needed(); }

 private:
  [[noreturn]] static void not_needed() { throw std::logic_error("the logs need no such call"); }

  std::deque<std::pair<Address, std::size_t>> offers_;
  bool invented_ = false;
  Address next_invention_ = Address{1} << 46;
};

Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }

// An allocator brought into a state of a log.
class Replica {
 public:
  explicit Replica(const GpuState& state) {
    std::vector<Address> free_tiles;
    for (const auto& [address, segment] : state.segments) build_segment(address, segment, state, free_tiles);
    for (const Address address : free_tiles) free(address);
  }

  CachingAllocator& allocator() { return allocator_; }
  LoggedDevice& device() { return *device_; }

  Address allocate(std::size_t bytes, Stream stream) {
    void* pointer = allocator_.allocate(bytes, 0, stream);
    live_[address_of(pointer)] = pointer;
    return address_of(pointer);
  }
  void free(Address address) {
    const auto entry = live_.find(address);
    if (entry == live_.end()) throw std::runtime_error("the log frees what is not allocated");
    allocator_.deallocate(entry->second);
    live_.erase(entry);
  }

 private:
  // A new segment is free as a whole for a moment; then it is filled, tile after tile. Since all segments built before
  // are full, the only free block is the rest of this one.
  void build_segment(Address address, const GpuState::Segment& segment, const GpuState& state,
                     std::vector<Address>& free_tiles) {
    device_->offer(address, segment.bytes);
    free(allocate(segment.kind == PoolKind::small ? segment.bytes / 2 : segment.bytes, segment.stream));
    for (const GpuState::Tile& tile : state.tiles(address)) build_tile(tile, segment, free_tiles);
    if (!device_->in_step()) throw std::runtime_error("cannot rebuild a segment: its size is not PyTorch's");
  }

  // A free tile of the small pool may be larger than its largest request: pieces, which merge when they are freed.
  void build_tile(const GpuState::Tile& tile, const GpuState::Segment& segment, std::vector<Address>& free_tiles) {
    const std::size_t largest = segment.kind == PoolKind::small ? kSmallSize : tile.bytes;
    for (std::size_t offset = 0; offset < tile.bytes; offset += largest) {
      const Address address = allocate(std::min(largest, tile.bytes - offset), segment.stream);
      if (address != tile.address + offset) throw std::runtime_error("cannot rebuild a segment");
      if (tile.is_free) free_tiles.push_back(address);
    }
  }

  std::shared_ptr<LoggedDevice> device_ = std::make_shared<LoggedDevice>();
  CachingAllocator allocator_{{device_}};
  std::map<Address, void*> live_;
};

struct Outcome {
  std::size_t allocations = 0;
  std::size_t wrong = 0;
  std::string first_wrong;
  std::size_t compared = 0;        // events after which the bytes that are held were compared
  std::size_t wrong_reserved = 0;  // of these
  std::set<std::string> final_blocks;
};

std::string describe(Address address, std::size_t bytes, bool is_free) {
  std::ostringstream text;
  text << address << " " << bytes << (is_free ? " free" : " live");
  return text.str();
}

std::set<std::string> blocks_of(CachingAllocator& allocator) {
  std::set<std::string> blocks;
  for (const SegmentSnapshot& segment : allocator.snapshot().segments) {
    for (const BlockSnapshot& block : segment.blocks) {
      blocks.insert(describe(block.address, block.size, block.state == BlockSnapshot::State::inactive));
    }
  }
  return blocks;
}

std::set<std::string> blocks_of(const GpuState& state) {
  std::set<std::string> blocks;
  for (const auto& [address, segment] : state.segments) {
    for (const auto& tile : state.tiles(address)) blocks.insert(describe(tile.address, tile.bytes, tile.is_free));
  }
  return blocks;
}

tools::HistoryEvent history_event(const GpuLog::Event& event) {
  using Action = tools::HistoryEvent::Action;
  tools::HistoryEvent made{.address = event.address, .bytes = event.bytes};
  switch (event.action) {
    case GpuLog::Action::alloc:
      made.action = Action::alloc;
      break;
    case GpuLog::Action::free_requested:
      made.action = Action::free_requested;
      break;
    case GpuLog::Action::free_completed:
      made.action = Action::free_completed;
      break;
    case GpuLog::Action::segment_alloc:
      made.action = Action::segment_alloc;
      break;
  }
  return made;
}

// Returns the bytes of the log as a history of the tools.
tools::DeviceHistory history_of(const GpuLog& log) {
  tools::DeviceHistory history;
  for (const GpuLog::Event& event : log.events) history.events.push_back(history_event(event));
  for (const auto& [address, segment] : log.end.segments) {
    history.segments.push_back({.address = address, .bytes = segment.bytes});
  }
  return history;
}

// Plays a log. After a wrong prediction it starts anew from where the log is.
class LogPlayer {
 public:
  explicit LogPlayer(const GpuLog& log)
      : log_(log),
        state_(log.start),
        replica_(new Replica(state_)),
        recorded_(tools::figures_before(history_of(log))) {}

  Outcome play() {
    for (const GpuLog::Event& event : log_.events) {
      recorded_.add(history_event(event));
      switch (event.action) {
        case GpuLog::Action::alloc:
          allocate(event);
          break;
        case GpuLog::Action::free_completed:
          free(event);
          break;
        case GpuLog::Action::free_requested:
          break;  // nothing in these logs waits for another stream
        case GpuLog::Action::segment_alloc:
          add_segment(event);
          continue;  // the allocation that asked for it comes next
      }
      ++outcome_.compared;
      if (replica_->allocator().memory_reserved() != recorded_.reserved_bytes) ++outcome_.wrong_reserved;
    }
    outcome_.final_blocks = blocks_of(replica_->allocator());
    return std::move(outcome_);
  }

 private:
  void add_segment(const GpuLog::Event& event) {
    state_.segments[event.address] = log_.end.segments.at(event.address);
    replica_->device().offer(event.address, event.bytes);
  }

  void allocate(const GpuLog::Event& event) {
    ++outcome_.allocations;
    state_.live[event.address] = round_to_block(event.bytes);
    const Address predicted = replica_->allocate(event.bytes, event.stream);
    if (predicted == event.address && replica_->device().in_step()) return;
    if (outcome_.wrong++ == 0) {
      std::ostringstream text;
      text << "allocation " << outcome_.allocations << " of " << event.bytes << " bytes: predicted " << predicted
           << ", recorded " << event.address;
      outcome_.first_wrong = text.str();
    }
    replica_ = std::make_unique<Replica>(state_);
  }

  void free(const GpuLog::Event& event) {
    state_.live.erase(event.address);
    replica_->free(event.address);
  }

  const GpuLog& log_;
  GpuState state_;
  std::unique_ptr<Replica> replica_;
  tools::RecordedFigures recorded_;
  Outcome outcome_;
};

class GpuTrace : public testing::TestWithParam<std::string> {};

TEST_P(GpuTrace, PredictsEveryBlockAddressAndTheBytesHeld) {
  const GpuLog log = read_gpu_log(kLogs + GetParam() + ".csv.gz");
  const Outcome outcome = LogPlayer(log).play();
  EXPECT_GT(outcome.allocations, 0u);
  EXPECT_GT(outcome.compared, 0u);
  EXPECT_EQ(outcome.wrong_reserved, 0u) << "of " << outcome.compared << " events";
  EXPECT_EQ(outcome.wrong, 0u) << "of " << outcome.allocations << "; the first: " << outcome.first_wrong;
  EXPECT_EQ(outcome.final_blocks, blocks_of(log.end));
}

INSTANTIATE_TEST_SUITE_P(Recorded, GpuTrace,
                         testing::Values("cs336_medium_128_inference", "cs336_medium_128_training",
                                         "cs336_medium_256_inference", "cs336_medium_512_inference",
                                         "cs336sil_mem_snapshot", "cs336sil_memory_forward_fp32_128"),
                         [](const auto& param) { return param.param; });

// Its start is ambiguous: blocks alive then and freed later may have had slack that the log does not show.
TEST(AmbiguousGpuTrace, PredictsNinetyNineOfAHundredBlockAddresses) {
  const Outcome outcome = LogPlayer(read_gpu_log(kLogs + "cs336_medium_512_training.csv.gz")).play();
  EXPECT_GT(outcome.allocations, 0u);
  EXPECT_LE(outcome.wrong * 100, outcome.allocations) << "the first: " << outcome.first_wrong;
  EXPECT_EQ(outcome.wrong_reserved, 0u) << "of " << outcome.compared << " events";
  RecordProperty("wrong", static_cast<int>(outcome.wrong));
}

// A snapshot's history, as a log.
GpuLog log_of(const tools::History& history) {
  static const std::map<tools::HistoryEvent::Action, GpuLog::Action> kActions = {
      {tools::HistoryEvent::Action::alloc, GpuLog::Action::alloc},
      {tools::HistoryEvent::Action::free_requested, GpuLog::Action::free_requested},
      {tools::HistoryEvent::Action::free_completed, GpuLog::Action::free_completed},
      {tools::HistoryEvent::Action::segment_alloc, GpuLog::Action::segment_alloc},
  };
  const auto stream = [&](std::uint16_t id) { return reinterpret_cast<Stream>(history.streams[id]); };
  const tools::DeviceHistory& device = history.devices.at(0);
  GpuLog log;
  for (const tools::HistorySegment& segment : device.segments) {
    const PoolKind kind = segment.is_small ? PoolKind::small : PoolKind::large;
    log.end.segments[segment.address] = {segment.bytes, stream(segment.stream), kind};
    for (std::size_t i = segment.first_block; i < segment.first_block + segment.block_count; ++i) {
      const tools::HistoryBlock& block = device.blocks[i];
      if (block.state != tools::HistoryBlock::State::free) log.end.live[block.address] = block.bytes;
    }
  }
  for (const tools::HistoryEvent& event : device.events) {
    log.events.push_back({kActions.at(event.action), event.address, event.bytes, stream(event.stream)});
  }
  log.start = rewound(log.end, log.events);
  return log;
}

TEST(RecordedSnapshot, IsPredictedToTheAddressAndTheBytesHeld) {
  const Outcome outcome = LogPlayer(log_of(tools::read_history(CACHALOT_DATA_DIR "/snapshots/layers.pickle"))).play();
  EXPECT_GT(outcome.allocations, 0u);
  EXPECT_EQ(outcome.wrong, 0u) << "the first: " << outcome.first_wrong;
  EXPECT_GT(outcome.compared, 0u);
  EXPECT_EQ(outcome.wrong_reserved, 0u);
}

TEST(GpuTraces, AreAllTested) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kLogs)) files += entry.path().extension() == ".gz";
  EXPECT_EQ(files, 7u);
}

}  // namespace
}  // namespace cachalot
