// A small CUDA program that other tests start with variables of their choice. Its argument says what it does. The
// tests look at its output.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <string>

namespace {

int count() {
  int devices = -1;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  std::printf("%s %d\n", cudaGetErrorName(error), devices);
  return 0;
}

int properties() {
  cudaDeviceProp prop{};
  const cudaError_t error = cudaGetDeviceProperties(&prop, 0);
  std::printf("%s %s %d.%d %zu\n", cudaGetErrorName(error), prop.name, prop.major, prop.minor,
              prop.totalGlobalMem >> 20);
  return 0;
}

// Three allocations of 1 MiB, the first freed.
int allocate() {
  void* pointers[3] = {};
  for (void*& pointer : pointers) std::printf("%s ", cudaGetErrorName(cudaMalloc(&pointer, 1 << 20)));
  std::printf("%s\n", cudaGetErrorName(cudaFree(pointers[0])));
  return 0;
}

// Pins 1 MiB twice, and frees the second twice: what could not be freed is still there.
int pin() {
  void* memory = nullptr;
  for (int i = 0; i < 2; ++i)
    std::printf("%s ", cudaGetErrorName(cudaHostAlloc(&memory, 1 << 20, cudaHostAllocDefault)));
  const cudaError_t refused = cudaFreeHost(memory);
  std::printf("%s %s\n", cudaGetErrorName(refused), cudaGetErrorName(cudaFreeHost(memory)));
  return 0;
}

// Allocates, and leaves by the ordinary exits of a grandchild, a child and its own.
int fork_and_exit() {
  void* pointer = nullptr;
  const cudaError_t error = cudaMalloc(&pointer, 1 << 20);
  const pid_t child = fork();
  if (child == 0) {
    waitpid(fork(), nullptr, 0);
    return 0;
  }
  waitpid(child, nullptr, 0);
  std::printf("%s\n", cudaGetErrorName(error));
  return 0;
}

// Allocates, and waits for a signal that it sends to itself; goes on where that does not end it.
int end_by(int number) {
  void* pointer = nullptr;
  cudaMalloc(&pointer, 1 << 20);
  raise(number);
  std::printf("%s\n", cudaGetErrorName(cudaFree(pointer)));
  return 0;
}

// Allocates, and ends without destructors; a child that does the same in this process's memory comes before.
int end_at_once() {
  if (vfork() == 0) _exit(4);
  void* pointer = nullptr;
  cudaMalloc(&pointer, 1 << 20);
  if (vfork() == 0) _exit(5);
  cudaMalloc(&pointer, 1 << 20);
  _exit(6);
}

// Reads on the CPU: of device memory that it allocates, or of address 0.
int read_on_cpu(bool of_device) {
  void* pointer = nullptr;
  cudaMalloc(&pointer, 1 << 20);
  const volatile char* const address = of_device ? static_cast<const char*>(pointer) + 256 : nullptr;
  return *address;
}

// Calls what is not simulated, twice.
int array() {
  cudaArray_t array = nullptr;
  const cudaChannelFormatDesc format{32, 0, 0, 0, cudaChannelFormatKindFloat};
  cudaMallocArray(&array, &format, 16, 16, 0);
  const cudaError_t error = cudaMallocArray(&array, &format, 16, 16, 0);
  std::printf("%s %s\n", cudaGetErrorName(error), cudaGetErrorName(cudaGetLastError()));
  return 0;
}

std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

// A function of the simulator's own, which programs that contain CUDA's runtime are not linked with.
template <typename Function>
Function* extension(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// Reads a handle as hexadecimal digits, adds 1 to the int that it shares, and says what it was. The content written by
// another process stays: it is known, whatever this one takes it for.
int import(const char* digits) {
  cudaIpcMemHandle_t handle{};
  for (std::size_t i = 0; i < sizeof(handle); ++i)
    handle.reserved[i] = static_cast<char>(std::stoi(std::string(digits + 2 * i, 2), nullptr, 16));
  const auto before = open_descriptors();
  void* pointer = nullptr;
  cudaError_t error = cudaIpcOpenMemHandle(&pointer, handle, cudaIpcMemLazyEnablePeerAccess);
  if (error == cudaSuccess) error = cudaIpcOpenMemHandle(&pointer, handle, cudaIpcMemLazyEnablePeerAccess);
  int value = 0;
  if (error == cudaSuccess) {
    extension<int(const void*, std::uint64_t)>("cachalot_sim_make_unknown")(pointer, sizeof(value));
    extension<int(const void*, std::uint64_t, int)>("cachalot_sim_guess")(pointer, sizeof(value), 7);
    cudaMemcpy(&value, pointer, sizeof(value), cudaMemcpyDeviceToHost);
    const int more = value + 1;
    cudaMemcpy(pointer, &more, sizeof(more), cudaMemcpyHostToDevice);
    for (int i = 0; i < 2; ++i) cudaIpcCloseMemHandle(pointer);
  }
  std::printf("%s %d, descriptors left open: %td\n", cudaGetErrorName(error), value, open_descriptors() - before);
  return 0;
}

// Calls a library's function that takes nothing, as a program does that loads it.
int call(const char* library, const char* name) {
  void* loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  void* function = loaded ? dlsym(loaded, name) : nullptr;
  if (!function) {
    std::printf("%s\n", dlerror());
    return 1;
  }
  return reinterpret_cast<int (*)()>(function)();
}

// The objects of rules(): two own streams that do not wait for the legacy stream, an event and 1 MiB; all of it is given
// back.
struct Things {
  Things() {
    for (cudaStream_t* stream : {&one, &other}) cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
    cudaEventCreate(&event);
    cudaMalloc(&memory, 1 << 20);
  }
  ~Things() {
    cudaFree(memory);
    cudaEventDestroy(event);
    for (cudaStream_t stream : {one, other}) cudaStreamDestroy(stream);
  }
  void fill(cudaStream_t stream) const { cudaMemsetAsync(memory, 1, 1 << 20, stream); }
  cudaStream_t one = nullptr;
  cudaStream_t other = nullptr;
  cudaEvent_t event = nullptr;
  void* memory = nullptr;
};

volatile int several = 3;  // loops are not unrolled: each call comes from the same place

void use_dead_stream(const Things&) {
  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  cudaStreamDestroy(stream);
  for (int i = 0; i < several; ++i) cudaStreamQuery(stream);
}

void fill_unordered(const Things& things) {
  things.fill(things.one);
  things.fill(things.other);
}

void fill_behind_an_event(const Things& things) {
  things.fill(things.one);
  cudaEventRecord(things.event, things.one);
  cudaStreamWaitEvent(things.other, things.event, 0);
  things.fill(things.other);
}

void fill_when_the_host_has_waited(const Things& things) {
  things.fill(things.one);
  cudaStreamSynchronize(things.one);
  things.fill(things.other);
}

// By the legacy stream, which two blocking streams wait for.
void fill_in_implicit_order(const Things& things) {
  cudaStream_t streams[2] = {};
  for (cudaStream_t& stream : streams) cudaStreamCreate(&stream);
  things.fill(streams[0]);
  cudaEventRecord(things.event, nullptr);
  things.fill(streams[1]);
  cudaStreamDestroy(streams[1]);
  cudaMemset(things.memory, 1, 1 << 20);
  cudaStreamDestroy(streams[0]);
}

void read_twice(const Things& things) {
  void* pinned = nullptr;
  cudaHostAlloc(&pinned, 2 << 20, cudaHostAllocDefault);
  cudaMemcpyAsync(pinned, things.memory, 1 << 20, cudaMemcpyDeviceToHost, things.one);
  cudaMemcpyAsync(static_cast<char*>(pinned) + (1 << 20), things.memory, 1 << 20, cudaMemcpyDeviceToHost, things.other);
  cudaDeviceSynchronize();
  cudaFreeHost(pinned);
}

void write_one_buffer_twice(const Things& things) {
  void* pinned = nullptr;
  cudaHostAlloc(&pinned, 1 << 20, cudaHostAllocDefault);
  for (cudaStream_t stream : {things.one, things.other})
    cudaMemcpyAsync(pinned, things.memory, 1 << 20, cudaMemcpyDeviceToHost, stream);
  cudaDeviceSynchronize();
  cudaFreeHost(pinned);
}

void free_unordered(const Things& things) {
  void* memory = nullptr;
  cudaMallocAsync(&memory, 1 << 20, things.one);
  cudaMemsetAsync(memory, 1, 1 << 20, things.one);
  cudaFreeAsync(memory, things.other);
}

void free_in_order(const Things& things) {
  void* memory = nullptr;
  cudaMallocAsync(&memory, 1 << 20, things.one);
  cudaMemsetAsync(memory, 1, 1 << 20, things.one);
  cudaFreeAsync(memory, things.one);
  cudaMallocAsync(&memory, 1 << 20, things.other);
  cudaMemsetAsync(memory, 1, 1 << 20, things.other);
  cudaFreeAsync(memory, things.other);
}

template <typename Function>
Function* driver(const char* name, Function*) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}
#define DRIVER(function) driver(#function, static_cast<decltype(::function)*>(nullptr))

CUmemAllocationProp on_device() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return properties;
}

