// A CUDA program: cudaMallocs each of its arguments, in MiB, and then frees the first. Exits with 4 when one fails. A last argument
// that is a word goes on: "again" frees the first once more, and so breaks CUDA's rules; "terminate" sends SIGTERM to the process,
// and "wait" prints "waiting" and waits for a signal; "read" reads device memory on the CPU; "nccl" makes a communicator and
// allocates 6 MiB by NCCL; "stacks" makes the stack of a thread and the heap of kernels larger; "graphs" makes two graphs of 1024
// kernels executable, one after the other; "workspaces" asks cuSOLVER, cuSPARSE, cuFFT and cuDNN for some. Of "while COMMAND" at
// the end, the command runs before anything is freed.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cctype>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

// A function of a library that the program is not linked with, and that the simulator has.
template <typename Result, typename... Parameters>
Result call(const char* name, Parameters... parameters) {
  return reinterpret_cast<Result (*)(Parameters...)>(dlsym(RTLD_DEFAULT, name))(parameters...);
}

void use_nccl() {
  void* communicator = nullptr;
  void* memory = nullptr;
  call<int>("ncclCommInitAll", &communicator, 1, static_cast<const int*>(nullptr));
  call<int>("ncclMemAlloc", &memory, std::size_t{6} << 20);
}

void set_limits() {
  cudaDeviceSetLimit(cudaLimitStackSize, 3 << 10);
  cudaDeviceSetLimit(cudaLimitMallocHeapSize, std::size_t{64} << 20);
}

void ask_for_workspaces() {
  constexpr void* kNone = nullptr;
  for (const char* name : {"cusolverDnSgetrf_bufferSize", "cusparseXcsrsort_bufferSizeExt", "cufftGetSize1d",
                           "cudnnGetReductionWorkspaceSize", "cusparseLtMatmulPlanInit"})
    call<int>(name, kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone);
}

// Returns the exit code.
int make_graphs() {
  const auto free_bytes = [] {
    std::size_t free = 0;
    std::size_t total = 0;
    cudaMemGetInfo(&free, &total);
    return free;
  };
  const std::size_t before = free_bytes();
  for (int i = 0; i < 2; ++i) {
    static const char kernel = 0;  // it is never called
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaGraphCreate(&graph, 0);
    cudaKernelNodeParams params{};
    params.func = const_cast<char*>(&kernel);
    params.gridDim = params.blockDim = {1, 1, 1};
    for (int node = 0; node < 1024; ++node) {
      cudaGraphNode_t added = nullptr;
      if (cudaGraphAddKernelNode(&added, graph, nullptr, 0, &params) != cudaSuccess) return 7;
    }
    if (cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) return 8;
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }
  return free_bytes() == before ? 0 : 9;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<void*> live;
  const char* const command = argc > 2 && std::strcmp(argv[argc - 2], "while") == 0 ? argv[argc - 1] : nullptr;
  const char* const last = argc > 1 && !command ? argv[argc - 1] : "";
  const bool is_word = std::isalpha(static_cast<unsigned char>(last[0])) != 0;
  for (int i = 1; i < argc - (is_word ? 1 : 0) - (command ? 2 : 0); ++i) {
    void* address = nullptr;
    if (cudaMalloc(&address, std::strtoull(argv[i], nullptr, 10) << 20) != cudaSuccess) return 4;
    live.push_back(address);
  }
  if (command) {
    const int status = std::system(command);
    if (status != 0) return 6;
  }
  if (!live.empty() && cudaFree(live.front()) != cudaSuccess) return 5;
  if (std::strcmp(last, "again") == 0) cudaFree(live.front());
  if (std::strcmp(last, "nccl") == 0) use_nccl();
  if (std::strcmp(last, "stacks") == 0) set_limits();
  if (std::strcmp(last, "workspaces") == 0) ask_for_workspaces();
  if (std::strcmp(last, "graphs") == 0) return make_graphs();
  if (std::strcmp(last, "terminate") == 0) std::raise(SIGTERM);
  if (std::strcmp(last, "read") == 0) return *static_cast<const volatile char*>(live.back());
  if (std::strcmp(last, "wait") == 0) {
    std::puts("waiting");
    std::fflush(stdout);
    pause();
  }
  return 0;
}
