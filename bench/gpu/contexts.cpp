// Contexts: which ones come into being, and what a thread finds that has another one current. Each look is at a process's first use of
// CUDA, so each is a child.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/gpu/child.h"
#include "bench/gpu/cuda_calls.h"
#include "bench/gpu/report.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/pinned_host_allocator.h"

namespace cachalot::gpu {
namespace {

// "10": a context on the first of two GPUs.
std::string contexts() {
  int count = 0;
  require("cuInit", cuInit(0));
  require("cuDeviceGetCount", cuDeviceGetCount(&count));
  std::string states;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    unsigned flags = 0;
    int active = 0;
    require("cuDevicePrimaryCtxGetState", cuDevicePrimaryCtxGetState(ordinal, &flags, &active));
    states += active ? '1' : '0';
  }
  return states;
}

std::string expected_contexts(bool on_first) {
  std::string states = contexts();
  states.assign(states.size(), '0');
  if (on_first) states[0] = '1';
  return states;
}

// Exit status of a child that found what it expected.
int compare(const std::string& when, bool on_first) {
  const std::string found = contexts();
  if (found == expected_contexts(on_first)) return 0;
  std::printf("contexts %s: %s\n", when.c_str(), found.c_str());
  return 1;
}

void on_a_thread_without_context(const std::function<void()>& work) { std::thread(work).join(); }

int look_at_the_life_of_an_allocator(const std::vector<std::string>& arguments) {
  int wrong = compare("at the start", false);
  {
    CachingAllocator allocator(cuda_devices(), parse_options("heap:" + arguments.at(0)));
    wrong += compare("after construction", false);
    void* const memory = allocator.allocate(64 * kMiB);
    wrong += compare("after an allocation", true);
    on_a_thread_without_context([&] {
      const OwnStream stream;
      allocator.record_stream(memory, stream);
      allocator.deallocate(memory);
    });
    wrong += compare("after a free by another thread", true);
    allocator.empty_cache();
  }
  wrong += compare("after destruction", true);
  if (wrong == 0) std::printf("only where memory was allocated\n");
  return wrong;
}

int look_at_pinned_memory(const std::vector<std::string>&) {
  PinnedHostAllocator host(cuda_devices().at(0));
  host.deallocate(host.allocate(kMiB));
  return compare("after a pinned buffer", true);
}

// Everything an allocator does, with a context of the program's own current, which must be current afterwards.
int use_beside(CUcontext own) {
  CachingAllocator allocator({cuda_devices().at(0)}, parse_options("heap:pages"));
  CUcontext current = nullptr;
  for (int round = 0; round < 3; ++round) {
    void* const memory = allocator.allocate(64 * kMiB);
    require("cuCtxGetCurrent", cuCtxGetCurrent(&current));
    allocator.deallocate(memory);
    if (current != own) {
      std::printf("another context is current after an allocation\n");
      return 1;
    }
  }
  allocator.empty_cache();
  require("cuCtxGetCurrent", cuCtxGetCurrent(&current));
  std::printf("%s\n", current == own ? "the context stays current" : "another context is current after empty_cache");
  return current == own ? 0 : 1;
}

int use_beside_own_context(const std::vector<std::string>& arguments) {
  require("cuInit", cuInit(0));
  CUcontext own = nullptr;
  require("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&own, 0));
  if (arguments.at(0) == "second") {  // a context beside the primary one, as older libraries make it
    require("cuCtxCreate", cuCtxCreate(&own, nullptr, 0, 0));
  } else {
    require("cuCtxSetCurrent", cuCtxSetCurrent(own));
  }
  return use_beside(own);
}

constexpr int kNotThere = 77;

// A part of the GPU's multiprocessors, as torch.cuda.GreenContext makes it.
int use_beside_green_context(const std::vector<std::string>&) {
  require("cudaFree", cudaFree(nullptr));
  CUdevResource all = {};
  CUdevResource part = {};
  CUdevResource rest = {};
  unsigned parts = 1;
  CUdevResourceDesc description = nullptr;
  CUgreenCtx green = nullptr;
  CUcontext own = nullptr;
  const CUresult asked = cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM);
  if (asked != CUDA_SUCCESS) {
    std::printf("cuDeviceGetDevResource: %s\n", name_of(asked).c_str());
    return kNotThere;
  }
  require("cuDevSmResourceSplitByCount", cuDevSmResourceSplitByCount(&part, &parts, &all, &rest, 0, 16));
  require("cuDevResourceGenerateDesc", cuDevResourceGenerateDesc(&description, &part, 1));
  require("cuGreenCtxCreate", cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  require("cuCtxFromGreenCtx", cuCtxFromGreenCtx(&own, green));
  require("cuCtxPushCurrent", cuCtxPushCurrent(own));
  return use_beside(own);
}

int reset_the_device(const std::vector<std::string>& arguments) {
  const Options options = parse_options("heap:" + arguments.at(0));
  bool is_told = false;
  {
    CachingAllocator allocator({cuda_devices().at(0)}, options);
    void* const memory = allocator.allocate(64 * kMiB);
    require("cudaDeviceReset", cudaDeviceReset());
    try {
      allocator.allocate(256 * kMiB);
    } catch (const DeviceReset&) {
      is_told = true;
    }
    allocator.deallocate_when_possible(memory);
  }
  CachingAllocator again({cuda_devices().at(0)}, options);
  const OwnStream stream;
  const WrongWords wrong;
  void* const memory = again.allocate(64 * kMiB, 0, stream);
  fill(stream, words_at(memory, 64 * kMiB), 1);
  check(stream, words_at(memory, 64 * kMiB), 1, wrong.on_device());
  const std::uint64_t wrong_words = wrong.read();
  again.deallocate(memory);
  std::printf("%s, and a new allocator works with %llu wrong words\n",
              is_told ? "DeviceReset was thrown" : "DeviceReset was NOT thrown",
              static_cast<unsigned long long>(wrong_words));
  return is_told && wrong_words == 0 ? 0 : 1;
}

void check_child(const std::string& name, const std::vector<std::string>& arguments) {
  const ChildEnd end = run_child(arguments);
  if (end.exit_code == kNotThere) return not_applicable(name, end.text());
  check(name, end.succeeded(), end.text());
}

void look_at_contexts(const Effort&) {
  for (const char* heap : {"segments", "pages"}) {
    check_child(std::string("contexts/") + heap, {"life", heap});
    check_child(std::string("reset/") + heap, {"reset", heap});
  }
  check_child("contexts/pinned", {"pinned"});
  check_child("current/primary", {"own", "primary"});
  check_child("current/second", {"own", "second"});
}

void look_at_green_contexts(const Effort&) { check_child("current/green", {"green"}); }

}  // namespace
}  // namespace cachalot::gpu

int main(int argc, char** argv) {
  using namespace cachalot::gpu;
  return parts_main(argc, argv, {{"contexts", look_at_contexts}, {"green", look_at_green_contexts}},
                    {{"life", look_at_the_life_of_an_allocator},
                     {"pinned", look_at_pinned_memory},
                     {"own", use_beside_own_context},
                     {"green", use_beside_green_context},
                     {"reset", reset_the_device}});
}
