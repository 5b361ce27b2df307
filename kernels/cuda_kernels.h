// Patterns and moves by CUDA kernels: a launch carries dozens of stretches as its arguments, so that it needs no memory and
// no copy.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cachalot/device.h"
#include "cachalot/kernels.h"
#include "device/cuda_device.h"

struct CUfunc_st;

CACHALOT_BEGIN

// Our kernels in a device's context, and their launches.

// device_code.ptx, which the driver compiles for its GPU, and keeps for the next program.
extern const char* const kDeviceCode;

struct CudaModule {
  CUfunc_st* fill = nullptr;
  CUfunc_st* verify = nullptr;
  CUfunc_st* move = nullptr;
};

// Loads the kernels into the device's context, once for all callers and for good: a graph may hold a kernel for as long as
// the context lives. Null where the driver cannot compile them, which is said on stderr, once.
// Throws OutOfMemory, and CudaError for any other failure.
const CudaModule* module_for(CudaDevice& device);

// Queues `blocks` blocks of kThreadsABlock threads. `arguments` are pointers to the kernel's arguments. Requires the
// device's context.
void launch(CUfunc_st* kernel, std::uint64_t blocks, Stream stream, void** arguments);

class CudaKernels final : public Kernels {
 public:
  // `module` is the device's. Throws OutOfMemory where the device does not have the memory for the answers.
  CudaKernels(std::shared_ptr<CudaDevice> device, const CudaModule& module);
  ~CudaKernels() override;

 private:
  void fill(Stream stream, Span<const PatternSpan> spans) override;
  std::vector<PatternMismatch> verify(Stream stream, Span<const PatternSpan> spans) override;
  void move(Stream stream, Span<const BlockMove> moves) override;
  void verify_some(Stream stream, Span<const PatternSpan> spans, std::size_t first,
                   std::vector<PatternMismatch>& mismatches);

  const std::shared_ptr<CudaDevice> device_;
  const CudaModule& module_;
  std::mutex answers_mutex_;  // one verification at a time; held while it waits
  const Address answers_;     // in device memory, one a span
};

CACHALOT_END
