// A device under the contract test, with what only the device's owner can do: streams, work, capture, time.
#pragma once

#include <chrono>
#include <memory>

#include "cachalot/device.h"

namespace cachalot {

class DeviceSubject {
 public:
  virtual ~DeviceSubject() = default;
  virtual Device& device() = 0;
  virtual Stream new_stream() = 0;
  virtual void queue_work(Stream stream, std::chrono::milliseconds duration) = 0;
  virtual void pass(std::chrono::milliseconds time) = 0;
  virtual void begin_capture(Stream stream) = 0;
  virtual int end_capture(Stream stream) = 0;  // 0, or the code of the failure
};

std::unique_ptr<DeviceSubject> make_simulated_subject();
// Null where there is no GPU.
std::unique_ptr<DeviceSubject> make_cuda_subject();
// Returns a subject that makes each call to the device on a new thread.
std::unique_ptr<DeviceSubject> make_cuda_subject_for_new_threads();

}  // namespace cachalot
