#include "simulator/base/end_of_process.h"

#include <dlfcn.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "base/process.h"
#include "cachalot/simulator.h"
#include "simulator/base/requests_to_end.h"

namespace cachalot::simulator {

std::atomic<int> ending_thread{0};

void hold_other_threads_at_end() {
  [[maybe_unused]] static const int registered = std::atexit([] { ending_thread = gettid(); });
}

void wait_for_end() {
  if (ending_thread == gettid()) return;
  std::this_thread::sleep_for(std::chrono::seconds(5));
}

namespace {

pid_t owner = 0;  // a forked child inherits the handler, and not the thread
sem_t arrived;
std::atomic<int> ending{0};        // the signal that arrived
std::atomic<bool> is_done{false};  // by the thread: the report is written, and the signal is sent again
std::atomic<int> ended_with{-1};   // of exit() and _exit(): 0 to 255; -1 before
std::atomic<std::uintptr_t> faulted{0};
std::atomic<void (*)()> write_more{nullptr};
std::atomic<bool> is_served{false};  // in this process, or in one that has forked it

void end_by(int number) {
  if (number == request_to_end()) number = SIGKILL;
  std::signal(number, SIG_DFL);
  syscall(SYS_kill, getpid(), number);
}

// The interrupted thread waits for the report, but not for long: it may hold a lock that the report needs.
void wait_for_the_report(int most_ms) {
  constexpr timespec kTick{.tv_sec = 0, .tv_nsec = 1'000'000};
  for (int tick = 0; tick < most_ms && !is_done; ++tick) nanosleep(&kTick, nullptr);
}

void handle(int number, int most_ms) {
  if (getpid() != owner) return end_by(number);
  int none = 0;
  if (ending.compare_exchange_strong(none, number)) sem_post(&arrived);  // the first of several
  wait_for_the_report(most_ms);
}

void handle_request(int number, siginfo_t*, void*) {
  constexpr int kMostMs = 200;
  const int error = errno;
  handle(number, kMostMs);
  errno = error;
}

// The process that asks waits for the end. The thread goes on meanwhile: it may hold a lock that the report needs.
void handle_request_to_end(int number, siginfo_t*, void*) {
  const int error = errno;
  handle(number, /*most_ms=*/0);
  errno = error;
}

// The thread cannot go on, so that it waits longer; it dies also without a report.
void handle_fault(int number, siginfo_t* info, void*) {
  constexpr int kMostMs = 3000;
  if (info->si_code > 0) faulted = reinterpret_cast<std::uintptr_t>(info->si_addr);  // not sent by a process
  handle(number, kMostMs);
  end_by(number);
}

void install(int number, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction before {};
  if (sigaction(number, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return;
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigaction(number, &action, nullptr);
}

// In place of a handler in Python, which waits for the main thread, perhaps for as long as that runs code in C.
void take_requests() {
  struct sigaction action {};
  action.sa_sigaction = handle_request_to_end;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigaction(request_to_end(), &action, nullptr);
}

// Returns false if a second has passed without an end.
bool wait_for_an_end() {
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  ++until.tv_sec;
  while (sem_timedwait(&arrived, &until) != 0) {
    if (errno == ETIMEDOUT) return false;
  }
  return true;
}

void serve(void (*write)(bool is_final)) {
  while (!wait_for_an_end()) write(/*is_final=*/false);
  write(/*is_final=*/true);
  if (const auto more = write_more.load(); more != nullptr) more();
  if (ending != 0) end_by(ending);
  is_done = true;
}

}  // namespace

void write_before_sudden_end(void (*write)(bool is_final)) {
  owner = getpid();
  on_exit([](int code, void*) { ended_with = code & 0xff; }, nullptr);
  sem_init(&arrived, /*pshared=*/0, 0);
  {
    const BlockedSignals blocked;
    std::thread(serve, write).detach();
  }
  install(SIGTERM, handle_request);
  install(SIGINT, handle_request);
  install(SIGSEGV, handle_fault);
  is_served = true;
  take_requests();
}

void write_more_before_sudden_end(void (*write)()) {
  write_more = write;
  if (is_served && getpid() == owner) take_requests();
}

std::optional<int> exit_status() { return ended_with < 0 ? std::nullopt : std::optional(ended_with.load()); }

std::uintptr_t fault_address() { return faulted; }

namespace {

// The thread that writes would wait for Python's lock, which the caller has.
void write_more_here_if_necessary() {
  using Check = int (*)();
  const auto more = write_more.load();
  if (more == nullptr) return;
  const auto has_lock = reinterpret_cast<Check>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  if (has_lock != nullptr && has_lock() == 1) more();
}

// A child of vfork(), whose exec failed, has the memory of its parent, and must not write in its place.
bool is_to_write() { return getpid() == owner && !is_done; }

void write_now() {
  constexpr int kMostMs = 3000;
  constexpr int kMostMsWithMore = 10000;
  write_more_here_if_necessary();
  sem_post(&arrived);
  wait_for_the_report(write_more.load() == nullptr ? kMostMs : kMostMsWithMore);
}

[[noreturn]] void exit_at_once(int code) {
  if (is_to_write()) {
    ended_with = code & 0xff;
    write_now();
  }
  for (;;) syscall(SYS_exit_group, code);
}

}  // namespace

void write_before_kill() {
  if (is_to_write()) write_now();
}

}  // namespace cachalot::simulator

// In place of the C library's, which call no destructors: forked children of Python's multiprocessing end by the first, and workers of
// Ray by the second.

extern "C" CACHALOT_SIMULATOR_API void _exit(int code) { cachalot::simulator::exit_at_once(code); }

extern "C" CACHALOT_SIMULATOR_API void _Exit(int code) noexcept { cachalot::simulator::exit_at_once(code); }
