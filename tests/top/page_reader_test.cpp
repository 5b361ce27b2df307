#include "tools/live/sample.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <random>

#include "tests/top/testing.h"

namespace cachalot::tools::live {
namespace {

TEST(PageReader, ReadsWhatIsPublished) {
  const PageFolder folder;
  Program program(folder);
  program.world.allocator.release_physical("weights");
  program.publisher.refresh();
  const ReadPages pages = read_pages(folder.path());
  EXPECT_TRUE(pages.refused.empty());
  ASSERT_EQ(pages.processes.size(), 1u);
  const ProcessSample& process = pages.processes[0];
  EXPECT_EQ(process.pid, static_cast<std::uint64_t>(getpid()));
  EXPECT_NE(process.command.find("test_top"), std::string::npos);
  ASSERT_EQ(process.devices.size(), 1u);
  const DeviceSample& device = process.devices[0];
  EXPECT_EQ(device.page.reserved_bytes, program.world.reserved());
  EXPECT_EQ(device.page.allocated_bytes, program.world.allocated());
  EXPECT_EQ(device.page.asleep_bytes, 512 * kMiB);
  ASSERT_EQ(device.pools().size(), 2u);
  EXPECT_EQ(name_of(device.pools()[0]), "default");
  EXPECT_EQ(name_of(device.pools()[1]), "tag weights");
  EXPECT_EQ(device.pools()[1].is_asleep, 1u);
}

TEST(PageReader, TellsThePublisherThatItReads) {
  const PageFolder folder;
  const Program program(folder);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    read_pages(folder.path());
    EXPECT_EQ(cachalot::testing::copy_of_page(program.publisher.path())->header.interest, i);
  }
}

// Tests with the page that a killed process has left.
TEST(PageReader, RemovesPagesOfDeadProcessesAndNothingElse) {
  const PageFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    auto& program = *new Program(folder);
    static_cast<void>(program);
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  std::ofstream(folder.path() + "/cachalot.txt") << "not a page";
  ASSERT_EQ(folder.pages().size(), 2u);
  const ReadPages pages = read_pages(folder.path());
  EXPECT_TRUE(pages.processes.empty());
  EXPECT_EQ(pages.removed, std::vector<std::string>{folder.path() + "/cachalot." + std::to_string(child) + ".0"});
  EXPECT_EQ(folder.pages(), std::vector<std::string>{folder.path() + "/cachalot.txt"});
}

// A page whose process number is another process's by now.
TEST(PageReader, RemovesThePageOfAnEarlierProcessOfTheSameNumber) {
  const PageFolder folder;
  const Program program(folder);
  std::string bytes = read_whole(program.publisher.path());
  const std::uint64_t other_start = 1;
  bytes.replace(offsetof(StatisticsPageHeader, process_start), 8, reinterpret_cast<const char*>(&other_start), 8);
  const std::string path = folder.path() + "/cachalot.1.7";
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(read_pages(folder.path()).removed, std::vector<std::string>{path});
}

struct BadPage {
  const char* what;
  std::function<void(std::string&)> damage;
  const char* reason;
};

template <typename Number>
std::function<void(std::string&)> with(std::size_t offset, Number number) {
  return [=](std::string& bytes) {
    bytes.replace(offset, sizeof(number), reinterpret_cast<const char*>(&number), sizeof(number));
  };
}

TEST(PageReader, RefusesEveryPageThatIsNotOfItsLayout) {
  constexpr std::size_t kDevice = sizeof(StatisticsPageHeader);
  const BadPage bad_pages[] = {
      {"empty", [](std::string& bytes) { bytes.clear(); }, "too short"},
      {"cut", [](std::string& bytes) { bytes.resize(1000); }, "sizes"},
      {"longer", [](std::string& bytes) { bytes += 'x'; }, "sizes"},
      {"other magic", [](std::string& bytes) { bytes[0] = 'C'; }, "no statistics page"},
      {"other version", with(offsetof(StatisticsPageHeader, layout_version), std::uint32_t{2}), "version 2"},
      {"many devices", with(offsetof(StatisticsPageHeader, device_count), std::uint32_t{4000000000}), "sizes"},
      {"no devices", with(offsetof(StatisticsPageHeader, device_count), std::uint32_t{0}), "sizes"},
      {"other sizes", with(offsetof(StatisticsPageHeader, page_bytes), ~std::uint64_t{0}), "sizes"},
      {"huge pid", with(offsetof(StatisticsPageHeader, process_id), ~std::uint64_t{0}), "names process"},
      {"always written", with(offsetof(StatisticsPageHeader, sequence), std::uint64_t{7}), "come to rest"},
      {"device -1", with(kDevice + offsetof(StatisticsPageDevice, index), std::int32_t{-1}), "device -1"},
      {"many pools", with(kDevice + offsetof(StatisticsPageDevice, listed_pools), std::uint32_t{65}), "65 of"},
      {"another namespace, long ago",
       [](std::string& bytes) {
         with(offsetof(StatisticsPageHeader, pid_namespace), std::uint64_t{1})(bytes);
         with(offsetof(StatisticsPageHeader, refreshed_ns), std::int64_t{1})(bytes);
       },
       "another namespace"},
  };
  for (const BadPage& bad : bad_pages) {
    const PageFolder folder;
    const Program program(folder);
    std::string bytes = read_whole(program.publisher.path());
    bad.damage(bytes);
    std::ofstream(folder.path() + "/cachalot.1.7", std::ios::binary) << bytes;
    const ReadPages pages = read_pages(folder.path());
    EXPECT_EQ(pages.processes.size(), 1u) << bad.what << ": the good page is shown";
    ASSERT_EQ(pages.refused.size(), 1u) << bad.what;
    EXPECT_NE(pages.refused[0].find(bad.reason), std::string::npos) << bad.what << ": " << pages.refused[0];
  }
}

TEST(PageReader, ReadsNoPipesNoLinksAndNoFilesOfTwoNames) {
  const PageFolder folder;
  const Program program(folder);
  ASSERT_EQ(mkfifo((folder.path() + "/cachalot.1.0").c_str(), 0600), 0);
  std::filesystem::create_symlink(program.publisher.path(), folder.path() + "/cachalot.1.1");
  const TemporaryFile other(read_whole(program.publisher.path()));
  std::filesystem::create_hard_link(other.path(), folder.path() + "/cachalot.1.2");
  const ReadPages pages = read_pages(folder.path());
  EXPECT_EQ(pages.processes.size(), 1u);
  EXPECT_EQ(pages.refused.size(), 3u);
}

TEST(PageReader, RandomDamageIsNeverMoreThanARefusal) {
  const PageFolder folder;
  const PageFolder source;
  std::string whole;
  {
    const Program program(source);
    whole = read_whole(program.publisher.path());
  }
  std::mt19937 random(20261127);
  for (int i = 0; i < 300; ++i) {
    std::string bytes = whole;
    for (int k = 0; k < 20; ++k) bytes[random() % (sizeof(StatisticsPageHeader) + 500)] = static_cast<char>(random());
    with(offsetof(StatisticsPageHeader, sequence), std::uint64_t{2})(bytes);
    std::ofstream(folder.path() + "/cachalot.1.7", std::ios::binary) << bytes;
    const ReadPages pages = read_pages(folder.path());
    EXPECT_LE(pages.processes.size() + pages.refused.size() + pages.removed.size(), 1u);
  }
}

TEST(PageReader, RefusesAFolderThatIsNotThere) { EXPECT_THROW(read_pages("/nonexistent"), InvalidArgument); }

}  // namespace
}  // namespace cachalot::tools::live
