#include "simulator/memory_uses.h"

#include <algorithm>
#include <utility>

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

void MemoryUses::launched(StreamOrder& order) {
  const std::uint64_t launch = all_[order.number] + 1;
  all_.set(order.number, launch);
  order.before.set(order.number, launch);
}

void MemoryUses::add(MemoryUse use, const StreamOrder& order) {
  use.stream = order.number;
  use.launch = all_[order.number];
  pending_.push_back(std::move(use));
}

const MemoryUse* MemoryUses::find_unordered(const AddressRange& range, bool writes, const StreamOrder& order,
                                            std::int64_t now_ns) {
  forget_done(now_ns);
  return find(pending_, [&](const MemoryUse& use) {
    return (use.writes || writes) && overlap(use.range, range) && use.launch > order.before[use.stream];
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

}  // namespace cachalot::simulator
