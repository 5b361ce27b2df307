// Histories of PyTorch's snapshots: every field, read as a stream in whatever order and protocol.
#include "tools/history/history.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "tests/resident_memory.h"
#include "tests/tools/complaint.h"
#include "tests/tools/data_files.h"
#include "tests/tools/recorded_figures.h"
#include "tests/tools/temporary_file.h"
#include "tools/analysis/timeline.h"

namespace cachalot::tools::history_tests {
namespace {

using namespace std::string_literals;
using Action = HistoryEvent::Action;

History history_of(const std::string& content) { return read_history(TemporaryFile(content).path()); }
History history_of(const nlohmann::json& json) { return history_of(json.dump()); }
std::string complaint(const std::string& content, std::string_view separator = ": ") {
  const TemporaryFile file(content);
  return complaint_about(file.path(), separator, [&] { read_history(file.path()); });
}

nlohmann::json frame(const char* name, int line) { return {{"filename", "a.py"}, {"name", name}, {"line", line}}; }
nlohmann::json entry(const char* action, std::uint64_t address, std::uint64_t bytes) {
  return {{"action", action}, {"addr", address}, {"size", bytes}, {"stream", 0}, {"time_us", 7}};
}
nlohmann::json with(nlohmann::json entry, const char* key, const nlohmann::json& value) {
  entry[key] = value;
  return entry;
}
nlohmann::json segment(std::uint64_t address, const nlohmann::json& blocks) {
  std::uint64_t bytes = 0;
  for (const auto& block : blocks) bytes += block["size"].get<std::uint64_t>();
  return {{"device", 0},     {"address", address},      {"total_size", bytes},
          {"stream", 0},     {"segment_type", "small"}, {"segment_pool_id", {0, 3}},
          {"blocks", blocks}};
}
nlohmann::json block(std::uint64_t address, std::uint64_t bytes, const char* state) {
  return {{"address", address}, {"size", bytes}, {"requested_size", bytes - 12}, {"state", state}};
}
nlohmann::json snapshot(const nlohmann::json& traces, const nlohmann::json& segments = nlohmann::json::array()) {
  return {{"segments", segments}, {"device_traces", traces}};
}

// ---- Fields

TEST(History, HasEveryFieldOfAnEntry) {
  nlohmann::json full = entry("alloc", 4096, 100);
  full["stream"] = -1;
  full["frames"] = {frame("forward", 3), with(frame("main", 9), "fx_node_name", "relu_1")};
  full["forward_frames"] = nlohmann::json::array({frame("model", 5)});
  full["compile_context"] = "0/1";
  full["user_metadata"] = {{"tag", "kv"}, {"layers", {1, 2}}};
  full["internal_metadata"] = "{\"k\":1}";
  full["pool_id"] = {2, 5};
  const History history = history_of(snapshot({{full}}));
  ASSERT_EQ(history.devices.size(), 1u);
  const HistoryEvent event = history.devices[0].events.at(0);
  EXPECT_EQ(event.address, 4096u);
  EXPECT_EQ(event.bytes, 100u);
  EXPECT_EQ(event.time_us, 7);
  EXPECT_EQ(history.streams[event.stream], ~std::uint64_t{0});
  EXPECT_EQ(history.pools[event.pool], (PoolId{2, 5}));
  ASSERT_EQ(history.stacks[event.stack].size(), 2u);
  const StackFrame outer = history.stacks.frame(history.stacks[event.stack][1]);
  EXPECT_EQ(history.texts[outer.function], "main");
  EXPECT_EQ(outer.line, 9u);
  EXPECT_EQ(history.texts[outer.node], "relu_1");
  const EventDetails details = history.details[event.details];
  EXPECT_EQ(history.texts[details.compile_context], "0/1");
  EXPECT_EQ(history.texts[details.user_metadata], R"({"layers":[1,2],"tag":"kv"})");
  EXPECT_EQ(history.texts[details.internal_metadata], R"({"k":1})");
  EXPECT_EQ(history.stacks[details.forward_stack].size(), 1u);
}

TEST(History, HasNoDetailsWhereThereAreNone) {
  const nlohmann::json plain = with(with(entry("alloc", 1, 1), "compile_context", "N/A"), "user_metadata", "");
  EXPECT_EQ(history_of(snapshot({{plain}})).devices.at(0).events.at(0).details, 0u);
}

TEST(History, IsTheSameWhateverTheOrderOfTheKeys) {
  const std::string segments =
      nlohmann::json::array({segment(0x1000, nlohmann::json::array({block(0x1000, 512, "active_allocated")}))}).dump();
  const std::string traces = nlohmann::json({{entry("alloc", 0x1000, 500)}}).dump();
  for (const std::string& text : {fmt::format(R"({{"segments":{},"device_traces":{}}})", segments, traces),
                                  fmt::format(R"({{"device_traces":{},"segments":{}}})", traces, segments)}) {
    const History history = history_of(text);
    ASSERT_EQ(history.devices.size(), 1u);
    EXPECT_EQ(history.devices[0].events.size(), 1u);
    EXPECT_EQ(history.devices[0].segments.at(0).block_count, 1u);
    EXPECT_EQ(history.pools[history.devices[0].segments[0].pool], (PoolId{0, 3}));
    EXPECT_EQ(history.devices[0].blocks.at(0).requested_bytes, 500u);
  }
}

TEST(History, KnowsDevicesByThePlaceOfTheirTraces) {
  const History history = history_of(snapshot({nlohmann::json::array(), {entry("alloc", 1, 1)}}));
  ASSERT_EQ(history.devices.size(), 1u);
  EXPECT_EQ(history.devices[0].device, 1);
}

TEST(History, HasPinnedMemoryStagesSettingsAndFacts) {
  nlohmann::json json = snapshot({{entry("oom", 0, 9)}});
  json["device_traces"][0][0].erase("addr");
  json["device_traces"][0][0]["device_free"] = 123;
  json["host_segments"] = nlohmann::json::array(
      {{{"address", 64}, {"size", 32}, {"allocated", true}, {"active", true}, {"frames", nlohmann::json::array()}}});
  json["host_traces"] = nlohmann::json::array({entry("alloc", 64, 32)});
  json["external_annotations"] = {{{"device", 0}, {"name", "backward"}, {"stage", "END"}, {"time_us", 9}},
                                  {{"device", 0}, {"name", "backward"}, {"stage", "START"}, {"time_us", 4}}};
  json["allocator_settings"] = {{"PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64"}};
  json["cachalot"]["facts"] = {{{"device", 0},
                                {"name", "L4"},
                                {"total_bytes", 1000},
                                {"free_bytes", nullptr},
                                {"processes", {{{"pid", 7}, {"bytes", 10}, {"name", "other"}}}}}};
  const History history = history_of(json);
  EXPECT_EQ(history.devices.at(0).events.at(0).action, Action::oom);
  EXPECT_EQ(history.devices[0].events[0].address, 123u);
  EXPECT_EQ(history.host.at(0).events.size(), 1u);
  EXPECT_EQ(history.host[0].blocks.at(0).state, HistoryBlock::State::allocated);
  ASSERT_EQ(history.stages.size(), 2u);
  EXPECT_TRUE(history.stages[0].begins);
  EXPECT_EQ(history.texts[history.stages[1].name], "backward");
  EXPECT_EQ(history.settings, "max_split_size_mb:64");
  const DeviceFacts& facts = history.facts.at(0);
  EXPECT_EQ(facts.total_bytes, 1000u);
  EXPECT_FALSE(facts.free_bytes.has_value());
  EXPECT_EQ(facts.other_processes.at(0).name, "other");
}

TEST(History, HasPinnedMemoryOfTheDeviceMinusOne) {
  nlohmann::json json = snapshot({{entry("alloc", 1, 1)}});
  json["host_segments"] = nlohmann::json::array({segment(64, nlohmann::json::array({block(64, 512, "inactive")}))});
  json["host_segments"][0]["device"] = -1;
  EXPECT_EQ(history_of(json).host.at(0).segments.size(), 1u);
  json["segments"] = json["host_segments"];
  EXPECT_EQ(complaint(json.dump()), "the snapshot: a segment of 'segments' has the device -1");
  json["host_segments"][0]["device"] = -2;
  EXPECT_EQ(complaint(json.dump()), "byte 276: segment 0: 'device' is -2, which is negative");
}

TEST(History, ReadsForwardFramesAsLinesOfATraceback) {
  const nlohmann::json lines = {"  File \"/a/train.py\", line 7, in step\n    model(x)\n",
                                "  File \"/a/model \\\"b\", line 3, in forward\n",
                                "[Previous line repeated 2 more times]\n"};
  const History history = history_of(snapshot({{with(entry("alloc", 1, 1), "forward_frames", lines)}}));
  const EventDetails details = history.details[history.devices.at(0).events.at(0).details];
  std::vector<std::string> calls;  // the newest first
  for (const FrameId id : history.stacks[details.forward_stack]) {
    const StackFrame& one = history.stacks.frame(id);
    calls.push_back(fmt::format("{}:{} {}", history.texts[one.file], one.line, history.texts[one.function]));
  }
  EXPECT_EQ(calls, (std::vector<std::string>{":0 [Previous line repeated 2 more times]", "/a/model \\\"b:3 forward",
                                             "/a/train.py:7 step"}));
}

TEST(History, HasNoLineWherePythonKnowsNone) {
  const nlohmann::json call = {{"filename", "a.py"}, {"name", "f"}, {"line", ~std::uint64_t{0}}};  // PyTorch's -1
  const History history = history_of(snapshot({{with(entry("alloc", 1, 1), "frames", nlohmann::json::array({call}))}}));
  EXPECT_EQ(history.stacks.frame(history.stacks[history.devices.at(0).events.at(0).stack][0]).line, 0u);
}

TEST(History, CompletesPoolsFromTheSegmentsThatAreThereSinceThen) {
  // The default pool's segment at 0x1000 is gone; that of pool (0, 3) has its address.
  const nlohmann::json events = {entry("segment_alloc", 0x1000, 512),  entry("alloc", 0x1000, 500),
                                 entry("free_requested", 0x1000, 500), entry("segment_free", 0x1000, 512),
                                 entry("segment_alloc", 0x1000, 512),  entry("alloc", 0x1000, 400)};
  const History history = history_of(snapshot(
      {events},
      nlohmann::json::array({segment(0x1000, nlohmann::json::array({block(0x1000, 512, "active_allocated")}))})));
  std::vector<PoolId> pools;
  for (const HistoryEvent& event : history.devices.at(0).events) pools.push_back(history.pools[event.pool]);
  const PoolId own{0, 3};
  EXPECT_EQ(pools, (std::vector<PoolId>{{0, 0}, {0, 0}, {0, 0}, {0, 0}, own, own}));
}

TEST(History, GivesAnAnnotationWhatItsAllocationHad) {
  const nlohmann::json alloc = with(entry("alloc", 8, 1), "compile_context", "0/0");
  const History history = history_of(snapshot({{alloc, with(entry("annotate", 8, 1), "user_metadata", "weights")}}));
  const Timeline timeline(history, history.devices.at(0));
  const std::vector<Allocation>& allocations = timeline.allocations();
  ASSERT_EQ(allocations.size(), 1u);
  const EventDetails details = history.details[allocations[0].details];
  EXPECT_EQ(history.texts[details.user_metadata], "weights");
  EXPECT_EQ(history.texts[details.compile_context], "0/0");
}

TEST(History, LeavesOutUnknownActionsAndReadsListsOfSegments) {
  const History history = history_of(snapshot({{entry("from_the_future", 1, 1), entry("alloc", 1, 1)}}));
  EXPECT_EQ(history.unknown_actions, 1u);
  EXPECT_EQ(history.devices.at(0).events.size(), 1u);
  const nlohmann::json list =
      nlohmann::json::array({segment(0x1000, nlohmann::json::array({block(0x1000, 512, "inactive")}))});
  EXPECT_EQ(history_of(list).devices.at(0).segments.size(), 1u);
}

// ---- Pickles

std::string word(const std::string& text) { return "\x8c"s + static_cast<char>(text.size()) + text; }
std::string pickled_entry(const std::string& pool) {
  return "}(" + word("action") + word("alloc") + word("addr") + "K\x01" + word("size") + "K\x02" + word("stream") +
         "K\x00"s + word("pool_id") + pool + "u";
}
std::string pickled(const std::string& entries) {
  return "\x80\x04}(" + word("segments") + "]" + word("device_traces") + "](](" + entries + "eeu.";
}

// The figures are Python's: pickle.load(open("layers.pickle", "rb"))["device_traces"][0].
TEST(HistoryOfAPickle, HasWhatPyTorchWrote) {
  const History history = read_history(kLayers);
  const std::vector<HistoryEvent>& events = history.devices.at(0).events;
  ASSERT_EQ(events.size(), 57u);
  const auto described = [&](const HistoryEvent& event) {
    std::string text = fmt::format("{} {} {} {} {}:", name_of(event.action), event.address, event.bytes,
                                   history.streams[event.stream], event.time_us);
    for (const FrameId id : history.stacks[event.stack]) {
      const StackFrame& one = history.stacks.frame(id);
      text += fmt::format(" {}:{}", history.texts[one.function], one.line);
    }
    return text;
  };
  EXPECT_EQ(described(events[0]),
            "alloc 1099532861440 1048576 0 1795367511708864: __init__:10 train:27 <module>:40 <module>:1");
  EXPECT_EQ(described(events[30]),
            "free_completed 1099534696448 12582912 94386323568688 1795367511709514: step:17 train:32 <module>:40 "
            "<module>:1");
  EXPECT_EQ(described(events[56]),
            "free_requested 1099534696448 12582912 94386323568688 1795367511709593: train:36 <module>:40 <module>:1");
}

TEST(HistoryOfAPickle, MayNameAPoolAgain) {
  const History history = history_of(pickled(pickled_entry("K\x00K\x07\x86q\x09"s) + pickled_entry("h\x09")));
  ASSERT_EQ(history.devices.at(0).events.size(), 2u);
  EXPECT_EQ(history.pools[history.devices[0].events[1].pool], (PoolId{0, 7}));
}

TEST(HistoryOfAPickle, MayNameFramesAgainThatStoodUnderAnUnknownKey) {
  const std::string frame = "}(" + word("filename") + word("a.py") + word("name") + word("f") + word("line") + "K\x05u";
  const std::string entry = pickled_entry("K\x00K\x00\x86"s);
  const std::string body = entry.substr(0, entry.size() - 1);
  const History history =
      history_of(pickled(body + word("new_frames") + "]q\x09(" + frame + "eu" + body + word("frames") + "h\x09u"));
  ASSERT_EQ(history.devices.at(0).events.size(), 2u);
  EXPECT_EQ(history.stacks[history.devices[0].events[1].stack].size(), 1u);
}

TEST(HistoryOfAPickle, MayNotNameAnEntryAgain) {
  const std::string two_lists = pickled("}q\x09" + pickled_entry("K\x00K\x00\x86"s).substr(1) + "e](h\x09");
  EXPECT_NE(complaint(two_lists).find("entry 0: it is a part that the file named before"), std::string::npos)
      << complaint(two_lists);
}

TEST(HistoryOfAPickle, HoldsNoPartOfItself) {
  const std::string entry = pickled_entry("K\x00K\x00\x86"s);
  const std::string inside = "\x80\x04}(" + word("segments") + "]" + word("device_traces") + "](]q\x05(" +
                             entry.substr(0, entry.size() - 1) + word("x") + "h\x05ueeu.";
  EXPECT_NE(complaint(inside), "");
  EXPECT_NE(complaint("\x80\x04]q\x01(h\x01h\x01"
                      "e."),
            "");
}

TEST(HistoryOfAPickle, RefusesCodeAndTwoMeaningsOfANumber) {
  EXPECT_NE(complaint("\x80\x04"
                      "cos\nsystem\n.")
                .find("GLOBAL is refused"),
            std::string::npos);
  EXPECT_NE(complaint("\x80\x04]q\x00]q\x00."s).find("used a second time"), std::string::npos);
}

// ---- Archives

std::string zip_of(const std::string& content, bool deflates) {
  std::string packed = content;
  if (deflates) {
    packed.resize(compressBound(static_cast<uLong>(content.size())));
    uLongf bytes = static_cast<uLongf>(packed.size());
    compress(reinterpret_cast<Bytef*>(packed.data()), &bytes, reinterpret_cast<const Bytef*>(content.data()),
             static_cast<uLong>(content.size()));
    packed = packed.substr(2, bytes - 6);  // without zlib's own header and sum
  }
  std::string size;
  for (unsigned i = 0; i < 4; ++i) size += static_cast<char>(packed.size() >> 8 * i);
  return "PK\x03\x04\x14\x00\x00\x00"s + (deflates ? "\x08\x00"s : "\x00\x00"s) + std::string(8, '\0') + size + size +
         "\x05\x00\x00\x00"s + "a.pkl" + packed;
}

TEST(HistoryOfAZip, IsThatOfItsOneFile) {
  const std::string content = read_whole(kLayers);
  const std::string end = "PK\x01\x02" + std::string(60, '\0');
  for (const bool deflates : {false, true}) {
    EXPECT_EQ(history_of(zip_of(content, deflates) + end).devices.at(0).events.size(), 57u);
    const std::string two = zip_of(content, deflates) + zip_of(content, deflates) + end;
    EXPECT_NE(complaint(two).find("several files"), std::string::npos) << complaint(two);
    const std::string half = zip_of(content, deflates).substr(0, zip_of(content, deflates).size() / 2);
    EXPECT_NE(complaint(half).find("the zip archive is cut off"), std::string::npos) << complaint(half);
  }
}

TEST(HistoryOfAZip, IsNotACheckpoint) {
  std::string checkpoint = zip_of("x", false);
  checkpoint.replace(30, 5, "a/data.pkl");
  EXPECT_NE(complaint(checkpoint).find("is a PyTorch checkpoint (torch.save)"), std::string::npos);
}

// ---- Limits

TEST(HistoryLimits, RefuseMoreStreamsThanNumbersOfStreams) {
  nlohmann::json entries;
  for (int i = 0; i < 66000; ++i) entries.push_back(with(entry("alloc", 1, 1), "stream", i));
  EXPECT_NE(complaint(snapshot({entries}).dump()).find("more than 65535 streams"), std::string::npos);
}

TEST(HistoryLimits, HoldForManyOpenParts) {
  const TemporaryFile bomb;
  write_gzip(bomb.path(), std::string(std::size_t{100} << 20, ']'));
  EXPECT_NE(complaint_about(bomb.path(), ": ", [&] { read_history(bomb.path()); }).find("takes more than"),
            std::string::npos);
}

TEST(HistoryLimits, HoldForWhatDecompressesToFarMore) {
  const TemporaryFile bomb;
  write_gzip(bomb.path(), "}X\xff\xff\xff\x7f" + std::string(std::size_t{400} << 20, 'a'));
  EXPECT_NE(complaint_about(bomb.path(), ": ", [&] { read_history(bomb.path()); }).find("times its size"),
            std::string::npos);
  if (kResidentMemoryIsThePrograms) {
    EXPECT_LT(peak_resident_bytes(), 1500 * kMiB);  // with the 400 MiB of this test's own
  }
}

TEST(HistoryLimits, KeepMetadataThatRepeatsItselfShort) {
  std::string metadata = R"({"a":"b"})";
  for (int i = 0; i < 12; ++i) metadata = "[" + metadata + "," + metadata + "]";
  std::string text = snapshot({{with(entry("alloc", 1, 1), "user_metadata", "X")}}).dump();
  text.replace(text.find("\"X\""), 3, metadata);
  const History history = history_of(text);
  const TextId id = history.details[history.devices.at(0).events.at(0).details].user_metadata;
  EXPECT_LE(history.texts[id].size(), 4096u);
}

TEST(HistoryLimits, LeaveLongMetadataJson) {
  nlohmann::json metadata;
  for (int i = 0; i < 100; ++i) metadata["key" + std::to_string(i)] = std::string(40, '\\');
  const History history = history_of(snapshot({{with(entry("alloc", 1, 1), "user_metadata", metadata)}}));
  const TextId id = history.details[history.devices.at(0).events.at(0).details].user_metadata;
  EXPECT_TRUE(nlohmann::json::accept(history.texts[id])) << history.texts[id];
}

TEST(Texts, AreFoundInTimeWhateverTheyAre) {
  TextTable texts;
  std::string text(16 * 20, 'a');
  constexpr std::uint32_t kTexts = 1 << 16;
  for (std::uint32_t i = 0; i < kTexts; ++i) {  // they differ in the lowest bit of each second word of eight bytes
    for (std::size_t bit = 0; bit < 16; ++bit) text[16 * bit + 8] = static_cast<char>('b' + (i >> bit & 1));
    texts.add(text);
  }
  EXPECT_EQ(texts.size(), kTexts + 1);
}

// ---- Recorded figures

// tests/exactness compares them with replays.
TEST(RecordedFigures, LeadFromTheFirstEventToTheSnapshot) {
  const DeviceHistory device = read_history(kLayers).devices.at(0);
  RecordedFigures figures = figures_before(device);
  EXPECT_EQ(figures.reserved_bytes, figures_at_end(device).reserved_bytes - 12582912 - 2097152);
  EXPECT_EQ(figures.allocated_bytes, figures.active_bytes);
  EXPECT_EQ(figures.allocated_bytes, 4456448u);
  for (const HistoryEvent& event : device.events) figures.add(event);
  EXPECT_EQ(figures.reserved_bytes, figures_at_end(device).reserved_bytes);
  EXPECT_EQ(figures.allocated_bytes, figures_at_end(device).allocated_bytes);
  EXPECT_EQ(figures.active_bytes, figures_at_end(device).active_bytes);
}

TEST(Allocations, AreFoundInTimeWhateverTheAddresses) {
  DeviceHistory device;
  constexpr std::uint32_t kEvents = 1 << 20;
  for (std::uint32_t i = 0; i < kEvents; ++i) device.events.push_back({.address = Address{i} << 40, .bytes = 1});
  EXPECT_EQ(Timeline(History(), device).allocations().size(), kEvents);
}

}  // namespace
}  // namespace cachalot::tools::history_tests
