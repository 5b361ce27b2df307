// Memory that sleeps and wakes: with `save` the same bits are there, and a graph whose pool slept replays as before.
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "bench/gpu/cuda_calls.h"
#include "bench/gpu/report.h"
#include "cachalot/caching_allocator.h"

namespace cachalot::gpu {
namespace {

constexpr PoolId kPool{7, 0};

struct Block {
  void* memory;
  std::size_t bytes;
};

std::vector<Block> allocate_tagged(CachingAllocator& allocator, Stream stream, std::size_t block_bytes,
                                   std::size_t count) {
  std::vector<Block> blocks;
  allocator.begin_tagged("weights");
  for (std::size_t i = 0; i < count; ++i) blocks.push_back({allocator.allocate(block_bytes, 0, stream), block_bytes});
  allocator.end_tagged("weights");
  return blocks;
}

void fill_all(Stream stream, const std::vector<Block>& blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    fill(stream, words_at(blocks[i].memory, blocks[i].bytes), static_cast<Word>(i * 77));
  }
}

void check_all(Stream stream, const std::vector<Block>& blocks, const WrongWords& wrong) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    check(stream, words_at(blocks[i].memory, blocks[i].bytes), static_cast<Word>(i * 77), wrong.on_device());
  }
}

// While the memory sleeps, others use the device's memory, so that what wakes is not what went to sleep.
void disturb(CachingAllocator& allocator, Stream stream, std::size_t bytes) {
  void* const memory = allocator.allocate(bytes, 0, stream);
  fill(stream, words_at(memory, bytes), 0xdeadbeef);
  allocator.deallocate(memory);
  allocator.empty_cache();
}

void sleep_with_weights(const Effort& effort, std::size_t block_bytes) {
  const std::string name = "weights/blocks of " + std::to_string(block_bytes >> 10) + " KiB";
  const std::size_t bytes = effort.is_quick ? 256 * kMiB : 4 * kGiB;
  const double gib = static_cast<double>(bytes) / kGiB;
  CachingAllocator allocator({cuda_devices().at(0)}, parse_options("heap:pages"));
  const OwnStream stream;
  const WrongWords wrong;
  const std::vector<Block> blocks = allocate_tagged(allocator, stream, block_bytes, bytes / block_bytes);
  fill_all(stream, blocks);
  stream.synchronize();
  const std::size_t awake = allocator.memory_reserved();
  const double sleep_us = microseconds_of([&] { allocator.release_physical("weights", /*save=*/true); });
  const std::size_t asleep = allocator.memory_reserved();
  disturb(allocator, stream, bytes / 2);
  const double wake_us = microseconds_of([&] { allocator.restore_physical("weights"); });
  check_all(stream, blocks, wrong);
  const std::uint64_t wrong_words = wrong.read();
  fact(name + "/sleep", sleep_us / 1e3 / gib, "ms a GiB, saved");
  fact(name + "/wake", wake_us / 1e3 / gib, "ms a GiB, saved");
  check(name + "/given_back", awake - asleep >= bytes, std::to_string((awake - asleep) >> 20) + " MiB were given back");
  check_content(name + "/content", wrong_words);
  const double drop_us = microseconds_of([&] { allocator.release_physical("weights"); });
  const double again_us = microseconds_of([&] { allocator.restore_physical("weights"); });
  fact(name + "/drop", drop_us / 1e3 / gib, "ms a GiB, not saved");
  fact(name + "/bring", again_us / 1e3 / gib, "ms a GiB, not saved");
  for (const Block& block : blocks) allocator.deallocate(block.memory);
}

void sleep_with_large_blocks(const Effort& effort) { sleep_with_weights(effort, 256 * kMiB); }
void sleep_with_small_blocks(const Effort& effort) { sleep_with_weights(effort, 64 << 10); }

// A graph that writes its result through memory of its pool.
class Graph {
 public:
  explicit Graph(CachingAllocator& allocator) : allocator_(allocator), result_(allocator.allocate(kBytes, 0, stream_)) {
    const cudaStream_t stream = stream_;
    allocator_.begin_allocate_to_pool(
        0, kPool, [stream](Stream each) { return each == stream; }, RedirectFor::capture);
    require("cudaStreamBeginCapture", cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    scratch_ = allocator_.allocate(kBytes, 0, stream_);
    fill(stream_, words_at(scratch_, kBytes), 42);
    require("cudaMemcpyAsync", cudaMemcpyAsync(result_, scratch_, kBytes, cudaMemcpyDeviceToDevice, stream_));
    cudaGraph_t graph = nullptr;
    require("cudaStreamEndCapture", cudaStreamEndCapture(stream_, &graph));
    allocator_.end_allocate_to_pool(0, kPool);
    require("cudaGraphInstantiate", cudaGraphInstantiate(&executable_, graph, 0));
    cudaGraphDestroy(graph);
  }
  ~Graph() {
    cudaGraphExecDestroy(executable_);
    allocator_.deallocate_when_possible(scratch_);
    allocator_.deallocate_when_possible(result_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void replay(const WrongWords& wrong) const {
    fill(stream_, words_at(result_, kBytes), 0);
    require("cudaGraphLaunch", cudaGraphLaunch(executable_, stream_));
    check(stream_, words_at(result_, kBytes), 42, wrong.on_device());
    stream_.synchronize();
  }
  cudaStream_t stream() const { return stream_; }

 private:
  static constexpr std::size_t kBytes = 64 * kMiB;

  CachingAllocator& allocator_;
  const OwnStream stream_;
  void* const result_;
  void* scratch_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

void sleep_with_a_graph(const Effort& effort) {
  CachingAllocator allocator({cuda_devices().at(0)}, parse_options("heap:pages"));
  const WrongWords wrong;
  {
    const Graph graph(allocator);
    graph.replay(wrong);
    for (std::uint64_t round = 0; round < effort.rounds(20, 2); ++round) {
      allocator.release_physical(kPool, /*save=*/round % 2 == 0);
      disturb(allocator, graph.stream(), 128 * kMiB);
      allocator.restore_physical(kPool);
      graph.replay(wrong);
    }
  }
  allocator.release_pool(0, kPool);
  const std::string broken = allocator.validate();
  check("graph/tables", broken.empty(), broken.empty() ? "sound" : broken);
  check_content("graph/content", wrong.read());
}

}  // namespace
}  // namespace cachalot::gpu

int main(int argc, char** argv) {
  using namespace cachalot::gpu;
  return parts_main(argc, argv,
                    {{"large_blocks", sleep_with_large_blocks},
                     {"small_blocks", sleep_with_small_blocks},
                     {"graph", sleep_with_a_graph}});
}
