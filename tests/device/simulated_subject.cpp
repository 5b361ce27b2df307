#include "cachalot/errors.h"
#include "cachalot/simulated_device.h"
#include "device_subject.h"

namespace cachalot {
namespace {

class SimulatedSubject final : public DeviceSubject {
 public:
  Device& device() override { return device_; }
  Stream new_stream() override { return device_.new_stream(); }
  void queue_work(Stream stream, std::chrono::milliseconds duration) override {
    device_.launch(stream, std::chrono::nanoseconds(duration).count());
  }
  void pass(std::chrono::milliseconds time) override { device_.advance(std::chrono::nanoseconds(time).count()); }
  void begin_capture(Stream stream) override { device_.begin_capture(stream); }
  int end_capture(Stream stream) override {
    try {
      device_.end_capture(stream);
      return 0;
    } catch (const CudaError& error) {
      return error.code();
    }
  }

 private:
  SimulatedDevice device_;
};

}  // namespace

std::unique_ptr<DeviceSubject> make_simulated_subject() { return std::make_unique<SimulatedSubject>(); }

}  // namespace cachalot
