// LaunchOrder knows which launches come before which: each stream has a vector clock of the launches that come before its next one,
// and the host has one of those that it has seen done. Launches that the host has seen done come before all that are asked for later.
//
// Nothing is known before begin(), which the settings `strict` and `races` call. process_mutex guards everything here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulator/device/vector_clock.h"

namespace cachalot::simulator {

// The launches that come before the stream's next one.
struct StreamOrder {
  std::size_t number = 0;  // of the stream in clocks; no other has it
  VectorClock before;
};

class LaunchOrder {
 public:
  void begin() { is_kept_ = true; }
  bool is_kept() const { return is_kept_; }

  // Returns the next stream's order: behind nothing.
  StreamOrder new_stream(int device) {
    devices_.push_back(device);
    return {devices_.size() - 1, {}};
  }
  // Counts a launch of the stream, and returns its number.
  std::uint64_t launched(StreamOrder& order) {
    const std::uint64_t launch = all_[order.number] + 1;
    all_.set(order.number, launch);
    order.before.set(order.number, launch);
    return launch;
  }
  // Launches of any stream so far come before the stream's next one.
  void put_behind_all(StreamOrder& order) const { order.before.join(all_); }

  // The host has found these launches done, by a question or a wait.
  void host_saw(const VectorClock& launches) { host_.join(launches); }
  // Likewise all launches so far of a device's streams, destroyed ones among them.
  void host_saw_device(int device) {
    for (std::size_t stream = 0; stream < devices_.size(); ++stream) {
      if (devices_[stream] == device) host_.set(stream, all_[stream]);
    }
  }

  // Returns whether a launch of the stream with this number comes before the next one of the stream with this order.
  bool comes_before(std::size_t stream, std::uint64_t launch, const StreamOrder& order) const {
    return launch <= order.before[stream] || launch <= host_[stream];
  }

 private:
  bool is_kept_ = false;
  std::vector<int> devices_;  // by the stream's number
  VectorClock all_;
  VectorClock host_;
};

}  // namespace cachalot::simulator
