// Pinned words, each of which one stream itself sets to a rising number behind each event: what completion_hint reads.
//
// A word once made stays until the object dies, and the memory is the process's own: it can be read after a reset of the
// device, which takes what the driver allocated. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/locks.h"
#include "cachalot/device.h"

CACHALOT_BEGIN

class CudaCompletionWords {
 public:
  CudaCompletionWords() = default;
  // Leaves memory that was not freed to the process: a stream may write there yet.
  ~CudaCompletionWords() = default;
  CudaCompletionWords(const CudaCompletionWords&) = delete;
  CudaCompletionWords& operator=(const CudaCompletionWords&) = delete;

  // Queues the stream's next number. If that fails the stream has no hints from now on. Requires the device's context.
  void advance(Stream stream);
  // The stream has no hints from now on.
  void give_up(Stream stream);
  // The stream's last number, 0 where nothing was recorded yet; nullopt where it has no hints.
  std::optional<std::uint64_t> read(Stream stream);

  bool has_memory();
  // Waits for the device and frees the memory. Requires the device's context, and that the words are not used.
  void free_memory();
  // Frees the memory after a reset of the device, which has unregistered it.
  void free_memory_after_reset();

 private:
  struct Word {
    SleepingMutex writing;
    std::atomic<bool> usable{false};
    std::uint64_t written CACHALOT_GUARDED_BY(writing) = 0;
    std::uint64_t* host_address = nullptr;
    std::uint64_t device_address = 0;
  };

  Word* known_word(Stream stream);
  Word& word_of(Stream stream);
  std::unique_ptr<Word> make_word() CACHALOT_REQUIRES(making_);
  bool add_slab() CACHALOT_REQUIRES(making_);

  Mutex mutex_;  // of words_, held for a look-up
  std::unordered_map<Stream, std::unique_ptr<Word>> words_ CACHALOT_GUARDED_BY(mutex_);
  SleepingMutex making_;  // held across CUDA calls
  std::vector<void*> slabs_ CACHALOT_GUARDED_BY(making_);
  std::size_t slab_left_ CACHALOT_GUARDED_BY(making_) = 0;
};

CACHALOT_END
