#include "base/process.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <mutex>
#include <new>

#include "base/check.h"
#include "base/format.h"

CACHALOT_BEGIN

// The list of all objects. Its mutex is held for a few instructions, and by a thread that forks: so the child finds the
// list whole. No lock that is held across a call of the driver may be taken before a fork, since the driver forks
// itself (for nvidia-modprobe).
struct ForkAware::Registry {
  static void add(ForkAware& object) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!watches) watches = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
    if (!watches) throw std::bad_alloc();  // all that it fails for
    object.next_ = first;
    if (first != nullptr) first->previous_ = &object;
    first = &object;
  }

  static void remove(const ForkAware& object) {
    const std::lock_guard<std::mutex> lock(mutex);
    (object.previous_ != nullptr ? object.previous_->next_ : first) = object.next_;
    if (object.next_ != nullptr) object.next_->previous_ = object.previous_;
  }

  static void before_fork() { mutex.lock(); }
  static void after_fork_in_parent() { mutex.unlock(); }
  static void after_fork_in_child() {
    mutex.unlock();  // no other thread is here; and notified objects may make new ones
    for (ForkAware* object = first; object != nullptr; object = object->next_) {
      if (object->is_inherited_) continue;
      object->is_inherited_ = true;
      object->on_fork();
    }
  }

  static inline constinit std::mutex mutex;
  static inline constinit ForkAware* first = nullptr;
  static inline constinit bool watches = false;
};

ForkAware::ForkAware() : process_(getpid()) { Registry::add(*this); }
ForkAware::~ForkAware() { Registry::remove(*this); }

void ForkAware::adopt() noexcept {
  process_ = getpid();
  is_inherited_ = false;
}

void ForkAware::refuse(const char* what) const {
  throw InvalidArgument(formatted(
      "{} belongs to process {}; this is process {}, which was forked from it: CUDA does not work in a forked child "
      "(start it by spawn or exec, or fork before CUDA is first used)",
      what, process_, getpid()));
}

namespace {

constexpr std::size_t kMost = 4096;

// The first bytes of a file of /proc; "" if it cannot be read.
std::string read_begin(const std::string& path) {
  std::string text(kMost, '\0');
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t count = descriptor < 0 ? 0 : read(descriptor, text.data(), text.size());
  if (descriptor >= 0) close(descriptor);
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return text;
}

}  // namespace

// The second field is a name in brackets, which may have spaces and brackets; the start is the 22nd.
std::optional<std::uint64_t> process_start(pid_t process) {
  const std::string stat = read_begin(formatted("/proc/{}/stat", process));
  std::size_t at = stat.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  if (at == std::string::npos) return std::nullopt;
  std::uint64_t start = 0;
  const char* const begin = stat.data() + at + 1;
  const auto [end, error] = std::from_chars(begin, stat.data() + stat.size(), start);
  return error == std::errc{} ? std::optional(start) : std::nullopt;
}

std::uint64_t pid_namespace() {
  struct stat space {};
  return stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
}

std::string process_command() {
  std::string words = read_begin("/proc/self/cmdline");
  while (!words.empty() && words.back() == '\0') words.pop_back();
  std::ranges::replace(words, '\0', ' ');
  return words;
}

CACHALOT_END
