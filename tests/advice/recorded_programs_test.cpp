// Tests of the programs found in histories, and of the replay of PyTorch's policy, which reserves the recorded memory.
#include "tools/simulation/recorded_programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "tests/tools/data_files.h"
#include "tests/tools/temporary_file.h"
#include "tools/analysis/program_settings.h"
#include "tools/analysis/recorded_trace.h"
#include "tools/replay/policies.h"

namespace cachalot::tools {
namespace {

using Action = HistoryEvent::Action;

std::size_t replayed_bytes(const Trace& trace) { return figures_of(trace, Policy(), kEnoughBytes)->peak_held_bytes; }

Action action_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(Action::annotate); ++i) {
    if (name_of(static_cast<Action>(i)) == name) return static_cast<Action>(i);
  }
  throw std::runtime_error("no action " + name);
}

// A log of data/gpu_traces.
History history_of_log(const std::string& name) {
  History history;
  history.path = CACHALOT_DATA_DIR "/gpu_traces/" + name;
  DeviceHistory& device = history.devices.emplace_back();
  gzFile file = gzopen(history.path.c_str(), "rb");
  std::string line(1000, '\0');
  while (gzgets(file, line.data(), static_cast<int>(line.size())) != nullptr) {
    std::vector<std::string> words;
    std::istringstream text(line.substr(0, line.find('\n')));
    for (std::string word; std::getline(text, word, ',');) words.push_back(word);
    if (words[0] == "EV") {
      device.events.push_back({.address = std::stoull(words[2], nullptr, 0),
                               .bytes = std::stoull(words[3]),
                               .stream = history.streams.add(std::stoull(words[4])),
                               .action = action_named(words[1])});
    } else if (words[0] == "END" && words[1] == "seg") {
      device.segments.push_back({.address = std::stoull(words[2], nullptr, 0),
                                 .bytes = std::stoull(words[3]),
                                 .first_block = device.blocks.size(),
                                 .stream = history.streams.add(std::stoull(words[4])),
                                 .is_small = words[5] == "small"});
    } else if (words[0] == "END" && words[1] == "blk") {  // of the segment before
      using State = HistoryBlock::State;
      device.blocks.push_back({.address = std::stoull(words[2], nullptr, 0),
                               .bytes = std::stoull(words[3]),
                               .requested_bytes = std::stoull(words[4]),
                               .state = words[5] == "inactive" ? State::free : State::allocated});
      ++device.segments.back().block_count;
    }
  }
  gzclose(file);
  return history;
}

TEST(RecordedReserved, IsWhatTheReplayOfAWholeHistoryReserves) {
  const History history = history_of_log("cs336sil_mem_snapshot.csv.gz");
  const std::optional<std::size_t> recorded = recorded_reserved_bytes(history.devices[0]);
  EXPECT_EQ(recorded, 3781165056U);
  EXPECT_EQ(replayed_bytes(trace_of(Timeline(history, history.devices[0]))), recorded);
}

TEST(RecordedReserved, IsUnknownWhereTheHistoryBeginsLate) {
  for (const char* name : {"cs336_medium_128_inference.csv.gz", "cs336_medium_512_training.csv.gz"}) {
    EXPECT_EQ(recorded_reserved_bytes(history_of_log(name).devices[0]), std::nullopt) << name;
  }
}

TEST(RecordedStart, LetsTheReplayOfEveryLogReserveWhatTheGpuHad) {
  int logs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(CACHALOT_DATA_DIR "/gpu_traces")) {
    if (entry.path().extension() != ".gz") continue;
    ++logs;
    const History history = history_of_log(entry.path().filename().string());
    const DeviceHistory& device = history.devices[0];
    const auto start = recorded_start(Timeline(history, device));
    const std::optional<std::size_t> whole = recorded_reserved_bytes(device);
    ASSERT_NE(start.has_value(), whole.has_value()) << history.path;
    const RecordedStart* const begin = start ? &*start : nullptr;
    EXPECT_EQ(replayed_bytes(trace_of(Timeline(history, device), {.start = begin})),
              start ? start->peak_reserved_bytes : *whole)
        << history.path;
  }
  EXPECT_EQ(logs, 7);
}