// Two pages, of which the second goes to sleep, is used, and wakes.
void use_sleeping(const Things& things, const std::function<void(char* asleep)>& use) {
  constexpr std::size_t kBytes = 2 << 20;
  const CUmemAllocationProp properties = on_device();
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle handles[2] = {};
  DRIVER(cuMemAddressReserve)(&range, 2 * kBytes, 0, 0, 0);
  for (int i = 0; i < 2; ++i) {
    DRIVER(cuMemCreate)(&handles[i], kBytes, &properties, 0);
    DRIVER(cuMemMap)(range + i * kBytes, kBytes, 0, handles[i], 0);
  }
  DRIVER(cuMemSetAccess)(range, 2 * kBytes, &access, 1);
  cudaStreamSynchronize(things.one);
  DRIVER(cuMemUnmap)(range + kBytes, kBytes);
  use(reinterpret_cast<char*>(range + kBytes));
  DRIVER(cuMemMap)(range + kBytes, kBytes, 0, handles[1], 0);
  DRIVER(cuMemSetAccess)(range + kBytes, kBytes, &access, 1);
  cudaMemset(reinterpret_cast<void*>(range), 1, 2 * kBytes);
  cudaDeviceSynchronize();
  DRIVER(cuMemUnmap)(range, 2 * kBytes);
  for (const auto handle : handles) DRIVER(cuMemRelease)(handle);
  DRIVER(cuMemAddressFree)(range, 2 * kBytes);
}

