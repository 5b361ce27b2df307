// Each hazard, planted, is found; each correctly ordered program is clean.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cachalot/errors.h"
#include "cachalot/simulated_device.h"
#include "tests/device/units.h"

namespace cachalot {
namespace {

constexpr std::int64_t kLong = 1'000'000;

std::string hex(Address address) { return fmt::format("{:#x}", address); }

class HazardTest : public testing::Test {
 protected:
  // A use of a handout by work on a stream.
  void use(Stream stream, Address address, std::size_t bytes) { device_.launch(stream, kLong, {{address, bytes}}); }

  Event record(Stream stream) {
    const Event event = device_.event_create();
    device_.event_record(event, stream);
    return event;
  }

  template <typename Call>
  std::string hazard_of(Call call) {
    try {
      call();
      return "";
    } catch (const HazardError& hazard) {
      return hazard.what();
    }
  }

  SimulatedDevice device_{{.latency = LatencyModel::none(), .check_hazards = true}};
  const Stream first_ = reinterpret_cast<Stream>(std::uintptr_t{0xa});
  const Stream second_ = reinterpret_cast<Stream>(std::uintptr_t{0xb});
  const Stream third_ = reinterpret_cast<Stream>(std::uintptr_t{0xc});
  const Address memory_ = device_.malloc(kPage).value();
};

// ---- Handouts ----

class Handouts : public HazardTest {
 protected:
  // Handed out for the first stream, used there, given back, with the work still queued.
  void SetUp() override {
    device_.handed_out(memory_, 4096, first_);
    use(first_, memory_, 4096);
    device_.given_back(memory_);
  }
};

TEST_F(Handouts, ReuseOnTheSameStreamIsClean) { device_.handed_out(memory_, 4096, first_); }

TEST_F(Handouts, ReuseOnAnotherStreamWhileTheWorkMayRunIsAHazardThatNamesBothUses) {
  EXPECT_EQ(hazard_of([&] { device_.handed_out(memory_, 4096, second_); }),
            "[" + hex(memory_) + ", +4096) was handed out for stream 0xb, but launch #1 of stream 0xa used [" +
                hex(memory_) + ", +4096) of it and is not ordered before that stream");
}

TEST_F(Handouts, TimeAloneOrdersNothing) {
  device_.advance(10 * kLong);
  EXPECT_THROW(device_.handed_out(memory_, 4096, second_), HazardError);
}

TEST_F(Handouts, AHazardChangesNothing) {
  EXPECT_THROW(device_.handed_out(memory_, 4096, second_), HazardError);
  EXPECT_THROW(device_.given_back(memory_), HazardError);  // was not handed out
  device_.handed_out(memory_, 4096, first_);
}

TEST_F(Handouts, APartOfUsedMemoryIsUsedMemory) {
  EXPECT_THROW(device_.handed_out(memory_ + 512, 512, second_), HazardError);
  EXPECT_THROW(device_.handed_out(memory_ + 4096 - 512, 8192, second_), HazardError);
  device_.handed_out(memory_ + 4096, 4096, second_);
}

TEST_F(Handouts, AStreamThatWaitedForAnEventAfterTheUseMayHaveIt) {
  device_.stream_wait(second_, record(first_));
  device_.handed_out(memory_, 4096, second_);
}

TEST_F(Handouts, TheLegacyStreamAndABlockingStreamAreInOrder) {
  EXPECT_NE(hazard_of([&] { device_.handed_out(memory_, 4096, nullptr); }), "");
  device_.set_blocking(first_);
  device_.handed_out(memory_, 4096, nullptr);
  use(nullptr, memory_, 4096);
  device_.given_back(memory_);
  EXPECT_NE(hazard_of([&] { device_.handed_out(memory_, 4096, second_); }), "");
  device_.set_blocking(second_);
  device_.handed_out(memory_, 4096, second_);
}

TEST_F(Handouts, ADestroyedBlockingStreamIsBeforeTheLegacyStream) {
  device_.set_blocking(first_);
  device_.set_blocking(second_);
  device_.stream_destroy(first_);
  EXPECT_NE(hazard_of([&] { device_.handed_out(memory_, 4096, second_); }), "");
  device_.launch(nullptr, 1);
  device_.handed_out(memory_, 4096, second_);
}

TEST_F(Handouts, AnEventBeforeTheUseDoesNotHelp) {
  const Event event = record(first_);
  use(first_, memory_, 4096);
  device_.stream_wait(second_, event);
  EXPECT_THROW(device_.handed_out(memory_, 4096, second_), HazardError);
}

TEST_F(Handouts, AWaitOfAnotherStreamDoesNotHelp) {
  device_.stream_wait(third_, record(first_));
  EXPECT_THROW(device_.handed_out(memory_, 4096, second_), HazardError);
}

TEST_F(Handouts, OrderPassesThroughAThirdStream) {
  device_.stream_wait(third_, record(first_));
  device_.stream_wait(second_, record(third_));
  device_.handed_out(memory_, 4096, second_);
}

TEST_F(Handouts, AnEventSeenDoneByAQueryHelps) {
  const Event event = record(first_);
  EXPECT_FALSE(device_.event_query(event));
  EXPECT_THROW(device_.handed_out(memory_, 4096, second_), HazardError);
  device_.advance(kLong);
  EXPECT_TRUE(device_.event_query(event));
  device_.handed_out(memory_, 4096, second_);
}

TEST_F(Handouts, ACompletionHintIsNotAnAnswer) {
  record(first_);
  device_.advance(kLong);
  ASSERT_EQ(device_.completion_hint(first_), 1u);
  EXPECT_THROW(device_.handed_out(memory_, 4096, second_), HazardError);
}

TEST_F(Handouts, WaitingForTheEventHelps) {
  device_.event_synchronize(record(first_));
  device_.handed_out(memory_, 4096, second_);
}

TEST_F(Handouts, WaitingForTheStreamHelpsAndForAnotherDoesNot) {
  device_.stream_synchronize(third_);
  EXPECT_THROW(device_.handed_out(memory_, 4096, second_), HazardError);
  device_.stream_synchronize(first_);
  device_.handed_out(memory_, 4096, second_);
}

TEST_F(Handouts, WaitingForTheDeviceHelps) {
  device_.synchronize();
  device_.handed_out(memory_, 4096, second_);
}

TEST_F(Handouts, FreeingAnythingWaitsForTheDevice) {
  device_.free(device_.malloc(kPage).value());
  device_.handed_out(memory_, 4096, second_);
}

TEST_F(Handouts, WhatTheHostHasSeenIsBeforeEveryStreamForever) {
  device_.synchronize();
  use(first_, memory_ + kMiB, 512);  // more work on the stream changes nothing for the memory
  device_.handed_out(memory_, 4096, second_);
}

TEST_F(Handouts, ARecordedEventIsNotMovedByLaterWork) {
  const Event event = record(first_);
  use(first_, memory_ + kMiB, 4096);
  device_.event_synchronize(event);
  device_.handed_out(memory_, 4096, second_);
  EXPECT_THROW(device_.handed_out(memory_ + kMiB, 4096, second_), HazardError);
}

TEST_F(Handouts, EveryStreamThatUsedTheMemoryCounts) {
  device_.handed_out(memory_, 4096, first_);
  use(first_, memory_, 4096);
  use(second_, memory_ + 1024, 512);  // as after record_stream
  device_.given_back(memory_);
  EXPECT_NE(hazard_of([&] { device_.handed_out(memory_, 4096, first_); }).find("launch #1 of stream 0xb used"),
            std::string::npos);
  device_.event_synchronize(record(second_));
  device_.handed_out(memory_, 4096, first_);
}

TEST_F(Handouts, AnOldUseIsNotForgottenByAHandoutThatIsOnlyOrderedOnTheDevice) {
  device_.handed_out(memory_, 4096, first_);  // clean, but the host has not seen the first use finish
  device_.given_back(memory_);
  EXPECT_THROW(device_.handed_out(memory_, 4096, second_), HazardError);
}

TEST_F(Handouts, CapturedWorkIsNoUse) {
  device_.synchronize();
  device_.handed_out(memory_, 4096, first_);
  device_.begin_capture(first_);
  use(first_, memory_, 4096);
  device_.end_capture(first_);
  device_.given_back(memory_);
  device_.handed_out(memory_, 4096, second_);
}

TEST_F(HazardTest, TwoLiveHandoutsMustNotOverlap) {
  device_.handed_out(memory_ + 1024, 1024, first_);
  EXPECT_NE(hazard_of([&] { device_.handed_out(memory_ + 512, 1024, first_); }).find("overlaps"), std::string::npos);
  EXPECT_THROW(device_.handed_out(memory_ + 1024, 1024, first_), HazardError);
  EXPECT_THROW(device_.handed_out(memory_, kPage, first_), HazardError);
  device_.handed_out(memory_, 1024, first_);
  device_.handed_out(memory_ + 2048, 512, second_);
  device_.given_back(memory_ + 1024);
  device_.handed_out(memory_ + 1024, 512, second_);
}

TEST_F(HazardTest, HandedOutMemoryMustBeAccessible) {
  const Address range = device_.reserve(2 * kPage).value();
  EXPECT_NE(hazard_of([&] { device_.handed_out(range, 512, first_); }).find("is not accessible memory"),
            std::string::npos);
  device_.map(range, kPage, device_.create(kPage).value());
  EXPECT_THROW(device_.handed_out(range, 512, first_), HazardError);
  device_.set_access(range, kPage, {});
  device_.handed_out(range, 512, first_);
  EXPECT_THROW(device_.handed_out(range + kPage - 512, 1024, first_), HazardError);
}

TEST_F(HazardTest, OnlyWhatWasHandedOutIsGivenBack) {
  EXPECT_THROW(device_.given_back(memory_), HazardError);
  device_.handed_out(memory_, 1024, first_);
  EXPECT_THROW(device_.given_back(memory_ + 512), HazardError);
  device_.given_back(memory_);
  EXPECT_THROW(device_.given_back(memory_), HazardError);
}

TEST_F(HazardTest, NullIsNoMemory) {
  device_.handed_out(0, 0, first_);
  device_.given_back(0);
}

TEST_F(HazardTest, MemoryThatIsHandedOutIsNotFreed) {
  device_.handed_out(memory_ + 1024, 1024, first_);
  EXPECT_NE(hazard_of([&] { device_.free(memory_); }).find("is still held"), std::string::npos);
  device_.given_back(memory_ + 1024);
  device_.free(memory_);
}

TEST(HazardCheckerOff, NothingIsChecked) {
  SimulatedDevice device({.latency = LatencyModel::none()});
  const Address address = device.malloc(kPage).value();
  device.handed_out(address, 512, nullptr);
  device.handed_out(address, 512, nullptr);
  device.given_back(address + 1);
  device.free(address);
  EXPECT_EQ(device.used_bytes(), 0u);
}

// ---- Mapped memory ----

class MappedMemory : public HazardTest {
 protected:
  void map(Address address) {
    device_.map(address, kPage, handle_);
    device_.set_access(address, kPage, {});
  }

