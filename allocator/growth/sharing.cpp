#include "growth/sharing.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/format.h"
#include "cachalot/errors.h"
#include "device/cuda_codes.h"
#include "inspection/blocks.h"

CACHALOT_BEGIN

// --- other processes ----------------------------------------------------------------------------------------------------

std::optional<std::size_t> Sharing::handle_count(const Block& block, const void* ptr) const {
  const DeviceLock lock(state_.mutex);
  if (!HeapState::is_live(block, ptr)) return std::nullopt;
  return block.arena->pool.growth->handle_count(block, lock);
}

std::optional<SharedMemory> Sharing::share(const Block& block, const void* ptr) {
  const DeviceLock lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  if (!HeapState::is_live(block, ptr)) return std::nullopt;
  require_awake(block.arena->pool.owner(), state_.index, "shared");
  return block.arena->pool.growth->share(block, segment_of(block).address, growing);
}

Address Sharing::open_shared(const SharedMemory& memory) {
  const DeviceLock lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  Address base = 0;
  const auto open = [&] {
    holds(growing);
    base = handles_.imported.open(memory, handles_.peers);
  };
  call_or_recover(open, "open shared memory", memory.bytes, growing);
  return base;
}

// Calls the driver, which may need memory for its tables: should it have none, once more after what can be given back was.
void Sharing::call_or_recover(const std::function<void()>& call, const char* purpose, std::size_t bytes,
                              Growing& growing) {
  const auto try_once = [&] {
    holds(growing);
    const Unlocked<Held> unlocked(growing);
    return have_memory(call);
  };
  if (try_once()) return;
  if (!state_.capturing(growing)) {
    recovery_.recover(growing);
    if (try_once()) return;
  }
  throw OutOfMemory(formatted("GPU {} has no memory left to {} ({})", state_.index, purpose, format_bytes(bytes)),
                    state_.index, bytes);
}

// During a capture nothing may be waited for nor unmapped: what was closed then goes with the next that is closed.
bool Sharing::close_shared(Address base) {
  const DeviceLock lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  if (!handles_.imported.mark_unused(base)) return false;
  if (state_.capturing(growing)) return true;
  const Unlocked<Held> unlocked(growing);
  state_.device->synchronize();
  handles_.imported.close_unused();
  return true;
}

// --- other GPUs ---------------------------------------------------------------------------------------------------------

void Sharing::enable_access_to(int peer) {
  const DeviceLock lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  call_or_recover([&] { state_.device->enable_peer_access(peer); }, "use another GPU's memory", 0, growing);
}

void Sharing::open_to(int peer) {
  const DeviceLock lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  if (std::find(handles_.peers.begin(), handles_.peers.end(), peer) != handles_.peers.end()) return;
  std::vector<int> peers = handles_.peers;
  peers.push_back(peer);
  const auto open = [&] {  // whatever recovery gives back is mapped no more
    holds(growing);
    for (const AddressRange& range : growth_.mapped_addresses(growing)) {
      state_.device->set_access(range.address, range.bytes, peers);
    }
    handles_.imported.open_to(peers);
  };
  call_or_recover(open, "give another GPU access to its memory", state_.ledger.held_bytes(growing), growing);
  handles_.peers = std::move(peers);
}

CACHALOT_END
