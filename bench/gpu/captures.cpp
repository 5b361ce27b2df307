// Captures, while other threads allocate, free what they have lent, make the page heap grow, and use pinned host memory: is the
// capture whole, and does its replay do the captured work? Both with an allocator that was told of the capture and with one
// that was not, because the stream has none of its memory.
#include <cuda_runtime_api.h>

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bench/gpu/cuda_calls.h"
#include "bench/gpu/report.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/pinned_host_allocator.h"

namespace cachalot::gpu {
namespace {

constexpr std::size_t kBytes = 4 * kMiB;
constexpr PoolId kPool{7, 0};

// Threads that use the allocators until they are told to stop.
class Others {
 public:
  Others(CachingAllocator& allocator, PinnedHostAllocator& pinned) : allocator_(allocator), pinned_(pinned) {
    start([this] { allocate_and_lend(); });
    start([this] { allocate_and_lend(); });
    start([this] { copy_by_pinned_memory(); });
  }
  ~Others() { stop(); }
  Others(const Others&) = delete;
  Others& operator=(const Others&) = delete;

  // Returns the error of a thread; "" if there was none.
  std::string stop() {
    must_stop_ = true;
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
    return failure_;
  }
  // Returns when threads have gone round some more times.
  void wait_for_a_round() {
    loans_left_ = kLoans;
    const int before = rounds_;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (rounds_ < before + 6 && running_ > 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  }

 private:
  static constexpr int kLoans = 40;

  void start(std::function<void()> work) {
    ++running_;
    threads_.emplace_back([this, work = std::move(work)] {
      try {
        require("cudaSetDevice", cudaSetDevice(0));
        work();
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex_);
        if (failure_.empty()) failure_ = error.what();
      }
      --running_;
    });
  }

  // Memory that is lent and freed stays away until the capture ends: without a limit it would be all memory.
  bool may_lend() { return loans_left_.fetch_sub(1) > 0; }

  void allocate_and_lend() {
    const OwnStream own;
    const OwnStream other;
    std::mt19937 random(static_cast<unsigned>(running_));
    while (!must_stop_) {
      std::vector<void*> live;
      for (int i = 0; i < 20; ++i) {
        const std::size_t bytes = (random() % 8 + 1) * kMiB;
        live.push_back(allocator_.allocate(bytes, 0, own));
        fill(own, words_at(live.back(), bytes), 1);
        if (i % 2 == 0 && may_lend()) allocator_.record_stream(live.back(), other);
      }
      for (void* each : live) allocator_.deallocate(each);
      ++rounds_;
    }
  }

  void copy_by_pinned_memory() {
    const OwnStream own;
    void* const to = allocator_.allocate(kBytes, 0, own);
    while (!must_stop_) {
      void* const from = pinned_.allocate(kBytes);
      require("cudaMemcpyAsync", cudaMemcpyAsync(to, from, kBytes, cudaMemcpyHostToDevice, own));
      pinned_.record_stream(from, own);
      pinned_.deallocate(from);
      ++rounds_;
    }
    allocator_.deallocate(to);
  }

  CachingAllocator& allocator_;
  PinnedHostAllocator& pinned_;
  std::atomic<bool> must_stop_{false};
  std::atomic<int> running_{0};
  std::atomic<int> rounds_{0};
  std::atomic<int> loans_left_{kLoans};
  std::mutex mutex_;
  std::string failure_;
  std::vector<std::thread> threads_;
};

struct Case {
  const char* heap;
  const char* mode_name;
  cudaStreamCaptureMode mode;
  bool is_told;

