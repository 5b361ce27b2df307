#include "simulator/state/copies.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "device/cuda_codes.h"
#include "simulator/base/thread_state.h"

namespace cachalot::simulator {
namespace {

constexpr std::size_t kHostPageBytes = 4096;
constexpr std::size_t kPartBytes = std::size_t{1} << 20;  // of a copy within devices that are moved at once

const void* offset(const void* pointer, std::size_t bytes) { return static_cast<const char*>(pointer) + bytes; }

bool is_zero(const char* bytes, std::size_t count) {
  return bytes[0] == 0 && std::memcmp(bytes, bytes + 1, count - 1) == 0;
}

// Makes host memory zeros. Pages that were never written are only read, so that they stay without memory of their own: a program
// that moves its activations to the host pins tens of GiB.
void make_zeros(void* start, std::size_t bytes) {
  auto* const first = static_cast<char*>(start);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t in_page = (reinterpret_cast<std::uintptr_t>(first) + done) % kHostPageBytes;
    const std::size_t part = std::min(bytes - done, kHostPageBytes - in_page);
    if (!is_zero(first + done, part)) std::memset(first + done, 0, part);
    done += part;
  }
}

const char* end_of(const void* start, std::size_t bytes) { return static_cast<const char*>(start) + bytes; }

}  // namespace

// Calls access(place, offset, bytes) for each stretch of device memory with physical numbers of its own.
template <typename Access>
void Copies::for_each_piece(const void* start, std::size_t bytes, Access&& access) {
  constexpr auto kCall = "cudaMemcpy";
  Address address = reinterpret_cast<Address>(start);
  for (std::size_t done = 0; done < bytes;) {
    DeviceState& device = devices_.owner(kCall, address);
    const MemoryAt memory = *device.simulated->memory_at(address);
    if (!memory.accessible) fail(kCall, CudaCode::invalid_value, "mapped memory without access");
    const std::size_t part = std::min(bytes - done, memory.range.bytes - (address - memory.range.address));
    access(Place{device.ordinal, memory.physical}, done, part);
    address += part;
    done += part;
  }
}

void Copies::require_access(const void* start, std::size_t bytes) {
  for_each_piece(start, bytes, [](const Place&, std::size_t, std::size_t) {});
}

void Copies::copy(void* to, const void* from, std::size_t bytes, std::size_t whole_bytes) {
  if (whole_bytes <= config_.copy_bytes) return copy_now(to, from, bytes);
  const bool to_device = devices_.hold(to);
  const bool from_device = devices_.hold(from);
  if (to_device && from_device) {
    copy_parts_on_device(to, from, bytes);
  } else if (to_device) {
    copy_parts_to_device(to, from, bytes);
  } else if (from_device) {
    copy_parts_to_host(to, from, bytes);
  } else {
    std::memmove(to, from, bytes);
  }
}

// The parts of a range of device memory that have content.
std::vector<Copies::Part> Copies::parts_of(const void* start, std::size_t bytes) {
  std::vector<Part> parts;
  for_each_piece(start, bytes, [&](const Place& place, std::size_t done, std::size_t piece) CACHALOT_LOCKED {
    content_.for_each_part(place, piece, [&](std::size_t first, std::size_t part, KnownContent::Kind kind) {
      parts.push_back({done + first, part, kind});
    });
  });
  return parts;
}

void Copies::copy_parts_on_device(void* to, const void* from, std::size_t bytes) {
  if (to == from) return;
  const std::vector<Part> parts = parts_of(from, bytes);
  make_unknown(to, bytes);
  std::vector<char> buffer;
  for (const Part& part : parts) {
    for (std::size_t done = 0; done < part.bytes; done += buffer.size()) {
      buffer.resize(std::min(part.bytes - done, kPartBytes));
      get(buffer.data(), offset(from, part.first + done), buffer.size());
      put(static_cast<char*>(to) + part.first + done, buffer.data(), buffer.size(), part.kind);
    }
  }
}

void Copies::copy_parts_to_host(void* to, const void* from, std::size_t bytes) {
  const std::vector<Part> parts = parts_of(from, bytes);
  make_zeros(to, bytes);
  const auto first = reinterpret_cast<std::uintptr_t>(to);
  backed_up_.forget(first, bytes);
  for (const Part& part : parts) {
    get(static_cast<char*>(to) + part.first, offset(from, part.first), part.bytes);
    backed_up_.note(first + part.first, part.bytes, part.kind);
  }
}

