// Streams call functions of the program on the host, on a thread of its own, in real time. Work behind one waits for
// its gate. A wait lets process_mutex go: streams and events may be gone afterwards.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "simulator/abi.h"
#include "simulator/captures.h"
#include "simulator/devices.h"
#include "simulator/lock.h"
#include "simulator/stream_state.h"
#include "simulator/streams.h"
#include "simulator/use_checks.h"

namespace cachalot::simulator {

class HostFunctions {
 public:
  // `settle`, called under the lock, ends each step of the thread, as it ends each call of the program.
  HostFunctions(Devices& devices, Captures& captures, ImplicitOrder& order, UseChecks& uses,
                std::function<void()> settle)
      : devices_(devices), captures_(captures), order_(order), uses_(uses), settle_(std::move(settle)) {}

  void launch(StreamState& stream, cudaHostFn_t function, void* data) CACHALOT_LOCKED;
  // Both let the lock go while they wait. The gates must be copies: their stream or event may go meanwhile.
  void wait_for(const Gates& gates) CACHALOT_LOCKED;
  void wait_for_all(const DeviceState& device) CACHALOT_LOCKED;

 private:
  struct Queued {
    int device = 0;
    std::int64_t due_ns = 0;
    cudaHostFn_t function = nullptr;
    void* data = nullptr;
    std::shared_ptr<Gate> gate;
  };

  void start_thread() CACHALOT_LOCKED;
  void run();
  Queued take_next() CACHALOT_LOCKED;
  void finish(const Queued& done) CACHALOT_LOCKED;

  Devices& devices_;
  Captures& captures_;
  ImplicitOrder& order_;
  UseChecks& uses_;
  const std::function<void()> settle_;
  std::deque<Queued> queue_ CACHALOT_UNDER_LOCK;
  bool has_thread_ CACHALOT_UNDER_LOCK = false;
  std::condition_variable_any queued_;
  std::condition_variable_any gate_opened_;
};

}  // namespace cachalot::simulator