  const Address place_ = device_.reserve(4 * kPage).value();
  const Address other_place_ = place_ + 2 * kPage;
  const MemoryHandle handle_ = device_.create(kPage).value();
};

TEST_F(MappedMemory, AnUnmapBeforeTheHostHasSeenTheLastUseFinishIsAHazard) {
  map(place_);
  use(first_, place_ + 1024, 512);
  EXPECT_EQ(hazard_of([&] { device_.unmap(place_, kPage); }),
            "unmap of [" + hex(place_) + ", +2097152), but launch #1 of stream 0xa used [" + hex(place_ + 1024) +
                ", +512) of it and the host has not seen it finish");
  device_.advance(10 * kLong);
  EXPECT_THROW(device_.unmap(place_, kPage), HazardError);
  EXPECT_EQ(device_.live_mappings(), 1u);
  device_.event_synchronize(record(first_));
  device_.unmap(place_, kPage);
}

TEST_F(MappedMemory, AStreamWaitDoesNotMakeAnUnmapSafe) {
  map(place_);
  use(first_, place_, 512);
  device_.stream_wait(second_, record(first_));
  EXPECT_THROW(device_.unmap(place_, kPage), HazardError);
}

TEST_F(MappedMemory, AnUnmapRemembersUsesFromBeforeALaterHandout) {
  map(place_);
  device_.handed_out(place_, 512, first_);
  use(first_, place_, 512);
  device_.given_back(place_);
  device_.handed_out(place_, 512, first_);
  device_.given_back(place_);
  EXPECT_THROW(device_.unmap(place_, kPage), HazardError);
}

TEST_F(MappedMemory, AUseThroughOneAddressIsAUseOfTheMemoryAtEveryAddress) {
  map(place_);
  map(other_place_);
  use(first_, place_ + 1024, 512);
  EXPECT_THROW(device_.handed_out(other_place_ + 1024, 512, second_), HazardError);
  device_.handed_out(other_place_ + 1024, 512, first_);  // an alias, in the order of the stream
  device_.handed_out(other_place_ + 2048, 512, second_);
}

TEST_F(MappedMemory, AnUnmapAnswersForUsesThroughItsOwnMappingOnly) {
  map(place_);
  map(other_place_);
  use(first_, other_place_, 512);
  device_.unmap(place_, kPage);
  EXPECT_THROW(device_.unmap(other_place_, kPage), HazardError);
  device_.synchronize();
  device_.unmap(other_place_, kPage);
}

TEST_F(MappedMemory, ANewMappingAtAnOldAddressHasNoOldUses) {
  map(place_);
  use(first_, place_, 512);
  device_.synchronize();
  device_.unmap(place_, kPage);
  map(place_);
  use(second_, place_, 512);
  device_.stream_synchronize(second_);
  device_.unmap(place_, kPage);
}

TEST_F(MappedMemory, LiveHandoutsOfOnePageAtTwoAddressesOverlap) {
  map(place_);
  map(other_place_);
  device_.handed_out(place_ + 512, 512, first_);
  EXPECT_THROW(device_.handed_out(other_place_, 1024, first_), HazardError);
  device_.handed_out(other_place_, 512, first_);
}

TEST_F(MappedMemory, AnUnmapUnderALiveHandoutIsAHazardAndOfTheAliasIsNot) {
  map(place_);
  map(other_place_);
  device_.handed_out(place_, 512, first_);
  EXPECT_NE(hazard_of([&] { device_.unmap(place_, kPage); }).find("is still held"), std::string::npos);
  device_.unmap(other_place_, kPage);
}

TEST_F(MappedMemory, AHandoutMaySpanMappings) {
  const MemoryHandle second_handle = device_.create(kPage).value();
  map(place_);
  device_.map(place_ + kPage, kPage, second_handle);
  device_.set_access(place_ + kPage, kPage, {});
  device_.handed_out(place_ + kPage - 512, 1024, first_);
  use(first_, place_ + kPage - 512, 1024);
  EXPECT_THROW(device_.unmap(place_ + kPage, kPage), HazardError);
  device_.given_back(place_ + kPage - 512);
  device_.synchronize();
  device_.unmap(place_, 2 * kPage);
}

TEST_F(MappedMemory, FreedPhysicalMemoryIsForgotten) {
  map(place_);
  use(first_, place_, kPage);
  device_.synchronize();
  device_.unmap(place_, kPage);
  device_.release(handle_);
  const MemoryHandle fresh = device_.create(kPage).value();
  device_.map(place_, kPage, fresh);
  device_.set_access(place_, kPage, {});
  device_.handed_out(place_, kPage, second_);
}

// ---- Random programs ----

std::size_t pick(std::mt19937_64& random, std::size_t count) {
  return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
}

// The expected results of the checker, from the definition: for each stream, event and the host the set of all launches
// that come before, and for each cell of memory all launches that ever used it.
class HazardOracle {
 public:
  using Launches = std::set<int>;

