#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "cachalot/events.h"
#include "cachalot/options.h"
#include "cachalot/stats.h"

namespace cachalot {
namespace {

using Json = nlohmann::json;

std::set<std::string> keys_of(const Json& object) {
  std::set<std::string> keys;
  for (const auto& item : object.items()) keys.insert(item.key());
  return keys;
}

Stream stream_of(std::uintptr_t value) { return reinterpret_cast<Stream>(value); }

const Change::Action kTorchActions[] = {
    Change::Action::alloc,         Change::Action::free_requested, Change::Action::free_completed,
    Change::Action::segment_alloc, Change::Action::segment_free,   Change::Action::segment_map,
    Change::Action::segment_unmap, Change::Action::snapshot,       Change::Action::oom,
};
const Change::Action kOurActions[] = {Change::Action::synchronize, Change::Action::retry, Change::Action::empty_cache};

Change change_of(Change::Action action) {
  Change change;
  change.action = action;
  change.address = 0x7f0000000000;
  change.bytes = 1000;
  change.block_bytes = 1024;
  change.stream = stream_of(0x1234);
  change.time_us = 1'700'000'000'000'000;
  return change;
}

// ---- Change ---------------------------------------------------------------------------------------------------------

TEST(ChangeAction, TheFirstNineHavePyTorchsNames) {
  std::vector<std::string> names;
  for (const Change::Action action : kTorchActions) names.emplace_back(to_string(action));
  EXPECT_EQ(names, (std::vector<std::string>{"alloc", "free_requested", "free_completed", "segment_alloc",
                                             "segment_free", "segment_map", "segment_unmap", "snapshot", "oom"}));
}

TEST(ChangeAction, OursHaveNamesOfTheirOwn) {
  EXPECT_STREQ(to_string(Change::Action::synchronize), "synchronize");
  EXPECT_STREQ(to_string(Change::Action::retry), "retry");
  EXPECT_STREQ(to_string(Change::Action::empty_cache), "empty_cache");
}

// ---- Statistics -----------------------------------------------------------------------------------------------------

// Statistics whose numbers are all different, from 1 on, in order of declaration.
DeviceStats numbered_stats() {
  DeviceStats stats;
  std::int64_t next = 1;
  const auto number = [&](Stat& stat) {
    for (std::int64_t* field : {&stat.current, &stat.peak, &stat.allocated, &stat.freed}) *field = next++;
  };
  for (StatArray* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    for (Stat* stat : {&array->all, &array->small_pool, &array->large_pool}) number(*stat);
  }
  number(stats.oversize_allocations);
  number(stats.oversize_segments);
  for (std::int64_t* field : {&stats.num_alloc_retries, &stats.num_ooms, &stats.num_sync_all_streams,
                              &stats.num_device_alloc, &stats.num_device_free, &stats.max_split_size}) {
    *field = next++;
  }
  return stats;
}

TEST(StatsJson, HasPyTorchs122KeysEachWithItsNumber) {
  const Json stats = Json::parse(to_json(numbered_stats()));
  Json expected;
  std::int64_t next = 1;
  const auto expect = [&](const std::string& name) {
    for (const char* field : {"current", "peak", "allocated", "freed"}) expected[name + "." + field] = next++;
  };
  for (const std::string array : {"allocation", "segment", "active", "inactive_split", "allocated_bytes",
                                  "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"}) {
    for (const char* pool : {"all", "small_pool", "large_pool"}) expect(array + "." + pool);
  }
  expect("oversize_allocations");
  expect("oversize_segments");
  for (const char* scalar : {"num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc",
                             "num_device_free", "max_split_size"}) {
    expected[scalar] = next++;
  }
  EXPECT_EQ(stats.size(), 122u);
  EXPECT_EQ(stats, expected);
}

TEST(StatsJson, KeysAreSorted) {
  std::vector<std::string> keys;
  const auto stats = nlohmann::ordered_json::parse(to_json(DeviceStats{}));
  for (const auto& item : stats.items()) keys.push_back(item.key());
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
}

TEST(StatsJson, UnlimitedSplitSizeIsMinusOne) { EXPECT_EQ(Json::parse(to_json(DeviceStats{}))["max_split_size"], -1); }

TEST(FragmentationJson, HoldsEveryFigureUnderItsName) {
  Fragmentation figures;
  figures.requested_bytes = 1;
  figures.allocated_bytes = 2;
  figures.reserved_bytes = 3;
  figures.free_bytes = 4;
  figures.largest_free_bytes = 5;
  figures.free_blocks = 6;
  figures.peak_requested_bytes = 7;
  figures.peak_reserved_bytes = std::size_t{1} << 60;
  figures.internal = 0.1;
  figures.external = 1.0 / 3;
  figures.reserved_ratio = 1.5;
  figures.peak_ratio = 1.0001;
  for (std::size_t i = 0; i < Fragmentation::kHistogramEntries; ++i) figures.free_block_histogram[i] = 100 + i;

  Json expected = {{"requested_bytes", 1},      {"allocated_bytes", 2},
                   {"reserved_bytes", 3},       {"free_bytes", 4},
                   {"largest_free_bytes", 5},   {"free_blocks", 6},
                   {"peak_requested_bytes", 7}, {"peak_reserved_bytes", std::size_t{1} << 60},
                   {"internal", 0.1},           {"external", 1.0 / 3},
                   {"reserved_ratio", 1.5},     {"peak_ratio", 1.0001}};
  for (std::size_t i = 0; i < 32; ++i) expected["free_block_histogram"].push_back(100 + i);
  EXPECT_EQ(Json::parse(to_json(figures)), expected);
}

// ---- Snapshot -------------------------------------------------------------------------------------------------------

SegmentSnapshot example_segment() {
  SegmentSnapshot segment;
  segment.device = 1;
  segment.address = 0x7f0000000000;
  segment.total_size = 2 << 20;
  segment.allocated_size = 512;
  segment.active_size = 1536;
  segment.requested_size = 900;
  segment.stream = stream_of(0x55);
  segment.segment_type = PoolKind::large;
  segment.segment_pool_id = {0, 7};
  segment.blocks = {{0x7f0000000000, 512, 500, BlockSnapshot::State::active_allocated, nullptr},
                    {0x7f0000000200, 1024, 400, BlockSnapshot::State::active_pending_free, std::make_shared<int>(1)},
                    {0x7f0000000600, (2 << 20) - 1536, 77, BlockSnapshot::State::inactive, nullptr}};
  return segment;
}

TEST(SnapshotJson, OfNothingHasAllTheKeys) {
  const Json snapshot = Json::parse(to_json(Snapshot{}));
  EXPECT_EQ(keys_of(snapshot),
            (std::set<std::string>{"segments", "device_traces", "allocator_settings", "external_annotations"}));
  EXPECT_EQ(snapshot["segments"], Json::array());
  EXPECT_EQ(snapshot["device_traces"], Json::array());
  EXPECT_EQ(snapshot["external_annotations"], Json::array());
}

TEST(SnapshotJson, SegmentsAndBlocksHavePyTorchsKeysAndTheirValues) {
  Snapshot snapshot;
  snapshot.segments.push_back(example_segment());
  const Json expected = Json::parse(R"([{
    "device": 1, "address": 139637976727552, "total_size": 2097152, "allocated_size": 512, "active_size": 1536,
    "requested_size": 900, "stream": 85, "segment_type": "large", "segment_pool_id": [0, 7], "is_expandable": false,
    "frames": [],
    "blocks": [
      {"address": 139637976727552, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": []},
      {"address": 139637976728064, "size": 1024, "requested_size": 400, "state": "active_pending_free", "frames": []},
      {"address": 139637976729088, "size": 2095616, "requested_size": 77, "state": "inactive", "frames": []}]
  }])");
  EXPECT_EQ(Json::parse(to_json(snapshot))["segments"], expected);
}

TEST(SnapshotJson, SegmentsStandInOrderAndMayBeSmallExpandableAndEmpty) {
  Snapshot snapshot;
  snapshot.segments.resize(2);
  snapshot.segments[0].is_expandable = true;
  snapshot.segments[1].address = 4096;
  const Json segments = Json::parse(to_json(snapshot))["segments"];
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0]["is_expandable"], true);
  EXPECT_EQ(segments[0]["segment_type"], "small");
  EXPECT_EQ(segments[0]["segment_pool_id"], Json::array({0, 0}));
  EXPECT_EQ(segments[0]["stream"], 0);
  EXPECT_EQ(segments[0]["blocks"], Json::array());
  EXPECT_EQ(segments[1]["address"], 4096);
}

