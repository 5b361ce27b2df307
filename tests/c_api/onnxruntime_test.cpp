// The three functions that ONNX Runtime's CUDA execution provider takes, called as it calls them.
#include <gtest/gtest.h>

#include <charconv>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cachalot/c_api.h"
#include "tests/c_api/fresh_process.h"

namespace cachalot::testing {
namespace {

// A function's address as the provider's options have it, a decimal number, and back.
template <typename Function>
Function* through_option(Function* function) {
  const std::string text = std::to_string(reinterpret_cast<std::uintptr_t>(function));
  std::uintptr_t address = 0;
  std::from_chars(text.data(), text.data() + text.size(), address);
  return reinterpret_cast<Function*>(address);
}

// The provider: memory that it reserves permanently is freed with a call that empties the cache; 0 bytes are not
// requested.
class Provider {
 public:
  void* alloc(std::size_t bytes) { return bytes == 0 ? nullptr : alloc_(bytes); }
  void* reserve(std::size_t bytes) {
    void* const memory = alloc(bytes);
    if (memory != nullptr) reserved_.insert(memory);
    return memory;
  }
  void free(void* memory) {
    free_(memory);
    if (reserved_.erase(memory) != 0) empty_cache_();
  }

 private:
  void* (*alloc_)(std::size_t) = through_option(cachalot_onnxruntime_alloc);
  void (*free_)(void*) = through_option(cachalot_onnxruntime_free);
  void (*empty_cache_)() = through_option(cachalot_onnxruntime_empty_cache);
  std::set<void*> reserved_;
};

const Environment kTwoDevices = {{"CACHALOT_SIMULATE", "1"}, {"CACHALOT_SIM", "devices:2,memory:64MiB"}};

TEST(OnnxRuntime, AProvidersMemoryIsTheAllocators) {
  EXPECT_EQ(status_of_fresh_process(kTwoDevices,
                                    [] {
                                      Provider provider;
                                      void* const tensor = provider.alloc(1000);
                                      ASSERT_NE(tensor, nullptr);
                                      EXPECT_EQ(cachalot_memory_allocated(0), 1024u);
                                      provider.free(tensor);
                                      EXPECT_EQ(provider.alloc(1000), tensor) << "memory is used again at once";
                                      provider.free(tensor);
                                      provider.free(nullptr);
                                      EXPECT_STREQ(cachalot_last_error(), "");
                                      void* const weights = provider.reserve(30 << 20);
                                      EXPECT_GE(cachalot_memory_reserved(0), 32u << 20);
                                      provider.free(weights);
                                      EXPECT_EQ(cachalot_memory_reserved(0), 0u)
                                          << "reserved memory goes back to the device";
                                    }),
            0);
}

TEST(OnnxRuntime, ServesTheDeviceAndTheStreamThatItIsBoundTo) {
  EXPECT_EQ(status_of_fresh_process(kTwoDevices,
                                    [] {
                                      const auto stream = reinterpret_cast<cudaStream_t>(0x40);
                                      ASSERT_EQ(cachalot_onnxruntime_bind(1, stream), CACHALOT_OK);
                                      Provider provider;
                                      void* const tensor = provider.alloc(1000);
                                      EXPECT_EQ(cachalot_memory_allocated(1), 1024u);
                                      EXPECT_EQ(cachalot_memory_allocated(0), 0u);
                                      provider.free(tensor);
                                      EXPECT_EQ(cachalot_malloc(1000, 1, stream), tensor) << "it was not the stream's";
                                      EXPECT_EQ(cachalot_onnxruntime_bind(2, nullptr), CACHALOT_E_INVALID_ARGUMENT);
                                      EXPECT_NE(provider.alloc(1000), nullptr);
                                      EXPECT_EQ(cachalot_memory_allocated(1), 2048u)
                                          << "after a mistake the binding is as before";
                                    }),
            0);
}

TEST(OnnxRuntime, SaysWhyItHasNoMemory) {
  EXPECT_EQ(
      status_of_fresh_process(kTwoDevices,
                              [] {
                                Provider provider;
                                EXPECT_EQ(provider.alloc(std::size_t{1} << 30), nullptr);
                                EXPECT_NE(std::string(cachalot_last_error()).find("out of memory"), std::string::npos)
                                    << cachalot_last_error();
                                int elsewhere = 0;
                                provider.free(&elsewhere);
                                EXPECT_NE(std::string(cachalot_last_error()).find("not"), std::string::npos);
                              }),
      0);
}

}  // namespace
}  // namespace cachalot::testing