  HazardOracle(std::size_t streams, std::size_t events, std::size_t cells)
      : streams_(streams), events_(events), uses_(cells), live_(cells) {}

  void launch(std::size_t stream, std::size_t first, std::size_t cells) {
    streams_[stream].insert(++last_launch_);
    for (std::size_t cell = first; cell < first + cells; ++cell) uses_[cell].insert(last_launch_);
  }
  void record(std::size_t event, std::size_t stream) { events_[event] = streams_[stream]; }
  void wait(std::size_t stream, std::size_t event) {
    streams_[stream].insert(events_[event].begin(), events_[event].end());
  }
  void host_saw_event(std::size_t event) { host_.insert(events_[event].begin(), events_[event].end()); }
  void host_saw_stream(std::size_t stream) { host_.insert(streams_[stream].begin(), streams_[stream].end()); }

  bool is_hazard(std::size_t stream, std::size_t first, std::size_t cells) const {
    for (std::size_t cell = first; cell < first + cells; ++cell) {
      if (live_[cell]) return true;
      for (const int use : uses_[cell]) {
        if (!streams_[stream].contains(use) && !host_.contains(use)) return true;
      }
    }
    return false;
  }
  void set_live(std::size_t first, std::size_t cells, bool live) {
    for (std::size_t cell = first; cell < first + cells; ++cell) live_[cell] = live;
  }

