// With races:1 of CACHALOT_SIM: finds memory of an allocator's blocks that is used again while work of its last block may still use it.
//
// An allocator that orders nothing by itself, as PyTorch's, gives a freed block to the next request of the same stream at once. If
// another stream used the block, and nothing (a wait for an event, record_stream, a synchronization) puts that use before the first
// use of the memory by its next block, the two race: the kernels may run at the same time, or in the other order.
//
// An observer of the allocator tells when a block is allocated and freed, and which bytes the work of a stream uses. Uses of one
// block are not checked against each other. Work that a stream captures into a graph is not followed. process_mutex guards
// everything here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cachalot/simulator.h"
#include "simulator/base/lock.h"
#include "simulator/device/interval_map.h"
#include "simulator/state/cuda_host_memory.h"
#include "simulator/state/launch_order.h"
#include "simulator/state/stream_state.h"

namespace cachalot::simulator {

class ReuseRaces {
 public:
  // A place of the program, as its observer numbers them.
  using Place = std::uint32_t;

  explicit ReuseRaces(LaunchOrder& order) : order_(order) {}

  // A block of the device has the range from now on.
  void allocated(int device, const AddressRange& range);
  // The owner of the block at this address has given it back. Nothing happens if no block is known to begin there.
  void freed(Address start);
  // Returns the device of the block that has the range; nullopt if no block is known that has it.
  std::optional<int> device_of(const AddressRange& range);
  // Work that the stream was given last uses the range, of a block.
  void used(const AddressRange& range, StreamState& stream, CUstream_st* handle, Place at);
  // Likewise a call of the program, at the line of Python that it runs.
  void used_by(const char* call, const AddressRange& range, StreamState& stream, CUstream_st* handle);
  // The memory has gone back to the device, which was done with it.
  void forget(const AddressRange& range) { past_.erase(range.address, range.bytes); }

  // Returns the number of blocks so far.
  std::uint64_t blocks() const;
  // Returns how many races were found that are not taken yet.
  std::size_t found() const { return races_.size(); }
  // Returns a race that was found, which is forgotten; the earliest first.
  std::optional<cachalot_sim_race> take();

 private:
  // The launches of one stream that used a range of a block; the last is known.
  struct Use {
    AddressRange range;
    std::size_t stream = 0;
    std::uint64_t launch = 0;
    CUstream_st* handle = nullptr;
    Place at = 0;
    const char* line = "";  // instead of the place, if it is not empty
  };
  struct Block {
    std::size_t bytes = 0;
    int device = 0;
    std::uint64_t number = 0;  // among the device's allocations
    std::vector<Use> uses;
  };
  // The end of a block.
  struct Freed {
    std::uint64_t number = 0;  // the block's
    const char* at = "";       // the line of Python
  };
  // A use that must be ordered before the first use by the memory's next block.
  struct PastUse {
    Use use;
    std::shared_ptr<const Freed> freed;
  };
  using Blocks = std::map<Address, Block>;

  Blocks::iterator find(const AddressRange& range);
  const char* line_or(const char* text);
  void note(Blocks::iterator block, Use use, StreamState& stream);
  static void add(Block& block, const Use& use);
  void check(const Block& block, const Use& use, const StreamOrder& order);

  static constexpr std::size_t kMostRaces = 10'000;  // that are not taken yet

  LaunchOrder& order_;
  Blocks blocks_;                             // by their starts
  std::map<int, std::uint64_t> allocations_;  // by device
  std::set<std::string> lines_;
  IntervalMap<std::vector<PastUse>> past_;
  std::deque<cachalot_sim_race> races_;
};

}  // namespace cachalot::simulator
