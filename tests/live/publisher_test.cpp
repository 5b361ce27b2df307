#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <fstream>

#include "tests/allocator/testing.h"
#include "tests/live/testing.h"
#include "tests/process_life/forked_child.h"

namespace cachalot::testing {
namespace {

PageCopy page_of(const StatisticsPublisher& publisher) {
  const std::optional<PageCopy> copy = copy_of_page(publisher.path());
  EXPECT_TRUE(copy.has_value());
  return copy.value_or(PageCopy{});
}

// Shows interest as a reader that has read the page.
void show_interest(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  std::uint64_t interest = 0;
  file.seekg(offsetof(StatisticsPageHeader, interest));
  file.read(reinterpret_cast<char*>(&interest), sizeof(interest));
  ++interest;
  file.seekp(offsetof(StatisticsPageHeader, interest));
  file.write(reinterpret_cast<const char*>(&interest), sizeof(interest));
}

TEST(StatisticsPublisher, PageHasWhoseItIsAndTheFiguresOfTheAllocator) {
  const PageFolder folder;
  World world(64 * kGiB, "limit:32GiB");
  void* const block = world.allocate(3 * kMiB + 1);
  StatisticsPublisher publisher(world.allocator, folder.options());
  const PageCopy page = page_of(publisher);
  EXPECT_EQ(std::string(page.header.magic, 8), "cachalot");
  EXPECT_EQ(page.header.layout_version, 1u);
  EXPECT_EQ(page.header.page_bytes, std::filesystem::file_size(publisher.path()));
  EXPECT_EQ(page.header.process_id, static_cast<std::uint64_t>(getpid()));
  EXPECT_NE(page.header.process_start, 0u);
  EXPECT_NE(std::string(page.header.command).find("test_live"), std::string::npos) << page.header.command;
  EXPECT_STREQ(page.header.library_version, version());
  ASSERT_EQ(page.devices.size(), 1u);
  const StatisticsPageDevice& device = page.devices[0];
  EXPECT_STREQ(device.name, world.device->properties().name.c_str());
  EXPECT_EQ(device.has_uuid, 0u);
  EXPECT_EQ(device.total_bytes, 64 * kGiB);
  EXPECT_EQ(device.limit_bytes, 32 * kGiB);
  EXPECT_EQ(device.soft_limit_bytes, kStatisticsPageNoLimit);
  EXPECT_EQ(device.reserved_bytes, world.reserved());
  EXPECT_EQ(device.allocated_bytes, world.allocated());
  EXPECT_EQ(device.requested_bytes, 3 * kMiB + 1);
  EXPECT_EQ(device.free_bytes, world.reserved() - world.active());
  EXPECT_EQ(device.allocations, 1u);
  EXPECT_EQ(device.frees, 0u);
  EXPECT_EQ(device.device_allocations, 1u);
  world.allocator.deallocate(block);
  publisher.refresh();
  EXPECT_EQ(page_of(publisher).devices[0].frees, 1u);
  EXPECT_EQ(page_of(publisher).devices[0].allocated_bytes, 0u);
}

TEST(StatisticsPublisher, FileIsForItsUserAloneAndGoesWithThePublisher) {
  const PageFolder folder;
  World world;
  {
    const StatisticsPublisher first(world.allocator, folder.options());
    const StatisticsPublisher second(world.allocator, folder.options());
    EXPECT_EQ(folder.pages().size(), 2u);
    struct stat status {};
    ASSERT_EQ(stat(first.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600u);
  }
  EXPECT_EQ(folder.pages().size(), 0u);
}

TEST(StatisticsPublisher, FollowsNoLinkAndTakesNoFileOfAnother) {
  const PageFolder folder;
  const tools::TemporaryFile victim("precious");
  const std::string prefix = folder.path() + "/cachalot." + std::to_string(getpid());
  std::filesystem::create_symlink(victim.path(), prefix + ".0");
  std::ofstream(prefix + ".1") << "another's";
  World world;
  const StatisticsPublisher publisher(world.allocator, folder.options());
  EXPECT_EQ(publisher.path(), prefix + ".2");
  EXPECT_EQ(tools::read_whole(victim.path()), "precious");
  EXPECT_EQ(tools::read_whole(prefix + ".1"), "another's");
}

TEST(StatisticsPublisher, RefusesAFolderThatIsNotThereAndIntervalsOfNothing) {
  World world;
  PublishOptions options;
  options.directory = "/nonexistent";
  try {
    const StatisticsPublisher publisher(world.allocator, options);
    FAIL() << "no folder, and no error";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("/nonexistent/cachalot."), std::string::npos) << error.what();
  }
  options = {};
  options.interval = std::chrono::milliseconds(0);
  EXPECT_THROW(StatisticsPublisher(world.allocator, options), InvalidArgument);
}

TEST(StatisticsPublisher, DevicesAndPoolsAreBounded) {
  const PageFolder folder;
  World world(64 * kGiB, "heap:pages");
  std::vector<void*> live;
  for (int i = 1; i <= 80; ++i) {
    const std::string tag = "tag of the number " + std::to_string(i) + std::string(100, 'x');
    world.allocator.begin_tagged(tag);
    live.push_back(world.allocate(static_cast<std::size_t>(i) * 2 * kMiB));
    world.allocator.end_tagged(tag);
  }
  const StatisticsPublisher publisher(world.allocator, folder.options());
  const StatisticsPageDevice device = page_of(publisher).devices[0];
  EXPECT_EQ(device.pool_count, 81u);
  ASSERT_EQ(device.listed_pools, kStatisticsPagePools);
  EXPECT_EQ(device.pools[0].id[1], 0u) << "the default pool comes first";
  EXPECT_EQ(device.pools[1].reserved_bytes, 160 * kMiB) << "then the largest";
  EXPECT_EQ(std::strlen(device.pools[1].tag), sizeof(device.pools[1].tag) - 1);
  for (void* ptr : live) world.allocator.deallocate(ptr);
}

TEST(StatisticsPublisher, IsRefreshedOftenWhileAReaderReadsAndSeldomWithout) {
  const PageFolder folder;
  World world;
  PublishOptions options = folder.options();
  options.interval = std::chrono::milliseconds(20);
  options.interval_with_reader = std::chrono::milliseconds(1);
  const StatisticsPublisher publisher(world.allocator, options);
  const auto refreshes = [&] { return page_of(publisher).header.refreshes; };
  EXPECT_TRUE(becomes([&] { return refreshes() >= 3; }));
  show_interest(publisher.path());
  const std::uint64_t before = refreshes();
  EXPECT_TRUE(becomes([&] { return refreshes() >= before + 20; }));
  EXPECT_TRUE(becomes([&] { return page_of(publisher).header.cpu_ns > 0; }));
}

// Each figure of one page is of one moment: threads allocate and free the same number of equal blocks.
TEST(StatisticsPublisher, ThreadsNeverMakeAReaderSeeTornFigures) {
  const PageFolder folder;
  World world(64 * kGiB, "thread_cache:True");
  PublishOptions options = folder.options();
  options.interval = std::chrono::milliseconds(1);
  const StatisticsPublisher publisher(world.allocator, options);
  std::atomic<bool> ends = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!ends) world.allocator.deallocate(world.allocate(4 * kMiB));
    });
  }
  for (int i = 0; i < 200; ++i) {
    const std::optional<PageCopy> page = copy_of_page(publisher.path());
    if (!page) continue;
    const StatisticsPageDevice& device = page->devices[0];
    EXPECT_EQ(device.blocks, device.allocations - device.frees);
    EXPECT_EQ(device.allocated_bytes, device.blocks * 4 * kMiB);
    EXPECT_EQ(device.allocated_bytes, device.allocated_sum_bytes - device.freed_sum_bytes);
    EXPECT_EQ(device.pools[0].used_bytes + device.pools[0].free_bytes, device.reserved_bytes);
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(StatisticsPublisher, ATruncatedPageDoesNotEndTheProgram) {
  const PageFolder folder;
  World world;
  StatisticsPublisher publisher(world.allocator, folder.options());
  ASSERT_EQ(truncate(publisher.path().c_str(), 0), 0);
  publisher.refresh();
  world.allocator.deallocate(world.allocate(kMiB));
  publisher.refresh();
  EXPECT_FALSE(page_of(publisher).header.magic[0] == 'c');
}

TEST(StatisticsPublisher, AForkedChildLeavesThePageToItsParent) {
  const PageFolder folder;
  World world;
  StatisticsPublisher publisher(world.allocator, folder.options());
  const std::uint64_t before = page_of(publisher).header.refreshes;
  for (const Ends ends : {Ends::by_exit, Ends::at_once}) {
    const int status = status_of_child(
        [&] {
          publisher.refresh();
          World own;
          StatisticsPublisher of_child(own.allocator, folder.options());
          EXPECT_EQ(page_of(of_child).header.process_id, static_cast<std::uint64_t>(getpid()));
          EXPECT_EQ(folder.pages().size(), 2u);
        },
        ends);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(folder.pages(), std::vector<std::string>{publisher.path()});
  }
  publisher.refresh();
  EXPECT_GT(page_of(publisher).header.refreshes, before);
  EXPECT_EQ(page_of(publisher).header.process_id, static_cast<std::uint64_t>(getpid()));
}

// Its publisher is never destroyed, as that of a library.
TEST(StatisticsPublisher, PageIsRemovedWhenTheProcessExits) {
  const PageFolder folder;
  const auto publish = [&] {
    // Both live on when the process ends, and are not leaks.
    static World* const world = new World;
    static const StatisticsPublisher* const publisher = new StatisticsPublisher(world->allocator, folder.options());
    EXPECT_EQ(folder.pages(), std::vector<std::string>{publisher->path()});
  };
  EXPECT_EQ(status_of_child(publish, Ends::by_exit), 0);
  EXPECT_EQ(folder.pages().size(), 0u);
}

}  // namespace
}  // namespace cachalot::testing
