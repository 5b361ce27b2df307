#include "simulator/stream_writes.h"

#include <utility>

#include "device/cuda_codes.h"

namespace cachalot::simulator {
namespace {

const char* end_of(const void* start, std::size_t bytes) { return static_cast<const char*>(start) + bytes; }

}  // namespace

// Device memory, or host memory that CUDA knows.
void StreamWrites::require_writable(const void* to, std::size_t bytes) {
  if (devices_.hold(to)) return copies_.require_access(to, bytes);
  const HostRange* range = host_memory_.find(to);
  if (!range || !host_memory_.find(end_of(to, bytes) - 1))
    fail("cuStreamWriteValue", CudaCode::invalid_value, "neither device memory nor pinned host memory");
}

void StreamWrites::launch(StreamState& stream, void* to, std::uint64_t value, std::size_t bytes) {
  require_writable(to, bytes);
  SimulatedDevice& device = devices_.on_clock(stream.device);
  order_.join(stream);
  device.launch(stream.name, 0);
  if (stream.capture) {
    captures_.add_node(stream, static_cast<cudaGraphNodeType>(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP));
    return;
  }
  Write write{{}, to, value, bytes};
  add_closed(write.behind, stream.gates);
  pending_.emplace(device.stream_ready_ns(stream.name), std::move(write));
}

void StreamWrites::forget(const void* start, std::size_t bytes) {
  uses_.forget({reinterpret_cast<Address>(start), bytes});
  std::erase_if(pending_, [&](const auto& queued) {
    const auto* to = static_cast<const char*>(queued.second.to);
    return to < end_of(start, bytes) && end_of(to, queued.second.bytes) > start;
  });
}

void StreamWrites::do_due() {
  const std::int64_t now_ns = devices_.clock_ns();
  for (auto at = pending_.begin(); at != pending_.end() && at->first <= now_ns;) {
    if (!all_open(at->second.behind)) {
      ++at;
      continue;
    }
    const Write write = std::move(at->second);
    at = pending_.erase(at);
    copies_.copy_now(write.to, &write.value, write.bytes);
  }
}

}  // namespace cachalot::simulator
