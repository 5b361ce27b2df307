#include "base/metadata_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace cachalot {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

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
  for (int i = 0; i < 200; ++i) memory.allocate(MetadataMemory::kSmallPiece, MetadataMemory::kSmallPiece);
  EXPECT_GE(memory.bytes(), 25 * kMiB);
  EXPECT_LE(memory.bytes(), 26 * kMiB);  // what does not fit the end of a piece is lost
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
