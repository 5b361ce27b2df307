#include "simulator/ending_signals.h"

#include <semaphore.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <thread>

#include "base/blocked_signals.h"

namespace cachalot::simulator {
namespace {

pid_t owner = 0;  // a forked child inherits the handler, and not the thread
sem_t arrived;
std::atomic<int> ending{0};        // the signal that arrived
std::atomic<bool> is_sent{false};  // again, by the thread, and now it ends the process

void end_by(int number) {
  std::signal(number, SIG_DFL);
  kill(getpid(), number);
}

// The interrupted thread waits for the report, but not for long: it may hold a lock that the report needs.
void wait_for_the_report() {
  constexpr timespec kTick{.tv_sec = 0, .tv_nsec = 1'000'000};
  constexpr int kMostTicks = 200;
  for (int tick = 0; tick < kMostTicks && !is_sent; ++tick) nanosleep(&kTick, nullptr);
}

void handle(int number) {
  const int error = errno;
  if (getpid() != owner) {
    end_by(number);
  } else {
    int none = 0;
    if (ending.compare_exchange_strong(none, number)) sem_post(&arrived);  // the first of several
    wait_for_the_report();
  }
  errno = error;
}

void install(int number) {
  struct sigaction before {};
  if (sigaction(number, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return;
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  sigaction(number, &action, nullptr);
}

void serve(void (*write)()) {
  while (sem_wait(&arrived) != 0) {
  }
  write();
  end_by(ending);
  is_sent = true;
}

}  // namespace

void write_before_ending_signals(void (*write)()) {
  owner = getpid();
  sem_init(&arrived, /*pshared=*/0, 0);
  {
    const BlockedSignals blocked;
    std::thread(serve, write).detach();
  }
  install(SIGTERM);
  install(SIGINT);
}

}  // namespace cachalot::simulator
