#include "device_subject.h"

#if CACHALOT_HAS_CUDART

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "new_thread_device.h"

namespace cachalot {
namespace {

void require(cudaError_t error) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("the test's own CUDA call: ") + cudaGetErrorName(error));
}

// Work for a stream that needs no kernel: it sleeps.
void CUDART_CB sleep_on_stream(void* data) {
  const std::unique_ptr<std::chrono::milliseconds> duration(static_cast<std::chrono::milliseconds*>(data));
  std::this_thread::sleep_for(*duration);
}

class CudaSubject final : public DeviceSubject {
 public:
  explicit CudaSubject(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  ~CudaSubject() override {
    for (const Stream stream : streams_) cudaStreamDestroy(stream);
  }

  Device& device() override { return *device_; }
  Stream new_stream() override {
    require(cudaSetDevice(device_->index()));
    cudaStream_t stream = nullptr;
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    streams_.push_back(stream);
    return stream;
  }
  void queue_work(Stream stream, std::chrono::milliseconds duration) override {
    require(cudaLaunchHostFunc(stream, sleep_on_stream, new std::chrono::milliseconds(duration)));
  }
  void pass(std::chrono::milliseconds time) override { std::this_thread::sleep_for(time); }
  void begin_capture(Stream stream) override { require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal)); }
  int end_capture(Stream stream) override {
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream, &graph);
    if (error == cudaSuccess)
      require(cudaGraphDestroy(graph));
    else
      cudaGetLastError();
    return static_cast<int>(error);
  }

 private:
  std::shared_ptr<Device> device_;
  std::vector<Stream> streams_;
};

}  // namespace

std::unique_ptr<DeviceSubject> make_cuda_subject() {
  const auto devices = cuda_devices();
  return devices.empty() ? nullptr : std::make_unique<CudaSubject>(devices.front());
}

std::unique_ptr<DeviceSubject> make_cuda_subject_for_new_threads() {
  const auto devices = cuda_devices();
  if (devices.empty()) return nullptr;
  return std::make_unique<CudaSubject>(std::make_shared<NewThreadDevice>(devices.front()));
}

}  // namespace cachalot

#else

namespace cachalot {

std::unique_ptr<DeviceSubject> make_cuda_subject() { return nullptr; }
std::unique_ptr<DeviceSubject> make_cuda_subject_for_new_threads() { return nullptr; }

}  // namespace cachalot

#endif
