#include "cachalot/statistics_publisher.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/environment.h"
#include "base/locks.h"
#include "base/process.h"
#include "cachalot/statistics_page.h"
#include "diagnostics/background_thread.h"
#include "diagnostics/process_publisher.h"

CACHALOT_BEGIN

// Text in an array of fixed size.
// Copies as much as there is room for, and a zero behind it.
template <std::size_t Size>
void copy_cut(std::string_view text, char (&to)[Size]) {
  to[text.copy(to, Size - 1)] = '\0';
}

namespace {

std::uint64_t number_of(std::int64_t figure) { return figure < 0 ? 0 : static_cast<std::uint64_t>(figure); }

StatisticsPagePool to_page(const PoolUsage& pool) {
  StatisticsPagePool result{};
  result.id[0] = pool.pool.first;
  result.id[1] = pool.pool.second;
  result.is_asleep = pool.is_asleep ? 1 : 0;
  result.reserved_bytes = pool.reserved_bytes;
  result.used_bytes = pool.used_bytes();
  result.free_bytes = pool.free_bytes;
  result.free_blocks = pool.free_blocks;
  result.largest_free_bytes = pool.largest_free_bytes;
  result.asleep_bytes = pool.asleep_bytes;
  copy_cut(pool.tag, result.tag);
  return result;
}

void put_statistics(const DeviceStats& stats, StatisticsPageDevice& device) {
  device.reserved_bytes = number_of(stats.reserved_bytes.all.current);
  device.allocated_bytes = number_of(stats.allocated_bytes.all.current);
  device.requested_bytes = number_of(stats.requested_bytes.all.current);
  device.active_bytes = number_of(stats.active_bytes.all.current);
  device.peak_reserved_bytes = number_of(stats.reserved_bytes.all.peak);
  device.peak_allocated_bytes = number_of(stats.allocated_bytes.all.peak);
  device.peak_requested_bytes = number_of(stats.requested_bytes.all.peak);
  device.peak_active_bytes = number_of(stats.active_bytes.all.peak);
  device.blocks = number_of(stats.allocation.all.current);
  device.segments = number_of(stats.segment.all.current);
  device.allocations = number_of(stats.allocation.all.allocated);
  device.frees = number_of(stats.allocation.all.freed);
  device.allocated_sum_bytes = number_of(stats.allocated_bytes.all.allocated);
  device.freed_sum_bytes = number_of(stats.allocated_bytes.all.freed);
  device.device_allocations = number_of(stats.num_device_alloc);
  device.device_frees = number_of(stats.num_device_free);
  device.retries = number_of(stats.num_alloc_retries);
  device.ooms = number_of(stats.num_ooms);
  device.stream_waits = number_of(stats.num_sync_all_streams);
}

// The default pool comes first; of the private pools the largest are listed.
void put_pools(std::vector<PoolUsage> pools, StatisticsPageDevice& device) {
  device.free_bytes = device.free_blocks = device.largest_free_bytes = device.asleep_bytes = 0;
  for (const PoolUsage& pool : pools) {
    device.free_bytes += pool.free_bytes;
    device.free_blocks += pool.free_blocks;
    device.largest_free_bytes = std::max<std::uint64_t>(device.largest_free_bytes, pool.largest_free_bytes);
    device.asleep_bytes += pool.asleep_bytes;
  }
  const auto bytes_of = [](const PoolUsage& pool) { return pool.reserved_bytes + pool.asleep_bytes; };
  if (pools.size() > kStatisticsPagePools)
    std::ranges::stable_sort(pools.begin() + 1, pools.end(), std::greater{}, bytes_of);
  device.pool_count = static_cast<std::uint32_t>(pools.size());
  device.listed_pools = static_cast<std::uint32_t>(std::min(pools.size(), kStatisticsPagePools));
  std::ranges::transform(pools.begin(), pools.begin() + device.listed_pools, device.pools, to_page);
}

}  // namespace

// The figures of a statistics page, as an allocator has them.
class PageFigures {
 public:
  explicit PageFigures(const CachingAllocator& allocator)
      : allocator_(allocator),
        devices_(std::min(static_cast<std::size_t>(allocator.device_count()), kStatisticsPageDevices)) {
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const DeviceProperties properties = allocator.device(static_cast<int>(i))->properties();
      StatisticsPageDevice& device = devices_[i];
      device.index = static_cast<std::int32_t>(i);
      device.total_bytes = properties.total_bytes;
      device.has_uuid = std::ranges::any_of(properties.uuid, [](unsigned char byte) { return byte != 0; }) ? 1 : 0;
      std::ranges::copy(properties.uuid, device.uuid);
      copy_cut(properties.name, device.name);
    }
  }

  // Takes the figures of all devices, each under the locks of AllocatorFigures::device_usage.
  const std::vector<StatisticsPageDevice>& take() {
    for (StatisticsPageDevice& device : devices_) {
      DeviceUsage usage = allocator_.device_usage(device.index);
      const LimitFigures limits = allocator_.limit_figures(device.index);
      device.limit_bytes = limits.limit_bytes.value_or(kStatisticsPageNoLimit);
      device.soft_limit_bytes = limits.soft_limit_bytes.value_or(kStatisticsPageNoLimit);
      put_statistics(usage.stats, device);
      device.oom_rejections = number_of(usage.num_oom_rejections);
      put_pools(std::move(usage.pools), device);
    }
    return devices_;
  }
  std::size_t device_count() const { return devices_.size(); }

 private:
  const CachingAllocator& allocator_;
  std::vector<StatisticsPageDevice> devices_;
};

