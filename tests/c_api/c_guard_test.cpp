// The guard of the process's allocator, in C.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cachalot/c_api.h"
#include "tests/c_api/fresh_process.h"
#include "tests/c_api/testing.h"

namespace cachalot::testing {
namespace {

TEST(CGuard, TheGuardIsOnWhereItIsAskedFor) {
  in_fresh_process({{"CACHALOT_CONF", "guard:True"}}, [] {
    void* const p = cachalot_malloc(1000, 0, nullptr);
    cachalot_free(p, 1000, 0, nullptr);
    EXPECT_EQ(last_error(), "");
    cachalot_free(p, 1000, 0, nullptr);
    EXPECT_TRUE(error_names({"already freed", "allocated as call 1 by thread", "freed as call 2 by thread"}));
    EXPECT_EQ(take_json(cachalot_check_guard_json()), json::array());
    EXPECT_EQ(cachalot_configure("guard:False"), CACHALOT_E_INVALID_ARGUMENT);
  });
}

// Each mistake is refused as without debug, and is in the list as well.
TEST(CGuard, WhatACallerDoesWrongIsReportedUnderDebug) {
  for (const Environment& environment :
       {Environment{{"CACHALOT_DEBUG", "1"}}, Environment{{"CACHALOT_CONF", "debug:True,heap:pages,guard:False"}}}) {
    in_fresh_process(environment, [] {
      char* const p = static_cast<char*>(cachalot_malloc(1000, 0, nullptr));
      int on_the_host = 0;
      cachalot_free(p, 999, 0, nullptr);
      cachalot_free(p + 8, 1000, 0, nullptr);
      cachalot_free(&on_the_host, 1000, 0, nullptr);
      EXPECT_EQ(cachalot_record_stream(p + 8, stream_of(0x100)), CACHALOT_E_INVALID_ARGUMENT);
      cachalot_free(p, 1000, 0, nullptr);
      EXPECT_EQ(last_error(), "");
      cachalot_free(p, 1000, 0, nullptr);
      EXPECT_TRUE(error_names({"already freed", "allocated as call 1 by thread", "freed as call 2 by thread"}));
      EXPECT_EQ(cachalot_record_stream(p, stream_of(0x100)), CACHALOT_E_INVALID_ARGUMENT);

      const json reports = take_json(cachalot_check_guard_json());
      std::vector<std::string> kinds;
      for (const json& report : reports) {
        kinds.push_back(report.at("kind"));
        EXPECT_FALSE(report.at("message").get<std::string>().empty());
        EXPECT_FALSE(report.at("mistake").at("stack").empty());
      }
      EXPECT_EQ(kinds, (std::vector<std::string>{"wrong_size", "invalid_free", "invalid_free", "invalid_use",
                                                 "double_free", "use_after_free"}));
      EXPECT_EQ(reports.at(1).at("offset"), 8);
      EXPECT_EQ(reports.at(2).at("allocated"), nullptr);
      EXPECT_FALSE(reports.at(4).at("allocated").at("stack").empty());
      EXPECT_FALSE(reports.at(4).at("freed").at("stack").empty());
      EXPECT_EQ(cachalot_configure("debug:False"), CACHALOT_E_INVALID_ARGUMENT);
    });
  }
}

TEST(CGuard, CachalotDebugTurnsTheGuardOn) {
  in_fresh_process({{"CACHALOT_DEBUG", "1"}}, [] { EXPECT_EQ(take_json(cachalot_check_guard_json()), json::array()); });
  in_fresh_process({{"CACHALOT_DEBUG", "1"}, {"CACHALOT_CONF", "debug:False"}},
                   [] { EXPECT_EQ(cachalot_check_guard_json(), nullptr); });
  for (const char* off : {"0", ""}) {
    in_fresh_process({{"CACHALOT_DEBUG", off}}, [] { EXPECT_EQ(cachalot_check_guard_json(), nullptr); });
  }
  in_fresh_process({{"CACHALOT_DEBUG", "1"}}, [] {
    EXPECT_EQ(cachalot_configure("pinned_limit_mb:2"), CACHALOT_OK);  // before the allocator is made: on top
    EXPECT_EQ(take_json(cachalot_check_guard_json()), json::array());
  });
}

TEST(CGuard, WithoutAGuardThereIsNothingToCheck) {
  in_fresh_process([] {
    EXPECT_EQ(cachalot_check_guard_json(), nullptr);
    EXPECT_TRUE(error_names({"the guard is off", "guard:True"}));
  });
}

}  // namespace
}  // namespace cachalot::testing
