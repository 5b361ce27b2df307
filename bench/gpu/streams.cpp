// Streams that end, handles of streams that come again, words that streams write when they are done, and what waits for them.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/gpu/child.h"
#include "bench/gpu/cuda_calls.h"
#include "bench/gpu/report.h"
#include "cachalot/caching_allocator.h"
#include "device/cuda_device.h"

namespace cachalot::gpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  require("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

// ---- Dead streams -------------------------------------------------------------------------------------------------------

// A heap has served a stream, all of whose work was done and all of whose memory was freed when it was destroyed.
int allocate_after_a_stream_has_gone(const std::vector<std::string>& arguments) {
  CachingAllocator allocator({cuda_devices().at(0)}, parse_options("heap:" + arguments.at(0)));
  for (int round = 0; round < 20; ++round) {
    const cudaStream_t gone = new_stream();
    const OwnStream other;
    void* const used = allocator.allocate(24 * kMiB, 0, gone);
    void* const lent = allocator.allocate(8 * kMiB, 0, other);
    fill(gone, words_at(used, 24 * kMiB), 1);
    allocator.record_stream(lent, gone);
    allocator.deallocate(used);
    allocator.deallocate(lent);
    require("cudaStreamSynchronize", cudaStreamSynchronize(gone));
    require("cudaStreamDestroy", cudaStreamDestroy(gone));
    std::vector<void*> live;
    for (std::size_t i = 1; i <= 50; ++i) live.push_back(allocator.allocate(i * kMiB, 0, other));
    for (void* each : live) allocator.deallocate(each);
    other.synchronize();
  }
  require("cudaDeviceSynchronize", cudaDeviceSynchronize());
  const std::string broken = allocator.validate();
  std::printf("%s\n", broken.empty() ? "1,000 allocations on another stream" : broken.c_str());
  return broken.empty() ? 0 : 1;
}

// Records on a dead stream in CUDA alone, to know the result that a heap would meet: a code, or a crash.
int record_on_a_dead_stream(const std::vector<std::string>& arguments) {
  const OwnEvent event;
  const cudaStream_t stream = new_stream();
  require("cudaStreamSynchronize", cudaStreamSynchronize(stream));
  require("cudaStreamDestroy", cudaStreamDestroy(stream));
  std::vector<void*> others;  // so that something else lies where the stream lay
  for (int i = 0; i < std::stoi(arguments.at(0)); ++i)
    others.push_back(std::malloc(64 + 16 * (static_cast<std::size_t>(i) % 200)));
  const cudaError_t result = cudaEventRecord(event, stream);
  std::printf("cudaEventRecord: %s\n", name_of(result).c_str());
  for (void* each : others) std::free(each);
  return 0;
}

void use_dead_streams(const Effort&) {
  for (const char* mallocs : {"0", "100", "5000"}) {
    fact(std::string("dead/cuda after ") + mallocs + " mallocs", run_child({"record", mallocs}).text());
  }
  for (const char* heap : {"segments", "pages"}) {
    const ChildEnd end = run_child({"allocate_after", heap});
    check(std::string("dead/") + heap, end.succeeded(), end.text());
  }
}

// ---- Handles that come again ---------------------------------------------------------------------------------------------

// A stream is destroyed while its kernel still runs, and writes. Memory that was freed on it is allocated on a new stream, which may
// have the same handle, and filled there: the old kernels must not write behind the new ones.
int reuse_a_handle(const std::vector<std::string>& arguments) {
  CachingAllocator allocator({cuda_devices().at(0)}, parse_options("heap:" + arguments.at(0)));
  const WrongWords wrong;
  int same_handles = 0;
  int same_addresses = 0;
  constexpr std::size_t kBytes = 32 * kMiB;
  for (Word round = 0; round < 10; ++round) {
    const cudaStream_t old_stream = new_stream();
    void* const before = allocator.allocate(kBytes, 0, old_stream);
    run_for(old_stream, milliseconds(100));
    fill(old_stream, words_at(before, kBytes), 2 * round);
    allocator.deallocate(before);
    require("cudaStreamDestroy", cudaStreamDestroy(old_stream));
    const OwnStream new_one;
    same_handles += static_cast<cudaStream_t>(new_one) == old_stream;
    void* const after = allocator.allocate(kBytes, 0, new_one);
    same_addresses += before == after;
    fill(new_one, words_at(after, kBytes), 2 * round + 1);
    require("cudaDeviceSynchronize", cudaDeviceSynchronize());
    check(new_one, words_at(after, kBytes), 2 * round + 1, wrong.on_device());
    allocator.deallocate(after);
    new_one.synchronize();
  }
  const std::uint64_t wrong_words = wrong.read();
  std::printf("%d of 10 handles came again, %d of 10 blocks; %llu wrong words\n", same_handles, same_addresses,
              static_cast<unsigned long long>(wrong_words));
  return wrong_words == 0 ? 0 : 3;
}

void reuse_handles(const Effort&) {
  for (const char* heap : {"segments", "pages"}) {
    const std::string name = std::string("reused/") + heap;
    const ChildEnd end = run_child({"reuse", heap});
    fact(name, end.text());
    if (is_simulated() && end.succeeded()) {
      not_applicable(name, kSimulated);
    } else {
      check(name, end.succeeded(), end.text());
    }
  }
}

// ---- Completion words ------------------------------------------------------------------------------------------------------

struct KindOfStream {
  std::string name;
  cudaStream_t stream = nullptr;
};

std::vector<KindOfStream> kinds_of_streams() {
  std::vector<KindOfStream> kinds = {
      {"legacy default", nullptr}, {"non-blocking", new_stream()}, {"blocking"}, {"priority"}};
  require("cudaStreamCreate", cudaStreamCreate(&kinds[2].stream));
  int least = 0;
  int greatest = 0;
  require("cudaDeviceGetStreamPriorityRange", cudaDeviceGetStreamPriorityRange(&least, &greatest));
  require("cudaStreamCreateWithPriority",
          cudaStreamCreateWithPriority(&kinds[3].stream, cudaStreamNonBlocking, greatest));
  return kinds;
}

void destroy(const std::vector<KindOfStream>& kinds) {
  for (const KindOfStream& kind : kinds) {
    if (kind.stream) require("cudaStreamDestroy", cudaStreamDestroy(kind.stream));
  }
}

// CUDA's own calls, which a container or a sandbox may refuse.
void write_words(const Effort& effort) {
  constexpr std::size_t kPage = 4096;
  const std::unique_ptr<void, decltype(&std::free)> page(std::aligned_alloc(kPage, kPage), std::free);
  const cudaError_t registered = cudaHostRegister(page.get(), kPage, cudaHostRegisterMapped | cudaHostRegisterPortable);
  fact("words/cudaHostRegister", name_of(registered));
  if (registered != cudaSuccess) {
    cudaGetLastError();
    return not_applicable("words/written", "cudaHostRegister: " + name_of(registered));
  }
  void* on_device = nullptr;
  require("cudaHostGetDevicePointer", cudaHostGetDevicePointer(&on_device, page.get(), 0));
  auto* const word = static_cast<volatile std::uint64_t*>(page.get());
  const auto kinds = kinds_of_streams();
  const std::uint64_t writes = effort.rounds(2000, 20);
  std::uint64_t last = 0;
  std::string lost;
  for (const KindOfStream& kind : kinds) {
    *word = 0;
    for (std::uint64_t i = 1; i <= writes; ++i) {
      require("cuStreamWriteValue64", cuStreamWriteValue64(kind.stream, reinterpret_cast<CUdeviceptr>(on_device),
                                                           ++last, CU_STREAM_WRITE_VALUE_DEFAULT));
    }
    require("cudaStreamSynchronize", cudaStreamSynchronize(kind.stream));
    if (*word != last) lost += " " + kind.name;
  }
  destroy(kinds);
  require("cudaHostUnregister", cudaHostUnregister(page.get()));
  check("words/written", lost.empty(), lost.empty() ? "on each kind of stream" : "not written on:" + lost);
}

// Microseconds of a record; the queue is emptied now and then, outside of the time.
double record_us(Device& device, Event event, Stream stream, std::uint64_t records) {
  double us = 0;
  for (std::uint64_t i = 0; i < records; i += 100) {
    us += microseconds_of([&] {
      for (int j = 0; j < 100; ++j) device.event_record(event, stream);
    });
    require("cudaStreamSynchronize", cudaStreamSynchronize(stream));
  }
  return us / static_cast<double>((records + 99) / 100 * 100);
}

void measure_hints(const Effort& effort) {
  cuda_devices();
  CudaDevice with(0, {.completion_hints = true});
  CudaDevice without(0, {.completion_hints = false});
  const auto kinds = kinds_of_streams();
  for (const KindOfStream& kind : kinds) {
    for (CudaDevice* const device : {&without, &with}) {
      const Event event = device->event_create();
      const std::string name = "record/" + kind.name + (device == &with ? "/with hint" : "/without hint");
      fact(name, record_us(*device, event, kind.stream, effort.rounds(20'000, 100)), "us");
      device->event_destroy(event);
    }
  }
  const bool has_hints = with.completion_hint(nullptr).has_value();
  destroy(kinds);
  if (has_hints) return check("record", true, "the device has completion hints");
  not_applicable("record", "the device cannot write words: no completion hints");
}

// Returns whether a completion changes the word: otherwise a freed block would stay unused permanently.
bool is_told(CudaDevice& device, Event event, Stream stream) {
  const auto before = device.completion_hint(stream);
  device.event_record(event, stream);
  device.event_synchronize(event);
  const auto end = std::chrono::steady_clock::now() + seconds(1);
  while (device.completion_hint(stream) == before) {
    if (std::chrono::steady_clock::now() > end) return false;
  }
  return true;
}

void lose_no_hint(const Effort& effort) {
  cuda_devices();
  CudaDevice device(0, {.completion_hints = true});
  const OwnStream stream;
  const Event event = device.event_create();
  device.event_record(event, stream);  // gives the stream its word
  if (!device.completion_hint(stream)) return not_applicable("hints", "the device has no completion hints");
  const auto end = std::chrono::steady_clock::now() + effort.time(seconds(40));
  const std::uint64_t wanted = effort.rounds(10'000'000, 200);
  std::uint64_t records = 0;
  std::uint64_t lost = 0;
  while (records < wanted && std::chrono::steady_clock::now() < end && lost < 10) {
    ++records;
    lost += !is_told(device, event, stream);
  }
  device.event_destroy(event);
  check("hints", lost == 0, std::to_string(lost) + " lost of " + std::to_string(records) + " completions");
}

// ---- Calls that wait -------------------------------------------------------------------------------------------------------

void free_under_a_kernel(const Effort& effort) {
  const milliseconds kernel = effort.is_quick ? milliseconds(100) : milliseconds(2000);
  const OwnStream stream;
  void* memory = nullptr;
  require("cudaMalloc", cudaMalloc(&memory, 20 * kMiB));
  run_for(stream, kernel);
  fill(stream, words_at(memory, 20 * kMiB), 1);
  const double us = microseconds_of([&] { require("cudaFree", cudaFree(memory)); });
  const bool waited = !stream.is_busy();
  fact("waits/cudaFree", us / 1e6, "s under a kernel of " + std::to_string(kernel.count()) + " ms");
  check("waits/cudaFree", waited,
        waited ? "cudaFree returns after the work that uses the memory"
               : "cudaFree returned while a kernel used the memory");
  stream.synchronize();
}

// Checks the contract of Device::free in device.h, and segments of the cache with it.
void empty_the_cache_under_a_kernel(const Effort& effort) {
  const milliseconds kernel = effort.is_quick ? milliseconds(100) : milliseconds(2000);
  for (const char* heap : {"segments", "pages"}) {
    const OwnStream stream;
    CachingAllocator allocator({cuda_devices().at(0)}, parse_options(std::string("heap:") + heap));
    void* const memory = allocator.allocate(64 * kMiB, 0, stream);
    run_for(stream, kernel);
    fill(stream, words_at(memory, 64 * kMiB), 1);
    allocator.deallocate(memory);
    const double us = microseconds_of([&] { allocator.empty_cache(); });
    const bool waited = !stream.is_busy();
    const cudaError_t end = cudaStreamSynchronize(stream);
    check(std::string("waits/empty_cache/") + heap, waited && end == cudaSuccess,
          std::to_string(us / 1e6) + " s; the kernel ended with " + name_of(end));
  }
}

}  // namespace
}  // namespace cachalot::gpu

int main(int argc, char** argv) {
  using namespace cachalot::gpu;
  return parts_main(argc, argv,
                    {{"dead", use_dead_streams},
                     {"reused", reuse_handles},
                     {"words", write_words},
                     {"record", measure_hints},
                     {"hints", lose_no_hint},
                     {"free", free_under_a_kernel},
                     {"empty_cache", empty_the_cache_under_a_kernel}},
                    {{"record", record_on_a_dead_stream},
                     {"allocate_after", allocate_after_a_stream_has_gone},
                     {"reuse", reuse_a_handle}});
}
