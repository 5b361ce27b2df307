#include "tools/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace cachalot::tools {

int processors() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

void run_in_parallel(std::size_t count, int threads, const std::function<void(std::size_t)>& job) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::map<std::size_t, std::exception_ptr> failures;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        job(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failures[i] = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::jthread> workers;  // joined whatever happens
  for (std::size_t i = 0; i < std::min(count, static_cast<std::size_t>(threads)); ++i) workers.emplace_back(work);
  workers.clear();
  if (!failures.empty()) std::rethrow_exception(failures.begin()->second);
}

}  // namespace cachalot::tools
