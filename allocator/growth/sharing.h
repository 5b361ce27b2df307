// Sharing opens one device's memory to other processes and GPUs, and theirs to this device.
//
// Its functions take the lock themselves. Contracts are those of CachingAllocator's methods.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/function_ref.h"
#include "base/host_memory.h"
#include "base/locks.h"
#include "cachalot/device.h"
#include "growth/growth.h"
#include "growth/supply.h"
#include "heap/heap_state.h"

CACHALOT_BEGIN

// ---- Device memory that processes share: exported to others, and opened of others -------------------------------------
// Not thread-safe: the device's growth mutex guards both classes. Their calls go to the driver.

// The handles that were exported: each once, however often it is shared.
class ExportedHandles {
 public:
  explicit ExportedHandles(Device& device) : device_(device) {}
  ~ExportedHandles();
  ExportedHandles(const ExportedHandles&) = delete;
  ExportedHandles& operator=(const ExportedHandles&) = delete;

  struct Export {
    ShareableHandle handle;
    std::uint64_t key = 0;  // random
  };
  // Its descriptor is open, and known to ExportedFiles by the key, until `forget`. Throws CudaError.
  const Export& of(MemoryHandle handle);
  // To be called before the handle is released: an open descriptor would keep the memory.
  void forget(MemoryHandle handle);

 private:
  Device& device_;
  HashMap<MemoryHandle, Export> exports_;
};

// Memory of other processes. Handles that are open side by side are mapped once for all that open them, and a handle is
// imported once for all that map it. Each opening has to be closed. If the device refuses to unmap memory whose last
// opening was closed, the next call that unmaps does so.
class ImportedMemory {
 public:
  explicit ImportedMemory(Device& device) : device_(device) {}
  // Waits for the device's work and closes open memory; the device may be gone.
  ~ImportedMemory();
  ImportedMemory(const ImportedMemory&) = delete;
  ImportedMemory& operator=(const ImportedMemory&) = delete;

  // Returns the address at which the segment, or the first handle, begins in this process. It is accessible to the
  // device and to `peers`.
  // Throws InvalidArgument for handles that are not made of pages, and for an allocation that does not lie in them;
  // OutOfMemory when there are no addresses; CudaError.
  Address open(const SharedMemory& memory, const std::vector<int>& peers);
  // Forgets one opening. Work that uses the memory must be done before the next close_unused. Returns false if it is not
  // open.
  bool drop(Address base);
  // Returns whether close_unused would close something.
  bool has_unused() const;
  // Throws the first CudaError, after it has tried all.
  void close_unused();
  // Makes open memory accessible to `peers`, too. Throws CudaError.
  void open_to(const std::vector<int>& peers);

 private:
  struct Mapping {
    std::uint64_t key = 0;  // of the export; 0: unknown
    MemoryHandle handle = 0;
    std::size_t bytes = 0;
    bool is_mapped = false;
  };
  struct Import {
    std::size_t bytes = 0;  // of addresses; 0: a segment
    Vector<Mapping> mappings = {};
    bool is_whole = false;          // all of it is mapped: more may open it
    Vector<Address> openings = {};  // an address that `open` returned, for each time; empty: unused
  };
  using Imports = std::multimap<Address, Import>;  // a segment that is opened twice has one address

  Address open_segment(const SharedMemory& memory);
  std::size_t checked_bytes(const SharedMemory& memory) const;
  Address open_again(const SharedMemory& memory);
  void map(Address base, Import& import, const SharedMemory& memory, const std::vector<int>& peers);
  MemoryHandle import_handle(const SharedMemory::Handle& handle);
  std::size_t mappings_of(MemoryHandle handle) const;
  void abandon(Imports::iterator import);
  void close(Address base, Import& import);

  Device& device_;
  Imports imports_;
};

// SharedHandles list the memory that this process exported, the memory of other processes that is open here, and the
// GPUs that may access the device's mappings.
// All members are guarded by the growth mutex alone: driver calls use them while the device's mutex is released.
struct SharedHandles {
  explicit SharedHandles(Device& device) : exported(device), imported(device) {}

  std::vector<int> peers CACHALOT_GUARDED_BY(growth_lock);
  ExportedHandles exported CACHALOT_GUARDED_BY(growth_lock);
  ImportedMemory imported CACHALOT_GUARDED_BY(growth_lock);
};

// A BlockOrigin says what an allocation that replaces a block has to have.
struct BlockOrigin {
  bool is_plain = false;         // the block is in a segment of the device's malloc
  Stream stream = nullptr;       // it was allocated for
  std::vector<Stream> recorded;  // other streams that it was recorded on
  PrivatePool* owner = nullptr;  // it lives as long as the block; the default pools have none
};

class Sharing {
 public:
  // `growth`: the growth of the default pools.
  Sharing(HeapState& state, SharedHandles& handles, Recovery& recovery, Growth& growth)
      : state_(state), handles_(handles), recovery_(recovery), growth_(growth) {}
  Sharing(const Sharing&) = delete;
  Sharing& operator=(const Sharing&) = delete;

  // Return nullopt if `ptr` is not a live allocation of `block`.
  std::optional<std::size_t> handle_count(const Block& block, const void* ptr) const;
  std::optional<SharedMemory> share(const Block& block, const void* ptr);
  std::optional<BlockOrigin> origin(const Block& block, const void* ptr) const;
  // Returns where the segment or the first handle begins.
  Address open_shared(const SharedMemory& memory);
  bool close_shared(Address base);  // returns false if it is not open
  // enable_access_to lets work of this device use the malloc memory of `peer`; open_to lets work of `peer` use this device's
  // page heap.
  void enable_access_to(int peer);
  void open_to(int peer);

 private:
  void call_or_recover(FunctionRef<void()> call, const char* purpose, std::size_t bytes,
                       Growing& growing) CACHALOT_GROWING;

  HeapState& state_;
  SharedHandles& handles_;
  Recovery& recovery_;
  Growth& growth_;
};

CACHALOT_END