// A segment of 20 MiB has two live blocks and 2 MiB between them: the recording began with that, and with another one of 2 MiB,
// which the program gives back at once.
TEST(RecordedStart, IsTheMemoryThatPyTorchHadThen) {
  History history;
  DeviceHistory& device = history.devices.emplace_back();
  device.events = {{.address = 0x10000000, .bytes = 2 * kMiB, .action = Action::segment_free},
                   {.address = 0x1800000, .bytes = 2 * kMiB, .action = Action::alloc},  // between them
                   {.address = 0x1a00000, .bytes = 12 * kMiB, .action = Action::free_requested},
                   {.address = 0x1a00000, .bytes = 12 * kMiB, .action = Action::free_completed},
                   {.address = 0x3000000, .bytes = 14 * kMiB, .action = Action::segment_alloc},
                   {.address = 0x3000000, .bytes = 13 * kMiB, .action = Action::alloc}};
  device.segments = {{.address = 0x1000000, .bytes = 20 * kMiB, .first_block = 0, .block_count = 3},
                     {.address = 0x3000000, .bytes = 14 * kMiB, .first_block = 3, .block_count = 1}};
  using State = HistoryBlock::State;
  device.blocks = {
      {.address = 0x1000000, .bytes = 8 * kMiB, .requested_bytes = 8 * kMiB - 100, .state = State::allocated},
      {.address = 0x1800000, .bytes = 2 * kMiB, .requested_bytes = 2 * kMiB, .state = State::allocated},
      {.address = 0x1a00000, .bytes = 10 * kMiB, .state = State::free},
      {.address = 0x3000000, .bytes = 14 * kMiB, .requested_bytes = 13 * kMiB, .state = State::allocated}};
  device.events[2].bytes = device.events[3].bytes = 10 * kMiB;
  const auto start = recorded_start(Timeline(history, device));
  ASSERT_TRUE(start);
  EXPECT_EQ(start->peak_reserved_bytes, 34 * kMiB);
  EXPECT_EQ(replayed_bytes(trace_of(Timeline(history, device), {.start = &*start})), 34 * kMiB);

  history.settings = "max_split_size_mb:21";
  EXPECT_FALSE(recorded_start(Timeline(history, device)));
  history.settings = "";
  device.segments[0].is_expandable = true;
  EXPECT_FALSE(recorded_start(Timeline(history, device)));
}

// 12 MiB are freed and given back, and other 14 MiB take their place.
TEST(EmptiedCaches, AreEmptiedInTheReplay) {
  History history;
  const StackId own = history.stacks.add({{history.stacks.add_frame({.line = 1})}});
  DeviceHistory& device = history.devices.emplace_back();
  device.events = {{.address = 0x1000000, .bytes = 12 * kMiB, .action = Action::segment_alloc},
                   {.address = 0x1000000, .bytes = 12 * kMiB, .action = Action::alloc},
                   {.address = 0x1000000, .bytes = 12 * kMiB, .action = Action::free_requested},
                   {.address = 0x1000000, .bytes = 12 * kMiB, .action = Action::free_completed},
                   {.address = 0x1000000, .bytes = 12 * kMiB, .stack = own, .action = Action::segment_free},
                   {.address = 0x2000000, .bytes = 14 * kMiB, .action = Action::segment_alloc},
                   {.address = 0x2000000, .bytes = 14 * kMiB, .action = Action::alloc}};
  const auto reserved = [&] { return replayed_bytes(trace_of(Timeline(history, device))); };
  EXPECT_EQ(reserved(), 14 * kMiB);
  const Policy expandable{.heap = Policy::Heap::expandable_segments};
  EXPECT_EQ(figures_of(trace_of(Timeline(history, device)), expandable, kEnoughBytes)->peak_held_bytes, 20 * kMiB);
  EXPECT_EQ(peak_live_bytes(trace_of(Timeline(history, device))), 14 * kMiB);
  device.events[4].stack = 0;  // as of the call that asks for the segment: PyTorch itself gave it back, to try again
  EXPECT_EQ(reserved(), 14 * kMiB);
  EXPECT_EQ(figures_of(trace_of(Timeline(history, device)), {.max_split_size_mb = 21}, kEnoughBytes)->peak_held_bytes,
            26 * kMiB)
      << "another policy would not have run out there";
  device.events[4].stack = own;
  for (HistoryEvent& event : device.events) event.pool = history.pools.add(PoolId{0, 1});
  EXPECT_EQ(reserved(), 26 * kMiB) << "memory of a pool stays there";
}

