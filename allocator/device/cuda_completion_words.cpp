#include "device/cuda_completion_words.h"

#include <cstdlib>
#include <cstring>

#include "device/cuda_driver.h"

CACHALOT_BEGIN

namespace {

constexpr std::size_t kWordStride = 64;  // a cache line each
constexpr std::size_t kSlabBytes = 4096;

}  // namespace

bool CudaCompletionWords::has_memory() {
  const Lock lock(making_);
  return !slabs_.empty();
}

void CudaCompletionWords::free_memory() {
  const Lock lock(making_);
  if (driver().context_synchronize() != CUDA_SUCCESS) return;  // a write may still be queued
  std::erase_if(slabs_, [](void* slab) {
    if (driver().host_unregister(slab) != CUDA_SUCCESS) return false;
    std::free(slab);
    return true;
  });
}

void CudaCompletionWords::free_memory_after_reset() {
  const Lock lock(making_);
  for (void* slab : slabs_) std::free(slab);
  slabs_.clear();
}

void CudaCompletionWords::advance(Stream stream) {
  Word& word = word_of(stream);
  const Lock lock(word.writing);  // numbers must rise in the order of the stream
  if (!word.usable) return;
  const CUresult result =
      driver().stream_write_value(stream, word.device_address, ++word.written, CU_STREAM_WRITE_VALUE_DEFAULT);
  if (result != CUDA_SUCCESS) word.usable = false;
}

void CudaCompletionWords::give_up(Stream stream) {
  Word& word = word_of(stream);
  const Lock lock(word.writing);
  word.usable = false;
}

std::optional<std::uint64_t> CudaCompletionWords::read(Stream stream) {
  const Word* word = known_word(stream);
  if (!word) return 0;
  if (!word->usable) return std::nullopt;
  return std::atomic_ref(*word->host_address).load(std::memory_order_acquire);
}

CudaCompletionWords::Word* CudaCompletionWords::known_word(Stream stream) {
  const Lock lock(mutex_);
  const auto at = words_.find(stream);
  return at == words_.end() ? nullptr : at->second.get();
}

CudaCompletionWords::Word& CudaCompletionWords::word_of(Stream stream) {
  if (Word* word = known_word(stream)) return *word;
  const Lock making(making_);
  if (Word* word = known_word(stream)) return *word;
  auto made = make_word();
  const Lock lock(mutex_);
  return *words_.emplace(stream, std::move(made)).first->second;
}

// A word without memory is not usable.
std::unique_ptr<CudaCompletionWords::Word> CudaCompletionWords::make_word() {
  auto word = std::make_unique<Word>();
  if (slab_left_ == 0 && !add_slab()) return word;
  void* const host = static_cast<char*>(slabs_.back()) + (kSlabBytes - slab_left_);
  CUdeviceptr device = 0;
  if (driver().host_get_device_pointer(&device, host, 0) != CUDA_SUCCESS) return word;
  slab_left_ -= kWordStride;
  word->host_address = static_cast<std::uint64_t*>(host);
  word->device_address = device;
  word->usable = true;
  return word;
}

bool CudaCompletionWords::add_slab() {
  const RelaxedCapture relaxed;
  void* const slab = std::aligned_alloc(kSlabBytes, kSlabBytes);
  if (slab == nullptr) return false;
  std::memset(slab, 0, kSlabBytes);
  constexpr unsigned int kFlags = CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE;
  if (driver().host_register(slab, kSlabBytes, kFlags) != CUDA_SUCCESS) {
    std::free(slab);
    return false;
  }
  slabs_.push_back(slab);
  slab_left_ = kSlabBytes;
  return true;
}

CACHALOT_END
