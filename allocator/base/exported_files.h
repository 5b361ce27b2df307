// The file descriptors by which this process shares memory, for the thread that hands them to other processes.
#pragma once

#include <cstdint>
#include <mutex>

#include "base/host_memory.h"
#include "base/process.h"

CACHALOT_BEGIN

// ExportedFiles finds the descriptor of an export by the export's key. A number of a descriptor alone would not do: once the
// memory has gone, another file may have it.
// Thread-safe; its mutex is held for a few instructions and a dup. A forked child begins with none.
class ExportedFiles final : public ForkAware {
 public:
  // Returns those of the process. They are never destroyed, because threads may ask until its end.
  static ExportedFiles& instance();

  // Returns a key that cannot be guessed; not 0. Throws std::runtime_error without a source of randomness.
  static std::uint64_t random_key();

  // Makes `descriptor` known, which stays the caller's, and raises the process's soft limit of descriptors to the hard limit when
  // half of it is used. Throws std::bad_alloc.
  void add(std::uint64_t key, int descriptor);
  // To be called before the descriptor is closed. Does nothing for an unknown key.
  void remove(std::uint64_t key) noexcept;
  // Returns a new descriptor of the same file, which the caller closes; -1 for an unknown key, or with errno EMFILE.
  int duplicate(std::uint64_t key);

 private:
  ExportedFiles() = default;
  void on_fork() noexcept override;

  std::mutex mutex_;
  HashMap<std::uint64_t, int> descriptors_;
};

CACHALOT_END
