#include "cachalot/memory_watch.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <vector>

#include "base/process.h"
#include "device/unified_memory.h"
#include "diagnostics/background_thread.h"

CACHALOT_BEGIN

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kPause{200};  // between two looks
// The share of time at which systemd tells services to give caches back: 200 ms of 2 s (systemd.io/MEMORY_PRESSURE).
constexpr double kMostStalled = 10;
constexpr seconds kStalledOver{10};  // the kernel's figure is over so long

}  // namespace

class MemoryWatch::Implementation final : public ForkAware {
 public:
  explicit Implementation(CachingAllocator& allocator) : allocator_(allocator) {
    for (int device = 0; device < allocator.device_count(); ++device) {
      const DeviceProperties properties = allocator.device(device)->properties();
      if (!properties.integrated) continue;
      if (auto host = HostMemory::of_machine(!properties.calls_take_time)) {
        watched_.push_back({device, properties.total_bytes, std::move(*host), {}});
      }
    }
    if (!watched_.empty()) thread_.wake();
  }
  ~Implementation() { thread_.stop(); }

  std::size_t look() {
    if (is_inherited()) return 0;
    const std::lock_guard<std::mutex> lock(mutex_);
    std::size_t given = 0;
    for (Watched& watched : watched_) given += look_at(watched);
    return given;
  }
  std::size_t given_back_bytes() const { return given_back_; }

 private:
  struct Watched {
    int device = 0;
    std::size_t total_bytes = 0;
    HostMemory host;
    Clock::time_point emptied;  // the last time that processes waited
  };

  std::size_t look_at(Watched& watched) {
    if (allocator_.memory_reserved(watched.device) == 0) return 0;
    const std::optional<std::size_t> available = watched.host.available_bytes();
    if (!available) return 0;
    std::size_t given = 0;
    const std::size_t kept = kept_for_system(watched.total_bytes);
    if (*available < kept) {
      given = allocator_.give_way(2 * kept - *available, watched.device);
    } else if (*available < watched.total_bytes / 8 && are_waiting(watched)) {
      given = allocator_.trim(0, watched.device);
    }
    given_back_ += given;
    return given;
  }

  // Returns whether processes have waited for memory since the last time that this was true.
  static bool are_waiting(Watched& watched) {
    const Clock::time_point now = Clock::now();
    if (now < watched.emptied + kStalledOver || watched.host.stalled_percent().value_or(0) < kMostStalled) return false;
    watched.emptied = now;
    return true;
  }

  // A failure, such as that of the driver, does not end the watch.
  std::optional<std::chrono::microseconds> step() {
    try {
      look();
    } catch (const std::exception&) {
    }
    return kPause;
  }

  CachingAllocator& allocator_;
  std::mutex mutex_;  // guards `watched_`
  std::vector<Watched> watched_;
  std::atomic<std::size_t> given_back_{0};
  BackgroundThread thread_{[this] { return step(); }};
};

MemoryWatch::MemoryWatch(CachingAllocator& allocator) : implementation_(std::make_unique<Implementation>(allocator)) {}
MemoryWatch::~MemoryWatch() = default;

std::size_t MemoryWatch::look() { return implementation_->look(); }
std::size_t MemoryWatch::given_back_bytes() const { return implementation_->given_back_bytes(); }

CACHALOT_END
