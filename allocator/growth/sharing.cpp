#include "growth/sharing.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/exported_files.h"
#include "base/format.h"
#include "cachalot/errors.h"
#include "device/cuda_codes.h"

CACHALOT_BEGIN

namespace {

constexpr std::size_t kMostSharedBytes = std::size_t{1} << 47;  // all of a process's addresses

}  // namespace

// --- exported ---------------------------------------------------------------------------------------------------------

ExportedHandles::~ExportedHandles() {
  while (!exports_.empty()) forget(exports_.begin()->first);
}

const ExportedHandles::Export& ExportedHandles::of(MemoryHandle handle) {
  const auto known = exports_.find(handle);
  if (known != exports_.end()) return known->second;
  const auto entry = exports_.emplace(handle, Export{}).first;
  Export& exported = entry->second;
  try {
    exported.key = ExportedFiles::random_key();
    exported.handle = device_.export_handle(handle);
    const bool is_file = exported.handle.kind == ShareableHandle::Kind::descriptor;
    if (is_file) ExportedFiles::instance().add(exported.key, exported.handle.descriptor);
    return exported;
  } catch (...) {
    forget(handle);
    throw;
  }
}

void ExportedHandles::forget(MemoryHandle handle) {
  const auto known = exports_.find(handle);
  if (known == exports_.end()) return;
  const auto& [exported, key] = known->second;
  if (exported.kind == ShareableHandle::Kind::descriptor && exported.descriptor >= 0) {
    ExportedFiles::instance().remove(key);
    ::close(exported.descriptor);
  }
  exports_.erase(known);
}

// --- imported ---------------------------------------------------------------------------------------------------------

ImportedMemory::~ImportedMemory() {
  if (imports_.empty()) return;
  for (auto& entry : imports_) entry.second.openings.clear();
  try {
    device_.synchronize();
    close_unused();
  } catch (const CudaError&) {  // the error cannot be reported
  }
}

Address ImportedMemory::open(const SharedMemory& memory, const std::vector<int>& peers) {
  if (memory.handles.empty()) return open_segment(memory);
  const std::size_t bytes = checked_bytes(memory);
  if (const Address known = open_again(memory); known != 0) return known;
  const std::optional<Address> base = device_.reserve(bytes);
  if (!base) {
    throw OutOfMemory(formatted("no addresses for {} of shared memory on GPU {}", format_bytes(bytes), device_.index()),
                      device_.index(), bytes);
  }
  const auto import = imports_.emplace(*base, Import{.bytes = bytes});
  try {
    import->second.openings.reserve(1);
    map(*base, import->second, memory, peers);
  } catch (...) {
    abandon(import);
    throw;
  }
  import->second.is_whole = true;
  import->second.openings.push_back(*base);
  return *base;
}

// The driver counts the openings of a segment itself.
Address ImportedMemory::open_segment(const SharedMemory& memory) {
  CACHALOT_REQUIRE(memory.offset <= kMostSharedBytes && memory.bytes <= kMostSharedBytes - memory.offset,
                   "a shared allocation of {} bytes at offset {}: no segment has so many", memory.bytes, memory.offset);
  Import import{.is_whole = true};
  import.openings.push_back(0);
  const Address base = device_.ipc_import(memory.segment);
  import.openings.back() = base;
  imports_.emplace(base, std::move(import));
  return base;
}

// Returns the bytes of all handles.
std::size_t ImportedMemory::checked_bytes(const SharedMemory& memory) const {
  const std::size_t page = device_.properties().page_bytes;
  std::size_t bytes = 0;
  for (const SharedMemory::Handle& handle : memory.handles) {
    CACHALOT_REQUIRE(page != 0 && handle.bytes != 0 && handle.bytes % page == 0,
                     "a shared handle of {} bytes: GPU {} has pages of {} bytes", handle.bytes, device_.index(), page);
    CACHALOT_REQUIRE(handle.bytes <= kMostSharedBytes - bytes, "shared handles of more than {} bytes",
                     kMostSharedBytes);
    bytes += handle.bytes;
  }
  CACHALOT_REQUIRE(memory.offset <= bytes && memory.bytes <= bytes - memory.offset,
                   "a shared allocation of {} bytes at offset {} of handles of {} bytes: it does not lie in them",
                   memory.bytes, memory.offset, bytes);
  return bytes;
}

