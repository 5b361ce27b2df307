// The common parts of the small plays: a device, its streams, the allowed exceptions, and marks in held memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cachalot/errors.h"
#include "cachalot/simulated_device.h"
#include "device/addresses.h"
#include "tests/programs/small_plays.h"

namespace cachalot {

class SmallPlayer {
 public:
  virtual ~SmallPlayer() = default;

  // All of it: until the bytes are used up or something is wrong.
  SmallPlayResult play() {
    if (fault_) device_->set_faults({*fault_});
    guarded([&] {
      attempt([&] { begin(); });
      while (!bytes_.empty() && result_.trouble.empty()) step();
    });
    device_->set_faults({});
    guarded([&] { finish(); });
    result_.faults = device_->faults_injected();
    return std::move(result_);
  }

 protected:
  static constexpr std::size_t kStreams = 3;

  SmallPlayer(Bytes& bytes, const std::optional<Fault>& fault, std::size_t memory_bytes)
      : bytes_(bytes), fault_(fault), device_(make_device(memory_bytes)) {
    for (Stream& stream : streams_) stream = device_->new_stream();
  }

  virtual void begin() {}  // may fail
  virtual void step() = 0;
  virtual void finish() = 0;

  // Returns whether the action came to its end.
  template <typename Action>
  bool attempt(Action&& action) {
    const std::uint64_t faults = device_->faults_injected();
    try {
      action();
      return true;
    } catch (const OutOfMemory&) {
      ++result_.out_of_memory;
    } catch (const CudaError& error) {
      if (device_->faults_injected() == faults) trouble(std::string("without a fault: ") + error.what());
    }
    return false;
  }

  void trouble(const std::string& what) {
    if (result_.trouble.empty()) result_.trouble = what;
  }
  void expect(bool holds, const char* what) {
    if (!holds) trouble(what);
  }
  void fail_soon() {
    const Fault fault{.nth = 1 + bytes_.below(8), .out_of_memory = bytes_.below(2) == 0, .code = 999};
    if (!fault_) device_->set_faults({fault});
  }

  Stream some_stream() { return streams_[bytes_.below(kStreams)]; }
  std::size_t some_of(std::size_t count) {
    return bytes_.below(static_cast<std::uint32_t>(std::min<std::size_t>(count, 255)));
  }

  // The value written to memory, by which it is recognized; nullopt: the copy failed.
  using Mark = std::optional<std::uint64_t>;
  Mark mark(void* memory) {
    const std::uint64_t value = next_mark_++;
    const bool written = attempt([&] { device_->copy_from_host(as_address(memory), &value, sizeof(value)); });
    return written ? Mark(value) : std::nullopt;
  }
  void expect_mark(const void* memory, Mark mark) {
    std::uint64_t seen = 0;
    const bool read = mark && attempt([&] { device_->copy_to_host(&seen, as_address(memory), sizeof(seen)); });
    if (read) expect(seen == *mark, "memory that is held has another content");
  }

  // `later` comes after all that `earlier` has queued.
  bool order(Stream earlier, Stream later) {
    Event event = nullptr;
    if (!attempt([&] { event = device_->event_create(); })) return false;
    const bool ordered = attempt([&] {
      device_->event_record(event, earlier);
      device_->stream_wait(later, event);
    });
    attempt([&] { device_->event_destroy(event); });
    return ordered;
  }

  Bytes& bytes_;
  const std::optional<Fault> fault_;
  const std::shared_ptr<SimulatedDevice> device_;
  std::array<Stream, kStreams> streams_{};

 private:
  template <typename Action>
  void guarded(Action&& action) {
    try {
      action();
    } catch (const std::exception& error) {
      trouble(error.what());
    }
  }

  static std::shared_ptr<SimulatedDevice> make_device(std::size_t memory_bytes) {
    SimulatedDevice::Config config;
    config.memory_bytes = memory_bytes;
    config.latency = LatencyModel::none();
    config.check_hazards = true;
    return std::make_shared<SimulatedDevice>(config);
  }

  SmallPlayResult result_;
  std::uint64_t next_mark_ = 1;
};

}  // namespace cachalot
