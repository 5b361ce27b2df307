#include "cachalot/c_api.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/c_api/fresh_process.h"
#include "tests/tools/temporary_file.h"

namespace cachalot::testing {
namespace {

struct Folder {
  Folder() { std::filesystem::create_directory(file.path()); }
  int pages() const {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(file.path())) {
      count += entry.path().filename().string().starts_with("cachalot.") ? 1 : 0;
    }
    return count;
  }
  tools::TemporaryFile file;
};

TEST(CPublish, MakesOnePageAndRemovesIt) {
  const Folder folder;
  in_fresh_process([&] {
    EXPECT_EQ(cachalot_stop_publishing(), CACHALOT_OK);
    EXPECT_EQ(cachalot_publish(folder.file.path().c_str()), CACHALOT_OK) << cachalot_last_error();
    EXPECT_EQ(cachalot_publish(folder.file.path().c_str()), CACHALOT_OK) << cachalot_last_error();
    EXPECT_EQ(folder.pages(), 1);
    EXPECT_EQ(cachalot_stop_publishing(), CACHALOT_OK);
    EXPECT_EQ(folder.pages(), 0);
    EXPECT_EQ(cachalot_publish("/nonexistent"), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_NE(std::string(cachalot_last_error()).find("/nonexistent/cachalot."), std::string::npos);
  });
}

TEST(CPublish, EnvironmentPublishesAtTheFirstUse) {
  const Folder folder;
  in_fresh_process({{"CACHALOT_PUBLISH", "1"}, {"CACHALOT_PUBLISH_DIR", folder.file.path()}}, [&] {
    EXPECT_EQ(folder.pages(), 0);
    EXPECT_NE(cachalot_malloc(kMiB, 0, nullptr), nullptr);
    EXPECT_EQ(folder.pages(), 1);
  });
  in_fresh_process({{"CACHALOT_PUBLISH", "0"}, {"CACHALOT_PUBLISH_DIR", folder.file.path()}}, [&] {
    const int before = folder.pages();
    EXPECT_NE(cachalot_malloc(kMiB, 0, nullptr), nullptr);
    EXPECT_EQ(folder.pages(), before);
  });
}

// Statistics are not worth a program's end, but a mistake in the variable is told.
TEST(CPublish, AFolderThatIsNotThereIsALineAndABadValueAnError) {
  in_fresh_process({{"CACHALOT_PUBLISH", "1"}, {"CACHALOT_PUBLISH_DIR", "/nonexistent"}},
                   [&] { EXPECT_NE(cachalot_malloc(kMiB, 0, nullptr), nullptr); });
  in_fresh_process({{"CACHALOT_PUBLISH", "yes"}}, [&] {
    EXPECT_EQ(cachalot_malloc(kMiB, 0, nullptr), nullptr);
    EXPECT_NE(std::string(cachalot_last_error()).find("CACHALOT_PUBLISH: 'yes'"), std::string::npos)
        << cachalot_last_error();
  });
}

// --- a budget between processes -----------------------------------------------------------------------------------------------

TEST(CBudget, IsJoinedReadAndLeft) {
  const tools::TemporaryFile file;
  const char* const path = file.path().c_str();
  in_fresh_process([&] {
    EXPECT_EQ(cachalot_budget_json(path, 0), nullptr);
    EXPECT_NE(std::string(cachalot_last_error()).find("No such file"), std::string::npos);
    EXPECT_EQ(cachalot_leave_budget(0), CACHALOT_OK);
    ASSERT_EQ(cachalot_join_budget(2, kMiB, 0, "a name", path, 0, 0), CACHALOT_OK) << cachalot_last_error();
    EXPECT_EQ(cachalot_join_budget(1, 0, 0, nullptr, nullptr, 0, 0), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_NE(std::string(cachalot_last_error()).find("leave it before another is joined"), std::string::npos);
    for (const char* of : {path, static_cast<const char*>(nullptr)}) {  // the one that was joined
      char* const json = cachalot_budget_json(of, 0);
      ASSERT_NE(json, nullptr) << cachalot_last_error();
      EXPECT_NE(std::string(json).find(R"("name":"a name")"), std::string::npos) << json;
      EXPECT_NE(std::string(json).find(R"("share":2.0,"floor_bytes":1048576,)"), std::string::npos) << json;
      cachalot_string_free(json);
    }
    EXPECT_EQ(cachalot_leave_budget(0), CACHALOT_OK);
    char* const json = cachalot_budget_json(path, 0);
    EXPECT_NE(std::string(json).find(R"("members":[])"), std::string::npos) << json;
    cachalot_string_free(json);
    EXPECT_EQ(cachalot_join_budget(-1, 0, 0, "a name", path, 0, 0), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_NE(std::string(cachalot_last_error()).find("a share of -1"), std::string::npos);
    EXPECT_EQ(cachalot_join_budget(1, 0, 0, "a name", path, 0, 7), CACHALOT_E_INVALID_ARGUMENT) << "there is no GPU 7";
    EXPECT_EQ(cachalot_join_budget(1, 0, 0, "again", path, 1, 0), CACHALOT_OK) << cachalot_last_error();
  });
}

}  // namespace
}  // namespace cachalot::testing
