// Front stands before the heaps of an allocator where its fast paths are closed.
//
//   PlainFront   nothing stands there: it serves the calls that the fast paths leave, such as one with an invalid device
//   ForkedFront  the front of a forked child: each use throws, and each function that gives back does nothing
//   the guard    sees every malloc and every free (diagnostics/guard_front.cpp); fast paths are closed
//
// Contracts are those of CachingAllocator's functions of the same names. A device's index has been checked, except by
// `allocate` and `deallocate`, which check it.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "blocks/page_map.h"
#include "cachalot/device.h"
#include "cachalot/errors.h"
#include "cachalot/private_pool.h"
#include "heap/heap_state.h"
#include "policy/torch_policy.h"

CACHALOT_BEGIN

class AllocatorState;

class Front {
 public:
  struct Request {
    std::size_t bytes = 0;
    int device = 0;
    Stream stream = nullptr;
    AllocationPlace place;
  };
  // The claims of a free beside its address.
  struct Claim {
    std::size_t bytes = 0;
    int device = 0;
    Stream stream = nullptr;
  };
  // The heap's block behind the user's pointer, still to be checked by its device.
  struct Found {
    Block* block;       // null if no block holds the pointer
    const void* start;  // the pointer's address in the heap
  };
  enum class PointerUse : std::uint8_t { free, other };

  Front() = default;
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;
  virtual ~Front() = default;

  // Returns true if the fast paths may serve, since nothing needs to see their calls.
  virtual bool opens_fast_paths() const { return false; }

  virtual void* allocate(const Request& request) = 0;
  virtual void* allocate_at(std::size_t bytes, int device, Stream stream, void* address) = 0;
  // Frees memory that no fast path frees. Throws InvalidArgument if it is not a live allocation.
  virtual void deallocate(void* ptr) = 0;
  virtual void deallocate(void* ptr, const Claim& claim) = 0;
  virtual void record_stream(void* ptr, Stream stream) = 0;
  // Called when the heaps have ended the stream.
  virtual void stream_ends(Stream stream) = 0;

  virtual Found find(const void* ptr) const = 0;
  // Returns the bytes that the live allocation was asked for with, or nullopt if it is not one.
  virtual std::optional<std::size_t> requested_bytes(const void* ptr) const = 0;
  // Returns the error of a use of `ptr`, which is not a live allocation: it tells where the pointer lies.
  virtual InvalidArgument not_live(const void* ptr, PointerUse use) const = 0;

  // Runs `action`. The program's handlers are called when it is done, and their exceptions leave this call.
  virtual void run(FunctionRef<void()> action) = 0;
  // Runs `action` and drops the exceptions of handlers, which are called also if the action throws.
  virtual void run_without_handlers_errors(FunctionRef<void()> action) = 0;

  // Called when a private pool has got a user or lost one, and when it refused a use, with the refusal's message.
  virtual void note_pool_users(int device, PoolId pool) = 0;
  virtual void note_pool_refusal(int device, PoolId pool, std::string_view message) = 0;
  virtual bool pool_has_exactly(int device, PoolId pool, const std::vector<void*>& live) = 0;
  virtual PoolCheckpoint checkpoint_pool(int device, PoolId pool) = 0;
  virtual RestoreResult restore_pool(int device, const PoolCheckpoint& checkpoint) = 0;

  // Frees in the heap what the program has freed. `device`: kAllDevices, too.
  virtual void drain(int device) = 0;
  // Run `release`, which takes the memory of blocks that stay, and `restore`, which brings it back.
  virtual void put_to_sleep(int device, FunctionRef<void()> release) = 0;
  virtual void wake(int device, FunctionRef<void()> restore) = 0;

  // Returns "" or the broken invariant.
  virtual std::string validate() const = 0;
  virtual std::size_t metadata_bytes() const = 0;
};

class PlainFront final : public Front {
 public:
  explicit PlainFront(AllocatorState& state) : state_(state) {}

