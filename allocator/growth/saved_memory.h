// The content of sleeping pools, on the host: in pinned memory, or in files.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/host_memory.h"
#include "heap/heap_state.h"
#include "pages/page_heap.h"

CACHALOT_BEGIN

// A SavedFile is room in a file that has lost its name, mapped into this process. The system removes it with the mapping, also
// after a crash. Its blocks are taken when it is made: a disk that fills up later cannot end the process by SIGBUS.
class SavedFile {
 public:
  // Throws InvalidArgument, in the name of `call`, unless this process may make files in the folder.
  static void require_folder(const std::string& folder, const char* call);
  // Returns the bytes that this process may still write to the folder's disk. Throws InvalidArgument if that is unknown.
  static std::size_t free_bytes(const std::string& folder);
  // Returns a file of `bytes` > 0, or null if the disk has no room for it. Throws InvalidArgument, which names the folder and
  // the reason.
  static std::shared_ptr<SavedFile> make(const std::string& folder, std::size_t bytes);

  SavedFile(char* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  ~SavedFile();
  SavedFile(const SavedFile&) = delete;
  SavedFile& operator=(const SavedFile&) = delete;

  char* data() const { return data_; }

 private:
  char* const data_;
  const std::size_t bytes_;
};

// SavedBytes are the content of a sleeping handle: its stretches, one after the other. They lie in the file, or without one in
// pinned memory of their own.
struct SavedBytes {
  void* host = nullptr;
  Vector<PageHeap::Stretch> stretches;
  std::shared_ptr<SavedFile> file;
};

// SavedMemory holds the content of sleeping pools. Pinned memory that the driver refuses to free is tried again.
class SavedMemory {
 public:
  // By handles that are asleep, or were when the device refused to go on.
  using OfPool = Map<HandleId, SavedBytes>;

  explicit SavedMemory(HeapState& state) : state_(state) {}
  ~SavedMemory();
  SavedMemory(const SavedMemory&) = delete;
  SavedMemory& operator=(const SavedMemory&) = delete;

  // Returns the saved content of a pool. The reference stays valid until forget_all.
  const OfPool& of(const PrivatePool& pool, const Held& held) const CACHALOT_HELD;
  const Map<PoolId, OfPool>& all(const Held& /*held*/) const CACHALOT_HELD { return saved_; }
  void keep(const PrivatePool& pool, HandleId id, SavedBytes bytes, const Held& held) CACHALOT_HELD;
  // Marks the saved content of a handle, if there is any, as no longer needed.
  void forget(const PrivatePool& pool, HandleId id, const Held& held) CACHALOT_HELD;
  void forget_all(const PrivatePool& pool, const Held& held) CACHALOT_HELD;
  // Frees what is no longer needed. Memory that the device refuses is tried again at the next call.
  void free(Held& held) CACHALOT_HELD;

 private:
  HeapState& state_;
  Map<PoolId, OfPool> saved_ CACHALOT_GUARDED_BY(device_lock);
  Vector<SavedBytes> spare_ CACHALOT_GUARDED_BY(device_lock);
};

CACHALOT_END
