// Leak detectors and allocation tracks (leak_detector.h) of the process's allocator, for ctypes. Each is
// known by its number, from 1 on, until it is ended.
//
// Codes and texts: hooks.h. An invalid number is the caller's mistake. Thread-safe.
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/process.h"
#include "c_api/last_error.h"
#include "cachalot/leak_detector.h"
#include "pytorch/plug/hooks.h"
#include "pytorch/plug/process_allocator.h"
#include "pytorch/plug/python_api.h"

namespace cachalot {
namespace {

// Objects by number. Never destroyed: reports are asked for at exit. In a forked child they are there, and refuse.
template <typename Object>
class Numbered final : public ForkAware {
 public:
  static Numbered& instance() {
    static Numbered& numbered = *new Numbered;
    return numbered;
  }

  long add(std::shared_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    objects_.emplace(++last_, std::move(object));
    return last_;
  }
  std::shared_ptr<Object> at(long number) {
    const std::lock_guard lock(mutex_);
    return found(number)->second;
  }
  // Removes the object, which is destroyed after its last use, without the lock.
  std::shared_ptr<Object> remove(long number) {
    const std::lock_guard lock(mutex_);
    return std::move(objects_.extract(found(number)).mapped());
  }

 private:
  // A thread that is not here may have it.
  void on_fork() noexcept override {
    new (&mutex_) std::mutex;
    adopt();
  }

  auto found(long number) {
    const auto entry = objects_.find(number);
    CACHALOT_REQUIRE(entry != objects_.end(), "there is none with number {}: it was ended, or never begun", number);
    return entry;
  }

  std::mutex mutex_;
  std::map<long, std::shared_ptr<Object>> objects_;
  long last_ = 0;
};

using Detectors = Numbered<LeakDetector>;
using Tracks = Numbered<AllocationTrack>;

}  // namespace
}  // namespace cachalot

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

extern "C" {

// The number of a new detector, which watches from now on. Python's main thread calls `on_sample`, unless it is null, soon
// after the detector took samples by itself.
CACHALOT_EXPORT int cachalot_plug_leaks_begin(std::size_t warm_up, std::size_t window, double min_confidence,
                                              int (*on_sample)(void*), long* detector) {
  return guarded([&] {
    LeakDetectorOptions options{warm_up, window, min_confidence};
    const Python* const python = Python::instance();
    if (on_sample != nullptr && python != nullptr) {
      options.on_sample = [=] { python->add_pending_call(on_sample, nullptr); };  // needs no GIL, and takes none
    }
    *detector = Detectors::instance().add(std::make_shared<LeakDetector>(process_allocator(), options));
  });
}

CACHALOT_EXPORT int cachalot_plug_leaks_step(long detector) {
  return guarded([&] { Detectors::instance().at(detector)->step(); });
}

CACHALOT_EXPORT int cachalot_plug_leaks_end(long detector) {
  return guarded([&] { Detectors::instance().remove(detector); });
}

// to_json(LeakReport) with at most `most` leaks and sites.
CACHALOT_EXPORT char* cachalot_plug_leaks_json(long detector, std::size_t most) {
  return text_or_null([&] { return to_json(Detectors::instance().at(detector)->report(most)); });
}

CACHALOT_EXPORT int cachalot_plug_track_begin(long* track) {
  return guarded([&] { *track = Tracks::instance().add(std::make_shared<AllocationTrack>(process_allocator())); });
}

CACHALOT_EXPORT int cachalot_plug_track_stop(long track) {
  return guarded([&] { Tracks::instance().at(track)->stop(); });
}

CACHALOT_EXPORT int cachalot_plug_track_end(long track) {
  return guarded([&] { Tracks::instance().remove(track); });
}

CACHALOT_EXPORT char* cachalot_plug_track_json(long track, std::size_t most) {
  return text_or_null([&] { return to_json(Tracks::instance().at(track)->report(most)); });
}
}