  bool opens_fast_paths() const override { return true; }
  void* allocate(const Request& request) override;
  void* allocate_at(std::size_t bytes, int device, Stream stream, void* address) override;
  void deallocate(void* ptr) override;
  void deallocate(void* ptr, const Claim& claim) override;
  void record_stream(void* ptr, Stream stream) override;
  void stream_ends(Stream /*stream*/) override {}
  Found find(const void* ptr) const override;
  std::optional<std::size_t> requested_bytes(const void* ptr) const override;
  InvalidArgument not_live(const void* ptr, PointerUse use) const override;
  void run(FunctionRef<void()> action) override { action(); }
  void run_without_handlers_errors(FunctionRef<void()> action) override { action(); }
  void note_pool_users(int /*device*/, PoolId /*pool*/) override {}
  void note_pool_refusal(int /*device*/, PoolId /*pool*/, std::string_view /*message*/) override {}
  bool pool_has_exactly(int device, PoolId pool, const std::vector<void*>& live) override;
  PoolCheckpoint checkpoint_pool(int device, PoolId pool) override;
  RestoreResult restore_pool(int device, const PoolCheckpoint& checkpoint) override;
  void drain(int /*device*/) override {}
  void put_to_sleep(int /*device*/, FunctionRef<void()> release) override { release(); }
  void wake(int /*device*/, FunctionRef<void()> restore) override { restore(); }
  std::string validate() const override { return ""; }
  std::size_t metadata_bytes() const override { return 0; }

 private:
  AllocatorState& state_;
};

class ForkedFront final : public Front {
 public:
  explicit ForkedFront(const AllocatorState& state) : state_(state) {}

  void* allocate(const Request& /*request*/) override { throw_inherited(); }
  void* allocate_at(std::size_t, int, Stream, void*) override { throw_inherited(); }
  void deallocate(void* /*ptr*/) override {}
  void deallocate(void* /*ptr*/, const Claim& /*claim*/) override {}
  void record_stream(void* /*ptr*/, Stream /*stream*/) override { throw_inherited(); }
  void stream_ends(Stream /*stream*/) override { throw_inherited(); }
  Found find(const void* /*ptr*/) const override { throw_inherited(); }
  std::optional<std::size_t> requested_bytes(const void* /*ptr*/) const override { throw_inherited(); }
  InvalidArgument not_live(const void* /*ptr*/, PointerUse /*use*/) const override { throw_inherited(); }
  void run(FunctionRef<void()> /*action*/) override { throw_inherited(); }
  void run_without_handlers_errors(FunctionRef<void()> action) override { action(); }
  void note_pool_users(int /*device*/, PoolId /*pool*/) override { throw_inherited(); }
  void note_pool_refusal(int /*device*/, PoolId /*pool*/, std::string_view /*message*/) override { throw_inherited(); }
  bool pool_has_exactly(int, PoolId, const std::vector<void*>&) override { throw_inherited(); }
  PoolCheckpoint checkpoint_pool(int /*device*/, PoolId /*pool*/) override { throw_inherited(); }
  RestoreResult restore_pool(int /*device*/, const PoolCheckpoint& /*checkpoint*/) override { throw_inherited(); }
  void drain(int /*device*/) override { throw_inherited(); }
  void put_to_sleep(int /*device*/, FunctionRef<void()> /*release*/) override { throw_inherited(); }
  void wake(int /*device*/, FunctionRef<void()> /*restore*/) override { throw_inherited(); }
  std::string validate() const override { throw_inherited(); }
  std::size_t metadata_bytes() const override { throw_inherited(); }

 private:
  [[noreturn]] void throw_inherited() const;

  const AllocatorState& state_;
};

// The heaps' knowledge of an address.
struct PlaceInHeaps {
  std::string text;        // "" if no heap knows the address
  std::size_t device = 0;  // index of the device that knows it, else of the last one
};
PlaceInHeaps place_in_heaps(const AllocatorState& state, const void* ptr);
// Returns the message of a pointer that is not a live allocation; `place` tells where it lies, or is "".
std::string not_live_message(const void* ptr, std::string_view place);

CACHALOT_END
