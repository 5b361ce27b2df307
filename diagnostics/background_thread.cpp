#include "diagnostics/background_thread.h"

#include <atomic>
#include <cstdlib>
#include <exception>
#include <thread>

CACHALOT_BEGIN

namespace {

// The steps of all threads of the process. At exit no other begins, and exit() waits for those under way, for a tenth of
// a second at most: its caller may hold a lock that a step waits for.
class Steps {
 public:
  static bool begin() {
    under_way.fetch_add(1);
    if (!process_exits.load()) return true;
    end();
    return false;
  }
  static void end() { under_way.fetch_sub(1); }

  // Handlers of atexit run in the reverse order: this one before the driver's, which was initialized before.
  static void end_at_exit() {
    static const int registered = std::atexit(await_last);
    static_cast<void>(registered);
  }

 private:
  static void await_last() {
    process_exits.store(true);
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    while (under_way.load() != 0 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
  }

  static inline std::atomic<int> under_way{0};
  static inline std::atomic<bool> process_exits{false};
};

}  // namespace

BackgroundThread::~BackgroundThread() { stop(); }

void BackgroundThread::wake() {
  if (is_inherited()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  is_woken_ = true;
  if (!thread_ && !ends_) start();
  changed_.notify_one();
}

void BackgroundThread::start() {
  Steps::end_at_exit();
  const BlockedSignals blocked;
  const auto run_it = [](void* self) -> void* {
    static_cast<BackgroundThread*>(self)->run();
    return nullptr;
  };
  pthread_t thread;
  if (pthread_create(&thread, nullptr, run_it, this) != 0) {  // no room for a thread: no work depends on it
    ends_ = true;
    return;
  }
  pthread_setname_np(thread, "cachalot");
  thread_ = thread;
}

void BackgroundThread::stop() {
  if (is_inherited()) return;
  std::optional<pthread_t> thread;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
    thread = std::exchange(thread_, std::nullopt);
    changed_.notify_one();
  }
  if (thread) pthread_join(*thread, nullptr);
}

void BackgroundThread::on_fork() noexcept { thread_.reset(); }

void BackgroundThread::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  std::optional<std::chrono::microseconds> pause;
  while (true) {
    sleep(lock, pause);
    if (ends_) return;
    is_woken_ = false;
    lock.unlock();
    if (!Steps::begin()) return;
    bool has_failed = false;
    try {
      pause = step_();
    } catch (const std::exception&) {
      has_failed = true;
    }
    Steps::end();
    lock.lock();
    ends_ = ends_ || has_failed;
  }
}

void BackgroundThread::sleep(std::unique_lock<std::mutex>& lock, std::optional<std::chrono::microseconds> pause) {
  if (!pause) return changed_.wait(lock, [this] { return is_woken_ || ends_; });
  changed_.wait_for(lock, *pause, [this] { return ends_; });
}

CACHALOT_END