// 20 MiB are reserved; 30 more are asked for, and 8 are free on the device.
History history_with_failure(std::uint64_t free_bytes) {
  History history;
  DeviceHistory& device = history.devices.emplace_back();
  device.events = {{.address = 0x1000, .bytes = 20 * kMiB, .action = Action::segment_alloc},
                   {.address = 0x1000, .bytes = 4 * kMiB, .action = Action::alloc},
                   {.address = free_bytes, .bytes = 30 * kMiB, .action = Action::oom},
                   {.address = 0x1000, .bytes = 4 * kMiB, .action = Action::free_requested}};
  device.segments = {{.address = 0x1000, .bytes = 20 * kMiB}};
  return history;
}

TEST(FailedRequests, ArePlayedAndFreedAtOnce) {
  const History history = history_with_failure(8 * kMiB);
  const Trace with = trace_of(Timeline(history, history.devices[0]), {});
  const Trace without = trace_of(Timeline(history, history.devices[0]), {.plays_failures = false});
  EXPECT_EQ(with.event_count, without.event_count + 2);
  EXPECT_EQ(peak_live_bytes(without), 4 * kMiB);
  EXPECT_EQ(peak_live_bytes(with), 34 * kMiB);
  EXPECT_EQ(with.events[1].bytes, 30 * kMiB);
  EXPECT_TRUE(with.events[2].is_free() && with.events[3].is_free());  // before anything else is allocated
}

// The cache was given back before the allocation failed: a limit is at least the memory reserved before that.
TEST(Snapshots, HaveAtLeastTheMemoryThatWasEverReserved) {
  constexpr const char* kWithCacheGivenBack = R"({"device_traces":[[
    {"action":"segment_alloc","addr":4096,"size":33554432,"stream":0},
    {"action":"segment_alloc","addr":268435456,"size":20971520,"stream":0},
    {"action":"alloc","addr":4096,"size":33554432,"stream":0},
    {"action":"free_requested","addr":4096,"size":33554432,"stream":0},
    {"action":"segment_free","addr":4096,"size":33554432,"stream":0},
    {"action":"oom","device_free":1073741824,"size":41943040,"stream":0}]],
    "segments":[{"device":0,"address":268435456,"total_size":20971520,"stream":0,"segment_type":"large","blocks":[]}]})";
  const TemporaryFile file(kWithCacheGivenBack);
  const RecordedProgram recorded = recorded_programs(InputFile(file.path(), "history")).at(0);
  EXPECT_EQ(recorded.usable_bytes, 52 * kMiB);
  EXPECT_TRUE(recorded.program.ends_with_failure);
}

TEST(Snapshots, OfAWholeProgramAreReplayedAsRecorded) {
  for (const RecordedProgram& recorded : recorded_programs(InputFile(kLayers, "history"))) {
    EXPECT_FALSE(recorded.usable_bytes);
    if (!recorded.program.recorded_reserved_bytes) continue;
    EXPECT_EQ(replayed_bytes(*recorded.program.trace), *recorded.program.recorded_reserved_bytes);
  }
}

}  // namespace
}  // namespace cachalot::tools