namespace {

// Pages of one process: more than libraries with an allocator of their own.
constexpr int kMostPages = 100;

// The pages that are left when the process ends. Never destroyed: publishers may end after it would be.
class PagesAtExit final : ForkAware {
 public:
  static void add(const std::string& path) {
    const Lock lock(current()->mutex_);
    current()->paths_.insert(path);
    static const int registered = std::atexit(unlink_all);
    static_cast<void>(registered);
  }
  static void remove(const std::string& path) {
    const Lock lock(current()->mutex_);
    current()->paths_.erase(path);
  }

 private:
  static PagesAtExit*& current() {
    static auto* pages = new PagesAtExit;
    return pages;
  }
  static void unlink_all() {
    const Lock lock(current()->mutex_);
    for (const std::string& path : current()->paths_) unlink(path.c_str());
  }
  // The pages are the parent's, and the mutex may be locked permanently: the child gets new ones.
  void on_fork() noexcept override {
    current() = new PagesAtExit;  // NOLINT(bugprone-unhandled-exception-at-new): a child without memory for it ends
  }

  SleepingMutex mutex_;
  std::set<std::string> paths_ CACHALOT_GUARDED_BY(mutex_);
};

StatisticsPageHeader new_header(std::size_t devices) {
  StatisticsPageHeader header{};
  std::ranges::copy(kStatisticsPageMagic, header.magic);
  header.layout_version = kStatisticsPageVersion;
  header.header_bytes = sizeof(StatisticsPageHeader);
  header.device_bytes = sizeof(StatisticsPageDevice);
  header.device_count = static_cast<std::uint32_t>(devices);
  header.page_bytes = sizeof(StatisticsPageHeader) + devices * sizeof(StatisticsPageDevice);
  header.process_id = static_cast<std::uint64_t>(getpid());
  header.process_start = process_start(getpid()).value_or(0);
  header.pid_namespace = pid_namespace();
  header.published_ns = now_ns(CLOCK_REALTIME);
  copy_cut(version(), header.library_version);
  copy_cut(process_command(), header.command);
  header.sequence = 1;  // nothing is to be read yet
  return header;
}

// Orders what the system wrote to the page for this thread: on Arm, a reader may otherwise see later figures under an earlier
// sequence. GCC's ThreadSanitizer refuses fences; it is run on x86-64, where writes stay in order.
void order_writes() {
#ifndef __SANITIZE_THREAD__
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

// The file of a statistics page, as the process that publishes it sees it.
//
// It is written by system calls and not through a mapping: if another process truncates the file, or the memory behind it runs
// out, a call fails, and the program does not die of SIGBUS.
class PageFile {
 public:
  // Makes the file, with a name that no other has and room for `devices` devices, and removes it at the end of the process.
  // Throws InvalidArgument, which names the folder and the reason.
  PageFile(const std::string& directory, std::size_t devices) : header_(new_header(devices)) {
    create(directory);
    // The room is taken now: where it runs out later, nothing can be done. The magic comes last.
    const auto size = static_cast<off_t>(header_.page_bytes);
    int error = posix_fallocate(descriptor_, 0, size);
    if (error == EOPNOTSUPP) error = ftruncate(descriptor_, size) == 0 ? 0 : errno;
    if (error != 0) {
      unlink(path_.c_str());
      close(descriptor_);
      throw InvalidArgument(formatted("the statistics page {} cannot be made: {}", path_, std::strerror(error)));
    }
    put(reinterpret_cast<const char*>(&header_) + sizeof(header_.magic), sizeof(header_) - sizeof(header_.magic),
        sizeof(header_.magic));
    put(header_.magic, sizeof(header_.magic), 0);
    PagesAtExit::add(path_);
  }
  // Removes it.
  ~PageFile() {
    if (descriptor_ < 0) return;
    PagesAtExit::remove(path_);
    unlink(path_.c_str());
    close(descriptor_);
  }
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  const std::string& path() const { return path_; }
  // Returns how often readers have read so far; the last number again if that cannot be read.
  std::uint64_t interest() {
    std::uint64_t now = 0;
    const ssize_t count = pread(descriptor_, &now, sizeof(now), offsetof(StatisticsPageHeader, interest));
    if (count == sizeof(now)) interest_ = now;
    return interest_;
  }
  // Writes the figures of the header behind `interest`, and the devices, under the sequence lock.
  void write(const StatisticsPageHeader& figures, const std::vector<StatisticsPageDevice>& devices) {
    constexpr std::size_t kSequence = offsetof(StatisticsPageHeader, sequence);
    constexpr std::size_t kFigures = offsetof(StatisticsPageHeader, refreshed_ns);
    header_.sequence |= 1;
    put(&header_.sequence, sizeof(header_.sequence), kSequence);
    order_writes();
    put(reinterpret_cast<const char*>(&figures) + kFigures, sizeof(figures) - kFigures, kFigures);
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const std::size_t unused = kStatisticsPagePools - devices[i].listed_pools;
      put(&devices[i], sizeof(StatisticsPageDevice) - unused * sizeof(StatisticsPagePool),
          sizeof(StatisticsPageHeader) + i * sizeof(StatisticsPageDevice));
    }
    order_writes();
    ++header_.sequence;
    put(&header_.sequence, sizeof(header_.sequence), kSequence);
  }
  // In a forked child: the file is the parent's, and stays.
  void leave() noexcept {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
  }

 private:
  // O_EXCL does not follow a link, and takes no file that another user has put there.
  void create(const std::string& directory) {
    for (int number = 0; number < kMostPages; ++number) {
      path_ = formatted("{}/cachalot.{}.{}", directory, getpid(), number);
      descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
      if (descriptor_ >= 0) return;
      CACHALOT_REQUIRE(errno == EEXIST,
                       "the statistics page {} cannot be made: {} (CACHALOT_PUBLISH_DIR names the folder)", path_,
                       std::strerror(errno));
    }
    throw InvalidArgument(formatted("the statistics page cannot be made: {} has {} files cachalot.{}.*", directory,
                                    kMostPages, getpid()));
  }
  // A figure that cannot be written stays old: readers see its age by the time.
  void put(const void* bytes, std::size_t count, std::size_t offset) const {
    const ssize_t written = pwrite(descriptor_, bytes, count, static_cast<off_t>(offset));
    static_cast<void>(written);
  }

  std::string path_;
  int descriptor_ = -1;
  StatisticsPageHeader header_{};
  std::uint64_t interest_ = 0;
};

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// A refresh may take a part of a processor: 1 in kRestPerWork.
constexpr int kRestPerWork = 2000;
// The time for which one read keeps the page's refreshes frequent.
constexpr std::chrono::seconds kInterestLasts{3};

void require_interval(const char* name, milliseconds interval) {
  CACHALOT_REQUIRE(interval >= milliseconds(1), "PublishOptions::{} is {} ms; it must be at least 1 ms", name,
                   static_cast<std::int64_t>(interval.count()));
}

}  // namespace

