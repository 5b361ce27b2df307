// The kernels' code, run by the host: each thread of each block in turn, over memory that notes loads and stores. Kernels
// compute nothing on the simulated runtime, and this is the code that a GPU runs.
#include "kernels/device_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "kernels/batch.h"
#include "kernels/cuda_kernels.h"
#include "kernels/pattern.h"
#include "tests/kernels/subject.h"
#include "tests/scale.h"

namespace cachalot {
namespace {

// Memory of a GPU that counts the stores to each byte, and complains of loads that are not allowed.
class HostMemory {
 public:
  explicit HostMemory(std::size_t bytes) : words_(bytes / kWordBytes + 1), stores_(bytes), readable_(bytes) {}

  Address begin() const { return reinterpret_cast<Address>(words_.data()); }
  std::size_t size() const { return stores_.size(); }
  unsigned char* at(Address address) { return reinterpret_cast<unsigned char*>(address); }
  Bytes content() { return {at(begin()), at(begin()) + size()}; }

  void allow_loads(Address address, std::size_t bytes) { mark(readable_, address, bytes); }
  void forget_all() {
    std::ranges::fill(stores_, std::uint8_t{0});
    std::ranges::fill(readable_, std::uint8_t{0});
  }
  const std::vector<std::uint8_t>& stores() const { return stores_; }
  std::size_t offset(Address address) const { return address - begin(); }

  void note_load(Address address, std::size_t bytes) {
    ASSERT_EQ(address % bytes, 0u);
    ASSERT_LE(offset(address) + bytes, size());
    const std::uint8_t* const first = readable_.data() + offset(address);
    ASSERT_EQ(std::count(first, first + bytes, 0), 0) << offset(address);
  }
  void note_store(Address address, std::size_t bytes) {
    ASSERT_EQ(address % bytes, 0u);
    ASSERT_LE(offset(address) + bytes, size());
    mark(stores_, address, bytes);
  }

 private:
  void mark(std::vector<std::uint8_t>& marks, Address address, std::size_t bytes) const {
    for (std::size_t i = 0; i < bytes; ++i) ++marks[offset(address) + i];
  }

  struct alignas(kWordBytes) Aligned {
    unsigned char bytes[kWordBytes] = {};
  };
  std::vector<Aligned> words_;
  std::vector<std::uint8_t> stores_;
  std::vector<std::uint8_t> readable_;
};

// A thread of a grid on the host.
struct HostThread {
  HostMemory& memory;
  unsigned of_block, of_grid, grid;

  unsigned thread() const { return of_block; }
  unsigned block() const { return of_grid; }
  unsigned blocks() const { return grid; }
  Word load(Address address) const {
    memory.note_load(address, sizeof(Word));
    Word word;
    std::memcpy(&word, memory.at(address), sizeof(word));
    return word;
  }
  void store(Address address, const Word& word) const {
    memory.note_store(address, sizeof(Word));
    std::memcpy(memory.at(address), &word, sizeof(word));
  }
  unsigned char load_byte(Address address) const {
    memory.note_load(address, 1);
    return *memory.at(address);
  }
  void store_byte(Address address, unsigned char byte) const {
    memory.note_store(address, 1);
    *memory.at(address) = byte;
  }
  static void lower(unsigned long long* place, unsigned long long value) { *place = std::min(*place, value); }
};

template <typename Kernel>
void run_grid(HostMemory& memory, unsigned blocks, Kernel&& kernel) {
  for (unsigned block = 0; block < blocks; ++block) {
    for (unsigned thread = 0; thread < kThreadsABlock; ++thread) kernel(HostThread{memory, thread, block, blocks});
    if (testing::Test::HasFatalFailure()) return;
  }
}

class DeviceCode : public testing::Test {
 protected:
  std::size_t below(std::size_t end) { return random_() % end; }
  unsigned some_blocks() { return static_cast<unsigned>(1 + below(9)); }

  // Mostly short, some of a few tiles.
  std::size_t some_length() {
    const std::size_t ends[] = {2, 20, 100, 1000, kTileBytes + 50, 3 * kTileBytes};
    return below(ends[below(std::size(ends))]);
  }

  // Spans in order of their addresses, which do not overlap; some are empty.
  std::vector<PatternSpan> some_spans(const HostMemory& memory) {
    std::vector<PatternSpan> spans;
    std::size_t offset = below(40);
    for (std::size_t count = 1 + below(kItemsALaunch); count > 0; --count) {
      const std::size_t bytes = some_length();
      if (offset + bytes > memory.size()) break;
      spans.push_back({memory.begin() + offset, bytes, random_()});
      offset += bytes + below(20);
    }
    return spans;
  }

  std::vector<unsigned long long> answers_for(HostMemory& memory, const std::vector<PatternSpan>& spans) {
    const auto batch = batch_of<PatternSpan>(spans);
    std::vector<unsigned long long> answers(spans.size(), kNoDifference);
    run_grid(memory, some_blocks(), [&](const HostThread& thread) { verify_patterns(thread, batch, answers.data()); });
    return answers;
  }

  void expect_moved(HostMemory& memory, const std::vector<BlockMove>& moves, unsigned blocks) {
    for (Address at = memory.begin(); at < memory.begin() + memory.size(); ++at) {
      *memory.at(at) = static_cast<unsigned char>(random_());
    }
    Bytes expected = memory.content();
    std::vector<std::uint8_t> stores(memory.size());
    for (const BlockMove& move : moves) {
      memory.allow_loads(move.from, move.bytes);
      for (std::size_t i = 0; i < move.bytes; ++i) {
        expected[memory.offset(move.to) + i] = *memory.at(move.from + i);
        stores[memory.offset(move.to) + i] = 1;
      }
    }
    const auto batch = batch_of<BlockMove>(moves);
    run_grid(memory, blocks, [&](const HostThread& thread) { move_blocks(thread, batch); });
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_TRUE(memory.content() == expected);
    ASSERT_EQ(memory.stores(), stores);
    memory.forget_all();
  }

