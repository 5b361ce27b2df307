// A program that ends, or loads libraries, in some way: `process_life_program SCENARIO [OPTIONS OF THE ALLOCATOR]`.
// It says nothing and ends with 0, or what the scenario asks for, unless something is wrong: then a line on stderr and 1.
#if CACHALOT_HAS_CUDART
#include <cuda_runtime_api.h>
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cachalot/buffers.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/guard.h"
#include "cachalot/kernels.h"
#include "cachalot/pinned_host_allocator.h"
#include "cachalot/pool_set.h"
#include "cachalot/simulated_device.h"
#include "cachalot/tensor_pool.h"

namespace cachalot {
namespace {

constexpr int kAsked = 7;  // an exit code
constexpr int kSkipped = 77;

Options options;
const TensorSpec kSpec = {{64, 64}, DType::float32};

[[noreturn]] void fail(const char* what, const std::string& why = "") {
  std::fprintf(stderr, "process_life_program: %s %s\n", what, why.c_str());
  _exit(1);
}
void expect(bool is_right, const char* what, const std::string& why = "") {
  if (!is_right) fail(what, why);
}

bool has_gpu() { return !cuda_devices().empty(); }

std::vector<std::shared_ptr<Device>> devices() {
  std::vector<std::shared_ptr<Device>> found = cuda_devices();
  if (found.empty()) found.push_back(std::make_shared<SimulatedDevice>());
  return found;
}

std::shared_ptr<CachingAllocator> make_allocator() {
  return std::make_shared<CachingAllocator>(devices(), options, guard_factory(kernels_for));
}

// Memory in every hand: blocks of both sizes, cached ones, pools with tensors that are out, pinned buffers.
struct Holdings {
  explicit Holdings(std::shared_ptr<CachingAllocator> from)
      : allocator(std::move(from)),
        pinned(allocator->device(0)),
        pool(allocator, kSpec, {.initial_slots = 4}),
        set(allocator, std::size_t{1} << 30) {
    for (std::size_t bytes : {std::size_t{100}, std::size_t{50'000}, std::size_t{3} << 20}) {
      blocks.push_back(allocate_owned(*allocator, bytes, 0, nullptr));
    }
    allocator->deallocate(allocator->allocate(700));
    tensor = pool.acquire();
    of_set = set.acquire(kSpec);
    buffer = pinned.allocate(1 << 20);
  }
  std::shared_ptr<CachingAllocator> allocator;
  PinnedHostAllocator pinned;
  TensorPool pool;
  PoolSet set;
  std::vector<Allocation> blocks;
  PooledTensor tensor, of_set;
  void* buffer = nullptr;
};

// Threads that never end by themselves.
void keep_allocating(CachingAllocator& allocator, TensorPool& pool) {
  static std::atomic<int> turns{0};
  for (int i = 0; i < 4; ++i) {
    std::thread([&allocator, &pool] {
      for (std::size_t n = 1;; ++n, ++turns) {
        allocator.deallocate(allocator.allocate(n % 100'000 + 1));
        pool.acquire();
      }
    }).detach();
  }
  while (turns < 1000) std::this_thread::yield();
}

// ---- The end of a program -------------------------------------------------------------------------------------------

int end_with_statics() {
  static const Holdings holdings(make_allocator());
  return kAsked;
}

int end_with_what_is_leaked() {
  static Holdings& holdings = *new Holdings(make_allocator());
  expect(holdings.tensor.data() != nullptr, "there is a tensor");
  return kAsked;
}

int end_with_what_is_on_the_stack() {
  const Holdings holdings(make_allocator());
  std::exit(kAsked);
}

int end_at_once() {
  const Holdings holdings(make_allocator());
  _exit(kAsked);
}

int end_by_quick_exit() {
  static const Holdings holdings(make_allocator());
  std::at_quick_exit([] { holdings.allocator->empty_cache(); });
  std::quick_exit(kAsked);
}

int end_in_another_thread() {
  static const Holdings holdings(make_allocator());
  std::thread([] {
    holdings.allocator->deallocate(holdings.allocator->allocate(5000));
    std::exit(kAsked);
  }).join();
  return 1;
}

int end_while_threads_allocate() {
  static Holdings& holdings = *new Holdings(make_allocator());
  keep_allocating(*holdings.allocator, holdings.pool);
  return kAsked;
}

int end_of_main_thread_alone() {
  static Holdings& holdings = *new Holdings(make_allocator());
  std::thread([] {
    usleep(50'000);
    holdings.allocator->deallocate(holdings.allocator->allocate(5000));
    std::exit(kAsked);
  }).detach();
  pthread_exit(nullptr);
}

// The last registered object is destroyed first: the tensor and the block when allocator and pool are gone already.
int end_with_tensors_that_outlive_all() {
  static PooledTensor tensor, of_set;
  static std::unique_ptr<CachingAllocator> allocator = std::make_unique<CachingAllocator>(devices(), options);
  static TensorPool pool(*allocator, kSpec);
  static PoolSet set(*allocator, std::size_t{1} << 30);
  tensor = pool.acquire();
  of_set = set.acquire(kSpec);
  return kAsked;
}

int end_with_frees_at_exit() {
  static Holdings* const holdings = new Holdings(make_allocator());
  std::atexit([] { holdings->blocks.clear(); });
  std::atexit([] {
    holdings->tensor.release();
    holdings->allocator->empty_cache();
    holdings->blocks.push_back(allocate_owned(*holdings->allocator, 5000, 0, nullptr));
  });
  return kAsked;
}

int end_after_an_exception() {
  try {
    const Holdings holdings(make_allocator());
    throw std::runtime_error("a bug of the user's");
  } catch (const std::runtime_error&) {
    return kAsked;
  }
}

// A thread's own objects go after its cache, which was made later.
int end_of_threads_that_free_last() {
  static const std::shared_ptr<CachingAllocator> allocator = make_allocator();
  static TensorPool pool(allocator, kSpec);
  struct Last {
    Allocation block;
    PooledTensor tensor;
  };
  for (int i = 0; i < 8; ++i) {
    std::thread([] {
      static thread_local Last last;
      last.block = allocate_owned(*allocator, 5000, 0, nullptr);
      last.tensor = pool.acquire();
    }).join();
  }
  expect(allocator->memory_allocated() == pool.stats().bytes, "the threads' blocks came back");
  expect(pool.stats().live == 0, "the threads' tensors came back");
  expect(allocator->validate().empty(), "validate", allocator->validate());
  expect(pool.validate().empty(), "validate", pool.validate());
  return kAsked;
}

// ---- A device that is reset ------------------------------------------------------------------------------------------

template <typename Call>
void expect_told_of_reset(const char* what, Call&& call) {
  try {
    call();
    fail(what, "works although the device was reset");
  } catch (const CudaError& error) {
    expect(std::string(error.what()).find("was reset (cudaDeviceReset)") != std::string::npos, what, error.what());
  }
}

#if CACHALOT_HAS_CUDART
cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  expect(cudaStreamCreate(&stream) == cudaSuccess, "cudaStreamCreate");
  return stream;
}

// Handed-out memory is lost; a request to the device reports that, and everything is given back without a message.
void reset_under(Holdings& holdings) {
  CachingAllocator& allocator = *holdings.allocator;
  const cudaStream_t other = new_stream();
  void* const shared = allocator.allocate(5 << 20);
  allocator.record_stream(shared, other);
  void* const waiting = allocator.allocate(6 << 20);
  allocator.record_stream(waiting, other);
  allocator.deallocate(waiting);  // waits for an event that will never be heard of again
  holdings.tensor.record_stream(other);
  expect(cudaDeviceReset() == cudaSuccess, "cudaDeviceReset");
  expect_told_of_reset("an allocation", [&] { allocator.allocate(std::size_t{1} << 30); });
  expect_told_of_reset("empty_cache", [&] { allocator.empty_cache(); });
  expect_told_of_reset("a pinned buffer", [&] { holdings.pinned.allocate(std::size_t{64} << 20); });
  allocator.deallocate(shared);
  holdings.blocks.clear();
  holdings.of_set.release();
  expect(allocator.validate().empty(), "validate", allocator.validate());
}

int reset_and_begin_again() {
  if (!has_gpu()) return kSkipped;
  {
    Holdings holdings(make_allocator());
    reset_under(holdings);
  }
  const Holdings again(make_allocator());
  void* const block = again.allocator->allocate(40 << 20);
  again.allocator->record_stream(block, new_stream());
  again.allocator->deallocate(block);
  again.allocator->empty_cache();
  expect(again.allocator->validate().empty(), "validate", again.allocator->validate());
  return kAsked;
}

int end_after_a_reset() {
  if (!has_gpu()) return kSkipped;
  static Holdings holdings(make_allocator());
  reset_under(holdings);
  return kAsked;
}

// ---- A driver that does not compile -----------------------------------------------------------------------------------

// Patterns are copied by the host then: twice, to see that it is said once.
int verify_patterns() {
  if (!has_gpu()) return kSkipped;
  const std::shared_ptr<Device> device = cuda_devices().front();
  const Address memory = device->malloc(4096).value();
  for (int i = 0; i < 2; ++i) {
    const auto kernels = kernels_for(device);
    kernels->fill_pattern(nullptr, {memory, 4096, 1});
    expect(!kernels->verify_pattern(nullptr, {memory, 4096, 1}), "a pattern is as it was filled");
    const unsigned char wrong = 0;
    device->copy_from_host(memory + 7, &wrong, 1);
    expect(kernels->verify_pattern(nullptr, {memory, 4096, 1}) == 7, "a byte that was overwritten is found");
  }
  return kAsked;
}

// The time of a simulated call says nothing of its cost.
int time_no_calls() {
  if (!has_gpu()) return kSkipped;
  expect(!cuda_devices().front()->properties().calls_take_time, "the driver is simulated");
  return kAsked;
}

#else
int time_no_calls() { return kSkipped; }
int verify_patterns() { return kSkipped; }
int reset_and_begin_again() { return kSkipped; }
int end_after_a_reset() { return kSkipped; }
#endif

// ---- The C library, loaded ------------------------------------------------------------------------------------------

struct Library {
  explicit Library(const char* file, int how = RTLD_LOCAL) : handle(dlopen(file, RTLD_NOW | how)) {
    if (handle == nullptr) fail("dlopen:", dlerror());
    find(malloc, "cachalot_malloc");
    find(free, "cachalot_free");
    find(allocated, "cachalot_memory_allocated");
    find(last_error, "cachalot_last_error");
  }
  void close() { expect(dlclose(handle) == 0, "dlclose"); }

  void* handle;
  void* (*malloc)(std::size_t, int, Stream);
  void (*free)(void*, std::size_t, int, Stream);
  std::size_t (*allocated)(int);
  const char* (*last_error)();

 private:
  template <typename Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    expect(function != nullptr, "no symbol", name);
  }
};

void* allocate(const Library& library, std::size_t bytes) {
  void* const p = library.malloc(bytes, 0, nullptr);
  expect(p != nullptr, "cachalot_malloc:", library.last_error());
  return p;
}

void free(const Library& library, void* p, std::size_t bytes) {
  library.free(p, bytes, 0, nullptr);
  expect(library.last_error()[0] == '\0', "cachalot_free:", library.last_error());
}

int load_again_and_again() {
  std::vector<void*> live;
  for (int i = 0; i < 300; ++i) {
    Library library(CACHALOT_LIBRARY);
    expect(library.allocated(0) == live.size() * 1024, "what was allocated before is still there");
    live.push_back(allocate(library, 1000));
    library.close();
  }
  Library library(CACHALOT_LIBRARY);
  for (void* p : live) free(library, p, 1000);
  expect(library.allocated(0) == 0, "all is freed");
  library.close();
  return kAsked;
}

int end_threads_after_it_was_closed() {
  Library library(CACHALOT_LIBRARY);
  std::atomic<int> ready{0};
  std::atomic<bool> closed{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      void* const p = allocate(library, 700);
      free(library, allocate(library, 5000), 5000);
      library.free(p, 1, 0, nullptr);  // leaves a message that the thread's end has to free
      expect(library.last_error()[0] != '\0', "a wrong size is refused");
      free(library, p, 700);
      ++ready;
      while (!closed) std::this_thread::yield();
    });
  }
  while (ready < 8) std::this_thread::yield();
  library.close();
  closed = true;
  for (std::thread& thread : threads) thread.join();
  return kAsked;
}

int load_from_several_threads() {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([] {
      for (int round = 0; round < 50; ++round) {
        Library library(CACHALOT_LIBRARY);
        void* const p = allocate(library, 3000);
        free(library, p, 3000);
        library.close();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Library library(CACHALOT_LIBRARY);
  expect(library.allocated(0) == 0, "all is freed");
  return kAsked;
}

// ---- Several copies in a process -------------------------------------------------------------------------------------

// Each has its own books, and refuses what others gave.
void expect_apart(const std::vector<Library>& copies) {
  CachingAllocator own(devices(), options);  // of this program's static library
  void* const mine = own.allocate(1000);
  std::vector<void*> theirs;
  for (const Library& copy : copies) theirs.push_back(allocate(copy, 1000));
  for (std::size_t i = 0; i < copies.size(); ++i) {
    expect(copies[i].allocated(0) == 1024, "each counts its own");
    for (std::size_t j = 0; j < copies.size(); ++j) {
      if (i == j) continue;
      copies[i].free(theirs[j], 1000, 0, nullptr);
      const std::string message = copies[i].last_error();
      expect(message.find("this allocator does not hold it") != std::string::npos, "another's is refused:", message);
    }
    copies[i].free(mine, 1000, 0, nullptr);
    expect(copies[i].last_error()[0] != '\0', "the program's is refused");
    try {
      own.deallocate(theirs[i]);
      fail("the program's allocator takes a library's memory");
    } catch (const InvalidArgument&) {
    }
  }
  for (std::size_t i = 0; i < copies.size(); ++i) free(copies[i], theirs[i], 1000);
  own.deallocate(mine);
  expect(own.memory_allocated() == 0 && own.validate().empty(), "the program's own");
}

int load_copies(int how) {
  if (!has_gpu()) return kSkipped;
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("cachalot_copies_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  std::vector<Library> copies{Library(CACHALOT_LIBRARY, how)};
  for (const char* name : {"one.so", "two.so"}) {
    std::filesystem::copy_file(CACHALOT_LIBRARY, folder / name);
    copies.emplace_back((folder / name).c_str(), how);
  }
  std::filesystem::remove_all(folder);
  expect_apart(copies);
  for (Library& copy : copies) copy.close();
  return kAsked;
}

// The plug-in exports functions of the same names, which throw.
int load_the_plug_in(int how) {
  if (!has_gpu() || std::string(CACHALOT_TORCH_LIBRARY).empty()) return kSkipped;
  Library library(CACHALOT_LIBRARY, how);
  void* const plug_in = dlopen(CACHALOT_TORCH_LIBRARY, RTLD_NOW | how);
  if (plug_in == nullptr) fail("dlopen:", dlerror());
  const auto malloc = reinterpret_cast<void* (*)(std::size_t, int, Stream)>(dlsym(plug_in, "cachalot_malloc"));
  const auto release = reinterpret_cast<void (*)(void*, std::size_t, int, Stream)>(dlsym(plug_in, "cachalot_free"));
  expect(malloc != library.malloc && release != library.free, "the libraries' functions are their own");
  void* const p = malloc(1000, 0, nullptr);
  void* const q = allocate(library, 2000);
  expect(library.allocated(0) == 2048, "the C library counts its own");
  library.free(p, 1000, 0, nullptr);
  expect(std::string(library.last_error()).find("does not hold it") != std::string::npos, "refused by the C library");
  try {
    release(q, 2000, 0, nullptr);
    fail("the plug-in takes the C library's memory");
  } catch (const std::exception&) {
  }
  release(p, 1000, 0, nullptr);
  free(library, q, 2000);
  return kAsked;
}

const std::map<std::string, std::function<int()>> kScenarios = {
    {"end_with_statics", end_with_statics},
    {"end_with_what_is_leaked", end_with_what_is_leaked},
    {"end_with_what_is_on_the_stack", end_with_what_is_on_the_stack},
    {"end_at_once", end_at_once},
    {"end_by_quick_exit", end_by_quick_exit},
    {"end_in_another_thread", end_in_another_thread},
    {"end_while_threads_allocate", end_while_threads_allocate},
    {"end_of_main_thread_alone", end_of_main_thread_alone},
    {"end_with_tensors_that_outlive_all", end_with_tensors_that_outlive_all},
    {"end_with_frees_at_exit", end_with_frees_at_exit},
    {"end_after_an_exception", end_after_an_exception},
    {"end_of_threads_that_free_last", end_of_threads_that_free_last},
    {"reset_and_begin_again", reset_and_begin_again},
    {"end_after_a_reset", end_after_a_reset},
    {"time_no_calls", time_no_calls},
    {"verify_patterns", verify_patterns},
    {"load_again_and_again", load_again_and_again},
    {"end_threads_after_it_was_closed", end_threads_after_it_was_closed},
    {"load_from_several_threads", load_from_several_threads},
    {"load_copies", [] { return load_copies(RTLD_LOCAL); }},
    {"load_copies_for_all", [] { return load_copies(RTLD_GLOBAL); }},
    {"load_the_plug_in", [] { return load_the_plug_in(RTLD_LOCAL); }},
    {"load_the_plug_in_for_all", [] { return load_the_plug_in(RTLD_GLOBAL); }},
};

}  // namespace
}  // namespace cachalot

int main(int argc, char** argv) {
  const auto scenario = argc < 2 ? cachalot::kScenarios.end() : cachalot::kScenarios.find(argv[1]);
  if (scenario == cachalot::kScenarios.end()) cachalot::fail("there is no such scenario");
  if (argc > 2) cachalot::options = cachalot::parse_options(argv[2]);
  return scenario->second();
}