 private:
  int last_launch_ = 0;
  std::vector<Launches> streams_;
  std::vector<Launches> events_;
  Launches host_;
  std::vector<Launches> uses_;
  std::vector<bool> live_;
};

// Does at random, right or wrong, and compares each verdict.
class RandomProgram {
 public:
  explicit RandomProgram(std::uint64_t seed) : random_(seed) {
    for (std::size_t i = 0; i < kStreams; ++i) streams_.push_back(device_.new_stream());
    for (std::size_t i = 0; i < kEvents; ++i) events_.push_back(device_.event_create());
  }

  void step() {
    const std::size_t stream = pick(random_, kStreams);
    const std::size_t event = pick(random_, kEvents);
    switch (pick(random_, 16)) {
      case 0:
      case 1:
      case 2:
        return launch(stream);
      case 3:
      case 4:
      case 5:
      case 6:
        return hand_out(stream);
      case 7:
      case 8:
        return give_back();
      case 9:
      case 10:
        return record(event, stream);
      case 11:
      case 12:
        return wait(stream, event);
      case 13:
        return query(event);
      case 14:
        return device_.advance(static_cast<std::int64_t>(pick(random_, 200)));
      default:
        return pick(random_, 20) == 0 ? synchronize_all() : synchronize(stream, event);
    }
  }

