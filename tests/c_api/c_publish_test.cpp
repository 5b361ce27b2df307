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

}  // namespace
}  // namespace cachalot::testing
