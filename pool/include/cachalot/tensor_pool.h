/// @file
/// The pool of tensors of one kind.
#pragma once

#include "cachalot/require_cpp17.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cachalot/caching_allocator.h"

CACHALOT_BEGIN_API

/// The types of elements, under torch's names. A name that C++ reserves ends in an underscore.
enum class DType : std::uint8_t {
  bool_,            ///< torch.bool, 1 byte
  uint8,            ///< 1 byte
  uint16,           ///< 2 bytes
  uint32,           ///< 4 bytes
  uint64,           ///< 8 bytes
  int8,             ///< 1 byte
  int16,            ///< 2 bytes
  int32,            ///< 4 bytes
  int64,            ///< 8 bytes
  float8_e4m3fn,    ///< 1 byte
  float8_e4m3fnuz,  ///< 1 byte
  float8_e5m2,      ///< 1 byte
  float8_e5m2fnuz,  ///< 1 byte
  float8_e8m0fnu,   ///< 1 byte
  float16,          ///< 2 bytes
  bfloat16,         ///< 2 bytes
  float32,          ///< 4 bytes
  float64,          ///< 8 bytes
  complex32,        ///< two float16, 4 bytes
  complex64,        ///< two float32, 8 bytes
  complex128,       ///< two float64, 16 bytes
};

/// Returns torch's name of the type: "float32", "bool", ...
const char* to_string(DType dtype);
/// Returns the bytes of one element.
std::size_t bytes_of(DType dtype);
/// Returns the type of that name. Throws InvalidArgument for an unknown name.
DType dtype_named(std::string_view name);
/// Returns the names of all types.
std::vector<std::string_view> dtype_names();

/// A TensorSpec says what makes tensors alike: shape, element type and device. Tensors of a pool
/// are dense and in row-major order. A plain value.
struct TensorSpec {
  std::vector<std::int64_t> shape;  ///< extents, each at least 1; empty: one element
  DType dtype = DType::float32;     ///< type of the elements
  int device = 0;                   ///< index of the device

  /// Returns the number of elements.
  /// Throws InvalidArgument if an extent is below 1, or if the tensor would reach 1 EiB.
  std::size_t elements() const;
  /// Returns the bytes of the tensor. Throws as elements() does.
  std::size_t bytes() const;

  /// Compares all members.
  friend bool operator==(const TensorSpec& a, const TensorSpec& b) {
    return a.shape == b.shape && a.dtype == b.dtype && a.device == b.device;
  }
  /// Returns !(a == b).
  friend bool operator!=(const TensorSpec& a, const TensorSpec& b) { return !(a == b); }
};

/// Returns the spec as text: "float32 [2, 3] on device 0".
std::string to_string(const TensorSpec& spec);

CACHALOT_END_API

namespace std {

/// Hashes a TensorSpec; equal specs have equal hashes.
template <>
struct hash<cachalot::TensorSpec> {
  /// Returns the hash.
  std::size_t operator()(const cachalot::TensorSpec& spec) const noexcept;
};

}  // namespace std

CACHALOT_BEGIN_API

class PoolBudget;
class PoolCore;
struct PoolSlot;

/// WhenEmpty selects the action of acquire() when no slot is free.
enum class WhenEmpty : std::uint8_t {
  grow,  ///< takes more memory, up to max_slots; then throws OutOfMemory
  /// Takes more memory, up to max_slots; then waits for a tensor to be returned. Waiting threads
  /// are served in no particular order. Without max_slots the pool never grows.
  wait,
  fail,  ///< never takes more memory: throws OutOfMemory
};

/// OtherStream selects the action of acquire() when every free slot was last used on another
/// stream.
enum class OtherStream : std::uint8_t {
  wait,        ///< takes a free slot; the GPU waits for the other stream
  other_slot,  ///< takes more memory if the pool may grow and there is some; else as `wait`
};

/// The content of a tensor that acquire() returns.
enum class OnReuse : std::uint8_t {
  keep,    ///< whatever the memory holds
  zero,    ///< zeros, written on the stream that the tensor is for
  poison,  ///< kPoisonByte in every byte, written on that stream: floats are NaN or absurd
};
/// The byte that OnReuse::poison writes.
inline constexpr unsigned char kPoisonByte = 0xFF;

/// TensorPoolOptions say how a pool grows, waits and reuses. A slot is the memory of one tensor.
struct TensorPoolOptions {
  std::size_t initial_slots = 0;           ///< slots that the constructor makes, in one allocation
  std::size_t max_slots = 0;               ///< the most slots; 0: no limit
  std::size_t growth_step = 1;             ///< slots of each further allocation, at least 1
  WhenEmpty when_empty = WhenEmpty::grow;  ///< without a free slot
  OtherStream other_stream = OtherStream::wait;  ///< with free slots of other streams only
  OnReuse on_reuse = OnReuse::keep;              ///< content of new tensors
  /// While more slots than this are free, allocations without a tensor in use go back to the
  /// allocator. Empty: never.
  std::optional<std::size_t> high_water = std::nullopt;
  std::size_t alignment = 512;  ///< of every tensor, in bytes; a power of two, at most 1 GiB
  Stream stream = nullptr;      ///< stream that the initial slots are allocated for
};

