// Measures the time that the simulated CUDA runtime adds to a driver call, in host nanoseconds: the whole call, since it
// does nothing else. The program starts itself again with the simulator preloaded.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

constexpr double kTargetNs = 100;
constexpr std::size_t kBytes = std::size_t{2} << 20;
constexpr int kCalls = 200'000;
constexpr int kRounds = 5;

void check(cudaError_t error) {
  if (error == cudaSuccess || error == cudaErrorNotReady) return;
  std::fprintf(stderr, "simulator_calls: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

// Nanoseconds of one `call`, the best of some rounds: others use the machine too.
template <typename Call>
double nanoseconds(Call&& call) {
  double best = 1e300;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    const std::chrono::duration<double, std::nano> all = std::chrono::steady_clock::now() - begin;
    best = std::min(best, all.count() / kCalls);
  }
  return best;
}

void print(const char* what, double ns, int calls) {
  std::printf("%-56s %8.1f ns a call   (target: under %.0f)\n", what, ns / calls, kTargetNs);
}

void pair_of_malloc_and_free(const char* what) {
  print(what, nanoseconds([] {
          void* pointer = nullptr;
          check(cudaMalloc(&pointer, kBytes));
          check(cudaFree(pointer));
        }),
        2);
}

// Replaces a random one of many live allocations.
void churn(std::vector<void*>& live) {
  std::mt19937 random(1);
  print("cudaFree + cudaMalloc, at random among 100,000 live", nanoseconds([&] {
          void*& pointer = live[random() % live.size()];
          check(cudaFree(pointer));
          check(cudaMalloc(&pointer, kBytes));
        }),
        2);
}

void measure() {
  check(cudaFree(nullptr));
  int device = 0;
  print("cudaGetDevice", nanoseconds([&] { check(cudaGetDevice(&device)); }), 1);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  unsigned long long id = 0;
  print("cudaStreamGetId", nanoseconds([&] { check(cudaStreamGetId(stream, &id)); }), 1);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  print("cudaStreamIsCapturing", nanoseconds([&] { check(cudaStreamIsCapturing(nullptr, &status)); }), 1);
  pair_of_malloc_and_free("cudaMalloc + cudaFree");
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  print("cudaEventRecord + cudaEventQuery", nanoseconds([&] {
          check(cudaEventRecord(event, nullptr));
          check(cudaEventQuery(event));
        }),
        2);
  static const char kernel = 0;
  print("cudaLaunchKernel", nanoseconds([&] { check(cudaLaunchKernel(&kernel, 1, 32, nullptr, 0, nullptr)); }), 1);
  size_t free = 0;
  size_t total = 0;
  print("cudaMemGetInfo", nanoseconds([&] { check(cudaMemGetInfo(&free, &total)); }), 1);
  std::vector<void*> live(100'000);
  for (void*& pointer : live) check(cudaMalloc(&pointer, kBytes));
  pair_of_malloc_and_free("cudaMalloc + cudaFree, beside 100,000 live");
  churn(live);
}

}  // namespace

int main(int, char** arguments) {
  if (dlsym(RTLD_DEFAULT, "cachalot_sim_clock_ns")) {
    measure();
    return 0;
  }
  if (std::getenv("LD_PRELOAD")) {
    std::fprintf(stderr, "simulator_calls: " CACHALOT_SIMULATOR " could not be preloaded\n");
    return 1;
  }
  setenv("LD_PRELOAD", CACHALOT_SIMULATOR, 1);
  setenv("CACHALOT_SIM", "memory:400GiB", 1);
  execv("/proc/self/exe", arguments);
  std::perror("simulator_calls");
  return 1;
}
