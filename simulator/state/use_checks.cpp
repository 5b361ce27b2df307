#include "simulator/state/use_checks.h"

#include <algorithm>
#include <utility>

#include "base/format.h"

namespace cachalot::simulator {
namespace {

bool overlap(const AddressRange& a, const AddressRange& b) {
  return a.address < b.address + b.bytes && b.address < a.address + a.bytes;
}

template <typename Is>
const MemoryUse* find(const std::vector<MemoryUse>& uses, Is&& is) {
  const auto at = std::find_if(uses.begin(), uses.end(), is);
  return at == uses.end() ? nullptr : &*at;
}

}  // namespace

const MemoryUse* MemoryUses::find_unordered(const AddressRange& range, bool writes, const StreamOrder& order,
                                            std::int64_t now_ns) {
  forget_done(now_ns);
  return find(pending_, [&](const MemoryUse& use) {
    return (use.writes || writes) && overlap(use.range, range) && !order_.comes_before(use.stream, use.launch, order);
  });
}

const MemoryUse* MemoryUses::find_pending(const AddressRange& range, std::int64_t now_ns) {
  forget_done(now_ns);
  return find(pending_, [&](const MemoryUse& use) { return overlap(use.range, range); });
}

void MemoryUses::forget(const AddressRange& range) {
  std::erase_if(pending_, [&](const MemoryUse& use) { return overlap(use.range, range); });
}

void MemoryUses::forget_done(std::int64_t now_ns) {
  std::erase_if(pending_, [&](const MemoryUse& use) { return use.end_ns <= now_ns; });
}

// Returns whether the use lasts until the stream is done: of host memory, only that of pinned memory does.
bool UseChecks::lasts(const void* start, std::size_t bytes) const {
  return start && (devices_.hold(start) || host_memory_.is_pinned(start, bytes));
}

// Calls visit(range, writes) for each side whose use lasts until the stream is done.
template <typename Visit>
void UseChecks::for_each(const StreamState& stream, const void* to, const void* from, std::size_t bytes,
                         Visit&& visit) {
  if (!watch_.is_on() || stream.capture || bytes == 0) return;
  if (lasts(to, bytes)) visit(AddressRange{reinterpret_cast<Address>(to), bytes}, true);
  if (lasts(from, bytes)) visit(AddressRange{reinterpret_cast<Address>(from), bytes}, false);
}

void UseChecks::check(const char* call, StreamState& stream, const void* to, const void* from, std::size_t bytes) {
  order_.join(stream);
  for_each(stream, to, from, bytes, [&](const AddressRange& range, bool writes) CACHALOT_LOCKED {
    const MemoryUse* other = uses_.find_unordered(range, writes, stream.order, devices_.clock_ns());
    if (!other) return;
    watch_.note(formatted("{} {} memory that {} on another stream still {}, and nothing orders the two", call,
                          writes ? "writes" : "reads", other->call, other->writes ? "writes" : "reads"),
                other->stack);
  });
}

void UseChecks::add_for_races(const char* call, StreamState& stream, const void* start, std::size_t bytes) {
  if (!devices_.hold(start)) return;
  CUstream_st* const handle = &stream == &devices_.at(stream.device).legacy_stream ? nullptr : Streams::handle(stream);
  races_.used_by(call, {reinterpret_cast<Address>(start), bytes}, stream, handle);
}

void UseChecks::add(const char* call, StreamState& stream, const void* to, const void* from, std::size_t bytes) {
  for (const void* const start : {to, from}) add_for_races(call, stream, start, bytes);
  if (!watch_.is_on() || stream.capture) return;
  const CallStack stack = CallStack::capture();
  const std::uint64_t launch = launches_.launched(stream.order);
  for_each(stream, to, from, bytes, [&](const AddressRange& range, bool writes) CACHALOT_LOCKED {
    uses_.add({.range = range,
               .writes = writes,
               .stream = stream.order.number,
               .launch = launch,
               .end_ns = devices_.on_clock(stream.device).stream_ready_ns(stream.name),
               .call = call,
               .stack = stack});
  });
}

void UseChecks::check_free(const char* call, StreamState& stream, const AddressRange& range) {
  if (!watch_.is_on() || stream.capture) return;
  order_.join(stream);
  const MemoryUse* other = uses_.find_unordered(range, true, stream.order, devices_.clock_ns());
  if (!other) return;
  watch_.note(formatted("{} frees memory that {} on another stream still {}, and nothing orders the two", call,
                        other->call, other->writes ? "writes" : "reads"),
              other->stack);
}

void UseChecks::check_unmap(const AddressRange& range) {
  if (!watch_.is_on()) return;
  const MemoryUse* other = uses_.find_pending(range, devices_.clock_ns());
  if (!other) return;
  watch_.note(formatted("cuMemUnmap of memory that {} still {}", other->call, other->writes ? "writes" : "reads"),
              other->stack);
}

void UseChecks::forget(const AddressRange& range) {
  if (watch_.is_on()) uses_.forget(range);
  races_.forget(range);
}

}  // namespace cachalot::simulator
