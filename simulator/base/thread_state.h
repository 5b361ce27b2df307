// CUDA's state of each thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simulator/models/cuda_abi.h"

namespace cachalot::simulator {

// The <<<grid, block, shared, stream>>> of a launch, between __cudaPushCallConfiguration and __cudaPopCallConfiguration.
struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  void* stream = nullptr;
};

// A stack of at most kMost elements.
template <typename Element, std::size_t kMost>
class InlineStack {
 public:
  bool empty() const { return size_ == 0; }
  // Returns false if it is full.
  bool push(const Element& element) {
    if (size_ == kMost) return false;
    elements_[size_++] = element;
    return true;
  }
  Element pop() { return elements_[--size_]; }

 private:
  std::array<Element, kMost> elements_{};
  std::size_t size_ = 0;
};

// The count of what a kernel would select, which nothing has computed: copies of a number to the host return it. Copies of 16 bytes,
// which Thrust makes of a pair, have it in front of a 0: a search has found something at the first place.
class Answer {
 public:
  void set(std::int64_t count) {
    is_set_ = true;
    count_ = count;
  }
  void clear() { is_set_ = false; }
  void give(void* to, std::size_t bytes) const {
    const std::int64_t pair[] = {count_, 0};
    if (is_set_ && (bytes == 4 || bytes == 8 || bytes == sizeof pair)) std::memcpy(to, pair, bytes);
  }

 private:
  bool is_set_ = false;
  std::int64_t count_ = 0;
};

// A stream and its number, and how many streams had been destroyed when both were looked up.
struct AskedStream {
  cudaStream_t handle = nullptr;
  unsigned long long id = 0;
  std::uint64_t destroyed = 0;
};

struct ThreadState {
  int device = 0;               // of the current context, else the chosen one
  int chosen = 0;               // by cudaSetDevice
  std::uint64_t number = 0;     // no other thread has it; 0: none yet
  bool has_context = false;     // a device was made current, by the program or by a call that needs one
  CUcontext context = nullptr;  // the current one, unless that is the device's primary one
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  bool has_own_default_stream = false;  // in a call of a program that is compiled so
  bool in_host_function = false;        // of a stream, where calls are not permitted
  Answer answer;
  AskedStream asked;                     // by cudaStreamGetId, last
  InlineStack<CUcontext, 64> contexts;   // pushed, below the current one
  InlineStack<LaunchShape, 8> launches;  // one, except for launches in the arguments of launches
};
// Static destructors of the program still call.
static_assert(std::is_trivially_destructible_v<ThreadState>);

inline ThreadState& this_thread() {
  thread_local ThreadState state;
  return state;
}

}  // namespace cachalot::simulator
