// The CUDA runtime's streams and events as values that clean up after themselves, and its errors as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace examples {

inline void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // it must not be reported a second time
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}
#define EXAMPLES_CHECK(call) ::examples::check(call, #call)

struct DestroyCuda {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};

// Does not wait for the legacy default stream.
class Stream {
 public:
  Stream() {
    cudaStream_t stream = nullptr;
    EXAMPLES_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    stream_.reset(stream);
  }
  cudaStream_t get() const { return stream_.get(); }
  void synchronize() const { EXAMPLES_CHECK(cudaStreamSynchronize(get())); }

 private:
  std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyCuda> stream_;
};

class Event {
 public:
  explicit Event(unsigned int flags = cudaEventDisableTiming) {
    cudaEvent_t event = nullptr;
    EXAMPLES_CHECK(cudaEventCreateWithFlags(&event, flags));
    event_.reset(event);
  }
  cudaEvent_t get() const { return event_.get(); }
  void record(const Stream& stream) const { EXAMPLES_CHECK(cudaEventRecord(get(), stream.get())); }
  void synchronize() const { EXAMPLES_CHECK(cudaEventSynchronize(get())); }
  // Work queued on `stream` from now on comes after the work that the event marks.
  void holds_up(const Stream& stream) const { EXAMPLES_CHECK(cudaStreamWaitEvent(stream.get(), get(), 0)); }

 private:
  std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyCuda> event_;
};

// Returns the microseconds that `body` and all work that it queued take, by the GPU's clock (on the simulated runtime
// the virtual one).
inline double microseconds(const std::function<void()>& body) {
  const Stream idle;
  const Event start(cudaEventDefault);
  const Event end(cudaEventDefault);
  EXAMPLES_CHECK(cudaDeviceSynchronize());
  start.record(idle);
  body();
  EXAMPLES_CHECK(cudaDeviceSynchronize());
  end.record(idle);
  end.synchronize();
  float milliseconds = 0;
  EXAMPLES_CHECK(cudaEventElapsedTime(&milliseconds, start.get(), end.get()));
  return 1000.0 * static_cast<double>(milliseconds);
}

}  // namespace examples
