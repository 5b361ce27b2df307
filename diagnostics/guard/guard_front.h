// GuardFront is the front of an allocator with guard:True or debug:True: each device has a guard before its heap.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/front.h"
#include "cachalot/kernels.h"
#include "diagnostics/guard/guard.h"
#include "diagnostics/guard/guard_reports.h"

CACHALOT_BEGIN

class GuardFront final : public Front {
 public:
  GuardFront(AllocatorState& state, const KernelsFactory& kernels);

  GuardLog& log() { return log_; }
  void check();
  // Throws InvalidArgument for an index without a device.
  std::size_t quarantine_bytes(int device) const;

  void* allocate(const Request& request) override;
  void* allocate_at(std::size_t bytes, int device, Stream stream, void* address) override;
  void deallocate(void* ptr) override;
  void deallocate(void* ptr, const Claim& claim) override;
  void record_stream(void* ptr, Stream stream) override;
  void stream_ends(Stream stream) override;
  Found find(const void* ptr) const override;
  std::optional<std::size_t> requested_bytes(const void* ptr) const override;
  InvalidArgument not_live(const void* ptr, PointerUse use) const override;
  void run(FunctionRef<void()> action) override { log_.tell_after(action); }
  void run_without_handlers_errors(FunctionRef<void()> action) override;
  void note_pool_users(int device, PoolId pool) override { at(device).note_users(pool); }
  void note_pool_refusal(int device, PoolId pool, std::string_view message) override;
  bool pool_has_exactly(int device, PoolId pool, const std::vector<void*>& live) override;
  PoolCheckpoint checkpoint_pool(int device, PoolId pool) override;
  RestoreResult restore_pool(int device, const PoolCheckpoint& checkpoint) override;
  void drain(int device) override;
  void put_to_sleep(int device, FunctionRef<void()> release) override { at(device).put_to_sleep(release); }
  void wake(int device, FunctionRef<void()> restore) override;
  std::string validate() const override;
  std::size_t metadata_bytes() const override;

 private:
  Guard& at(int device) const { return *guards_[static_cast<std::size_t>(device)]; }

  AllocatorState& state_;
  mutable GuardLog log_;
  std::vector<std::unique_ptr<Guard>> guards_;  // one per device
};

CACHALOT_END