TEST(SnapshotJson, EachOfPyTorchsActionsHasExactlyItsKeys) {
  Snapshot snapshot;
  snapshot.device_traces.resize(1);
  for (const Change::Action action : kTorchActions) snapshot.device_traces[0].push_back(change_of(action));
  const Json trace = Json::parse(to_json(snapshot))["device_traces"][0];
  ASSERT_EQ(trace.size(), std::size(kTorchActions));
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const bool oom = kTorchActions[i] == Change::Action::oom;
    const Json expected = {{"action", to_string(kTorchActions[i])},
                           {oom ? "device_free" : "addr", 0x7f0000000000},
                           {"size", 1000},  // as requested, not of the block
                           {"stream", 0x1234},
                           {"time_us", 1'700'000'000'000'000},
                           {"compile_context", "N/A"},
                           {"user_metadata", ""}};
    EXPECT_EQ(trace[i], expected);
  }
}

TEST(SnapshotJson, ActionsPyTorchDoesNotKnowAreLeftOut) {
  Snapshot snapshot;
  snapshot.device_traces.resize(2);
  for (const Change::Action action : kOurActions) snapshot.device_traces[0].push_back(change_of(action));
  snapshot.device_traces[1] = {change_of(Change::Action::retry), change_of(Change::Action::alloc),
                               change_of(Change::Action::empty_cache), change_of(Change::Action::segment_free),
                               change_of(Change::Action::synchronize)};
  const Json traces = Json::parse(to_json(snapshot))["device_traces"];
  ASSERT_EQ(traces.size(), 2u);
  EXPECT_EQ(traces[0], Json::array());
  ASSERT_EQ(traces[1].size(), 2u);
  EXPECT_EQ(traces[1][0]["action"], "alloc");
  EXPECT_EQ(traces[1][1]["action"], "segment_free");
}

