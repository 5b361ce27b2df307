#include "base/exported_files.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>
#include <new>
#include <random>

CACHALOT_BEGIN

namespace {

// Memory has a descriptor for each handle: 512 for each GiB in pages. The soft limit, often 1024, is for programs that call
// select(); the hard limit is what the system allows.
void raise_limit_near(int descriptor) noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || static_cast<rlim_t>(descriptor) < limit.rlim_cur / 2) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

ExportedFiles& ExportedFiles::instance() {
  static ExportedFiles& files = *new ExportedFiles;
  return files;
}

std::uint64_t ExportedFiles::random_key() {
  std::random_device random;  // the processor's or the kernel's
  for (;;) {
    const std::uint64_t key = std::uint64_t{random()} << 32 | random();
    if (key != 0) return key;
  }
}

void ExportedFiles::add(std::uint64_t key, int descriptor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  descriptors_.emplace(key, descriptor);
  raise_limit_near(descriptor);
}

void ExportedFiles::remove(std::uint64_t key) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  descriptors_.erase(key);
}

int ExportedFiles::duplicate(std::uint64_t key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = descriptors_.find(key);
  if (known != descriptors_.end()) return fcntl(known->second, F_DUPFD_CLOEXEC, 0);
  errno = ENOENT;
  return -1;
}

// A thread that is not here may have been changing them: they are moved out of reach.
void ExportedFiles::on_fork() noexcept {
  new (&mutex_) std::mutex;
  new (&descriptors_) HashMap<std::uint64_t, int>;
  adopt();
}

CACHALOT_END