void unmap(const Things& things, bool waits) {
  constexpr std::size_t kBytes = 2 << 20;
  const CUmemAllocationProp properties = on_device();
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle handle = 0;
  DRIVER(cuMemAddressReserve)(&range, kBytes, 0, 0, 0);
  DRIVER(cuMemCreate)(&handle, kBytes, &properties, 0);
  DRIVER(cuMemMap)(range, kBytes, 0, handle, 0);
  DRIVER(cuMemSetAccess)(range, kBytes, &access, 1);
  cudaMemsetAsync(reinterpret_cast<void*>(range), 1, kBytes, things.one);
  if (waits) cudaStreamSynchronize(things.one);
  DRIVER(cuMemUnmap)(range, kBytes);
  DRIVER(cuMemRelease)(handle);
  DRIVER(cuMemAddressFree)(range, kBytes);
}

void leave_things(const Things&) {
  void* memory = nullptr;
  for (int i = 0; i < several; ++i) cudaMalloc(&memory, 1 << 20);
  cudaHostAlloc(&memory, 1 << 10, cudaHostAllocDefault);
  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  cudaMallocAsync(&memory, 3 << 20, stream);
}

int rules(const std::string& name) {
  using Test = void (*)(const Things&);
  static const std::map<std::string, Test> tests = {
      {"use_dead_stream", use_dead_stream},
      {"fill_unordered", fill_unordered},
      {"fill_behind_an_event", fill_behind_an_event},
      {"fill_when_the_host_has_waited", fill_when_the_host_has_waited},
      {"fill_in_implicit_order", fill_in_implicit_order},
      {"read_twice", read_twice},
      {"write_one_buffer_twice", write_one_buffer_twice},
      {"free_unordered", free_unordered},
      {"free_in_order", free_in_order},
      {"unmap_at_once", [](const Things& things) { unmap(things, false); }},
      {"unmap_later", [](const Things& things) { unmap(things, true); }},
      {"leave_things", leave_things},
      {"copy_from_sleeping",
       [](const Things& things) {
         use_sleeping(things, [](const char* asleep) {
           char byte = 0;
           std::printf("%s\n", cudaGetErrorName(cudaMemcpyAsync(&byte, asleep + 8, 1, cudaMemcpyDefault, nullptr)));
         });
       }},
      {"copy_from_sleeping_again",
       [](const Things& things) {
         use_sleeping(things, [](const char* asleep) {
           char byte = 0;
           for (int i = 0; i < 3; ++i) cudaMemcpyAsync(&byte, asleep + i, 1, cudaMemcpyDefault, nullptr);
         });
       }},
      {"fill_sleeping",
       [](const Things& things) {
         use_sleeping(things, [](char* asleep) { cudaMemsetAsync(asleep - 4096, 0, 8192, nullptr); });
       }},
      {"copy_beside_sleeping",
       [](const Things& things) { use_sleeping(things, [](char* asleep) { cudaMemset(asleep - 4096, 0, 4096); }); }},
  };
  tests.at(name)(Things());
  return 0;
}

