#include "simulator/end_of_process.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace cachalot::simulator {

std::atomic<int> ending_thread{0};

void hold_other_threads_at_end() {
  [[maybe_unused]] static const int registered = std::atexit([] { ending_thread = gettid(); });
}

void wait_for_end() {
  if (ending_thread == gettid()) return;
  std::this_thread::sleep_for(std::chrono::seconds(5));
}

}  // namespace cachalot::simulator
