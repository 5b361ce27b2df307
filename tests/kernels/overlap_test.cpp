// No two live blocks share a byte: each is filled with a pattern of its own, and is found as it was when it is freed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "cachalot/kernels.h"
#include "tests/allocator/testing.h"
#include "tests/scale.h"

namespace cachalot {
namespace {

class Program {
 public:
  Program(const std::string& options, unsigned seed)
      : world_(512 * kMiB, options), kernels_(kernels_for(world_.device)), random_(seed) {
    for (int i = 0; i < 2; ++i) streams_.push_back(world_.device->new_stream());
  }

  void run(int operations) {
    for (int i = 0; i < operations && !testing::Test::HasFailure(); ++i) {
      const auto dice = random_() % 100;
      if (dice < 55 || live_.empty()) {
        allocate();
      } else if (dice < 97) {
        free(random_() % live_.size());
      } else if (dice < 99) {
        world_.device->synchronize();
      } else {
        world_.allocator.empty_cache();
      }
    }
    while (!live_.empty() && !testing::Test::HasFailure()) free(0);
    EXPECT_EQ(guard_reports(world_.allocator), 0u);
  }

 private:
  struct Live {
    PatternSpan span;
    Stream stream;
  };

  void allocate() {
    const std::size_t bytes = random_() % 30 == 0 ? kMiB + random_() % (2 * kMiB) : 1 + random_() % (32 * kKiB);
    const Stream stream = streams_[random_() % streams_.size()];
    const PatternSpan span{address(world_.allocate(bytes, stream)), bytes, ++seed_};
    world_.launch(stream, 5);
    kernels_->fill_pattern(stream, span);
    live_.push_back({span, stream});
  }

  void free(std::size_t i) {
    const Live live = live_[i];
    live_[i] = live_.back();
    live_.pop_back();
    EXPECT_EQ(kernels_->verify_pattern(live.stream, live.span), std::nullopt)
        << "somebody wrote to block " << live.span.seed << " of " << live.span.bytes << " bytes";
    world_.allocator.deallocate(reinterpret_cast<void*>(live.span.address));
  }

  const SmallQuarantine small_{2 * kMiB};
  World world_;
  std::unique_ptr<Kernels> kernels_;
  std::mt19937 random_;
  std::vector<Stream> streams_;
  std::vector<Live> live_;
  std::uint64_t seed_ = 0;
};

class NoOverlap : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Heaps, NoOverlap,
                         testing::Values("heap:segments", "heap:segments,thread_cache:True", "heap:pages",
                                         "heap:pages,thread_cache:False", "heap:pages,page_size_mb:2",
                                         "heap:segments,guard:True", "heap:pages,guard:True"));

TEST_P(NoOverlap, BlocksOfRandomProgramsKeepTheirPatternsUntilTheyAreFreed) {
  const int operations = static_cast<int>(scaled(2000));
  for (unsigned seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE("options " + GetParam() + ", seed " + std::to_string(seed));
    Program(GetParam(), seed).run(operations);
  }
}

TEST(Overlap, AByteThatTwoBlocksShareIsFound) {
  World world;
  const auto kernels = kernels_for(world.device);
  const PatternSpan first{address(world.allocate(4096)), 4096, 1};
  const PatternSpan second{first.address + 4095, 4096, 2};
  kernels->fill_pattern(nullptr, first);
  kernels->fill_pattern(nullptr, second);
  EXPECT_EQ(kernels->verify_pattern(nullptr, first), 4095u);
  EXPECT_EQ(kernels->verify_pattern(nullptr, second), std::nullopt);
  world.allocator.deallocate(reinterpret_cast<void*>(first.address));
}

}  // namespace
}  // namespace cachalot
