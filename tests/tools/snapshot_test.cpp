// Snapshots: PyTorch's pickles and cachalot's JSON, what is said of them, and their histories as traces.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "cachalot/caching_allocator.h"
#include "cachalot/simulated_device.h"
#include "tests/tools/complaint.h"
#include "tests/tools/data_files.h"
#include "tests/tools/temporary_file.h"
#include "tools/analysis/recorded_trace.h"
#include "tools/history/history.h"
#include "tools/history/readers.h"
#include "tools/output/snapshot_report.h"

namespace cachalot::tools {
namespace {

constexpr std::size_t kKiB = std::size_t{1} << 10;
constexpr std::size_t kMiB = std::size_t{1} << 20;

History read_file(const std::string& path) { return read_snapshot_history(InputFile(path, "snapshot")); }
History read_text(const std::string& text) { return read_file(TemporaryFile(text).path()); }
nlohmann::json report(const History& snapshot, std::size_t top = 10) {
  return json_of(report_of(Timelines(snapshot), top));
}

// The message without the file's name; "" when there is no complaint.
std::string complaint_about_snapshot(const std::string& text) {
  const TemporaryFile file(text);
  return complaint_about(file.path(), ": ", [&] { read_file(file.path()); });
}

// Returns the complaint without the number of the byte.
std::string without_position(const std::string& complaint) {
  return complaint.starts_with("byte ") ? complaint.substr(complaint.find(": ") + 2) : complaint;
}

// A segment of 2 MiB with a block of 512 bytes, and a history of two entries; `with` is merged into it.
nlohmann::json small_snapshot(const nlohmann::json& with = nlohmann::json::array()) {
  nlohmann::json json = nlohmann::json::parse(R"({
    "segments": [{"device": 0, "address": 4096, "total_size": 2097152, "stream": 0, "segment_type": "small",
                  "segment_pool_id": [0, 0], "is_expandable": false, "blocks": [
                    {"address": 4096, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": []},
                    {"address": 4608, "size": 2096640, "requested_size": 0, "state": "inactive", "frames": []}]}],
    "device_traces": [[
      {"action": "segment_alloc", "addr": 4096, "size": 2097152, "stream": 0, "time_us": 10},
      {"action": "alloc", "addr": 4096, "size": 500, "stream": 0, "time_us": 2000010, "frames": []}]]})");
  return with.empty() ? json : json.patch(with);
}
nlohmann::json replaced(const std::string& path, const nlohmann::json& value) {
  return nlohmann::json::array({{{"op", "add"}, {"path", path}, {"value", value}}});
}
nlohmann::json removed(const std::string& path) { return nlohmann::json::array({{{"op", "remove"}, {"path", path}}}); }

// ---- Holders of memory

TEST(Snapshots, OfPyTorchSayWhatHoldsTheMemory) {
  const nlohmann::json device = report(read_file(kLayers))["devices"].at(0);
  EXPECT_EQ(device["segments"], 4);
  EXPECT_EQ(device["reserved_bytes"], 36 * kMiB);
  EXPECT_EQ(device["allocated_bytes"].get<std::size_t>() + device["pending_free_bytes"].get<std::size_t>(),
            18 * kMiB + 256 * kKiB);
  EXPECT_EQ(device["pending_free_bytes"], 12 * kMiB);
  EXPECT_EQ(device["free_bytes"], 17 * kMiB + 768 * kKiB);
  EXPECT_EQ(device["largest_free_bytes"], 12 * kMiB);
  EXPECT_NEAR(device["external_fragmentation"].get<double>(), 1 - 12.0 / 17.75, 1e-9);
  EXPECT_EQ(device["pools"].size(), 3u);  // small and large, and large of the stream on the side
  const nlohmann::json& sites = device["sites"];
  ASSERT_EQ(sites.size(), 3u);
  EXPECT_EQ(sites[0]["bytes"], 5 * kMiB);
  EXPECT_EQ(sites[0]["file"], "layers.py");
  EXPECT_EQ(sites[0]["function"], "__init__");
  EXPECT_EQ(sites[0]["blocks"], 2);
  EXPECT_EQ(sites[2]["file"], "");  // from before the recording
}

TEST(Snapshots, AsTextHaveEveryFigure) {
  const std::string text = text_of(report_of(Timelines(read_file(kLayers)), 2), {});
  for (const char* part : {"36.00 MiB in 4 segments", "6.25 MiB in 7 blocks", "12.00 MiB more, by other streams",
                           "17.75 MiB in 4 blocks, the largest 12.00 MiB", "32.39 %", "57 events",
                           "layers.py:10 in __init__", "and 1 more lines"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
  }
}

// The live memory at the end is not what the GPU had to have room for.
TEST(Snapshots, BeginWithThePeakOfTheHistory) {
  const auto event = [](const char* action, std::uint64_t address, std::size_t bytes) {
    return nlohmann::json{
        {"action", action}, {"addr", address}, {"size", bytes}, {"stream", 0}, {"frames", nlohmann::json::array()}};
  };
  const nlohmann::json events = {{event("segment_alloc", 4096, 2 * kMiB), event("alloc", 4096, 500),
                                  event("alloc", 4608, kMiB), event("free_requested", 4608, kMiB),
                                  event("free_completed", 4608, kMiB)}};
  const History snapshot = read_text(small_snapshot(replaced("/device_traces", events)).dump());
  const std::string text = text_of(report_of(Timelines(snapshot), 10), {});
  for (const char* part :
       {"peak                     1.00 MiB allocated of 2.00 MiB reserved, 50.0 % cached, at event 3 of 5\n",
        "cachalot explain", "  at the end\n  reserved  ", "% of the free memory, at the end\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
  }
  const nlohmann::json peak = report(snapshot)["devices"][0]["peak"];
  EXPECT_EQ(peak["event"], 3);
  EXPECT_EQ(peak["allocated_bytes"], kMiB + 512);
  EXPECT_EQ(peak["reserved_bytes"], 2 * kMiB);
  const nlohmann::json none = nlohmann::json::array({nlohmann::json::array()});
  const History without = read_text(small_snapshot(replaced("/device_traces", none)).dump());
  EXPECT_EQ(text_of(report_of(Timelines(without), 10), {}).find("peak"), std::string::npos);
  EXPECT_EQ(report(without)["devices"][0]["peak"], nullptr);
}

void expect_same_blocks(std::span<const HistoryBlock> blocks, const SegmentSnapshot& segment) {
  ASSERT_EQ(blocks.size(), segment.blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(blocks[i].address, segment.blocks[i].address);
    EXPECT_EQ(blocks[i].bytes, segment.blocks[i].size);
    EXPECT_EQ(blocks[i].requested_bytes, segment.blocks[i].requested_size);
    EXPECT_EQ(static_cast<int>(blocks[i].state), static_cast<int>(segment.blocks[i].state));
  }
}

TEST(Snapshots, OfCachalotAreReadAsTheyWere) {
  const auto device = std::make_shared<SimulatedDevice>();
  CachingAllocator allocator({device});
  allocator.record_history({.max_entries = 100});
  void* const first = allocator.allocate(1000);
  allocator.allocate(3 * kMiB, 0, device->new_stream());
  allocator.allocate(30 * kMiB);
  allocator.deallocate(first);
  const Snapshot own = allocator.snapshot();
  const History read = read_text(cachalot::to_json(own));
  ASSERT_EQ(read.devices.size(), 1u);
  const DeviceHistory& only = read.devices[0];
  ASSERT_EQ(only.segments.size(), own.segments.size());
  for (std::size_t i = 0; i < own.segments.size(); ++i) {
    const HistorySegment& segment = only.segments[i];
    EXPECT_EQ(segment.address, own.segments[i].address);
    EXPECT_EQ(segment.bytes, own.segments[i].total_size);
    EXPECT_EQ(read.streams[segment.stream], reinterpret_cast<std::uintptr_t>(own.segments[i].stream));
    EXPECT_EQ(segment.is_small, own.segments[i].segment_type == PoolKind::small);
    EXPECT_EQ(read.pools[segment.pool], own.segments[i].segment_pool_id);
    expect_same_blocks(std::span(only.blocks).subspan(segment.first_block, segment.block_count), own.segments[i]);
  }
  std::vector<Change> shown = own.device_traces.at(0);
  std::erase_if(shown, [](const Change& change) { return change.action > Change::Action::oom; });
  ASSERT_EQ(only.events.size(), shown.size());
  for (std::size_t i = 0; i < shown.size(); ++i) {
    EXPECT_STREQ(name_of(only.events[i].action), to_string(shown[i].action));
    EXPECT_EQ(only.events[i].address, shown[i].address);
    EXPECT_EQ(only.events[i].bytes, shown[i].bytes);
  }
}

TEST(Snapshots, CountNoMoreAsAskedForThanABlockHas) {
  const std::string text = small_snapshot(replaced("/segments/0/blocks/0/requested_size", 5000)).dump();
  EXPECT_EQ(report(read_text(text))["devices"][0]["requested_bytes"], 512);
}

TEST(Snapshots, MayBeAListOfSegmentsAndCompressed) {
  const nlohmann::json segments = small_snapshot()["segments"];
  EXPECT_EQ(report(read_text(segments.dump()))["devices"][0]["allocated_bytes"], 512);
  const TemporaryFile zipped;
  write_gzip(zipped.path(), read_whole(kLayers));
  EXPECT_EQ(report(read_file(zipped.path()))["devices"], report(read_file(kLayers))["devices"]);
}

TEST(Snapshots, NameThePlaceOutsideOfLibraries) {
  const auto place = [](const nlohmann::json& list) {
    const nlohmann::json site = report(
        read_text(small_snapshot(replaced("/segments/0/blocks/0/frames", list)).dump()))["devices"][0]["sites"][0];
    return fmt::format("{}:{} {}", site["file"].get<std::string>(), site["line"].get<int>(),
                       site["function"].get<std::string>());
  };
  const auto frame = [](const char* file, int line, const char* function) {
    return nlohmann::json{{"filename", file}, {"line", line}, {"name", function}};
  };
  const nlohmann::json torch = frame("/usr/lib/python3/site-packages/torch/nn/modules/linear.py", 5, "forward");
  const nlohmann::json own = frame("/home/me/model.py", 7, "loss");
  const nlohmann::json native = frame("??", 0, "c10::cuda::allocate");
  const nlohmann::json operation = frame("??", 0, "at::_ops::mm::call");
  const auto list = [](auto... frames) { return nlohmann::json::array({frames...}); };
  EXPECT_EQ(place(list(native, torch, own)), "/home/me/model.py:7 loss");
  EXPECT_EQ(place(list(native, torch)), "/usr/lib/python3/site-packages/torch/nn/modules/linear.py:5 forward");
  EXPECT_EQ(place(list(native, operation)), "??:0 at::_ops::mm::call");
  EXPECT_EQ(place(list(native)), "??:0 c10::cuda::allocate");
  EXPECT_EQ(place(list()), ":0 ");
}

TEST(Snapshots, AsTextNameNativePlacesWithoutTheirSignatures) {
  const nlohmann::json frames = {
      {{"filename", "??"}, {"line", 0}, {"name", "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)"}}};
  const std::string text = text_of(
      report_of(Timelines(read_text(small_snapshot(replaced("/segments/0/blocks/0/frames", frames)).dump())), 10), {});
  EXPECT_NE(text.find(" 1  at::_ops::mm::call\n"), std::string::npos) << text;
}

// A file's names reach the terminal as text only.
TEST(Snapshots, ShowControlCharactersAsTheirNumbers) {
  const nlohmann::json frames = {{{"filename", "a\x1b[2J.py"}, {"line", 1}, {"name", "f\n"}}};
  const std::string text = text_of(
      report_of(Timelines(read_text(small_snapshot(replaced("/segments/0/blocks/0/frames", frames)).dump())), 10), {});
  EXPECT_NE(text.find("a\\x1b[2J.py:1 in f\\x0a"), std::string::npos) << text;
}

// ---- Refusals

TEST(Snapshots, ThatDoNotFitTogetherAreRefusedByPlaceAndRule) {
  ASSERT_EQ(complaint_about_snapshot(small_snapshot().dump()), "");
  const std::string segment = "/segments/0/", block = "/segments/0/blocks/0/", entry = "/device_traces/0/1/";
  const nlohmann::json whole_segment = {{"size", 2 << 20}, {"state", "inactive"}};
  const nlohmann::json whole_segment_twice = {whole_segment, whole_segment};
  const std::vector<std::pair<nlohmann::json, std::string>> broken = {
      {removed("/segments"), "the snapshot: 'segments' is missing: the first key is 'device_traces'"},
      {replaced("/segments", 5), "the snapshot: 'segments' is a number, not a list"},
      {replaced("/segments/0", "x"), "segment 0: it is text, not a dict"},
      {removed(segment + "total_size"), "segment 0: 'total_size' is missing"},
      {replaced(segment + "total_size", -1), "segment 0: 'total_size' is -1, which is negative"},
      {replaced(segment + "total_size", 1.5), "segment 0: 'total_size' is a number, not a whole number of 64 bits"},
      {replaced(segment + "total_size", std::uint64_t{1} << 60),
       "segment 0: 'total_size' is 1152921504606846976, more than 1152921504606846975"},
      {replaced(segment + "address", ~std::uint64_t{0}),
       "segment 0: 'address' is 18446744073709551615, more than 17293822569102704639"},
      {replaced(segment + "device", 70000), "segment 0: 'device' is 70000, more than 65536"},
      {replaced(segment + "stream", "0"), "segment 0: 'stream' is text, not a whole number of 64 bits"},
      {replaced(segment + "segment_type", "tiny"), "segment 0: segment_type 'tiny' is neither small nor large"},
      {replaced(segment + "segment_pool_id", {1}), "segment 0: the pool's id is not a pair of whole numbers"},
      {replaced(segment + "blocks", nullptr), "segment 0: 'blocks' is None, not a list"},
      {replaced("/segments/0/blocks/0", {1}), "block 0: it is a list, not a dict"},
      {replaced(block + "size", 4 << 20), "segment 0: its blocks have more bytes than the segment's 2097152"},
      {replaced("/segments/0/blocks", whole_segment_twice),
       "segment 0: its blocks have more bytes than the segment's 2097152"},
      {replaced(block + "state", "gone"),
       "block 0: state 'gone' is none of active_allocated, active_pending_free and inactive"},
      {replaced(block + "frames", {5}), "block 0: a frame is a number, not a dict"},
      {replaced(block + "frames", {{{"name", "f"}}}), "block 0: a frame has no 'filename'"},
      {replaced("/device_traces", "x"), "the snapshot: 'device_traces' is text, not a list"},
      {replaced("/device_traces/0", 1), "the history of device 0: 'device_traces' is a number, not a list"},
      {replaced("/device_traces/0/1", nullptr), "the history's entry 1: it is None, not a dict"},
      {removed(entry + "addr"), "the history's entry 1: 'addr' is missing"},
      {replaced(entry + "size", -512), "the history's entry 1: 'size' is -512, which is negative"},
      {replaced(entry + "action", 3), "the history's entry 1: 'action' is a number, not text"},
  };
  for (const auto& [patch, message] : broken)
    EXPECT_EQ(without_position(complaint_about_snapshot(small_snapshot(patch).dump())), message);
  EXPECT_EQ(complaint_about_snapshot(R"([{"device":-2,"segment_type":"small","blocks":[]}])"),
            "byte 49: segment 0: 'device' is -2, which is negative");
}

TEST(Snapshots, OfManyHugeSegmentsDoNotOverflow) {
  nlohmann::json json = small_snapshot();
  json["segments"][0]["total_size"] = (std::uint64_t{1} << 60) - 1;
  for (int i = 0; i < 20; ++i) json["segments"].push_back(json["segments"][0]);
  EXPECT_EQ(without_position(complaint_about_snapshot(json.dump())),
            "segment 4: the segments have more than 4611686018427387904 bytes in all");
}

TEST(Snapshots, ThatAreNoSnapshotsAreRefused) {
  EXPECT_EQ(complaint_about_snapshot(""), "the file is empty");
  EXPECT_EQ(complaint_about_snapshot("a,1,512,0\nf,1\n"),
            "is an allocation trace, not a memory snapshot: `cachalot replay` takes traces");
  EXPECT_EQ(complaint_about_snapshot("1,0:0:0.0,allocate,0x1,1,0x0\n"),
            "is a log of RMM, not a memory snapshot: `cachalot replay` takes logs");
  EXPECT_EQ(complaint_about_snapshot("hello").rfind("has no known format: it begins with 'hello'. cachalot reads ", 0),
            0u);
  EXPECT_EQ(complaint_about_snapshot("{\"segments\": [1,}"), "byte 17: this is not JSON: '1,}'");
  EXPECT_EQ(complaint_about_snapshot("{\"segments\""), "byte 12: this is not JSON: '\"segments\"'");
  EXPECT_EQ(complaint_about_snapshot(std::string(1'000'000, '[')).rfind("byte ", 0), 0u);
  EXPECT_EQ(complaint_about_snapshot("{}"), "the snapshot: 'segments' is missing");
  EXPECT_EQ(complaint_about_snapshot(R"({"a\nb": 1})"),
            "the snapshot: 'segments' is missing: the first key is 'a\\x0ab'");
  EXPECT_EQ(complaint_about_snapshot("\x80\x04K\x05."),
            "byte 4: the snapshot: it is a number, not a dict or a list of segments");
  EXPECT_EQ(
      complaint_about_snapshot("}(c"),
      "byte 2: opcode 'c': GLOBAL is refused: it names or calls something of Python's, and only plain data is read");
}

TEST(Snapshots, CutOffAnywhereAreRefused) {
  const std::string whole = read_whole(kLayers);
  for (std::size_t bytes = 1; bytes < whole.size(); bytes += 61)
    EXPECT_NE(complaint_about_snapshot(whole.substr(0, bytes)), "") << bytes;
  const std::string json = small_snapshot().dump();
  for (std::size_t bytes = 0; bytes < json.size(); bytes += 7)
    EXPECT_NE(complaint_about_snapshot(json.substr(0, bytes)), "") << bytes;
}

std::string pickled(const std::string& text) {
  return "X" + std::string{static_cast<char>(text.size()), 0, 0, 0} + text;
}

// A thousand times one segment, or one block: what it was has not stayed.
TEST(Snapshots, ThatNameTheSamePartsAgainAndAgainAreRefused) {
  const std::string zero = std::string("K") + '\0';
  const auto again = [](const std::string& part) {
    std::string list = "](" + part + "q\x01";
    for (int i = 0; i < 1000; ++i) list += "h\x01";
    return list + "e";
  };
  const std::string block = "}(" + pickled("size") + zero + pickled("state") + pickled("inactive") + "u";
  const auto segment = [&](const std::string& blocks) {
    return "}(" + pickled("device") + zero + pickled("address") + zero + pickled("total_size") + zero +
           pickled("stream") + zero + pickled("segment_type") + pickled("small") + pickled("blocks") + blocks + "u";
  };
  const std::string why = " 1: it is a part that the file named before, and which was read by then, not a dict";
  EXPECT_EQ(without_position(complaint_about_snapshot("\x80\x02](" + segment(again(block)) + "e.")), "block" + why);
  EXPECT_EQ(without_position(complaint_about_snapshot("\x80\x02" + again(segment("](" + block + "e")) + ".")),
            "segment" + why);
}

double cpu_seconds(const std::function<void()>& action) {
  const std::clock_t start = std::clock();
  action();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// 20,000 blocks have one stack of 20,000 calls, none of which is the program's own.
TEST(Snapshots, AreSearchedForAPlaceOnceForEachStack) {
  constexpr int kMany = 20'000;
  const std::string zero = std::string("K") + '\0';
  std::string frames = "](}(" + pickled("filename") + pickled(std::string(100, '/') + "torch/nn.py") + pickled("line") +
                       zero + pickled("name") + pickled("forward") + "uq\x01";
  for (int i = 1; i < kMany; ++i) frames += "h\x01";
  frames += "eq\x02";
  std::string blocks = "](";
  for (int i = 0; i < kMany; ++i) {
    blocks += "}(" + pickled("size") + zero + pickled("state") + pickled("active_allocated") + pickled("frames") +
              (i == 0 ? frames : "h\x02") + "u";
  }
  const std::string segment = "}(" + pickled("device") + zero + pickled("address") + zero + pickled("total_size") +
                              zero + pickled("stream") + zero + pickled("segment_type") + pickled("small") +
                              pickled("blocks") + blocks + "eu";
  const std::string pickle = "\x80\x02](" + segment + "e.";
  const double seconds = cpu_seconds([&] {
    const nlohmann::json sites = report(read_text(pickle))["devices"][0]["sites"];
    ASSERT_EQ(sites.size(), 1u);
    EXPECT_EQ(sites[0]["blocks"], kMany);
  });
  EXPECT_LT(seconds, 10);
}

// Returns the seconds to report and replay a snapshot of `devices` devices, each with a segment and a history.
double seconds_of(int devices) {
  std::string segments, histories;
  for (int device = 0; device < devices; ++device) {
    const char* const comma = device == 0 ? "" : ",";
    segments += fmt::format(
        R"({}{{"device":{},"address":4096,"total_size":512,"stream":0,"segment_type":"small","blocks":[]}})", comma,
        device);
    histories += fmt::format(R"({}[{{"action":"alloc","addr":4096,"size":512,"stream":0}}])", comma);
  }
  const std::string text = fmt::format(R"({{"segments":[{}],"device_traces":[{}]}})", segments, histories);
  const History history = read_text(text);
  return cpu_seconds([&] {
    EXPECT_NE(text_of(report_of(Timelines(history), 10), {}).find(fmt::format("device {}\n", devices - 1)),
              std::string::npos);
    EXPECT_EQ(tools::traces_of(history).size(), static_cast<std::size_t>(devices));
  });
}

TEST(Snapshots, AreWalkedOnceHoweverManyDevicesThereAre) {
  constexpr int kDevices = 4000;
  EXPECT_LT(seconds_of(8 * kDevices), 24 * seconds_of(kDevices));  // 8 times as long; 64 times, were each to walk all
}

// ---- Histories

std::vector<std::string> events_of(const Trace& trace) {
  std::vector<std::string> events;
  for (const TraceEvent& event : trace.events) {
    events.push_back(event.is_free() ? fmt::format("free {}", event.slot)
                                     : fmt::format("allocate {} as {} on {}", event.bytes, event.slot, event.stream));
  }
  return events;
}

nlohmann::json entry(const char* action, std::uint64_t address, std::size_t bytes, std::uint64_t stream = 0) {
  return {{"action", action}, {"addr", address}, {"size", bytes}, {"stream", stream}, {"time_us", 0}};
}
std::vector<Trace> traces_of(const nlohmann::json& history, const nlohmann::json& segments = nlohmann::json::array()) {
  return tools::traces_of(read_text(nlohmann::json{{"segments", segments}, {"device_traces", history}}.dump()));
}

TEST(Histories, BecomeTraces) {
  const auto traces = traces_of(
      {{entry("segment_alloc", 0x1000, 2 << 20), entry("alloc", 0x1000, 100), entry("alloc", 0x2000, 200, 7),
        entry("free_requested", 0x1000, 100), entry("free_completed", 0x1000, 100), entry("alloc", 0x1000, 300)}});
  ASSERT_EQ(traces.size(), 1u);
  EXPECT_EQ(events_of(traces[0]), (std::vector<std::string>{"allocate 100 as 0 on 0", "allocate 200 as 1 on 1",
                                                            "free 0", "allocate 300 as 0 on 0"}));
  EXPECT_EQ(traces[0].allocation_count, 3u);
  EXPECT_EQ(traces[0].streams.size(), 2u);
}

TEST(Histories, BeginWithWhatLivedBeforeThem) {
  const auto traces = traces_of({{entry("alloc", 0x9000, 5), entry("free_requested", 0x5000, 300),
                                  entry("free_completed", 0x5000, 300), entry("alloc", 0x5000, 10)}},
                                small_snapshot()["segments"]);
  EXPECT_EQ(events_of(traces.at(0)),
            (std::vector<std::string>{"allocate 500 as 0 on 0", "allocate 300 as 1 on 0", "allocate 5 as 2 on 0",
                                      "free 1", "allocate 10 as 1 on 0"}));
}

TEST(Histories, FreeWhatEndedWithoutARequest) {
  const auto completed = traces_of({{entry("alloc", 0x1000, 1), entry("free_completed", 0x1000, 1)}});
  EXPECT_EQ(events_of(completed.at(0)), (std::vector<std::string>{"allocate 1 as 0 on 0", "free 0"}));
  const auto unseen = traces_of({{entry("alloc", 0x1000, 1), entry("alloc", 0x1000, 2)}});
  EXPECT_EQ(events_of(unseen.at(0)),
            (std::vector<std::string>{"allocate 1 as 0 on 0", "free 0", "allocate 2 as 0 on 0"}));
}

TEST(Histories, OfEachDeviceAreATrace) {
  const auto traces = traces_of({{entry("alloc", 1, 1)}, nlohmann::json::array(), {entry("alloc", 2, 2)}});
  ASSERT_EQ(traces.size(), 2u);
  EXPECT_TRUE(traces[0].path.ends_with(" device 0"));
  EXPECT_TRUE(traces[1].path.ends_with(" device 2"));
}

TEST(Histories, LeaveOutActionsThatAreNotKnown) {
  const std::string text = small_snapshot(replaced("/device_traces/0/0/action", "from_the_future")).dump();
  const History snapshot = read_text(text);
  EXPECT_EQ(snapshot.unknown_actions, 1u);
  EXPECT_EQ(tools::traces_of(snapshot).at(0).event_count, 1u);
  const std::string line = "  left out of the history  1 event of an unknown kind, from a newer PyTorch\n";
  EXPECT_TRUE(text_of(report_of(Timelines(snapshot), 10), {}).ends_with(line))
      << text_of(report_of(Timelines(snapshot), 10), {});
}

TEST(Histories, ThatAreEmptyAreRefused) {
  EXPECT_THROW(traces_of(nlohmann::json::array()), InvalidArgument);
  EXPECT_THROW(traces_of({nlohmann::json::array()}), InvalidArgument);
  EXPECT_THROW(traces_of({{entry("free_completed", 1, 1)}}), InvalidArgument);
}

// The last bytes of the replay are those of the snapshot: nothing was lost on the way.
TEST(Histories, EndWithTheSnapshotsOwnMemory) {
  const History history = read_file(kLayers);
  const Trace trace = tools::traces_of(history).at(0);
  std::vector<std::size_t> live(trace.slots);
  for (const TraceEvent& event : trace.events) live[event.slot] = event.bytes;
  std::size_t replayed = 0, held = 0;
  for (const std::size_t bytes : live) replayed += bytes;
  for (const HistoryBlock& block : history.devices.at(0).blocks) {
    if (block.state == HistoryBlock::State::allocated) held += block.requested_bytes;
  }
  EXPECT_EQ(replayed, held);
}

}  // namespace
}  // namespace cachalot::tools