  std::mt19937_64 random_{seed_or(1)};
};

TEST_F(DeviceCode, EachByteOfEachSpanIsFilledOnceAndNoOther) {
  for (int round = 0; round < 60; ++round) {
    HostMemory memory(300'000);
    const std::vector<PatternSpan> spans = some_spans(memory);
    const auto batch = batch_of<PatternSpan>(spans);
    run_grid(memory, some_blocks(), [&](const HostThread& thread) { fill_patterns(thread, batch); });
    ASSERT_FALSE(HasFatalFailure());
    Bytes expected(memory.size());
    std::vector<std::uint8_t> stores(memory.size());
    for (const PatternSpan& span : spans) {
      for (std::size_t i = 0; i < span.bytes; ++i) {
        expected[memory.offset(span.address) + i] = pattern_byte(span.address + i, span.seed);
        stores[memory.offset(span.address) + i] = 1;
      }
    }
    ASSERT_TRUE(memory.content() == expected) << round;
    ASSERT_EQ(memory.stores(), stores) << round;
  }
}

TEST_F(DeviceCode, TheFirstByteOfEachSpanThatDiffersIsTheAnswer) {
  for (int round = 0; round < 60; ++round) {
    HostMemory memory(300'000);
    const std::vector<PatternSpan> spans = some_spans(memory);
    std::vector<unsigned long long> expected(spans.size(), kNoDifference);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const auto& [address, bytes, seed] = spans[i];
      memory.allow_loads(address, bytes);
      for (std::size_t at = 0; at < bytes; ++at) *memory.at(address + at) = pattern_byte(address + at, seed);
      for (std::size_t wrong = bytes == 0 ? 0 : below(4); wrong > 0; --wrong) {
        const std::size_t offset = below(bytes);
        *memory.at(address + offset) = static_cast<unsigned char>(~pattern_byte(address + offset, seed));
        expected[i] = std::min<unsigned long long>(expected[i], offset);
      }
    }
    ASSERT_EQ(answers_for(memory, spans), expected) << round;
    ASSERT_FALSE(HasFatalFailure()) << round;
  }
}

TEST_F(DeviceCode, BlocksOfEveryAlignmentAndShortLengthAreMoved) {
  HostMemory memory(2048);
  for (std::size_t from = 0; from < 16; ++from) {
    for (std::size_t to = 0; to < 16; ++to) {
      for (std::size_t bytes = 0; bytes < 100; bytes += 1 + below(3)) {
        expect_moved(memory, {{memory.begin() + 64 + from, memory.begin() + 512 + to, bytes}}, 1);
        ASSERT_FALSE(HasFatalFailure()) << from << " " << to << " " << bytes;
      }
    }
  }
}

TEST_F(DeviceCode, ManyBlocksOfAnyKindAreMovedByAnyNumberOfBlocksOfThreads) {
  for (int round = 0; round < 40; ++round) {
    HostMemory memory(600'000);
    const std::size_t half = memory.size() / 2;
    std::vector<BlockMove> moves;
    for (const PatternSpan& span : some_spans(memory)) {  // those are the destinations, in the first half
      if (memory.offset(span.address) + span.bytes > half) break;
      moves.push_back({memory.begin() + half + below(half - span.bytes), span.address, span.bytes});
    }
    expect_moved(memory, moves, some_blocks());
    ASSERT_FALSE(HasFatalFailure()) << round;
  }
}

TEST_F(DeviceCode, BlocksOfThreadsShareALongAndManyShortMovesEvenly) {
  std::vector<BlockMove> moves = {{0, 0, 1000 * kTileBytes}};
  for (std::size_t i = 1; i < kItemsALaunch; ++i) moves.push_back({0, 0, i % 3 * 500});
  const auto batch = batch_of<BlockMove>(moves);
  const std::uint64_t tiles = batch.first_tile[batch.count];
  EXPECT_EQ(tiles, 1000 + 80u);  // a third of the short ones is empty
  std::vector<unsigned> tiles_of_item(moves.size());
  HostMemory none(0);
  for (unsigned block = 0; block < 64; ++block) {
    std::uint64_t mine = 0;
    for_each_tile(HostThread{none, 0, block, 64}, batch, [&](unsigned item, std::uint64_t) {
      ++tiles_of_item[item];
      ++mine;
    });
    EXPECT_LE(mine, tiles / 64 + 1);
    EXPECT_GE(mine, tiles / 64);
  }
  for (std::size_t i = 0; i < moves.size(); ++i) {
    EXPECT_EQ(tiles_of_item[i], batch.first_tile[i + 1] - batch.first_tile[i]) << i;
  }
}

#if CACHALOT_HAS_CUDA
TEST_F(DeviceCode, TheKernelsTakeTheArgumentsThatLaunchesGive) {
  const auto size_of_argument = [](const std::string& kernel) {
    const std::string_view code = kDeviceCode;
    const std::string name = kernel + "_param_0[";
    const std::size_t at = code.find(name);
    return at == code.npos ? 0u : static_cast<std::size_t>(std::atoi(code.data() + at + name.size()));
  };
  EXPECT_EQ(size_of_argument("cachalot_fill"), sizeof(Batch<PatternSpan>));
  EXPECT_EQ(size_of_argument("cachalot_verify"), sizeof(Batch<PatternSpan>));
  EXPECT_EQ(size_of_argument("cachalot_move"), sizeof(Batch<BlockMove>));
}
#endif

}  // namespace
}  // namespace cachalot
