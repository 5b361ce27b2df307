#include "cachalot/c_api.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/c_api/fresh_process.h"

namespace cachalot::testing {
namespace {

struct Told {
  std::vector<cachalot_soft_limit_t> reports;
  size_t trimmed = 0;
};

void on_soft(const cachalot_soft_limit_t* report, void* context) {
  auto& told = *static_cast<Told*>(context);
  told.reports.push_back(*report);
  told.trimmed += cachalot_trim(report->soft_limit_bytes / 2, report->device);
}

cachalot_limits_t figures() {
  cachalot_limits_t limits = {};
  EXPECT_EQ(cachalot_limit_figures(0, &limits), CACHALOT_OK) << cachalot_last_error();
  return limits;
}

bool error_has(const char* part) { return std::string(cachalot_last_error()).find(part) != std::string::npos; }

TEST(CLimits, RefuseGrowthWithOutOfMemory) {
  in_fresh_process([] {
    EXPECT_EQ(figures().limit_bytes, CACHALOT_NO_LIMIT);
    EXPECT_EQ(cachalot_set_limit("100MiB", 0), CACHALOT_OK);
    EXPECT_EQ(cachalot_malloc(120 * kMiB, 0, nullptr), nullptr);
    EXPECT_TRUE(error_has("100.00 MiB allowed by set_limit(\"100MiB\")")) << cachalot_last_error();
    EXPECT_EQ(cachalot_reserve(120 * kMiB, 0), CACHALOT_E_OUT_OF_MEMORY);
    EXPECT_EQ(figures().limit_bytes, 100 * kMiB);
    EXPECT_EQ(cachalot_set_limit("none", 0), CACHALOT_OK);
    EXPECT_NE(cachalot_malloc(120 * kMiB, 0, nullptr), nullptr);
  });
}

TEST(CLimits, RefuseBadInputAndStayAsTheyWere) {
  in_fresh_process([] {
    EXPECT_EQ(cachalot_set_limit("100MiB", 0), CACHALOT_OK);
    for (const char* bad : {"", "most", "101%", "free*2"}) {
      EXPECT_EQ(cachalot_set_limit(bad, 0), CACHALOT_E_INVALID_ARGUMENT) << bad;
      EXPECT_TRUE(error_has("is not a limit of memory")) << cachalot_last_error();
    }
    EXPECT_EQ(cachalot_set_limit(nullptr, 0), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_has("limit is NULL"));
    EXPECT_EQ(cachalot_set_limit("1GiB", 7), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_EQ(cachalot_set_soft_limit("1GiB", nullptr, nullptr, 0), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_EQ(cachalot_limit_figures(0, nullptr), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_EQ(cachalot_limit_figures(7, nullptr), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_EQ(cachalot_trim(0, 7), 0u);
    EXPECT_TRUE(error_has("device 7"));
    EXPECT_EQ(cachalot_reserve(1, 7), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_EQ(figures().limit_bytes, 100 * kMiB);
    EXPECT_EQ(figures().soft_limit_bytes, CACHALOT_NO_LIMIT);
  });
}

TEST(CLimits, CallBackAboveTheSoftLimit) {
  in_fresh_process([] {
    Told told;
    void* const old = cachalot_malloc(90 * kMiB, 0, nullptr);
    cachalot_free(old, 90 * kMiB, 0, nullptr);
    EXPECT_EQ(cachalot_set_soft_limit("100MiB", on_soft, &told, 0), CACHALOT_OK);
    void* const fresh = cachalot_malloc(95 * kMiB, 0, nullptr);
    ASSERT_EQ(told.reports.size(), 1u);
    EXPECT_EQ(told.reports[0].device, 0);
    EXPECT_EQ(told.reports[0].held_bytes, 186 * kMiB) << "segments of 90 and 96 MiB";
    EXPECT_EQ(told.reports[0].soft_limit_bytes, 100 * kMiB);
    EXPECT_EQ(told.trimmed, 90 * kMiB);
    EXPECT_EQ(figures().held_bytes, 96 * kMiB);
    cachalot_free(fresh, 95 * kMiB, 0, nullptr);
    EXPECT_EQ(cachalot_set_soft_limit("none", nullptr, nullptr, 0), CACHALOT_OK);
    cachalot_malloc(500 * kMiB, 0, nullptr);
    EXPECT_EQ(told.reports.size(), 1u);
  });
}

TEST(CLimits, AreAnOptionAndTrimAndReserveChangeWhatIsHeld) {
  in_fresh_process({{"CACHALOT_CONF", "heap:pages,limit:1GiB"}}, [] {
    EXPECT_EQ(cachalot_reserve(256 * kMiB, 0), CACHALOT_OK) << cachalot_last_error();
    EXPECT_EQ(figures().limit_bytes, 1024 * kMiB);
    EXPECT_EQ(figures().reservation_bytes, 256 * kMiB);
    void* const ptr = cachalot_malloc(100 * kMiB, 0, nullptr);
    EXPECT_EQ(figures().held_bytes, 256 * kMiB) << "it came from the reservation";
    EXPECT_EQ(cachalot_trim(0, 0), 156 * kMiB);
    EXPECT_EQ(figures().held_bytes, 100 * kMiB);
    cachalot_free(ptr, 100 * kMiB, 0, nullptr);
  });
}

}  // namespace
}  // namespace cachalot::testing
