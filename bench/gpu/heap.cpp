// The heaps under load, and at the end of memory. Under load several threads fill blocks on their own streams, check them before
// they free them, and go on when memory is full: a page that two blocks share, or that is reused too early, is a wrong word.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cmath>
#include <exception>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bench/gpu/child.h"
#include "bench/gpu/cuda_calls.h"
#include "bench/gpu/report.h"
#include "cachalot/caching_allocator.h"
#include "device/cuda_device.h"

namespace cachalot::gpu {
namespace {

using std::chrono::seconds;

struct Block {
  void* memory = nullptr;
  std::size_t bytes = 0;
  Word seed = 0;
};

std::vector<std::shared_ptr<Device>> first_device(bool has_hints) {
  cuda_devices();  // initializes the driver
  return {std::make_shared<CudaDevice>(0, CudaDevice::Config{.completion_hints = has_hints})};
}

struct World {
  explicit World(bool has_hints) : devices(first_device(has_hints)), allocator(devices, parse_options("heap:pages")) {}

  const std::vector<std::shared_ptr<Device>> devices;
  CachingAllocator allocator;
  WrongWords wrong;
  std::atomic<std::uint64_t> blocks{0};
  std::atomic<std::uint64_t> times_full{0};
  std::atomic<std::size_t> most_reserved{0};
};

// A thread of the load, with a stream of its own and one that it lends blocks to.
class Worker {
 public:
  Worker(World& world, unsigned number, std::size_t largest) : world_(world), random_(number), largest_(largest) {}

  void work_until(std::chrono::steady_clock::time_point end) {
    while (std::chrono::steady_clock::now() < end) {
      if (!take_one()) give_back_a_half();
    }
    while (!blocks_.empty()) give_back(blocks_.size() - 1);
    own_.synchronize();
    other_.synchronize();
  }

 private:
  // Returns false if memory is full.
  bool take_one() {
    const std::size_t bytes = random_bytes();
    try {
      Block block = {world_.allocator.allocate(bytes, 0, own_), bytes, static_cast<Word>(random_())};
      fill(own_, words_at(block.memory, block.bytes), block.seed);
      blocks_.push_back(block);
      ++world_.blocks;
    } catch (const OutOfMemory&) {
      note_fullness();
      return false;
    }
    if (blocks_.size() > 64 && random_() % 2 == 0) give_back(random_() % blocks_.size());
    return true;
  }

  void note_fullness() {
    ++world_.times_full;
    const std::size_t reserved = world_.allocator.memory_reserved();
    std::size_t most = world_.most_reserved;
    while (reserved > most && !world_.most_reserved.compare_exchange_weak(most, reserved)) {
    }
  }

  void give_back_a_half() {
    for (std::size_t left = blocks_.size() / 2; blocks_.size() > left;) give_back(random_() % blocks_.size());
  }

  // Every fourth block is checked on the other stream.
  void give_back(std::size_t i) {
    const Block block = blocks_[i];
    blocks_[i] = blocks_.back();
    blocks_.pop_back();
    if (random_() % 4 == 0) {
      require("cudaEventRecord", cudaEventRecord(filled_, own_));
      require("cudaStreamWaitEvent", cudaStreamWaitEvent(other_, filled_, 0));
      check(other_, words_at(block.memory, block.bytes), block.seed, world_.wrong.on_device());
      world_.allocator.record_stream(block.memory, other_);
    } else {
      check(own_, words_at(block.memory, block.bytes), block.seed, world_.wrong.on_device());
    }
    world_.allocator.deallocate(block.memory);
  }

  // Returns small and large sizes equally often, by their order of magnitude.
  std::size_t random_bytes() {
    std::uniform_real_distribution<double> exponent(9, std::log2(static_cast<double>(largest_)));
    return static_cast<std::size_t>(std::exp2(exponent(random_))) / 4 * 4;
  }

