// A device's primary context, which the CUDA runtime uses as well, in one life of it: a reset of the device ends it.
//
// It is made when it is first current, so that a program has none on GPUs it does not use, and stays for good, as those
// of the CUDA runtime do. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/sleeping_mutex.h"

struct CUctx_st;

CACHALOT_BEGIN

class CudaContext {
 public:
  // `ordinal` as in cuDeviceGet.
  explicit CudaContext(int ordinal) : ordinal_(ordinal) {}
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  // Returns the driver's number of the context, which no other of the process ever has; 0 before it was first current.
  // Drivers from before CUDA 12 do not tell: 1 there.
  std::uint64_t id() const { return id_.load(std::memory_order_acquire); }

  // Makes the context current to the calling thread for a scope. Afterwards the thread's current context is the one from
  // before, or none. Asks the driver two questions where the context is current already.
  // Throws DeviceReset where the device was reset since the first scope: what was made in the context is gone, and what the
  // driver would do with old handles is its own to choose. Drivers from before CUDA 12 do not tell.
  class Current {
   public:
    explicit Current(CudaContext& context) : pushed_(!context.is_current()) {
      if (pushed_) context.push();
    }
    ~Current() {
      if (pushed_) pop();
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const bool pushed_;
  };

 private:
  bool is_current() const;
  void push();
  static void pop();
  CUctx_st* handle();
  bool is_in_its_life();
  [[noreturn]] void throw_reset() const;

  const int ordinal_;
  std::atomic<std::uint64_t> id_{0};
  SleepingMutex making_;                    // held while the handle is made; …
  std::atomic<CUctx_st*> handle_{nullptr};  // … it is read without, and constant once it is there
};

CACHALOT_END
