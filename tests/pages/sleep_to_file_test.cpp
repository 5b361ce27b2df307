// Pools that sleep with their content in a file, and the host and device memory after many sleeps of each kind.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "growth/saved_memory.h"
#include "tests/pages/testing.h"

namespace cachalot {
namespace {

// A folder that is removed with all it holds.
class Folder {
 public:
  Folder() : path_(testing::TempDir() + "/cachalot-sleep-test-XXXXXX") { EXPECT_NE(mkdtemp(path_.data()), nullptr); }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  bool is_empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

// Blocks of a tag, of which each begins with a text of its own.
struct Model {
  Model(World& in_world, const std::vector<std::size_t>& sizes) : world(in_world) {
    const Region region(world, "model");
    for (const std::size_t bytes : sizes) {
      blocks.push_back(world.allocate(bytes));
      const std::string text = text_of(blocks.size() - 1);
      world.device->copy_from_host(address(blocks.back()), text.data(), text.size());
    }
  }
  static std::string text_of(std::size_t which) { return "block " + std::to_string(1000 + which); }
  // Returns the number of blocks that have their text.
  std::size_t intact() const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      std::string text(text_of(i).size(), '?');
      world.device->copy_to_host(text.data(), address(blocks[i]), text.size());
      if (text == text_of(i)) ++count;
    }
    return count;
  }

  World& world;
  std::vector<void*> blocks;
};

const std::vector<std::size_t> kModelSizes{5 * kMiB, 1000, 3 * kMiB, 300 * kKiB};

std::size_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

// Returns the number of files without a name that this process has mapped.
std::size_t mapped_files() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("cachalot-sleep-") != std::string::npos && line.find("(deleted)") != std::string::npos) ++count;
  }
  return count;
}

TEST(SavingToAFile, KeepsTheContentAndLeavesNoName) {
  World world(64 * kGiB, "heap:pages");
  const Folder folder;
  const Model model(world, kModelSizes);
  const std::size_t files = open_files();
  world.allocator.release_physical("model", {Keep::file, folder.path()});
  EXPECT_EQ(world.device->used_bytes(), 0u);
  EXPECT_EQ(world.count(DeviceCall::host_malloc), 0u);
  EXPECT_TRUE(folder.is_empty());
  EXPECT_EQ(mapped_files(), 1u);
  EXPECT_EQ(open_files(), files);
  EXPECT_EQ(world.allocator.validate(), "");
  world.allocator.restore_tags({"model"});
  EXPECT_EQ(model.intact(), kModelSizes.size());
  EXPECT_EQ(mapped_files(), 0u);
  EXPECT_EQ(world.allocator.validate(), "");
}

TEST(SavingToAFile, OfSeveralTagsAndOfPoolsIsTheSame) {
  World world(64 * kGiB, "heap:pages");
  const Folder folder;
  const Model model(world, kModelSizes);
  const PoolId pool = world.allocator.tags().front().pool;
  world.allocator.release_tags({"model"}, {Keep::file, folder.path()});
  world.allocator.restore_physical(pool);
  world.allocator.release_physical(pool, {Keep::file, folder.path()});
  world.allocator.restore_physical("model");
  EXPECT_EQ(model.intact(), kModelSizes.size());
}

TEST(SavedContent, CanBeReadWhileItsMemorySleeps) {
  World world(64 * kGiB, "heap:pages");
  const Folder folder;
  const Model model(world, {70 * kMiB, 1000, 3 * kMiB});
  world.device->copy_from_host(address(model.blocks[0]) + 32 * kMiB - 2, "seam", 4);  // in two handles
  std::string text(10, '?');
  const auto read = [&](std::size_t which, std::size_t offset, std::size_t bytes) {
    return world.allocator.read_saved(static_cast<const char*>(model.blocks[which]) + offset, text.data(), bytes);
  };
  EXPECT_FALSE(read(0, 0, 10));
  for (const SleepOptions& options : {SleepOptions{Keep::pinned, {}}, SleepOptions{Keep::file, folder.path()}}) {
    world.allocator.release_physical("model", options);
    for (std::size_t which = 0; which < model.blocks.size(); ++which) {
      EXPECT_TRUE(read(which, 0, 10));
      EXPECT_EQ(text, Model::text_of(which));
    }
    EXPECT_TRUE(read(0, 32 * kMiB - 2, 4));
    EXPECT_EQ(text.substr(0, 4), "seam");
    std::string more(80 * kMiB, '?');
    EXPECT_FALSE(world.allocator.read_saved(model.blocks[0], more.data(), more.size()));  // there are fewer bytes
    EXPECT_FALSE(world.allocator.read_saved(&world, text.data(), 10));
    world.allocator.restore_physical("model");
  }
  world.allocator.release_physical("model");
  EXPECT_FALSE(read(0, 0, 10));
}

