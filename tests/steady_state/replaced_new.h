// The program's operator new is replaced: a thread's calls are counted while it asks for that, and may be made to fail.
#pragma once

#include <cstddef>

#include "cachalot/device.h"
#include "tests/allocator/forwarding_device.h"

namespace cachalot {

struct NewCalls {
  bool counting = false;
  std::size_t count = 0;
  std::size_t bytes = 0;
  std::size_t first_failure = 0;  // the number of the call, from 1 on
  std::size_t failures = 0;       // the number that fail from that one on

  void made(std::size_t bytes_asked);
};
extern thread_local NewCalls new_calls;

// Counting stops while the device is busy: what the simulation allocates is not the allocator's doing.
class NotCounting {
 public:
  explicit NotCounting(const Device& /*device*/) : before_(new_calls.counting) { new_calls.counting = false; }
  ~NotCounting() { new_calls.counting = before_; }
  NotCounting(const NotCounting&) = delete;
  NotCounting& operator=(const NotCounting&) = delete;

 private:
  bool before_;
};

class QuietDevice final : public ForwardingDevice<QuietDevice, NotCounting> {
  using ForwardingDevice::ForwardingDevice;
};

}  // namespace cachalot
