// Tensors of one kind, reused: a pool hands out slots of memory that it asked its allocator for once.
//
//   cachalot::TensorPool pool(allocator, {{1024, 1024}, cachalot::DType::float32});
//   {
//     cachalot::PooledTensor t = pool.acquire(stream);
//     kernel<<<grid, block, 0, stream>>>(static_cast<float*>(t.data()));
//   }  // back at once: who takes it next on this stream comes after the kernel by itself
//
// A slot that was last used on another stream is waited for on the GPU: the new stream waits for an event of the old
// one, which is recorded at that moment. The host never waits for a device. So a stream must outlive what the pool
// holds that was used on it last: call trim() before it is destroyed.
//
// During a graph capture a capturing stream gets slots that were last used on itself, or memory that the allocator
// gives then; and slots last used on a capturing stream are nobody else's until the capture ends. A tensor that a graph
// works on must be kept as long as the graph is replayed.
//
// Where the pool has a `mover` it may move tensors that are out, in compact() and trim(): see there what its user owes.
//
// Thread safety: every method but those two of such a pool may be called from any thread at any time. A PooledTensor is
// one thread's at a time; it may be handed over, and come back in any thread. Errors: InvalidArgument, OutOfMemory (the
// allocator's, and the pool's own when it may not grow) and CudaError. After each, the state is as it was before the
// call. In a forked child a pool refuses everything (InvalidArgument); tensors that are released there, and its
// destructor, do nothing.
#pragma once

#include "cachalot/require_cpp17.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cachalot/caching_allocator.h"
#include "cachalot/compact_report.h"
#include "cachalot/tensor_spec.h"

namespace cachalot {

class Kernels;
class PoolBudget;
class PoolCore;
struct PoolSlot;

// What acquire() does when no slot is free.
enum class WhenEmpty : std::uint8_t {
  grow,  // takes more memory, up to max_slots; then throws OutOfMemory
  wait,  // the same, then waits for a tensor to come back (in no particular order); without max_slots it never grows
  fail,  // never grows: throws OutOfMemory
};

// What acquire() does when free slots were all last used on other streams.
enum class OtherStream : std::uint8_t {
  wait,        // takes one; the GPU waits
  other_slot,  // takes more memory, if the pool may grow and there is some; else waits as above
};

// What a tensor holds that is handed out.
enum class OnReuse : std::uint8_t {
  keep,    // whatever lies there
  zero,    // zeros, written on the stream that it is handed out for
  poison,  // kPoisonByte in every byte, likewise: floats are NaN or absurd
};
inline constexpr unsigned char kPoisonByte = 0xFF;

struct TensorPoolOptions {
  std::size_t initial_slots = 0;  // made by the constructor, in one allocation
  std::size_t max_slots = 0;      // 0: no limit
  std::size_t growth_step = 1;    // slots that one more allocation holds, > 0
  WhenEmpty when_empty = WhenEmpty::grow;
  OtherStream other_stream = OtherStream::wait;
  OnReuse on_reuse = OnReuse::keep;
  // Allocations without a tensor in use go back to the allocator while more slots than this are free. Empty: never.
  std::optional<std::size_t> high_water = std::nullopt;
  std::size_t alignment = 512;  // of every tensor, in bytes; a power of two
  Stream stream = nullptr;      // that the initial slots are allocated for
  // Not null: tensors that are out may be moved, by these kernels of the tensors' device (compact).
  std::shared_ptr<Kernels> mover = nullptr;
};

struct PoolStats {
  std::uint64_t acquires = 0;      // tensors handed out
  std::uint64_t hits = 0;          // of them, those whose slot had been used before
  std::uint64_t allocations = 0;   // calls to the allocator for memory; each is growth_step slots (or initial_slots)
  std::uint64_t host_waits = 0;    // acquires that waited for a tensor to come back
  std::uint64_t stream_waits = 0;  // waits of one stream for another, on the GPU
  std::size_t live = 0;            // tensors that are out
  std::size_t peak_live = 0;  // exact for one thread; of several, a moment that only their stacks saw may be missed
  std::size_t slots = 0;      // live and free ones
  std::size_t bytes = 0;      // of the allocations that the pool holds
  std::size_t peak_bytes = 0;

  // hits / acquires; 0 before the first.
  double reuse_rate() const { return acquires == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(acquires); }
  // Against one allocator call for each tensor: acquires - allocations. Negative where slots were made in advance and
  // are not used yet.
  std::int64_t allocations_avoided() const {
    return static_cast<std::int64_t>(acquires) - static_cast<std::int64_t>(allocations);
  }
};

// A tensor that is out. Goes back to its pool when it is destroyed; the pool's memory is there until then, also if the
// pool itself is gone.
class PooledTensor {
 public:
  PooledTensor() = default;  // empty
  PooledTensor(PooledTensor&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), slot_(other.slot_), data_(other.data_), stream_(other.stream_) {
    enter(std::exchange(other.entry_, nullptr));
  }
  PooledTensor& operator=(PooledTensor&& other) noexcept {
    if (this != &other) {
      if (pool_ != nullptr) give_back();
      pool_ = std::exchange(other.pool_, nullptr);
      slot_ = other.slot_;
      data_ = other.data_;
      stream_ = other.stream_;
      enter(std::exchange(other.entry_, nullptr));
    }
    return *this;
  }
  ~PooledTensor() {
    if (pool_ != nullptr) give_back();
  }

