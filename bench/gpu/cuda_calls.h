// CUDA as the programs of bench/gpu call it: failures are exceptions, and objects go with their owner.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "bench/gpu/kernels.h"

namespace cachalot::gpu {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kGiB = std::size_t{1} << 30;

std::string name_of(CUresult result);
std::string name_of(cudaError_t error);
void require(const char* call, CUresult result);
void require(const char* call, cudaError_t error);

// The host's time; on the simulated runtime its virtual time, so that what waits there is seen to wait.
std::chrono::nanoseconds host_time();
// Microseconds that the host is in `call`.
template <typename Call>
double microseconds_of(Call&& call) {
  const auto start = host_time();
  call();
  return std::chrono::duration<double, std::micro>(host_time() - start).count();
}
void sleep_for(std::chrono::milliseconds duration);

class OwnStream {
 public:
  explicit OwnStream(unsigned flags = cudaStreamNonBlocking) {
    require("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream_, flags));
  }
  ~OwnStream() { cudaStreamDestroy(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  operator cudaStream_t() const { return stream_; }

  void synchronize() const { require("cudaStreamSynchronize", cudaStreamSynchronize(stream_)); }
  bool is_busy() const;

 private:
  cudaStream_t stream_ = nullptr;
};

class OwnEvent {
 public:
  OwnEvent() { require("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~OwnEvent() { cudaEventDestroy(event_); }
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

inline Words words_at(void* memory, std::size_t bytes) { return {static_cast<Word*>(memory), bytes / sizeof(Word)}; }

// A number of wrong words, counted by kernels, which it loads. Throws where they do not count words that are wrong: then no check of
// contents could fail.
class WrongWords {
 public:
  WrongWords();
  ~WrongWords();
  WrongWords(const WrongWords&) = delete;
  WrongWords& operator=(const WrongWords&) = delete;
  unsigned long long* on_device() const { return count_; }
  // Waits for the device. 0 on the simulated runtime, which counts nothing.
  std::uint64_t read() const;

 private:
  void require_that_it_counts();

  unsigned long long* count_ = nullptr;
};

inline Words words_at(CUdeviceptr memory, std::size_t bytes) {
  return words_at(reinterpret_cast<void*>(memory), bytes);
}

// Physical memory of device 0 as CUDA makes it: `handle_kind` is a CUmemAllocationHandleType, 0 for none.
CUmemAllocationProp allocation_properties(int handle_kind = 0, bool for_rdma = false);
void open_access(CUdeviceptr address, std::size_t bytes);

// One physical handle, mapped at several addresses.
class Views {
 public:
  Views(std::size_t bytes, int count);
  ~Views();
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;

  Words words(int view) const { return words_at(address(view), bytes_); }
  CUdeviceptr address(int view) const { return range_ + static_cast<std::size_t>(view) * bytes_; }
  void map(int view);
  void unmap(int view);

 private:
  const std::size_t bytes_;
  const int count_;
  CUdeviceptr range_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
};

}  // namespace cachalot::gpu