// Prints the driver's answers to a thread without a context.
int contexts() {
  const CUmemAllocationProp properties = on_device();
  CUstream stream = nullptr;
  CUmemGenericAllocationHandle handle = 0;
  const CUresult created = DRIVER(cuStreamCreate)(&stream, CU_STREAM_DEFAULT);
  DRIVER(cuCtxSetCurrent)(nullptr);
  std::printf("%d %d\n", created, DRIVER(cuMemCreate)(&handle, 2 << 20, &properties, 0));
  return 0;
}

// Prints whether the legacy stream has work to wait for while a blocking stream is at work.
int legacy_stream() {
  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  void* memory = nullptr;
  cudaMalloc(&memory, 1 << 20);
  cudaMemsetAsync(memory, 1, 1 << 20, stream);
  std::printf("%s\n", cudaGetErrorName(cudaStreamQuery(nullptr)));
  return 0;
}

// Maps and unmaps while a stream is at work.
int map() {
  const Things things;
  const CUmemAllocationProp properties = on_device();
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle handle = 0;
  DRIVER(cuMemAddressReserve)(&range, 2 << 20, 0, 0, 0);
  DRIVER(cuMemCreate)(&handle, 2 << 20, &properties, 0);
  for (int i = 0; i < 1000; ++i) things.fill(things.one);
  std::printf("%d ", DRIVER(cuMemMap)(range, 2 << 20, 0, handle, 0));
  std::printf("%d ", DRIVER(cuMemSetAccess)(range, 2 << 20, &access, 1));
  std::printf("%d ", DRIVER(cuMemUnmap)(range, 2 << 20));
  std::printf("%s\n", cudaGetErrorName(cudaStreamQuery(things.one)));
  return 0;
}

// Takes `mib` MiB, prints the free memory, and holds the memory until the command has ended. The command "kill" ends the
// probe.
int take(const char* mib, const char* command) {
  void* pointer = nullptr;
  const cudaError_t error = cudaMalloc(&pointer, std::strtoull(mib, nullptr, 10) << 20);
  std::size_t free = 0;
  std::size_t total = 0;
  cudaMemGetInfo(&free, &total);
  std::printf("%s %zu\n", cudaGetErrorName(error), free >> 20);
  std::fflush(stdout);
  if (std::strcmp(command, "kill") == 0) raise(SIGKILL);
  return std::system(command);
}

}  // namespace

int main(int count_of_arguments, char** arguments) {
  const std::string what = arguments[1];
  if (what == "count") return count();
  if (what == "properties") return properties();
  if (what == "allocate") return allocate();
  if (what == "pin") return pin();
  if (what == "fork") return fork_and_exit();
  if (what == "terminate") return end_by(SIGTERM);
  if (what == "interrupt") return end_by(SIGINT);
  if (what == "end_at_once") return end_at_once();
  if (what == "read_device_memory") return read_on_cpu(/*of_device=*/true);
  if (what == "read_nothing") return read_on_cpu(/*of_device=*/false);
  if (what == "array") return array();
  if (what == "rules") return rules(arguments[2]);
  if (what == "contexts") return contexts();
  if (what == "legacy_stream") return legacy_stream();
  if (what == "map") return map();
  if (what == "take") return take(arguments[2], count_of_arguments > 3 ? arguments[3] : ":");
  if (what == "import") return import(arguments[2]);
  if (what == "call") return call(arguments[2], arguments[3]);
  return 2;
}
