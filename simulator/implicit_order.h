// The order of the legacy stream and the blocking streams of its context, which wait for each other unasked. The
// simulated device keeps it for the time of the primary context; the rest is kept here.
#pragma once

#include "simulator/config.h"
#include "simulator/contexts.h"
#include "simulator/devices.h"
#include "simulator/lock.h"
#include "simulator/stream_state.h"
#include "simulator/streams.h"
#include "simulator/watch.h"

namespace cachalot::simulator {

class ImplicitOrder {
 public:
  ImplicitOrder(const Config& config, Watch& watch, Devices& devices, Contexts& contexts, Streams& streams)
      : config_(config), watch_(watch), devices_(devices), contexts_(contexts), streams_(streams) {}

  // Puts what the stream waits for unasked before the call that follows.
  void join(StreamState& stream) CACHALOT_LOCKED;
  // Throws cudaErrorStreamCaptureImplicit, for a question about a stream, if that is the legacy stream of a context
  // beside the primary one, and a blocking stream of its context captures.
  void refuse_question(const char* call, const StreamState& stream) CACHALOT_LOCKED;

 private:
  // Throws cudaErrorStreamCaptureImplicit if a blocking stream of the legacy stream's context captures.
  void refuse_capture(const char* call, const StreamState& legacy, bool spoils) CACHALOT_LOCKED;
  void join_time(StreamState& stream) CACHALOT_LOCKED;
  void join_gates(StreamState& stream) CACHALOT_LOCKED;
  void join_order(StreamState& stream) CACHALOT_LOCKED;

  const Config& config_;
  Watch& watch_ CACHALOT_UNDER_LOCK;
  Devices& devices_;
  Contexts& contexts_;
  Streams& streams_;
};

}  // namespace cachalot::simulator