  std::string name() const {
    return std::string("captures/") + heap + "/" + mode_name + (is_told ? "/told" : "/not told");
  }
};

// A graph that fills memory and copies it to where it is checked.
class Captured {
 public:
  Captured(CachingAllocator& allocator, const Case& of) : allocator_(allocator), case_(of) {
    const cudaStream_t owner = case_.is_told ? static_cast<cudaStream_t>(stream_) : static_cast<cudaStream_t>(lender_);
    result_ = allocator_.allocate(kBytes, 0, owner);
    input_ = allocator_.allocate(kBytes, 0, owner);
  }
  ~Captured() {
    if (executable_) cudaGraphExecDestroy(executable_);
    allocator_.deallocate_when_possible(result_);
    allocator_.deallocate_when_possible(input_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  cudaError_t capture(Others& others) {
    if (case_.is_told) {
      const cudaStream_t stream = stream_;
      allocator_.begin_allocate_to_pool(
          0, kPool, [stream](Stream each) { return each == stream; }, RedirectFor::capture);
    }
    require("cudaStreamBeginCapture", cudaStreamBeginCapture(stream_, case_.mode));
    queue_work(others);
    cudaGraph_t graph = nullptr;
    const cudaError_t end = cudaStreamEndCapture(stream_, &graph);
    if (case_.is_told) allocator_.end_allocate_to_pool(0, kPool);
    if (end != cudaSuccess) {
      cudaGetLastError();
      return end;
    }
    const cudaError_t made = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    return made;
  }

  std::uint64_t wrong_words_of_replays(int replays) const {
    for (int i = 0; i < replays; ++i) {
      const Word seed = static_cast<Word>(i) * 1'000'003;
      fill(stream_, words_at(input_, kBytes), seed);
      require("cudaGraphLaunch", cudaGraphLaunch(executable_, stream_));
      check(stream_, words_at(result_, kBytes), seed, wrong_.on_device());
    }
    stream_.synchronize();
    return wrong_.read();
  }

  void end_pool() {
    if (case_.is_told) allocator_.release_pool(0, kPool);
  }

 private:
  // The graph allocates nothing without a pool, as no code may then.
  void queue_work(Others& others) {
    void* const scratch = case_.is_told ? allocator_.allocate(kBytes, 0, stream_) : nullptr;
    others.wait_for_a_round();
    if (scratch) {
      copy(scratch, input_);
      copy(result_, scratch);
      allocator_.deallocate(scratch);
    } else {
      copy(result_, input_);
    }
    others.wait_for_a_round();
  }
  void copy(void* to, const void* from) {
    require("cudaMemcpyAsync", cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream_));
  }

  CachingAllocator& allocator_;
  const Case case_;
  const OwnStream stream_;
  const OwnStream lender_;
  const WrongWords wrong_;
  void* result_ = nullptr;
  void* input_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

void capture_beside_others(const Case& of) {
  const auto device = cuda_devices().at(0);
  CachingAllocator allocator({device}, parse_options(std::string("heap:") + of.heap));
  PinnedHostAllocator pinned(device);
  Captured captured(allocator, of);
  Others others(allocator, pinned);
  others.wait_for_a_round();
  const cudaError_t end = captured.capture(others);
  const std::string failure = others.stop();
  check(of.name() + "/capture", end == cudaSuccess, name_of(end));
  check(of.name() + "/others", failure.empty(), failure.empty() ? "no call failed" : failure);
  if (end == cudaSuccess) check_content(of.name() + "/replays", captured.wrong_words_of_replays(100));
  require("cudaDeviceSynchronize", cudaDeviceSynchronize());
  captured.end_pool();
}

void capture(const Effort& effort) {
  for (const char* heap : {"segments", "pages"}) {
    for (const bool is_told : {true, false}) {
      for (const auto& [name, mode] : {std::pair{"global", cudaStreamCaptureModeGlobal},
                                       std::pair{"thread_local", cudaStreamCaptureModeThreadLocal},
                                       std::pair{"relaxed", cudaStreamCaptureModeRelaxed}}) {
        for (std::uint64_t i = 0; i < effort.rounds(5, 1); ++i) {
          const Case each = {heap, name, mode, is_told};
          try {
            capture_beside_others(each);
          } catch (const std::exception& error) {
            check(each.name(), false, error.what());
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace cachalot::gpu

int main(int argc, char** argv) {
  using namespace cachalot::gpu;
  return parts_main(argc, argv, {{"captures", capture}});
}
