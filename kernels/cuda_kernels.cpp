#include "kernels/cuda_kernels.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "cachalot/errors.h"
#include "device/cuda_driver.h"
#include "kernels/batch.h"

CACHALOT_BEGIN

namespace {

// Our kernels in a device's context.
struct CudaModule {
  CUfunction fill = nullptr;
  CUfunction verify = nullptr;
  CUfunction move = nullptr;
};

// A driver without a compiler for this code: one that was taken out (containers may lack its library), switched off, or,
// since the code is of the oldest kind, one that no longer compiles that.
bool cannot_compile(CUresult result) {
  switch (result) {
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_JIT_COMPILATION_DISABLED:
      return true;
    default:
      return false;
  }
}

void tell_that_none_is_loaded(const CudaDevice& device, CUresult result) {
  const char* name = nullptr;
  if (driver().get_error_name(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown";
  std::fprintf(
      stderr,
      "cachalot: the driver does not compile the CUDA kernels for device %d (%s): patterns and moves are copied "
      "by the host\n",
      device.index(), name);
}

// Asking for an attribute loads the kernel: the first launch, which may be captured, need not.
CUfunction function_of(CUmodule module, const char* name) {
  CUfunction function = nullptr;
  check("cuModuleGetFunction", driver().module_get_function(&function, module, name));
  int registers = 0;
  check("cuFuncGetAttribute", driver().function_get_attribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
  return function;
}

const CudaModule* load(const CudaDevice& device) {
  const RelaxedCapture relaxed;
  CUmodule module = nullptr;
  const CUresult result = driver().module_load(&module, kDeviceCode, 0, nullptr, nullptr);
  if (cannot_compile(result)) {
    tell_that_none_is_loaded(device, result);
    return nullptr;
  }
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    throw OutOfMemory("device " + std::to_string(device.index()) + " has no memory for the CUDA kernels",
                      device.index(), 0);
  }
  check("cuModuleLoadDataEx", result);
  return new CudaModule{.fill = function_of(module, "cachalot_fill"),
                        .verify = function_of(module, "cachalot_verify"),
                        .move = function_of(module, "cachalot_move")};
}

// By device and its context's number.
struct LoadedModules {
  std::mutex mutex;
  std::map<std::pair<int, std::uint64_t>, const CudaModule*> modules;
};

// Never destroyed: static objects of the program may still use it.
LoadedModules& loaded_modules() {
  static auto& instance = *new LoadedModules;
  return instance;
}

const CudaModule* module_for(CudaDevice& device) {
  const CudaContext::Current current(device.context());
  LoadedModules& loaded = loaded_modules();
  const std::lock_guard lock(loaded.mutex);
  const std::pair key(device.index(), device.context().id());
  const auto known = loaded.modules.find(key);
  if (known != loaded.modules.end()) return known->second;
  return loaded.modules[key] = load(device);
}

constexpr std::size_t kAnswers = std::size_t{11} * kItemsALaunch;  // spans that are verified before the host waits
constexpr std::uint64_t kMostBlocks = 4096;  // of one launch: several for each multiprocessor of any GPU

// The arguments fit into the size that every driver and GPU takes.
static_assert(sizeof(Batch<PatternSpan>) + sizeof(Address) <= 4096 && sizeof(Batch<BlockMove>) <= 4096);

Address allocate_answers(Device& device) {
  constexpr std::size_t kBytes = kAnswers * sizeof(unsigned long long);
  const auto address = device.malloc(kBytes);
  if (address) return *address;
  throw OutOfMemory("device " + std::to_string(device.index()) + " has no " + format_bytes(kBytes) +
                        " for the answers of verify_pattern",
                    device.index(), kBytes);
}

// Calls use(part, place of its first item) for parts of at most `most` items.
template <typename Item, typename Use>
void for_each_part(Span<const Item> items, std::size_t most, Use&& use) {
  for (std::size_t first = 0; first < items.size(); first += most) {
    use(items.subspan(first, std::min(most, items.size() - first)), first);
  }
}

// One launch, of blocks of kThreadsABlock threads; none where all items are empty. Requires the device's context.
template <typename Item, typename... Arguments>
void launch_batch(CUfunction kernel, Stream stream, Span<const Item> items, Arguments... arguments) {
  auto batch = batch_of(items);
  const std::uint64_t tiles = batch.first_tile[batch.count];
  if (tiles == 0) return;
  void* pointers[] = {&batch, &arguments...};
  const auto blocks = static_cast<unsigned>(std::min(tiles, kMostBlocks));
  check("cuLaunchKernel",
        driver().launch_kernel(kernel, blocks, 1, 1, kThreadsABlock, 1, 1, 0, stream, pointers, nullptr));
}

class CudaKernels final : public Kernels {
 public:
  CudaKernels(std::shared_ptr<CudaDevice> device, const CudaModule& module)
      : device_(std::move(device)), module_(module), answers_(allocate_answers(*device_)) {}
  ~CudaKernels() override {
    try {
      device_->free(answers_);
    } catch (const CudaError&) {  // the device is lost, or captures: a destructor cannot report it
    }
  }

 private:
  void fill(Stream stream, Span<const PatternSpan> spans) override;
  std::vector<PatternMismatch> verify(Stream stream, Span<const PatternSpan> spans) override;
  void move(Stream stream, Span<const BlockMove> moves) override;
  void verify_some(Stream stream, Span<const PatternSpan> spans, std::size_t first,
                   std::vector<PatternMismatch>& mismatches);

  const std::shared_ptr<CudaDevice> device_;
  const CudaModule& module_;
  std::mutex answers_mutex_;  // one verification at a time; held while it waits
  const Address answers_;     // in device memory, one a span
};

void CudaKernels::fill(Stream stream, Span<const PatternSpan> spans) {
  const CudaContext::Current current(device_->context());
  for_each_part(spans, kItemsALaunch,
                [&](Span<const PatternSpan> part, std::size_t) { launch_batch(module_.fill, stream, part); });
}

std::vector<PatternMismatch> CudaKernels::verify(Stream stream, Span<const PatternSpan> spans) {
  const CudaContext::Current current(device_->context());
  const std::lock_guard lock(answers_mutex_);
  std::vector<PatternMismatch> mismatches;
  for_each_part(spans, kAnswers,
                [&](Span<const PatternSpan> some, std::size_t first) { verify_some(stream, some, first, mismatches); });
  return mismatches;
}

void CudaKernels::verify_some(Stream stream, Span<const PatternSpan> spans, std::size_t first,
                              std::vector<PatternMismatch>& mismatches) {
  std::vector<unsigned long long> answers(spans.size());
  const std::size_t bytes = answers.size() * sizeof(answers[0]);
  static_assert(kNoDifference == ~0ull);
  device_->fill(answers_, 0xff, bytes, stream);
  for_each_part(spans, kItemsALaunch, [&](Span<const PatternSpan> part, std::size_t place) {
    launch_batch(module_.verify, stream, part, answers_ + place * sizeof(answers[0]));
  });
  check("cuMemcpyDtoHAsync", driver().copy_to_host_async(answers.data(), answers_, bytes, stream));
  check("cuStreamSynchronize", driver().stream_synchronize(stream));
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (answers[i] != kNoDifference) mismatches.push_back({first + i, answers[i]});
  }
}

void CudaKernels::move(Stream stream, Span<const BlockMove> moves) {
  const CudaContext::Current current(device_->context());
  for_each_part(moves, kItemsALaunch,
                [&](Span<const BlockMove> part, std::size_t) { launch_batch(module_.move, stream, part); });
}

}  // namespace

std::unique_ptr<Kernels> cuda_kernels(std::shared_ptr<CudaDevice> device) {
  const CudaModule* const module = module_for(*device);
  return module == nullptr ? nullptr : std::make_unique<CudaKernels>(std::move(device), *module);
}

CACHALOT_END
