// Copies and fills that are underway, and the order of streams, to find two that use the same memory in no order.
//
// Only what is certain is found: both calls are known to use the bytes, one of them writes, the first is not done yet, and
// nothing that the program asked for puts one behind the other. What kernels use is not known.
// process_mutex guards everything here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cachalot/call_stack.h"
#include "cachalot/device.h"
#include "device/vector_clock.h"

namespace cachalot::simulator {

// The launches that come before the stream's next one.
struct StreamOrder {
  std::size_t number = 0;  // of the stream in clocks; no other has it
  VectorClock before;
};

struct MemoryUse {
  AddressRange range;
  bool writes = false;
  std::size_t stream = 0;
  std::uint64_t launch = 0;
  std::int64_t end_ns = 0;
  const char* call = "";
  CallStack stack;
};

class MemoryUses {
 public:
  // The next stream's order: behind nothing.
  StreamOrder new_stream() { return {streams_++, {}}; }
  // Counts a launch of the stream.
  void launched(StreamOrder& order);
  // Launches of any stream so far come before the stream's next one.
  void order_behind_all(StreamOrder& order) const { order.before.join(all_); }

  // Adds a use by the launch that was counted last.
  void add(MemoryUse use, const StreamOrder& order);
  // Returns a use of the range that is underway at `now_ns` and may not meet one by the stream: it or that one writes, and
  // it does not come before. Null: none.
  const MemoryUse* find_unordered(const AddressRange& range, bool writes, const StreamOrder& order,
                                  std::int64_t now_ns);
  // Returns a use of the range that is underway at `now_ns`, in whatever order. Null: none.
  const MemoryUse* find_pending(const AddressRange& range, std::int64_t now_ns);
  // The memory has another owner from now on.
  void forget(const AddressRange& range);

 private:
  void forget_done(std::int64_t now_ns);

  std::size_t streams_ = 0;
  VectorClock all_;
  std::vector<MemoryUse> pending_;
};

}  // namespace cachalot::simulator
