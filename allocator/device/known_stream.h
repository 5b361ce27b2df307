// The identity of a stream, and the order of work on it before work on another. CUDA gives the handle of a stream that was
// destroyed to the next one at once, which is not ordered after the old one's work: a handle alone does not identify the stream
// that memory belongs to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/locks.h"
#include "cachalot/device.h"
#include "cachalot/errors.h"

CACHALOT_BEGIN

// Waiting, on the host, for a stream of any Device.

// Returns when the work that was queued on `stream` is done. Not while the stream captures.
void wait_for(Device& device, Stream stream);

// For the handler of an error of a call on a stream: where CUDA says that the stream was destroyed, waits for all work on the
// device, of which the stream's may be a part. Throws other errors again, and DeviceReset where the wait shows a reset.
void wait_in_place_of_stream(Device& device, const CudaError& error);

// Names a stream permanently. An immortal stream, which lives as long as the process uses it, is named by its handle; any
// other by the number that no other stream of the process has (Device::stream_id).
class StreamKey {
 public:
  constexpr StreamKey() = default;  // the legacy default stream
  static StreamKey of_handle(Stream handle) { return StreamKey(reinterpret_cast<std::uintptr_t>(handle)); }
  static constexpr StreamKey none() { return of_id(0); }  // no stream's
  // Names the stream of memory that no stream has used yet. No device gives a stream this number.
  static constexpr StreamKey nobody() { return of_id(~std::uint64_t{0} >> 2); }
  static constexpr StreamKey of_id(std::uint64_t id) { return StreamKey((id << 2) | kMortal); }

  // Handles are addresses of aligned objects, or 0, 1 and 2.
  constexpr bool is_immortal() const { return (value_ & kMortal) != kMortal; }
  Stream immortal_handle() const { return reinterpret_cast<Stream>(value_); }
  // Returns the number of a stream that is not immortal.
  constexpr std::uint64_t id() const { return value_ >> 2; }
  std::size_t hash() const { return std::hash<std::uint64_t>()(value_); }

  friend constexpr bool operator==(StreamKey, StreamKey) = default;
  friend constexpr bool operator<(StreamKey a, StreamKey b) { return a.value_ < b.value_; }

 private:
  static constexpr std::uint64_t kMortal = 3;
  explicit constexpr StreamKey(std::uint64_t value) : value_(value) {}
  std::uint64_t value_ = 0;
};

// A stream's name, and the handle by which the device knows it while it lives.
struct KnownStream {
  Stream handle = nullptr;
  StreamKey key;
  friend constexpr bool operator==(const KnownStream& a, const KnownStream& b) { return a.key == b.key; }
};

inline KnownStream immortal_stream(Stream handle) { return {handle, StreamKey::of_handle(handle)}; }

// nullptr and cudaStreamLegacy.
inline bool is_legacy(Stream handle) { return reinterpret_cast<std::uintptr_t>(handle) <= 1; }
// cudaStreamPerThread: a stream of its own in each thread.
inline bool is_per_thread(Stream handle) { return reinterpret_cast<std::uintptr_t>(handle) == 2; }

// Returns which stream has the handle now. The default stream is immortal, as all are where `immortal` says so, except for
// cudaStreamPerThread. Where the device cannot tell streams apart (Device::stream_id), all are taken to be immortal.
// Throws InvalidArgument where the device knows no such stream.
KnownStream identify(Device& device, Stream handle, bool immortal);

// Returns whether the handle is still the stream's; false if the device says that it is invalid. Must not be called for a
// handle that no stream has: the driver's answer is undefined. cudaStreamPerThread is another stream in another thread.
// Throws CudaError.
bool still_lives(Device& device, const KnownStream& stream);

// Records the event on the stream; if that has ended, or is not this thread's, waits for all work on the device: then the
// event, as it is, marks nothing, or work that is done. Throws CudaError, and DeviceReset.
void record_or_wait(Device& device, Event event, const KnownStream& stream);

// Work of one stream before work of another, without the host: events that are used again.
// Thread safety: any thread; no lock is held across a call of the device.
class StreamOrder {
 public:
  explicit StreamOrder(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // A stream that has ended does not capture.
  bool captures(const KnownStream& stream);
  // Makes work queued on `after` from now on wait for work queued on `before` by now. Neither captures. If `before` has
  // ended, or is another thread's default stream, waits for all work on the device instead.
  void put_before(const KnownStream& before, Stream after);

 private:
  Event acquire_event();
  void release_event(Event event);

  const std::shared_ptr<Device> device_;
  SpinMutex mutex_;
  std::vector<Event> events_ CACHALOT_GUARDED_BY(mutex_);  // unused ones, with room for all
  std::size_t made_ CACHALOT_GUARDED_BY(mutex_) = 0;
};

CACHALOT_END

template <>
struct std::hash<cachalot::StreamKey> {
  std::size_t operator()(cachalot::StreamKey key) const noexcept { return key.hash(); }
};
