#include "base/metadata_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <new>
#include <thread>
#include <vector>

#include "base/bytes.h"

namespace cachalot {
namespace {

struct Piece {
  std::byte* start;
  std::size_t bytes;
};

void expect_apart(std::vector<Piece> pieces) {
  std::ranges::sort(pieces, {}, &Piece::start);
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    ASSERT_LE(pieces[i - 1].start + pieces[i - 1].bytes, pieces[i].start);
  }
}

TEST(MetadataMemory, GivesZeroedAlignedMemoryThatIsNobodyElses) {
  MetadataMemory memory;
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < 3000; ++i) {
    const std::size_t bytes = 64 + 512 * (i % 37);
    const std::size_t alignment = std::size_t{64} << (i % 11);
    auto* const start = static_cast<std::byte*>(memory.allocate(bytes, alignment));
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(start) % alignment, 0u);
    ASSERT_TRUE(std::all_of(start, start + bytes, [](std::byte byte) { return byte == std::byte{0}; }));
    std::fill_n(start, bytes, std::byte{0xff});
    pieces.push_back({start, bytes});
  }
  expect_apart(pieces);
}

TEST(MetadataMemory, SaysHowMuchItTook) {
  MetadataMemory memory;
  EXPECT_EQ(memory.bytes(), 0u);
  memory.allocate(4096, 64);
  EXPECT_EQ(memory.bytes(), 4096u);
  for (int i = 0; i < 400; ++i) memory.allocate(MetadataMemory::kPiece, MetadataMemory::kPiece);
  EXPECT_GE(memory.bytes(), 25 * kMiB);
  EXPECT_LE(memory.bytes(), 26 * kMiB);  // the end of a piece that is too small is lost
}

TEST(MetadataMemory, ANumberLeadsBackToWhatItIsOf) {
  MetadataMemory memory;
  for (std::size_t i = 0; i < 3000; ++i) {
    const std::size_t alignment = std::size_t{8} << (i % 14);
    auto* const start = static_cast<std::byte*>(memory.allocate(1000, alignment));
    EXPECT_EQ(memory.at(memory.number_of(start)), start);
    EXPECT_EQ(memory.number_of(start) % (std::min(alignment, MetadataMemory::kPiece) / MetadataMemory::kUnit), 0u);
  }
}

TEST(MetadataMemory, HandsOutMoreThanAPieceAtOnce) {
  MetadataMemory memory;
  std::vector<Piece> pieces;
  for (std::size_t bytes = MetadataMemory::kPiece; bytes <= 8 * kMiB; bytes += 100 * kKiB) {
    auto* const start = static_cast<std::byte*>(memory.allocate(bytes, 64));
    std::fill_n(start, bytes, std::byte{0xff});
    pieces.push_back({start, bytes});
    pieces.push_back({static_cast<std::byte*>(memory.allocate(100, 64)), 100});
  }
  expect_apart(pieces);
}

// Limits this process's addresses to 256 MiB more than it has; then there is less to reserve.
void allocate_within_a_limit() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit limit = {pages * 4096 + 256 * kMiB, RLIM_INFINITY};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(2);
  MetadataMemory memory;
  std::fill_n(static_cast<std::byte*>(memory.allocate(4 * kMiB, 64)), 4 * kMiB, std::byte{1});
  try {
    for (;;) memory.allocate(kMiB, 64);
  } catch (const std::bad_alloc&) {
    std::exit(memory.bytes() < 64 * kMiB ? 0 : 3);
  }
}

// Returns whether the system enforces a limit of addresses: qemu-user does not.
bool limits_of_addresses_hold() {
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  const rlimit lower = {std::min<rlim_t>(before.rlim_cur, rlim_t{1} << 46) - 4096, before.rlim_max};
  rlimit seen{};
  if (setrlimit(RLIMIT_AS, &lower) != 0 || getrlimit(RLIMIT_AS, &seen) != 0) return false;
  setrlimit(RLIMIT_AS, &before);
  return seen.rlim_cur == lower.rlim_cur;
}

TEST(MetadataMemory, MakesDoWithFewerAddresses) {
  if (!limits_of_addresses_hold()) GTEST_SKIP() << "this system does not limit a process's addresses";
  EXPECT_EXIT(allocate_within_a_limit(), testing::ExitedWithCode(0), "");
}

TEST(MetadataMemory, ServesSeveralThreads) {
  MetadataMemory memory;
  std::vector<std::vector<Piece>> of_thread(4);
  std::vector<std::thread> threads;
  for (auto& pieces : of_thread) {
    threads.emplace_back([&memory, &pieces] {
      for (int i = 0; i < 500; ++i) pieces.push_back({static_cast<std::byte*>(memory.allocate(2048, 64)), 2048});
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Piece> all;
  for (const auto& pieces : of_thread) all.insert(all.end(), pieces.begin(), pieces.end());
  expect_apart(all);
}

}  // namespace
}  // namespace cachalot
