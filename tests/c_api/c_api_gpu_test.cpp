// The C API over a real GPU, and beside CUDA's headers (here included first; c_api_test.cpp has the other order).
#if CACHALOT_HAS_CUDART
#include <cuda_runtime_api.h>

#include "cachalot/c_api.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/c_api/fresh_process.h"

namespace cachalot::testing {
namespace {

constexpr std::size_t kSize = 3 << 20;

bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

// In a process of its own.
void write_and_read_back() {
  if (!has_gpu()) GTEST_SKIP();
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  void* const p = cachalot_malloc(kSize, 0, stream);
  ASSERT_NE(p, nullptr) << cachalot_last_error();
  EXPECT_EQ(cachalot_memory_reserved(0), std::size_t{20} << 20);

  std::vector<unsigned char> read(kSize);
  EXPECT_EQ(cudaMemsetAsync(p, 0x5a, kSize, stream), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(read.data(), p, kSize, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(read, std::vector<unsigned char>(kSize, 0x5a));

  cachalot_free(p, kSize, 0, stream);
  EXPECT_STREQ(cachalot_last_error(), "");
  EXPECT_EQ(cachalot_empty_cache(-1), CACHALOT_OK);
  EXPECT_EQ(cachalot_memory_reserved(0), 0u);
}

TEST(CApiGpu, MemoryCanBeWrittenAndReadBack) {
  const int status = status_of_fresh_process({}, write_and_read_back);
  if (status == kSkipped) GTEST_SKIP() << "no GPU here";
  EXPECT_EQ(status, 0) << "the process failed or died";
}

// In a process of its own.
void sleep_and_wake() {
  if (!has_gpu()) GTEST_SKIP();
  ASSERT_EQ(cachalot_begin_tagged("weights", -1), CACHALOT_OK) << cachalot_last_error();
  void* const p = cachalot_malloc(kSize, 0, nullptr);
  ASSERT_NE(p, nullptr) << cachalot_last_error();
  ASSERT_EQ(cachalot_end_tagged("weights", -1), CACHALOT_OK) << cachalot_last_error();
  constexpr std::size_t kPart = 4096;  // a copy of which every device holds the content
  const std::vector<unsigned char> written(kPart, 0x5a);
  ASSERT_EQ(cudaMemcpy(p, written.data(), kPart, cudaMemcpyHostToDevice), cudaSuccess);

  std::size_t free_awake = 0, free_asleep = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_awake, &total), cudaSuccess);
  ASSERT_EQ(cachalot_release_physical("weights", CACHALOT_KEEP_PINNED, nullptr, -1), CACHALOT_OK)
      << cachalot_last_error();
  ASSERT_EQ(cudaMemGetInfo(&free_asleep, &total), cudaSuccess);
  EXPECT_GE(free_asleep, free_awake + kSize);
  ASSERT_EQ(cachalot_restore_physical("weights", -1), CACHALOT_OK) << cachalot_last_error();

  std::vector<unsigned char> read(kPart);
  EXPECT_EQ(cudaMemcpy(read.data(), p, kPart, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(read, written);
  cachalot_free(p, kSize, 0, nullptr);
}

TEST(CApiGpu, ATagSleepsAndWakesWithWhatItHeld) {
  const int status = status_of_fresh_process({{"CACHALOT_CONF", "heap:pages"}}, sleep_and_wake);
  if (status == kSkipped) GTEST_SKIP() << "no GPU here";
  EXPECT_EQ(status, 0) << "the process failed or died";
}

// Runs in a process of its own. The written bytes differ from the present ones in one of two at least.
void write_beside_allocations() {
  if (!has_gpu()) GTEST_SKIP();
  char* const p = static_cast<char*>(cachalot_malloc(1000, 0, nullptr));
  ASSERT_NE(p, nullptr) << cachalot_last_error();
  constexpr unsigned char kBytes[] = {1, 2};
  ASSERT_EQ(cudaMemcpy(p + 1000, kBytes, sizeof(kBytes), cudaMemcpyHostToDevice), cudaSuccess);
  cachalot_free(p, 1000, 0, nullptr);
  EXPECT_STREQ(cachalot_last_error(), "");
  ASSERT_EQ(cudaMemcpy(p + 10, kBytes, sizeof(kBytes), cudaMemcpyHostToDevice), cudaSuccess);
  char* const reports = cachalot_check_guard_json();
  ASSERT_NE(reports, nullptr) << cachalot_last_error();
  const auto json = nlohmann::json::parse(reports);
  cachalot_string_free(reports);
  ASSERT_EQ(json.size(), 2u) << json;
  EXPECT_EQ(json[0]["kind"], "back_canary");
  EXPECT_EQ(json[1]["kind"], "write_after_free");
  EXPECT_EQ(json[1]["requested_bytes"], 1000);
}

TEST(CApiGpu, TheGuardSeesWhoWritesBehindAnAllocationAndAfterItsFree) {
  const int status = status_of_fresh_process({{"CACHALOT_CONF", "guard:True"}}, write_beside_allocations);
  if (status == kSkipped) GTEST_SKIP() << "no GPU here";
  EXPECT_EQ(status, 0) << "the process failed or died";
}

}  // namespace
}  // namespace cachalot::testing
#endif
