#include "live/page_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <set>
#include <string_view>

#include "base/check.h"
#include "base/locks.h"
#include "base/process.h"
#include "live/fixed_text.h"
#include "live/process_identity.h"

CACHALOT_BEGIN

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
  // The pages are the parent's, and the mutex may be locked for good: the child gets new ones.
  void on_fork() noexcept override {
    current() = new PagesAtExit;  // NOLINT(bugprone-unhandled-exception-at-new): a child without memory for it ends
  }

  SleepingMutex mutex_;
  std::set<std::string> paths_ CACHALOT_GUARDED_BY(mutex_);
};

std::int64_t unix_time_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

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
  header.published_ns = unix_time_ns();
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

PageFile::PageFile(const std::string& directory, std::size_t devices) : header_(new_header(devices)) {
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

// O_EXCL does not follow a link, and takes no file that somebody else has put there.
void PageFile::create(const std::string& directory) {
  for (int number = 0; number < kMostPages; ++number) {
    path_ = formatted("{}/cachalot.{}.{}", directory, getpid(), number);
    descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (descriptor_ >= 0) return;
    CACHALOT_REQUIRE(errno == EEXIST,
                     "the statistics page {} cannot be made: {} (CACHALOT_PUBLISH_DIR names the folder)", path_,
                     std::strerror(errno));
  }
  throw InvalidArgument(
      formatted("the statistics page cannot be made: {} has {} files cachalot.{}.*", directory, kMostPages, getpid()));
}

PageFile::~PageFile() {
  if (descriptor_ < 0) return;
  PagesAtExit::remove(path_);
  unlink(path_.c_str());
  close(descriptor_);
}

void PageFile::leave() noexcept {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

std::uint64_t PageFile::interest() {
  std::uint64_t now = 0;
  const ssize_t count = pread(descriptor_, &now, sizeof(now), offsetof(StatisticsPageHeader, interest));
  if (count == sizeof(now)) interest_ = now;
  return interest_;
}

void PageFile::write(const StatisticsPageHeader& figures, const std::vector<StatisticsPageDevice>& devices) {
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

// What cannot be written stays old: readers see by the time how old it is.
void PageFile::put(const void* bytes, std::size_t count, std::size_t offset) const {
  const ssize_t written = pwrite(descriptor_, bytes, count, static_cast<off_t>(offset));
  static_cast<void>(written);
}

CACHALOT_END
