#include "pytorch/plug/garbage.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "cachalot/stats.h"
#include "pytorch/plug/python_api.h"

namespace cachalot {
namespace {

constexpr std::chrono::seconds kPatience{5};

std::atomic<bool> is_collecting{true};

// Returns the bytes freed until now, which no allocation changes: other threads and __del__ may allocate meanwhile.
std::int64_t freed_bytes(const CachingAllocator& allocator) {
  std::int64_t bytes = 0;
  for (int device = 0; device < allocator.device_count(); ++device)
    bytes += allocator.memory_stats(device).allocated_bytes.all.freed;
  return bytes;
}

// Needs the GIL. PyGC_Collect would do nothing in programs that have turned automatic collections off.
void collect(const Python& python) {
  PythonObject* const module = python.import("gc");
  PythonObject* const collected = module != nullptr ? python.call_method(module, "collect", nullptr) : nullptr;
  python.clear();
  for (PythonObject* each : {collected, module}) {
    if (each != nullptr) python.decrement(each);
  }
}

// Collects on a thread of its own, which stays behind where the wait ends first.
void collect_elsewhere(const Python& python) {
  struct Done {
    std::mutex mutex;
    std::condition_variable signal;
    bool is_done = false;
  };
  const auto done = std::make_shared<Done>();
  std::thread([done, &python] {
    {
      const Python::Attachment attachment(python);
      if (attachment.is_given()) collect(python);
    }
    const std::lock_guard<std::mutex> lock(done->mutex);
    done->is_done = true;
    done->signal.notify_one();
  }).detach();
  std::unique_lock<std::mutex> lock(done->mutex);
  done->signal.wait_for(lock, kPatience, [&] { return done->is_done; });
}

}  // namespace

bool collect_python_garbage(const CachingAllocator& allocator) {
  const Python* const python = is_collecting.load() ? Python::instance() : nullptr;
  if (python == nullptr) return false;
  const std::int64_t before = freed_bytes(allocator);
  const Python::Permission permission(*python, /*may_take_gil=*/false);
  if (permission.is_given()) {
    const Python::RaisedException raised(*python);
    collect(*python);
  } else {
    try {
      collect_elsewhere(*python);
    } catch (const std::system_error&) {  // there is no room for a thread
      return false;
    }
  }
  return freed_bytes(allocator) > before;
}

void set_collecting(bool on) noexcept { is_collecting.store(on); }

}  // namespace cachalot
