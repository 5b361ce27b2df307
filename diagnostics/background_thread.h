// A BackgroundThread repeats a step of work that no thread waits for. The thread starts when there is first something
// to do, sleeps while there is nothing, and ends with its object. It handles no signals.
//
// A forked child does not have the thread, and starts none. When the process exits, the thread makes no further step: the
// driver may be gone.
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "base/process.h"

CACHALOT_BEGIN

// Returns the time of a clock in nanoseconds: that of Unix, or the processor time of the thread, say.
inline std::int64_t now_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

class BackgroundThread : private ForkAware {
 public:
  // Returns the pause after which the step is to be repeated, or nullopt: only after the next wake(). An exception ends
  // the thread permanently.
  using Step = std::function<std::optional<std::chrono::microseconds>()>;

  explicit BackgroundThread(Step step) : step_(std::move(step)) {}
  ~BackgroundThread();
  BackgroundThread(const BackgroundThread&) = delete;
  BackgroundThread& operator=(const BackgroundThread&) = delete;

  // There is something to do. Starts the thread if there is none yet; does nothing if the system has no room for one.
  void wake();
  // Waits until the step under way has ended; no other begins.
  void stop();

 private:
  void on_fork() noexcept override;
  void start();
  void run();
  void sleep(std::unique_lock<std::mutex>& lock, std::optional<std::chrono::microseconds> pause);

  const Step step_;
  std::mutex mutex_;  // guards what follows; not held during a step
  std::condition_variable changed_;
  bool is_woken_ = false;
  bool ends_ = false;
  std::optional<pthread_t> thread_;  // no std::thread: a forked child could neither join nor destroy it
};

CACHALOT_END
