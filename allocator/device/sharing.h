// Device memory that processes share: what was exported to others, and what was opened of others.
// Not thread-safe: the device's growth mutex guards both classes. Their calls go to the driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/locks.h"
#include "cachalot/shared_memory.h"

CACHALOT_BEGIN

// The handles that were exported: each once, however often it is shared.
class ExportedHandles {
 public:
  explicit ExportedHandles(Device& device) : device_(device) {}
  ~ExportedHandles();
  ExportedHandles(const ExportedHandles&) = delete;
  ExportedHandles& operator=(const ExportedHandles&) = delete;

  struct Export {
    ShareableHandle handle;
    std::uint32_t number = 0;  // exports are counted from 1
  };
  // Its descriptor is open until `forget`. Throws CudaError.
  const Export& of(MemoryHandle handle);
  // To be called before the handle is released: an open descriptor would keep the memory.
  void forget(MemoryHandle handle);

 private:
  Device& device_;
  std::unordered_map<MemoryHandle, Export> exports_;
  std::uint32_t newest_ = 0;
};

// Memory of other processes. Each opening has to be closed; what the device refuses to close is closed later, by the
// next call that closes.
class ImportedMemory {
 public:
  explicit ImportedMemory(Device& device) : device_(device) {}
  // Waits for the device's work and closes what is open; the device may be gone.
  ~ImportedMemory();
  ImportedMemory(const ImportedMemory&) = delete;
  ImportedMemory& operator=(const ImportedMemory&) = delete;

  // Where the segment, or the first handle, begins here. Accessible to the device and to `peers`.
  // Throws InvalidArgument for handles that are not made of pages, and for an allocation that does not lie in them;
  // OutOfMemory when there are no addresses; CudaError.
  Address open(const SharedMemory& memory, const std::vector<int>& peers);
  // Work that uses it must be done before the next close_unused. False: it is not open.
  bool mark_unused(Address base);
  // Throws the first CudaError, after it has tried all.
  void close_unused();
  // What is open is accessible to `peers`, too. Throws CudaError.
  void open_to(const std::vector<int>& peers);

 private:
  struct Mapping {
    MemoryHandle handle = 0;
    std::size_t bytes = 0;
    bool is_mapped = false;
  };
  struct Import {
    std::size_t bytes = 0;  // of addresses; 0: a segment
    std::vector<Mapping> mappings = {};
    bool is_used = false;
  };
  using Imports = std::multimap<Address, Import>;  // a segment that is opened twice has one address

  void map(Address base, Import& import, const SharedMemory& memory, const std::vector<int>& peers);
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

CACHALOT_END