// Opens handles that are mapped already, also those that nothing used any more, and returns where they begin; 0 if they
// are not.
Address ImportedMemory::open_again(const SharedMemory& memory) {
  const auto is_same = [](const Mapping& mapping, const SharedMemory::Handle& handle) {
    return handle.key != 0 && mapping.key == handle.key && mapping.bytes == handle.bytes;
  };
  for (auto& [base, import] : imports_) {
    if (!import.is_whole) continue;
    Vector<Mapping>& mappings = import.mappings;
    const auto first =
        std::search(mappings.begin(), mappings.end(), memory.handles.begin(), memory.handles.end(), is_same);
    if (first == mappings.end()) continue;
    Address at = base;
    for (auto before = mappings.begin(); before != first; ++before) at += before->bytes;
    import.openings.push_back(at);
    return at;
  }
  return 0;
}

void ImportedMemory::map(Address base, Import& import, const SharedMemory& memory, const std::vector<int>& peers) {
  import.mappings.reserve(memory.handles.size());
  Address at = base;
  for (const SharedMemory::Handle& handle : memory.handles) {
    const MemoryHandle imported = import_handle(handle);
    Mapping& mapping = import.mappings.emplace_back(Mapping{handle.key, imported, handle.bytes});
    device_.map(at, mapping.bytes, mapping.handle);
    mapping.is_mapped = true;
    at += mapping.bytes;
  }
  device_.set_access(base, import.bytes, peers);
}

// Returns the handle that another import has of the same export, or a new one.
MemoryHandle ImportedMemory::import_handle(const SharedMemory::Handle& handle) {
  for (const auto& entry : imports_) {
    for (const Mapping& mapping : entry.second.mappings) {
      if (handle.key != 0 && mapping.key == handle.key && mapping.bytes == handle.bytes) return mapping.handle;
    }
  }
  return device_.import_handle(handle.shared);
}

std::size_t ImportedMemory::mappings_of(MemoryHandle handle) const {
  std::size_t count = 0;
  for (const auto& entry : imports_) {
    for (const Mapping& mapping : entry.second.mappings) count += mapping.handle == handle ? 1 : 0;
  }
  return count;
}

// Abandons an import that could not be opened. Memory that the device does not take back now is closed later, as
// unused.
void ImportedMemory::abandon(Imports::iterator import) {
  try {
    close(import->first, import->second);
    imports_.erase(import);
  } catch (const CudaError&) {  // the first error is the one to tell
  }
}

bool ImportedMemory::drop(Address base) {
  const auto behind = imports_.upper_bound(base);
  if (behind == imports_.begin()) return false;
  auto [import, end] = imports_.equal_range(std::prev(behind)->first);
  for (; import != end; ++import) {
    Vector<Address>& openings = import->second.openings;
    const auto opening = std::find(openings.begin(), openings.end(), base);
    if (opening == openings.end()) continue;
    openings.erase(opening);
    return true;
  }
  return false;
}

bool ImportedMemory::has_unused() const {
  return std::any_of(imports_.begin(), imports_.end(), [](const auto& entry) { return entry.second.openings.empty(); });
}