TEST(SnapshotJson, AnEntryWithAContextHasEmptyFrames) {
  Snapshot snapshot;
  snapshot.device_traces = {{change_of(Change::Action::alloc), change_of(Change::Action::oom)}};
  for (Change& change : snapshot.device_traces[0]) change.context = std::make_shared<int>(1);
  const Json trace = Json::parse(to_json(snapshot))["device_traces"][0];
  ASSERT_EQ(trace.size(), 2u);
  for (const Json& entry : trace) EXPECT_EQ(entry["frames"], Json::array());
}

TEST(SnapshotJson, SettingsOfDefaultOptions) {
  const Json expected = Json::parse(R"({
    "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
    "expandable_segments": false, "pinned_num_register_threads": 1, "release_lock_on_cudamalloc": false,
    "pinned_use_cuda_host_register": false, "graph_capture_record_stream_reuse": false,
    "roundup_power2_divisions": {"1": 0, "2": 0, "4": 0, "8": 0, "16": 0, "32": 0, "64": 0, "128": 0, "256": 0,
      "512": 0, "1024": 0, "2048": 0, "4096": 0, "8192": 0, "16384": 0, "32768": 0}
  })");
  EXPECT_EQ(Json::parse(to_json(Snapshot{}))["allocator_settings"], expected);
}

TEST(SnapshotJson, SettingsFollowTheOptions) {
  Snapshot snapshot;
  snapshot.options = parse_options(
      "max_split_size_mb:64,garbage_collection_threshold:0.8,pinned_num_register_threads:8,"
      "release_lock_on_cudamalloc:True,pinned_use_cuda_host_register:True,graph_capture_record_stream_reuse:True,"
      "roundup_power2_divisions:[4:2,>:8]");
  const Json settings = Json::parse(to_json(snapshot))["allocator_settings"];
  EXPECT_EQ(settings["PYTORCH_CUDA_ALLOC_CONF"], snapshot.options.text);
  EXPECT_EQ(settings["max_split_size"], 64 << 20);
  EXPECT_EQ(settings["garbage_collection_threshold"], 0.8);
  EXPECT_EQ(settings["pinned_num_register_threads"], 8);
  EXPECT_EQ(settings["release_lock_on_cudamalloc"], true);
  EXPECT_EQ(settings["pinned_use_cuda_host_register"], true);
  EXPECT_EQ(settings["graph_capture_record_stream_reuse"], true);
  const Json& roundup = settings["roundup_power2_divisions"];
  EXPECT_EQ(roundup["1"], 2);
  EXPECT_EQ(roundup["4"], 2);
  EXPECT_EQ(roundup["8"], 8);
  EXPECT_EQ(roundup["32768"], 8);
}

TEST(SnapshotJson, TextIsEscapedWhateverItHolds) {
  Snapshot snapshot;
  snapshot.options.text = "\"quoted\\\n{}\"";
  EXPECT_EQ(Json::parse(to_json(snapshot))["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"], snapshot.options.text);
  snapshot.options.text = "\xff not UTF-8";
  EXPECT_EQ(Json::parse(to_json(snapshot))["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"], "\uFFFD not UTF-8");
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// The processor's seconds that `work` takes.
template <typename Work>
double seconds_of(Work work) {
  const std::clock_t begin = std::clock();
  work();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

// A tenth of a second in an optimized build; sanitizers slow writing and parsing alike.
TEST(SnapshotJson, AHundredThousandBlocksAreWrittenAsFastAsTheyAreParsed) {
  Snapshot snapshot;
  SegmentSnapshot segment = example_segment();
  segment.blocks.resize(1000, segment.blocks.back());
  snapshot.segments.assign(100, segment);
  snapshot.device_traces.assign(1, std::vector<Change>(10'000, change_of(Change::Action::alloc)));
  std::string text;
  const double writing = seconds_of([&] { text = to_json(snapshot); });
  const double parsing = seconds_of([&] { EXPECT_TRUE(Json::accept(text)); });
  EXPECT_LT(writing, 2 * parsing);
  RecordProperty("writing_ms", static_cast<int>(writing * 1000));
  RecordProperty("parsing_ms", static_cast<int>(parsing * 1000));
  EXPECT_EQ(occurrences(text, "\"state\":"), 100'000u);
  EXPECT_EQ(occurrences(text, "\"action\":"), 10'000u);
}

}  // namespace
}  // namespace cachalot