// The program may have written to the host's memory meanwhile: then these parts are what it has written.
void Copies::copy_parts_to_device(void* to, const void* from, std::size_t bytes) {
  make_unknown(to, bytes);
  const auto first = reinterpret_cast<std::uintptr_t>(from);
  backed_up_.for_each_part(first, bytes, [&](std::uint64_t at, std::size_t part, KnownContent::Kind kind, int) {
    know_locked();
    put(static_cast<char*>(to) + (at - first), reinterpret_cast<const void*>(at), part, kind);
  });
}

void Copies::copy_now(void* to, const void* from, std::size_t bytes) {
  const bool to_device = devices_.hold(to);
  const bool from_device = devices_.hold(from);
  if (to_device && from_device) {
    copy_on_device(to, from, bytes);
  } else if (to_device) {
    put(to, from, bytes, KnownContent::Kind::known);
  } else if (from_device) {
    get(to, from, bytes);
    this_thread().answer.give(to, bytes);
  } else {
    std::memmove(to, from, bytes);
  }
}

// Copies on a device: the copied bytes are as known as their source.
void Copies::copy_on_device(void* to, const void* from, std::size_t bytes) {
  std::vector<char> buffer(bytes);  // whole: the ranges may overlap
  if (get(buffer.data(), from, bytes)) return put(to, buffer.data(), bytes, KnownContent::Kind::known);
  std::vector<KnownContent::Kind> kinds(bytes);
  get_kinds(kinds.data(), from, bytes);
  put(to, buffer.data(), bytes, kinds.data());
}

void Copies::put(void* to, const void* from, std::size_t bytes, KnownContent::Kind kind) {
  for_each_piece(to, bytes, [&](const Place& place, std::size_t done, std::size_t part) CACHALOT_LOCKED {
    content_.write(place, offset(from, done), part, kind);
  });
}

bool Copies::get(void* to, const void* from, std::size_t bytes) {
  bool known = true;
  for_each_piece(from, bytes, [&](const Place& place, std::size_t done, std::size_t part) CACHALOT_LOCKED {
    if (to != nullptr) content_.read(static_cast<char*>(to) + done, place, part);
    known = known && content_.is_known(place, part);
  });
  return known;
}

void Copies::put(void* to, const void* from, std::size_t bytes, const KnownContent::Kind* kinds) {
  for (std::size_t first = 0; first < bytes;) {
    const auto kind = kinds[first];
    const auto* end = std::find_if(kinds + first, kinds + bytes, [&](auto other) { return other != kind; });
    const std::size_t part = static_cast<std::size_t>(end - kinds) - first;
    void* part_to = static_cast<char*>(to) + first;
    if (kind == KnownContent::Kind::unknown)
      make_unknown(part_to, part);
    else
      put(part_to, offset(from, first), part, kind);
    first += part;
  }
}

void Copies::get_kinds(KnownContent::Kind* kinds, const void* from, std::size_t bytes) {
  for_each_piece(from, bytes, [&](const Place& place, std::size_t done, std::size_t part) CACHALOT_LOCKED {
    content_.kinds(place, part, kinds + done);
  });
}

unsigned Copies::kinds_in(const void* start, std::size_t bytes) {
  unsigned found = 0;
  for_each_piece(start, bytes, [&](const Place& place, std::size_t, std::size_t part) CACHALOT_LOCKED {
    found |= content_.kinds_in(place, part);
  });
  return found;
}

void Copies::guess(const void* start, std::size_t bytes, unsigned char byte) {
  for_each_piece(start, bytes, [&](const Place& place, std::size_t, std::size_t part) CACHALOT_LOCKED {
    content_.guess(place, part, byte);
  });
}

void Copies::make_unknown(const void* start, std::size_t bytes) {
  for_each_piece(start, bytes, [&](const Place& place, std::size_t, std::size_t part) CACHALOT_LOCKED {
    content_.make_unknown(place, part);
  });
}

void Copies::fill(void* to, std::uint64_t pattern, std::size_t pattern_bytes, std::size_t bytes,
                  std::size_t whole_bytes) {
  if (devices_.hold(to)) {
    for_each_piece(to, bytes, [&](const Place& place, std::size_t, std::size_t part) CACHALOT_LOCKED {
      if (whole_bytes <= config_.copy_bytes) return content_.fill(place, pattern, pattern_bytes, part);
      content_.make_unknown(place, part);
    });
    return;
  }
  for (std::size_t done = 0; done < bytes; done += pattern_bytes)
    std::memcpy(static_cast<char*>(to) + done, &pattern, pattern_bytes);
}

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