class StatisticsPublisher::Implementation final : public ForkAware {
 public:
  Implementation(const CachingAllocator& allocator, const PublishOptions& options)
      : options_(options), figures_(allocator), file_(publish_directory(options.directory), figures_.device_count()) {
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

namespace {

// The publisher of the process's allocator. Never destroyed: the page is removed when the process ends.
struct ProcessPublisher final : ForkAware {
  // The parent's publisher stays where it is: a thread that is not here may have been using it.
  void on_fork() noexcept override {
    new (&mutex) std::mutex;
    static_cast<void>(publisher.release());
    adopt();
  }

  std::mutex mutex;  // held while the publisher starts or ends
  std::unique_ptr<StatisticsPublisher> publisher;
};

ProcessPublisher& of_process() {
  static ProcessPublisher& process = *new ProcessPublisher;
  return process;
}

}  // namespace

std::string publish_process(CachingAllocator& allocator, const std::string& directory) {
  const std::lock_guard<std::mutex> lock(of_process().mutex);
  std::unique_ptr<StatisticsPublisher>& publisher = of_process().publisher;
  if (publisher == nullptr) {
    PublishOptions options;
    options.directory = directory;
    publisher = std::make_unique<StatisticsPublisher>(allocator, options);
  }
  return publisher->path();
}

void stop_publishing_process() {
  const std::lock_guard<std::mutex> lock(of_process().mutex);
  of_process().publisher = nullptr;
}

std::string published_page() {
  const std::lock_guard<std::mutex> lock(of_process().mutex);
  return of_process().publisher == nullptr ? "" : of_process().publisher->path();
}

std::string publish_directory(const std::string& given) {
  if (!given.empty()) return given;
  const std::string_view directory = environment("CACHALOT_PUBLISH_DIR").value_or("");
  return std::string(directory.empty() ? "/dev/shm" : directory);
}

bool is_publishing_asked_for() {
  return parse_environment("CACHALOT_PUBLISH", "", [](std::string_view value) {
    CACHALOT_REQUIRE(value.empty() || value == "0" || value == "1",
                     "'{:.60}' is not 1, to publish statistics for cachalot top, nor 0", value);
    return value == "1";
  });
}

void publish_as_asked(CachingAllocator& allocator) {
  try {
    publish_process(allocator, "");
  } catch (const std::exception& error) {
    print_error("cachalot: CACHALOT_PUBLISH=1 has no effect: {}\n", error.what());
  }
}

CACHALOT_END
