// The functions of c_api.h that the plug-in exports: they are about the allocator that serves PyTorch. Runs with the simulated runtime
// preloaded, as PyTorch's process would.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "cachalot/c_api.h"
#include "cachalot/errors.h"
#include "pytorch/plug/hooks.h"
#include "tests/plug/streams_of_process.h"
#include "tests/plug/taken_text.h"

namespace cachalot {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

bool error_names(const std::string& text) { return std::string(cachalot_last_error()).find(text) != std::string::npos; }

// Makes a call that fails, so that the thread has a last error.
void fail() { EXPECT_EQ(cachalot_empty_cache(7), CACHALOT_E_INVALID_ARGUMENT); }

TEST(CFunctionsOfThePlug, HavePyTorchsMemoryAndItHasTheirs) {
  const std::size_t before = cachalot_memory_allocated(0);
  void* const tensor = cachalot_malloc(3 * kMiB, 0, nullptr);
  void* const buffer = cachalot_malloc_with_flags(5 * kMiB, 0, nullptr, 0);
  ASSERT_NE(buffer, nullptr) << cachalot_last_error();
  EXPECT_EQ(cachalot_memory_allocated(0) - before, 8 * kMiB);
  EXPECT_EQ(taken(cachalot_memory_stats_json(0)).at("allocated_bytes.all.current"), before + 8 * kMiB);
  std::size_t bytes = 0;
  EXPECT_NE(cachalot_base_alloc(buffer, &bytes), nullptr);
  EXPECT_GE(bytes, 5 * kMiB);
  cachalot_free(buffer, 5 * kMiB, 0, nullptr);
  cachalot_free(tensor, 3 * kMiB, 0, nullptr);
  EXPECT_EQ(cachalot_memory_allocated(0), before);
}

TEST(CFunctionsOfThePlug, ReturnNullOrACodeWherePyTorchsThrow) {
  EXPECT_EQ(cachalot_malloc_with_flags(512 * kMiB, 0, nullptr, 0), nullptr);
  EXPECT_EQ(cachalot_last_error_code(), CACHALOT_E_OUT_OF_MEMORY);
  const std::string text = cachalot_last_error();
  try {
    cachalot_malloc(512 * kMiB, 0, nullptr);
    FAIL() << "it is more than the device has";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(error.what(), text);
  }
  EXPECT_EQ(cachalot_onnxruntime_alloc(512 * kMiB), nullptr);
  EXPECT_EQ(cachalot_malloc_with_flags(1, 0, nullptr, 8), nullptr);
  EXPECT_EQ(cachalot_last_error_code(), CACHALOT_E_INVALID_ARGUMENT);
  EXPECT_TRUE(error_names("0x8"));
}

TEST(CFunctionsOfThePlug, FreeOfPyTorchThrowsWhatACFreeWouldTellAndLeavesTheLastError) {
  void* const tensor = cachalot_malloc(kMiB, 0, nullptr);
  fail();
  const std::string before = cachalot_last_error();
  EXPECT_THROW(cachalot_free(tensor, 2 * kMiB, 0, nullptr), InvalidArgument);
  EXPECT_EQ(cachalot_last_error(), before);
  cachalot_free(tensor, kMiB, 0, nullptr);
  EXPECT_THROW(cachalot_free(tensor, kMiB, 0, nullptr), InvalidArgument);
}

TEST(CFunctionsOfThePlug, KeepTheLastErrorPerThreadWithItsCode) {
  fail();
  EXPECT_TRUE(error_names("device 7"));
  std::thread([] {
    EXPECT_STREQ(cachalot_last_error(), "");
    EXPECT_EQ(cachalot_last_error_code(), CACHALOT_OK);
  }).join();
  EXPECT_EQ(cachalot_last_error_code(), CACHALOT_E_INVALID_ARGUMENT);
  void* const buffer = cachalot_malloc_with_flags(kMiB, 0, nullptr, 0);
  EXPECT_EQ(cachalot_last_error_code(), CACHALOT_OK);
  cachalot_free(buffer, kMiB, 0, nullptr);
  fail();
  cachalot_trim(0, 0);
  EXPECT_EQ(cachalot_last_error_code(), CACHALOT_OK);
}

// Options of the Python package are replaced; those of C stay above them, as PyTorch's settings change below both.
TEST(CFunctionsOfThePlug, ConfigureStaysOnTopOfWhatPythonAndPyTorchSet) {
  const auto limit = [] {
    cachalot_limits_t figures;
    EXPECT_EQ(cachalot_limit_figures(0, &figures), CACHALOT_OK);
    return figures.limit_bytes;
  };
  ASSERT_EQ(cachalot_plug_give_options("limit:80MiB"), CACHALOT_OK) << cachalot_last_error();
  EXPECT_EQ(limit(), 80 * kMiB);
  ASSERT_EQ(cachalot_configure("limit:60MiB"), CACHALOT_OK) << cachalot_last_error();
  EXPECT_EQ(limit(), 60 * kMiB);
  ASSERT_EQ(cachalot_plug_give_options("limit:70MiB"), CACHALOT_OK);
  ASSERT_EQ(cachalot_plug_settings("max_split_size_mb:64"), CACHALOT_OK);
  EXPECT_EQ(limit(), 60 * kMiB);
  EXPECT_EQ(cachalot_configure("limit:much"), CACHALOT_E_INVALID_ARGUMENT);
  EXPECT_TRUE(error_names("much"));
  EXPECT_EQ(limit(), 60 * kMiB);
  ASSERT_EQ(cachalot_configure("limit:none"), CACHALOT_OK) << cachalot_last_error();
  ASSERT_EQ(cachalot_plug_give_options(""), CACHALOT_OK);
  EXPECT_EQ(limit(), CACHALOT_NO_LIMIT);
}

TEST(CFunctionsOfThePlug, TellOfTheSegmentsOfTensors) {
  static std::size_t held = 0;
  static const cachalot_segment_callback on_segment = [](const cachalot_segment_t* segment, void*) {
    held = segment->begins != 0 ? held + segment->size : held - segment->size;
  };
  void* const before = cachalot_malloc(40 * kMiB, 0, nullptr);
  ASSERT_EQ(cachalot_add_segment_callback(on_segment, nullptr), CACHALOT_OK) << cachalot_last_error();
  EXPECT_EQ(held, cachalot_memory_reserved(0));
  void* const after = cachalot_malloc(50 * kMiB, 0, nullptr);
  EXPECT_EQ(held, cachalot_memory_reserved(0));
  for (const auto& [tensor, bytes] : {std::pair{before, 40 * kMiB}, {after, 50 * kMiB}}) {
    cachalot_free(tensor, bytes, 0, nullptr);
  }
  ASSERT_EQ(cachalot_empty_cache(-1), CACHALOT_OK);
  EXPECT_EQ(held, cachalot_memory_reserved(0));
  EXPECT_EQ(cachalot_remove_segment_callback(on_segment, nullptr), CACHALOT_OK);
  EXPECT_EQ(cachalot_remove_segment_callback(on_segment, nullptr), CACHALOT_E_INVALID_ARGUMENT);
}

TEST(CFunctionsOfThePlug, ASoftLimitOfPythonCallsTheContext) {
  static std::size_t held = 0;
  static const auto on_soft = +[](const cachalot_soft_limit_t* report) { held = report->held_bytes; };
  ASSERT_EQ(cachalot_empty_cache(-1), CACHALOT_OK);
  ASSERT_EQ(cachalot_set_soft_limit("30MiB", cachalot_plug_on_soft_limit, reinterpret_cast<void*>(on_soft), 0),
            CACHALOT_OK)
      << cachalot_last_error();
  void* const tensor = cachalot_malloc(40 * kMiB, 0, nullptr);
  EXPECT_GE(held, 40 * kMiB);
  cachalot_free(tensor, 40 * kMiB, 0, nullptr);
  EXPECT_EQ(cachalot_set_soft_limit("none", nullptr, nullptr, 0), CACHALOT_OK);
}

}  // namespace
}  // namespace cachalot