  int hazards = 0;
  int clean = 0;

 private:
  static constexpr std::size_t kStreams = 4;
  static constexpr std::size_t kEvents = 3;
  static constexpr std::size_t kCells = 12;
  static constexpr std::size_t kCellBytes = 512;

  struct Cells {
    std::size_t first = 0;
    std::size_t count = 0;
  };

  Address address_of(std::size_t cell) const { return base_ + cell * kCellBytes; }
  Cells some_cells() {
    const std::size_t first = pick(random_, kCells);
    return {first, 1 + pick(random_, std::min<std::size_t>(4, kCells - first))};
  }

  void launch(std::size_t stream) {
    const Cells cells = some_cells();
    device_.launch(streams_[stream], 100, {{address_of(cells.first), cells.count * kCellBytes}});
    oracle_.launch(stream, cells.first, cells.count);
  }
  void hand_out(std::size_t stream) {
    const Cells cells = some_cells();
    const bool expected = oracle_.is_hazard(stream, cells.first, cells.count);
    bool found = false;
    try {
      device_.handed_out(address_of(cells.first), cells.count * kCellBytes, streams_[stream]);
      oracle_.set_live(cells.first, cells.count, true);
      live_.push_back(cells);
    } catch (const HazardError&) {
      found = true;
    }
    ASSERT_EQ(found, expected);
    ++(found ? hazards : clean);
  }
  void give_back() {
    if (live_.empty()) return;
    std::swap(live_[pick(random_, live_.size())], live_.back());
    device_.given_back(address_of(live_.back().first));
    oracle_.set_live(live_.back().first, live_.back().count, false);
    live_.pop_back();
  }
  void record(std::size_t event, std::size_t stream) {
    device_.event_record(events_[event], streams_[stream]);
    oracle_.record(event, stream);
  }
  void wait(std::size_t stream, std::size_t event) {
    device_.stream_wait(streams_[stream], events_[event]);
    oracle_.wait(stream, event);
  }
  void query(std::size_t event) {
    if (device_.event_query(events_[event])) oracle_.host_saw_event(event);
  }
  void synchronize(std::size_t stream, std::size_t event) {
    if (pick(random_, 2) == 0) {
      device_.event_synchronize(events_[event]);
      oracle_.host_saw_event(event);
    } else {
      device_.stream_synchronize(streams_[stream]);
      oracle_.host_saw_stream(stream);
    }
  }
  void synchronize_all() {
    device_.synchronize();
    for (std::size_t stream = 0; stream < kStreams; ++stream) oracle_.host_saw_stream(stream);
  }

  SimulatedDevice device_{{.latency = LatencyModel::none(), .check_hazards = true}};
  std::mt19937_64 random_;
  HazardOracle oracle_{kStreams, kEvents, kCells};
  const Address base_ = device_.malloc(kCells * kCellBytes).value();
  std::vector<Stream> streams_;
  std::vector<Event> events_;
  std::vector<Cells> live_;
};

TEST(RandomPrograms, GetTheVerdictOfTheDefinition) {
  const auto first_seed = std::random_device{}();
  int hazards = 0;
  int clean = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + 200ull; ++seed) {
    RandomProgram program(seed);
    for (int i = 0; i < 400; ++i) {
      program.step();
      ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed << ", operation " << i;
    }
    hazards += program.hazards;
    clean += program.clean;
  }
  EXPECT_GT(hazards, 1000);
  EXPECT_GT(clean, 1000);
}

}  // namespace
}  // namespace cachalot