/// PoolStats count what a pool did and holds.
struct PoolStats {
  std::uint64_t acquires = 0;  ///< tensors handed out
  std::uint64_t hits = 0;      ///< tensors handed out whose slot had been used before
  /// Requests to the allocator, of growth_step or initial_slots slots.
  std::uint64_t allocations = 0;
  std::uint64_t host_waits = 0;    ///< acquires that waited for a tensor to be returned
  std::uint64_t stream_waits = 0;  ///< waits of one stream for another, on the GPU
  std::size_t live = 0;            ///< tensors in use
  /// Largest `live`. Exact for one thread; with several threads a short peak may be missed.
  std::size_t peak_live = 0;
  std::size_t slots = 0;       ///< slots in use and free ones
  std::size_t bytes = 0;       ///< of the allocations that the pool holds
  std::size_t peak_bytes = 0;  ///< largest `bytes`

  /// Returns hits / acquires; 0 before the first acquire.
  double reuse_rate() const {
    return acquires == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(acquires);
  }
  /// Returns acquires - allocations: the requests saved against one for each tensor. Negative while
  /// slots that were made in advance are not used yet.
  std::int64_t allocations_avoided() const {
    return static_cast<std::int64_t>(acquires) - static_cast<std::int64_t>(allocations);
  }
};

/// Returns a JSON object with the data members' names as keys.
std::string to_json(const PoolStats& stats);

/// A PooledTensor is a tensor in use. It returns to its pool when it is destroyed. Its memory
/// exists until then, also if the pool is destroyed first.
///
/// Thread safety: one thread at a time uses a tensor. It may be handed to another thread and return
/// there.
class PooledTensor {
 public:
  /// Makes an empty tensor.
  PooledTensor() = default;
  /// Takes the tensor over; `other` is empty afterwards.
  PooledTensor(PooledTensor&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        slot_(other.slot_),
        data_(other.data_),
        stream_(other.stream_) {}
  /// Returns the present tensor to its pool and takes the other one over; `other` is empty
  /// afterwards.
  PooledTensor& operator=(PooledTensor&& other) noexcept {
    PoolCore* const pool = std::exchange(other.pool_, nullptr);  // first: `other` may be this
    if (pool_ != nullptr) give_back();
    pool_ = pool;
    slot_ = other.slot_;
    data_ = other.data_;
    stream_ = other.stream_;
    return *this;
  }
  /// Returns the tensor to its pool.
  ~PooledTensor() {
    if (pool_ != nullptr) give_back();
  }

  /// Returns true unless the tensor is empty: moved from, or returned already.
  explicit operator bool() const { return pool_ != nullptr; }
  /// Returns the address of the first element; nullptr if empty.
  void* data() const { return pool_ == nullptr ? nullptr : data_; }
  /// Returns the stream that the tensor was acquired for.
  Stream stream() const { return stream_; }

  /// @name Of a tensor that is not empty
  /// Each function throws InvalidArgument if the tensor is empty.
  /// @{

  /// Returns shape, element type and device.
  const TensorSpec& spec() const;
  /// Returns the extents.
  const std::vector<std::int64_t>& shape() const { return spec().shape; }
  /// Returns the type of the elements.
  DType dtype() const { return spec().dtype; }
  /// Returns the bytes of the tensor.
  std::size_t bytes() const;
  /// Declares that work queued on `other` uses the tensor: the next use of its memory waits for
  /// that work.
  /// Requires: the stream `other` exists until then.
  void record_stream(Stream other);
  /// Declares the use on `other`, as record_stream does, and makes work queued on `other` from now
  /// on come after the work queued on stream() so far.
  /// Throws InvalidArgument while one of the two streams captures.
  void share_with(Stream other);
  /// Returns the tensor to its pool now.
  void release() {
    if (pool_ == nullptr) throw_empty("release");
    give_back();
  }
  /// @}

 private:
  friend class TensorPool;

  PooledTensor(PoolCore& pool, PoolSlot* slot, void* data, Stream stream)
      : pool_(&pool), slot_(slot), data_(data), stream_(stream) {}
  void give_back() noexcept { return_slot(*std::exchange(pool_, nullptr), *slot_); }
  static void return_slot(PoolCore& pool, PoolSlot& slot) noexcept;
  void require_held(const char* call) const;
  [[noreturn]] static void throw_empty(const char* call);

  PoolCore* pool_ = nullptr;  // null: empty
  PoolSlot* slot_ = nullptr;
  void* data_ = nullptr;
  Stream stream_ = nullptr;
};
static_assert(sizeof(PooledTensor) == 32, "two tensors fit in a cache line");

/// A TensorPool hands out tensors of one shape, element type and device. It allocates memory once
/// and reuses it, without a lock in the usual case.
///
///     cachalot::TensorPool pool(allocator, {{1024, 1024}, cachalot::DType::float32});
///     {
///       cachalot::PooledTensor t = pool.acquire(stream);
///       kernel<<<grid, block, 0, stream>>>(static_cast<float*>(t.data()));
///     }  // returned at once: the next use on this stream comes after the kernel
///
/// Streams: if a slot was last used on another stream, the new stream waits on the GPU for an event
/// that is recorded on the other stream at that moment. The host never waits for a device. So a
/// stream must outlive the free slots that were last used on it: call trim() before it is
/// destroyed.
///
/// Graph capture: a capturing stream gets slots that were last used on itself, or memory that the
/// allocator gives then. Slots last used on a capturing stream serve no other stream until the
/// capture ends. A tensor that a graph uses must be kept as long as the graph is replayed.
///
/// Thread safety: every method may be called from any thread at any time.
/// Errors: InvalidArgument, CudaError, and OutOfMemory of the allocator or of a pool that may not
/// grow. After each, the state is as before the call. In a forked child every call throws
/// InvalidArgument, except that returning tensors and the destructor do nothing.
class TensorPool {
 public:
  /// Makes a pool and its initial slots.
  /// Throws InvalidArgument for an invalid spec, a device that the allocator does not manage, and
  /// options that contradict each other; and what the allocator throws for the initial slots.
  TensorPool(std::shared_ptr<CachingAllocator> allocator, const TensorSpec& spec,
             const TensorPoolOptions& options = {});
  /// Makes a pool over an allocator of the caller, which may be destroyed first: then acquire
  /// throws InvalidArgument, and tensors may still be returned. Otherwise as the constructor above.
  /// Requires: the allocator is not destroyed while a call of the pool is under way.
  TensorPool(CachingAllocator& allocator, const TensorSpec& spec,
             const TensorPoolOptions& options = {});
  /// Destroys the pool. Tensors in use keep the memory until the last of them is returned.
  /// Requires: no thread waits in acquire.
  ~TensorPool();
  TensorPool(const TensorPool&) = delete;
  TensorPool& operator=(const TensorPool&) = delete;