void ImportedMemory::close_unused() {
  std::exception_ptr error;
  for (auto next = imports_.begin(); next != imports_.end();) {
    const auto import = next++;
    if (!import->second.openings.empty()) continue;
    try {
      close(import->first, import->second);
      imports_.erase(import);
    } catch (const CudaError&) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

// Closes an import. Steps already done are not repeated after a later one fails.
void ImportedMemory::close(Address base, Import& import) {
  import.is_whole = false;
  if (import.bytes == 0) return device_.ipc_close(base);
  Address end = base;
  for (const Mapping& mapping : import.mappings) end += mapping.bytes;
  while (!import.mappings.empty()) {
    Mapping& last = import.mappings.back();
    end -= last.bytes;
    if (last.is_mapped) device_.unmap(end, last.bytes);
    last.is_mapped = false;
    if (mappings_of(last.handle) == 1) device_.release(last.handle);
    import.mappings.pop_back();
  }
  device_.unreserve(base, import.bytes);
}

void ImportedMemory::open_to(const std::vector<int>& peers) {
  for (const auto& [base, import] : imports_) {
    if (import.bytes != 0 && import.is_whole) device_.set_access(base, import.bytes, peers);
  }
}

// --- other processes ----------------------------------------------------------------------------------------------------

std::optional<std::size_t> Sharing::handle_count(const Block& block, const void* ptr) const {
  const DeviceLock lock(state_.mutex);
  if (!HeapState::is_live(block, ptr)) return std::nullopt;
  return block.arena->pool.growth->handle_count(block, lock);
}

std::optional<SharedMemory> Sharing::share(const Block& block, const void* ptr) {
  const Operation lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  if (!HeapState::is_live(block, ptr)) return std::nullopt;
  require_awake(block.arena->pool.owner(), state_.index, "shared");
  return block.arena->pool.growth->share(block, segment_of(block).address, growing);
}

std::optional<BlockOrigin> Sharing::origin(const Block& block, const void* ptr) const {
  const DeviceLock lock(state_.mutex);
  if (!HeapState::is_live(block, ptr)) return std::nullopt;
  const BlockPool& pool = block.arena->pool;
  BlockOrigin origin{.is_plain = false, .stream = block.arena->stream.handle, .recorded = {}, .owner = pool.owner()};
  origin.is_plain = pool.growth == state_.plain_pools[static_cast<std::size_t>(pool.kind())].growth;
  if (origin.is_plain) return origin;
  require_awake(pool.owner(), state_.index, "shared");
  CACHALOT_REQUIRE(
      !state_.capturing(lock),
      "the allocation at {} cannot become plain memory: a graph is being captured on device {}; end the capture first",
      ptr, state_.index);
  if (block.has(Block::kCached)) return origin;
  for (const StreamUse* use = block.uses.head; use != nullptr; use = use->next) {
    if (!use->has_ended) origin.recorded.push_back(use->stream.handle);
  }
  return origin;
}

Address Sharing::open_shared(const SharedMemory& memory) {
  const Operation lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  Address base = 0;
  const auto open = [&] {
    holds(growing);
    base = handles_.imported.open(memory, handles_.peers);
  };
  call_or_recover(open, "open shared memory", memory.bytes, growing);
  return base;
}

// Calls the driver, which may need memory for its tables: if it has none, calls it once more after the cache was given
// back.
void Sharing::call_or_recover(FunctionRef<void()> call, const char* purpose, std::size_t bytes, Growing& growing) {
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

// During a capture nothing may be waited for nor unmapped: memory closed then goes with the next that is closed.
bool Sharing::close_shared(Address base) {
  const DeviceLock lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  if (!handles_.imported.drop(base)) return false;
  if (state_.capturing(growing) || !handles_.imported.has_unused()) return true;
  const Unlocked<Held> unlocked(growing);
  state_.device->synchronize();
  handles_.imported.close_unused();
  return true;
}

// --- other GPUs ---------------------------------------------------------------------------------------------------------

void Sharing::enable_access_to(int peer) {
  const Operation lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  call_or_recover([&] { state_.device->enable_peer_access(peer); }, "use another GPU's memory", 0, growing);
}

void Sharing::open_to(int peer) {
  const Operation lock(state_.mutex);
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
