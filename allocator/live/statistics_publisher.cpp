#include "cachalot/statistics_publisher.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/process.h"
#include "growth/background_thread.h"
#include "live/page_figures.h"
#include "live/page_file.h"

CACHALOT_BEGIN

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// A refresh may take a part of a processor: 1 in so many.
constexpr int kRestPerWork = 2000;
// How long the page is refreshed often for one read.
constexpr std::chrono::seconds kInterestLasts{3};

std::int64_t now_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::string directory_of(const PublishOptions& options) {
  if (!options.directory.empty()) return options.directory;
  const char* const directory = std::getenv("CACHALOT_PUBLISH_DIR");
  return directory != nullptr && *directory != '\0' ? directory : "/dev/shm";
}

void require_interval(const char* name, milliseconds interval) {
  CACHALOT_REQUIRE(interval >= milliseconds(1), "PublishOptions::{} is {} ms; it must be at least 1 ms", name,
                   static_cast<std::int64_t>(interval.count()));
}

}  // namespace

class StatisticsPublisher::Implementation final : public ForkAware {
 public:
  Implementation(const CachingAllocator& allocator, const PublishOptions& options)
      : options_(options), figures_(allocator), file_(directory_of(options), figures_.device_count()) {
    refresh();
    thread_.wake();
  }
  ~Implementation() { thread_.stop(); }

  const std::string& path() const { return file_.path(); }

  // Returns the time that it took.
  nanoseconds refresh() {
    if (is_inherited()) return {};
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::int64_t begin = now_ns(CLOCK_MONOTONIC);
    const std::vector<StatisticsPageDevice>& devices = figures_.take();
    StatisticsPageHeader header{};
    header.refreshed_ns = now_ns(CLOCK_REALTIME);
    header.elapsed_ns = now_ns(CLOCK_MONOTONIC) - published_ns_;
    header.refreshes = ++refreshes_;
    header.cpu_ns = cpu_ns_;
    file_.write(header, devices);
    return nanoseconds(now_ns(CLOCK_MONOTONIC) - begin);
  }

 private:
  // The child has no thread, and the page is the parent's.
  void on_fork() noexcept override { file_.leave(); }

  std::optional<microseconds> step() {
    const nanoseconds took = refresh();
    cpu_ns_ = now_ns(CLOCK_THREAD_CPUTIME_ID);
    const milliseconds interval = has_reader() ? options_.interval_with_reader : options_.interval;
    return std::max<microseconds>(interval, std::chrono::duration_cast<microseconds>(took * kRestPerWork));
  }

  bool has_reader() {
    const std::int64_t now = now_ns(CLOCK_MONOTONIC);
    if (const std::uint64_t interest = file_.interest(); interest != interest_) {
      interest_ = interest;
      wanted_until_ns_ = now + nanoseconds(kInterestLasts).count();
    }
    return now < wanted_until_ns_;
  }

  const PublishOptions options_;
  const std::int64_t published_ns_ = now_ns(CLOCK_MONOTONIC);
  std::mutex mutex_;  // guards the figures, the file and the count
  PageFigures figures_;
  PageFile file_;
  std::uint64_t refreshes_ = 0;
  std::atomic<std::int64_t> cpu_ns_ = 0;
  std::uint64_t interest_ = 0;  // this and the next are the thread's
  std::int64_t wanted_until_ns_ = 0;
  BackgroundThread thread_{[this] { return step(); }};
};

StatisticsPublisher::StatisticsPublisher(CachingAllocator& allocator, const PublishOptions& options) {
  require_interval("interval", options.interval);
  require_interval("interval_with_reader", options.interval_with_reader);
  implementation_ = std::make_unique<Implementation>(allocator, options);
}

StatisticsPublisher::~StatisticsPublisher() = default;

const std::string& StatisticsPublisher::path() const { return implementation_->path(); }
void StatisticsPublisher::refresh() { implementation_->refresh(); }

CACHALOT_END