TEST(SavingToAFile, OfATagWithoutLiveMemoryMakesNone) {
  World world(64 * kGiB, "heap:pages");
  const Folder folder;
  const Model model(world, {kMiB});
  world.allocator.deallocate(model.blocks.front());
  world.allocator.release_physical("model", {Keep::file, folder.path()});
  EXPECT_EQ(mapped_files(), 0u);
  world.allocator.restore_physical("model");
}

TEST(SavingToAFile, EndsWithTheAllocator) {
  const Folder folder;
  {
    World world(64 * kGiB, "heap:pages");
    const Model model(world, kModelSizes);
    world.allocator.release_physical("model", {Keep::file, folder.path()});
    EXPECT_EQ(mapped_files(), 1u);
  }
  EXPECT_EQ(mapped_files(), 0u);
}

TEST(SavingToAFile, NeedsAFolderToWriteTo) {
  World world(64 * kGiB, "heap:pages");
  const Folder folder;
  const Model model(world, kModelSizes);
  const auto refused = [&](const SleepOptions& options) {
    return refusal([&] { world.allocator.release_physical("model", options); });
  };
  EXPECT_CONTAINS(refused({Keep::file, folder.path() + "/none"}),
                  "/none' (No such file or directory); it must be a folder in which this process may make files");
  EXPECT_CONTAINS(refused({Keep::file, "/dev/null"}), "folder is '/dev/null' (Not a directory)");
  EXPECT_CONTAINS(refused({Keep::file, ""}), "folder is '' (No such file or directory)");
  EXPECT_CONTAINS(refused({Keep::pinned, folder.path()}), "only Keep::file has one");
  EXPECT_EQ(model.intact(), kModelSizes.size());
  EXPECT_EQ(world.allocator.validate(), "");
}

TEST(SavingToAFile, NeedsRoomOnTheDisk) {
  const Folder folder;
  EXPECT_GT(SavedFile::free_bytes(folder.path()), 0u);
  EXPECT_EQ(SavedFile::make(folder.path(), std::size_t{1} << 62), nullptr);
  EXPECT_TRUE(folder.is_empty());
  World world(std::size_t{1} << 50, "heap:pages,page_size_mb:1024");
  const std::size_t bytes = (SavedFile::free_bytes(folder.path()) / kGiB + 2) * kGiB;
  const Model model(world, {bytes});
  const std::string text = out_of_memory([&] {
    world.allocator.release_physical("model", {Keep::file, folder.path()});
  });
  EXPECT_CONTAINS(text, "folder '" + folder.path() + "' has no room to save what tag 'model' holds on device 0: ");
  EXPECT_CONTAINS(text, format_bytes(bytes) + " are needed, ");
  EXPECT_CONTAINS(text, " are free");
  EXPECT_EQ(world.reserved(), bytes);
  EXPECT_EQ(model.intact(), 1u);
  EXPECT_FALSE(world.allocator.tags().front().is_asleep);
  EXPECT_EQ(world.allocator.validate(), "");
}

class ThousandSleeps : public testing::TestWithParam<Keep> {};

TEST_P(ThousandSleeps, LeaveNoByteBehind) {
  World world(64 * kGiB, "heap:pages");
  const Folder folder;
  const Model model(world, kModelSizes);
  const SleepOptions options{GetParam(), GetParam() == Keep::file ? folder.path() : ""};
  const std::size_t reserved = world.reserved();
  const std::size_t used = world.device->used_bytes();
  const std::size_t mappings = world.device->live_mappings();
  const std::size_t files = open_files();
  for (int cycle = 0; cycle < 1000; ++cycle) {
    world.allocator.release_physical("model", options);
    ASSERT_EQ(world.device->used_bytes(), 0u);
    ASSERT_EQ(world.reserved(), 0u);
    world.allocator.restore_physical("model");
    ASSERT_EQ(world.device->used_bytes(), used);
    ASSERT_EQ(world.reserved(), reserved);
    ASSERT_EQ(world.device->live_mappings(), mappings);
    if (options.keep != Keep::nothing) {
      ASSERT_EQ(model.intact(), kModelSizes.size()) << "cycle " << cycle;
    }
  }
  EXPECT_EQ(world.count(DeviceCall::host_free), world.count(DeviceCall::host_malloc));
  EXPECT_EQ(open_files(), files);
  EXPECT_EQ(mapped_files(), 0u);
  EXPECT_TRUE(folder.is_empty());
  EXPECT_EQ(world.allocator.validate(), "");
}

INSTANTIATE_TEST_SUITE_P(WithNothing, ThousandSleeps, testing::Values(Keep::nothing));
INSTANTIATE_TEST_SUITE_P(WithPinnedMemory, ThousandSleeps, testing::Values(Keep::pinned));
INSTANTIATE_TEST_SUITE_P(WithAFile, ThousandSleeps, testing::Values(Keep::file));

}  // namespace
}  // namespace cachalot