  World& world_;
  std::mt19937 random_;
  const std::size_t largest_;
  const OwnStream own_;
  const OwnStream other_;
  const OwnEvent filled_;
  std::vector<Block> blocks_;
};

// The first exception of the threads; "" without one.
std::string run_workers(World& world, std::size_t largest, seconds duration) {
  std::string failure;
  std::mutex mutex;
  std::vector<std::thread> threads;
  const auto end = std::chrono::steady_clock::now() + duration;
  for (unsigned number = 1; number <= 8; ++number) {
    threads.emplace_back([&, number] {
      try {
        require("cudaSetDevice", cudaSetDevice(0));
        Worker(world, number, largest).work_until(end);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (failure.empty()) failure = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failure;
}

void load(const Effort& effort, bool has_hints) {
  const std::string name = has_hints ? "load/hints" : "load/no_hints";
  require("cudaFree", cudaFree(nullptr));
  World world(has_hints);
  const std::size_t free_bytes = world.devices[0]->memory_info().free_bytes;
  const std::string failure = run_workers(world, free_bytes / 256, effort.is_quick ? seconds(2) : seconds(45));
  const std::uint64_t wrong_words = world.wrong.read();
  const double fullness = static_cast<double>(world.most_reserved) / static_cast<double>(free_bytes);
  fact(name + "/blocks", static_cast<double>(world.blocks), "");
  fact(name + "/times_full", static_cast<double>(world.times_full), "");
  fact(name + "/fullness", 100 * fullness, "% of the memory that was free");
  check(name + "/ends", failure.empty(), failure.empty() ? "all threads ended" : failure);
  check(name + "/is_full", world.times_full > 0 && fullness >= 0.99, std::to_string(100 * fullness) + " % at the most");
  const std::string broken = world.allocator.validate();
  check(name + "/tables", broken.empty(), broken.empty() ? "sound" : broken);
  check_content(name + "/content", wrong_words, std::to_string(world.blocks) + " blocks");
}

void load_with_hints(const Effort& effort) { load(effort, true); }
void load_without_hints(const Effort& effort) { load(effort, false); }

// ---- The end of memory ------------------------------------------------------------------------------------------------

// Finds the first of the driver's own calls that fails, and its code.
void find_the_first_call_that_fails(const Effort&) {
  require("cudaFree", cudaFree(nullptr));
  const CUmemAllocationProp properties = allocation_properties();
  std::vector<CUmemGenericAllocationHandle> handles;
  const std::size_t bytes = 32 * kMiB;
  CUdeviceptr range = 0;
  const std::size_t range_bytes = std::size_t{1} << 40;
  require("cuMemAddressReserve", cuMemAddressReserve(&range, range_bytes, 0, 0, 0));
  std::string end;
  std::size_t mapped = 0;
  while (end.empty()) {
    CUmemGenericAllocationHandle handle = 0;
    if (const CUresult result = cuMemCreate(&handle, bytes, &properties, 0); result != CUDA_SUCCESS) {
      end = "cuMemCreate " + name_of(result);
      break;
    }
    handles.push_back(handle);
    if (const CUresult result = cuMemMap(range + mapped, bytes, 0, handle, 0); result != CUDA_SUCCESS) {
      end = "cuMemMap " + name_of(result);
      break;
    }
    mapped += bytes;
    try {
      open_access(range + mapped - bytes, bytes);
    } catch (const std::exception& error) {
      end = error.what();
    }
  }
  if (mapped > 0) require("cuMemUnmap", cuMemUnmap(range, mapped));
  for (const CUmemGenericAllocationHandle handle : handles) require("cuMemRelease", cuMemRelease(handle));
  require("cuMemAddressFree", cuMemAddressFree(range, range_bytes));
  fact("first_failure", end + " after " + std::to_string(handles.size()) + " handles of 32 MiB");
  const bool is_out_of_memory = end.find("CUDA_ERROR_OUT_OF_MEMORY") != std::string::npos;
  check("first_failure", is_out_of_memory, end);
}

// Returns the error that ends a series of allocations: "" for OutOfMemory.
std::string fill_up(CachingAllocator& allocator, Stream stream, std::size_t bytes, std::vector<Block>& blocks) {
  try {
    for (;;) {
      blocks.push_back({allocator.allocate(bytes, 0, stream), bytes, static_cast<Word>(blocks.size())});
      fill(stream, words_at(blocks.back().memory, bytes), blocks.back().seed);
    }
  } catch (const OutOfMemory&) {
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

void reach_the_end(const std::string& heap) {
  const std::string name = "end/" + heap;
  const OwnStream stream;
  const WrongWords wrong;
  CachingAllocator allocator({cuda_devices().at(0)}, parse_options("heap:" + heap));
  std::string failure;
  for (const std::size_t bytes : {512 * kMiB, 3 * kMiB, 64 * kMiB}) {  // the second size takes what the first left
    std::vector<Block> blocks;
    if (const std::string end = fill_up(allocator, stream, bytes, blocks); !end.empty()) failure = end;
    for (const Block& block : blocks) {
      check(stream, words_at(block.memory, block.bytes), block.seed, wrong.on_device());
    }
    for (std::size_t i = 0; i < blocks.size(); i += 2) allocator.deallocate(blocks[i].memory);
    for (std::size_t i = 1; i < blocks.size(); i += 2) allocator.deallocate(blocks[i].memory);
  }
  check(name + "/error", failure.empty(), failure.empty() ? "OutOfMemory each time" : failure);
  check_content(name + "/content", wrong.read());
  void* const again = allocator.allocate(kGiB, 0, stream);
  fill(stream, words_at(again, kGiB), 1);
  check(stream, words_at(again, kGiB), 1, wrong.on_device());
  check_content(name + "/afterwards", wrong.read());
  allocator.deallocate(again);
  allocator.empty_cache();
  check(name + "/returned", allocator.memory_reserved() == 0,
        std::to_string(allocator.memory_reserved()) + " bytes are held after empty_cache");
}

void reach_the_end_of_segments(const Effort&) { reach_the_end("segments"); }
void reach_the_end_of_pages(const Effort&) { reach_the_end("pages"); }

// In the child: takes and gives back memory for a while.
int take_memory(const std::vector<std::string>& arguments) {
  const auto end = std::chrono::steady_clock::now() + seconds(std::stoi(arguments.at(0)));
  while (std::chrono::steady_clock::now() < end) {
    std::vector<void*> taken;
    void* memory = nullptr;
    while (cudaMalloc(&memory, 256 * kMiB) == cudaSuccess) taken.push_back(memory);
    cudaGetLastError();
    for (void* each : taken) require("cudaFree", cudaFree(each));
  }
  return 0;
}

void share_the_end_with_another_process(const Effort& effort) {
  const seconds duration = effort.is_quick ? seconds(1) : seconds(8);
  const OwnStream stream;
  const WrongWords wrong;
  const seconds start_time = effort.is_quick ? seconds(0) : seconds(3);  // for its context, while there is memory
  Child other({"take_memory", std::to_string((start_time + duration).count())});
  std::this_thread::sleep_for(start_time);
  CachingAllocator allocator({cuda_devices().at(0)}, parse_options("heap:pages"));
  std::string failure;
  int times_full = 0;
  const auto end = std::chrono::steady_clock::now() + duration;
  while (std::chrono::steady_clock::now() < end && failure.empty()) {
    std::vector<Block> blocks;
    failure = fill_up(allocator, stream, 192 * kMiB, blocks);
    ++times_full;
    for (const Block& block : blocks) {
      check(stream, words_at(block.memory, block.bytes), block.seed, wrong.on_device());
      allocator.deallocate(block.memory);
    }
    if (times_full % 2 == 0) allocator.empty_cache();
  }
  const ChildEnd child = other.wait();
  fact("end/shared/times_full", times_full, "");
  check("end/shared/error", failure.empty(), failure.empty() ? "OutOfMemory each time" : failure);
  check("end/shared/child", child.succeeded(), child.text());
  check_content("end/shared/content", wrong.read());
}

}  // namespace
}  // namespace cachalot::gpu

int main(int argc, char** argv) {
  using namespace cachalot::gpu;
  return parts_main(argc, argv,
                    {{"load_with_hints", load_with_hints},
                     {"load_without_hints", load_without_hints},
                     {"first_failure", find_the_first_call_that_fails},
                     {"end_of_segments", reach_the_end_of_segments},
                     {"end_of_pages", reach_the_end_of_pages},
                     {"end_beside_another_process", share_the_end_with_another_process}},
                    {{"take_memory", take_memory}});
}