  explicit operator bool() const { return pool_ != nullptr; }
  // Of a pool that may move tensors: until its next compact() or trim().
  void* data() const { return pool_ == nullptr ? nullptr : data_; }
  // The same, and the tensor stays there from now on: for whoever hands the address on.
  void* fixed_data();
  Stream stream() const { return stream_; }  // that it was acquired for
  // InvalidArgument from each of these for a tensor that is empty: moved from, or returned already.
  const TensorSpec& spec() const;
  const std::vector<std::int64_t>& shape() const { return spec().shape; }
  DType dtype() const { return spec().dtype; }
  std::size_t bytes() const;
  // Work queued on `other` uses it: whoever gets its memory next waits for that, too. `other` must outlive that wait.
  void record_stream(Stream other);
  // The same, and work queued on `other` from now on comes after what is queued on stream() by now. InvalidArgument while
  // one of the two captures.
  void share_with(Stream other);
  // Returns it to the pool now.
  void release();

 private:
  friend class TensorPool;
  friend class PoolCore;
  PooledTensor(PoolCore& pool, PoolSlot& slot, void* data, Stream stream, PooledTensor** entry)
      : pool_(&pool), slot_(&slot), data_(data), stream_(stream) {
    enter(entry);
  }
  void enter(PooledTensor** entry) noexcept {
    entry_ = entry;
    if (entry_ != nullptr) *entry_ = this;
  }
  void give_back() noexcept;
  void require_held(const char* call) const;

  PoolCore* pool_ = nullptr;  // null: empty
  // Mutable: the pool moves tensors that are const in their owner's hands, too.
  mutable PoolSlot* slot_ = nullptr;
  mutable void* data_ = nullptr;
  Stream stream_ = nullptr;
  mutable PooledTensor** entry_ = nullptr;  // where the pool finds this tensor; null: it does not move it
};

class TensorPool {
 public:
  // InvalidArgument for a spec that is none (tensor_spec.h), a device that the allocator has not, and options that
  // contradict each other; whatever the allocator throws for the initial slots.
  TensorPool(std::shared_ptr<CachingAllocator> allocator, const TensorSpec& spec,
             const TensorPoolOptions& options = {});
  // The caller's allocator, which may go first: then acquire refuses, and tensors may still be released. (It must not
  // go while a call of the pool is under way.)
  TensorPool(CachingAllocator& allocator, const TensorSpec& spec, const TensorPoolOptions& options = {});
  // Nobody may be waiting in acquire. Tensors that are out keep the memory until the last of them comes back.
  ~TensorPool();
  TensorPool(const TensorPool&) = delete;
  TensorPool& operator=(const TensorPool&) = delete;

  // For work on `stream`. What happens when there is none: WhenEmpty.
  PooledTensor acquire(Stream stream = nullptr);
  // The same, but nothing where acquire would wait or the pool may not grow. (Memory that the allocator has not is an
  // OutOfMemory nevertheless.)
  std::optional<PooledTensor> try_acquire(Stream stream = nullptr);
  // The same, after waiting at most so long for a tensor to come back.
  std::optional<PooledTensor> acquire_for(std::chrono::nanoseconds timeout, Stream stream = nullptr);

  // Gives allocations without a tensor in use back to the allocator while more than `keep` slots are free; how many
  // bytes. Nothing waits: the allocator learns which streams used them. A pool that never grows keeps what it has.
  // With a mover, tensors that are out are moved together first, as by compact().
  std::size_t trim(std::size_t keep = 0);
  // Moves the tensors that are out in sparsely used allocations into free slots of others, and gives the allocations
  // that this empties back to the allocator, as long as more than `keep` slots are free. The copies are queued, each in
  // its tensor's stream; where streams differ the GPU waits. InvalidArgument for a pool without a mover.
  // A tensor's data() changes; its content, stream and recorded streams stay. Some are not moved: whose address was
  // asked for by fixed_data(), and where a capturing stream is in the way.
  // What the caller owes: nobody has kept an address from data(), nor has a captured graph; work on a tensor that other
  // streams have queued by now is recorded (record_stream), and what they queue later comes after the tensor's stream;
  // while this runs no other thread calls the pool or touches its tensors. After an error each tensor is where it was,
  // or whole in its new place.
  CompactReport compact(std::size_t keep = 0);

  const TensorSpec& spec() const;
  const TensorPoolOptions& options() const;
  PoolStats stats() const;
  // Walks everything; returns "" or the first broken rule. For tests, while no other thread acquires or releases.
  std::string validate() const;
  // Host bytes of the pool's own tables.
  std::size_t metadata_bytes() const;

 private:
  friend class PoolSet;
  TensorPool(std::shared_ptr<CachingAllocator> owned, CachingAllocator& allocator, const TensorSpec& spec,
             const TensorPoolOptions& options, std::shared_ptr<PoolBudget> budget);
  PooledTensor wrap(PoolSlot& slot, Stream stream);
  std::optional<PooledTensor> wrap(PoolSlot* slot, Stream stream);

  PoolCore* core_;  // its own: it outlives the pool while tensors are out
};

}  // namespace cachalot