  /// Returns a tensor for work on `stream`.
  /// Throws OutOfMemory if there is no slot and the pool may not grow (WhenEmpty), or the allocator
  /// has no memory.
  /// Blocks: with WhenEmpty::wait, until a tensor is returned.
  PooledTensor acquire(Stream stream = nullptr) {
    const Taken taken = take(stream);
    return {*core_, taken.slot, taken.data, stream};
  }
  /// Returns a tensor, or nullopt if acquire would wait or the pool may not grow.
  /// Throws OutOfMemory if the pool may grow and the allocator has no memory.
  std::optional<PooledTensor> try_acquire(Stream stream = nullptr);
  /// Returns a tensor, or nullopt if none is returned within `timeout`; otherwise as try_acquire.
  std::optional<PooledTensor> acquire_for(std::chrono::nanoseconds timeout,
                                          Stream stream = nullptr);

  /// Declares that no more work will be queued on `stream`, which is about to be destroyed, as
  /// CachingAllocator::stream_ends; the allocator is to be told, too, and after its pools. Slots
  /// that the stream used serve others after the work queued so far. Without the call the stream
  /// must live as long as the pool.
  /// Throws as CachingAllocator::stream_ends does.
  void stream_ends(Stream stream);

  /// Gives allocations without a tensor in use back to the allocator while more than `keep` slots
  /// are free.
  /// Returns their bytes. A pool that never grows gives nothing back.
  /// Blocks: no; the allocator learns which streams used the memory.
  std::size_t trim(std::size_t keep = 0);

  /// Returns shape, element type and device of the tensors.
  const TensorSpec& spec() const;
  /// Returns the options.
  const TensorPoolOptions& options() const;
  /// Returns the statistics.
  PoolStats stats() const;
  /// Walks all tables. Returns "" or the first broken invariant. For tests.
  /// Requires: no other thread acquires or releases meanwhile.
  std::string validate() const;
  /// Returns the host bytes of the pool's own tables.
  std::size_t metadata_bytes() const;

 private:
  friend class PoolSet;
  TensorPool(std::shared_ptr<CachingAllocator> owned, CachingAllocator& allocator,
             const TensorSpec& spec, const TensorPoolOptions& options,
             std::shared_ptr<PoolBudget> budget);
  // A Taken is the slot for a tensor that acquire() makes. It fits in two registers.
  struct Taken {
    PoolSlot* slot;
    void* data;
  };
  Taken take(Stream stream);
  Taken take_slowly(Stream stream);
  std::optional<PooledTensor> wrap(PoolSlot* slot, Stream stream);

  PoolCore* core_;  // owned; it outlives the pool while tensors are in use
};

CACHALOT_END_API
