// Snapshots: PyTorch's pickles and cachalot's JSON, what is said of them, and their histories as traces.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cachalot/caching_allocator.h"
#include "cachalot/simulated_device.h"
#include "tests/tools/complaint.h"
#include "tests/tools/data_files.h"
#include "tests/tools/temporary_file.h"
#include "tools/history/allocations.h"
#include "tools/history/history.h"
#include "tools/snapshot_report.h"

namespace cachalot::tools {
namespace {

constexpr std::size_t kKiB = std::size_t{1} << 10;
constexpr std::size_t kMiB = std::size_t{1} << 20;

TorchSnapshot read_snapshot_text(const std::string& text) {
  return read_snapshot(InputFile(TemporaryFile(text).path(), "snapshot"));
}
History read_history_text(const std::string& text) { return read_history(TemporaryFile(text).path()); }
TorchSnapshot read_layers() { return read_snapshot(InputFile(kLayers, "snapshot")); }
nlohmann::json report(const TorchSnapshot& snapshot, std::size_t top = 10) {
  return nlohmann::json::parse(to_json(snapshot, top));
}

// The message without the file's name; "" when there is no complaint.
std::string complaint_about_snapshot(const std::string& text) {
  const TemporaryFile file(text);
  return complaint_about(file.path(), ": ", [&] { read_snapshot(InputFile(file.path(), "snapshot")); });
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

// ---- What holds the memory

TEST(Snapshots, OfPyTorchSayWhatHoldsTheMemory) {
  const nlohmann::json device = report(read_layers())["devices"].at(0);
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
  ASSERT_EQ(sites.size(), 4u);
  EXPECT_EQ(sites[0]["bytes"], 12 * kMiB);
  EXPECT_EQ(sites[0]["file"], "layers.py");
  EXPECT_EQ(sites[0]["function"], "train");
  EXPECT_EQ(sites[1]["bytes"], 5 * kMiB);
  EXPECT_EQ(sites[1]["function"], "__init__");
  EXPECT_EQ(sites[1]["blocks"], 2);
  EXPECT_EQ(sites[3]["file"], "");  // from before the recording
}

TEST(Snapshots, AsTextHaveEveryFigure) {
  const std::string text = to_text(read_layers(), 2);
  for (const char* part : {"36.00 MiB in 4 segments", "18.25 MiB in 8 blocks", "12.00 MiB of it, by other streams",
                           "17.75 MiB in 4 blocks, the largest 12.00 MiB", "32.39 %", "57 events",
                           "layers.py:34 in train", "layers.py:10 in __init__", "and 2 more lines"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
  }
}

TEST(Snapshots, OfCachalotAreReadAsTheyWere) {
  const auto device = std::make_shared<SimulatedDevice>();
  CachingAllocator allocator({device});
  allocator.record_history({.max_entries = 100});
  void* const first = allocator.allocate(1000);
  allocator.allocate(3 * kMiB, 0, device->stream());
  allocator.allocate(30 * kMiB);
  allocator.deallocate(first);
  const Snapshot own = allocator.snapshot();
  const Snapshot read = read_snapshot_text(cachalot::to_json(own)).memory;
  ASSERT_EQ(read.segments.size(), own.segments.size());
  for (std::size_t i = 0; i < own.segments.size(); ++i) {
    const SegmentSnapshot &a = read.segments[i], &b = own.segments[i];
    EXPECT_EQ(a.address, b.address);
    EXPECT_EQ(a.total_size, b.total_size);
    EXPECT_EQ(a.allocated_size, b.allocated_size);
    EXPECT_EQ(a.active_size, b.active_size);
    EXPECT_EQ(a.requested_size, b.requested_size);
    EXPECT_EQ(a.stream, b.stream);
    EXPECT_EQ(a.segment_type, b.segment_type);
    EXPECT_EQ(a.segment_pool_id, b.segment_pool_id);
    EXPECT_EQ(a.blocks.size(), b.blocks.size());
  }
  ASSERT_EQ(read.device_traces.size(), 1u);
  std::vector<Change> shown = own.device_traces.at(0);
  std::erase_if(shown, [](const Change& change) { return change.action > Change::Action::oom; });
  ASSERT_EQ(read.device_traces[0].size(), shown.size());
  for (std::size_t i = 0; i < shown.size(); ++i) {
    EXPECT_EQ(read.device_traces[0][i].action, shown[i].action);
    EXPECT_EQ(read.device_traces[0][i].address, shown[i].address);
    EXPECT_EQ(read.device_traces[0][i].bytes, shown[i].bytes);
  }
}

TEST(Snapshots, CountNoMoreAsAskedForThanABlockHas) {
  const TorchSnapshot snapshot =
      read_snapshot_text(small_snapshot(replaced("/segments/0/blocks/0/requested_size", 5000)).dump());
  EXPECT_EQ(snapshot.memory.segments.at(0).requested_size, 512u);
}

TEST(Snapshots, MayBeAListOfSegmentsAndCompressed) {
  const nlohmann::json segments = small_snapshot()["segments"];
  EXPECT_EQ(report(read_snapshot_text(segments.dump()))["devices"][0]["allocated_bytes"], 512);
  const TemporaryFile zipped;
  write_gzip(zipped.path(), read_whole(kLayers));
  EXPECT_EQ(report(read_snapshot(InputFile(zipped.path(), "snapshot")))["devices"], report(read_layers())["devices"]);
}

TEST(Snapshots, NameThePlaceOutsideOfLibraries) {
  const auto place = [](const std::vector<Frame>& frames) {
    nlohmann::json list = nlohmann::json::array();
    for (const Frame& frame : frames)
      list.push_back({{"filename", frame.file}, {"line", frame.line}, {"name", frame.function}});
    const nlohmann::json site = report(read_snapshot_text(
        small_snapshot(replaced("/segments/0/blocks/0/frames", list)).dump()))["devices"][0]["sites"][0];
    return fmt::format("{}:{} {}", site["file"].get<std::string>(), site["line"].get<int>(),
                       site["function"].get<std::string>());
  };
  const Frame torch{"/usr/lib/python3/site-packages/torch/nn/modules/linear.py", 5, "forward"};
  const Frame own{"/home/me/model.py", 7, "loss"};
  const Frame native{"??", 0, "c10::cuda::allocate"};
  EXPECT_EQ(place({native, torch, own}), "/home/me/model.py:7 loss");
  EXPECT_EQ(place({native, torch}), "??:0 c10::cuda::allocate");
  EXPECT_EQ(place({}), ":0 ");
}

// What a file says of names reaches the terminal as text only.
TEST(Snapshots, ShowControlCharactersAsTheirNumbers) {
  const nlohmann::json frames = {{{"filename", "a\x1b[2J.py"}, {"line", 1}, {"name", "f\n"}}};
  const std::string text =
      to_text(read_snapshot_text(small_snapshot(replaced("/segments/0/blocks/0/frames", frames)).dump()), 10);
  EXPECT_NE(text.find("a\\x1b[2J.py:1 in f\\x0a"), std::string::npos) << text;
}

// ---- What is refused

TEST(Snapshots, ThatDoNotFitTogetherAreRefusedByPlaceAndRule) {
  ASSERT_EQ(complaint_about_snapshot(small_snapshot().dump()), "");
  const std::string segment = "/segments/0/", block = "/segments/0/blocks/0/", entry = "/device_traces/0/1/";
  const nlohmann::json whole_segment = {{"size", 2 << 20}, {"state", "inactive"}};
  const nlohmann::json whole_segment_twice = {whole_segment, whole_segment};
  const std::vector<std::pair<nlohmann::json, std::string>> broken = {
      {removed("/segments"), "the snapshot: 'segments' is missing"},
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
      {replaced(segment + "segment_pool_id", {1}), "segment 0: 'segment_pool_id' is not a pair of whole numbers"},
      {replaced(segment + "blocks", nullptr), "segment 0: 'blocks' is None, not a list"},
      {replaced("/segments/0/blocks/0", {1}), "segment 0, block 0: it is a list, not a dict"},
      {replaced(block + "size", 4 << 20),
       "segment 0, block 0: with its 4194304 bytes, the blocks have more than the segment's 2097152"},
      {replaced("/segments/0/blocks", whole_segment_twice),
       "segment 0, block 1: with its 2097152 bytes, the blocks have more than the segment's 2097152"},
      {replaced(block + "state", "gone"),
       "segment 0, block 0: state 'gone' is none of active_allocated, active_pending_free and inactive"},
      {replaced(block + "frames", {5}), "segment 0, block 0: a frame is a number, not a dict"},
      {replaced(block + "frames", {{{"name", "f"}}}), "segment 0, block 0: 'filename' is missing"},
      {replaced("/device_traces", "x"), "the snapshot: 'device_traces' is text, not a list"},
      {replaced("/device_traces/0", 1), "history of device 0: it is a number, not a list"},
      {replaced("/device_traces/0/1", nullptr), "history of device 0, entry 1: it is None, not a dict"},
      {removed(entry + "addr"), "history of device 0, entry 1: 'addr' is missing"},
      {replaced(entry + "size", -512), "history of device 0, entry 1: 'size' is -512, which is negative"},
      {replaced(entry + "action", 3), "history of device 0, entry 1: 'action' is a number, not text"},
  };
  for (const auto& [patch, message] : broken)
    EXPECT_EQ(complaint_about_snapshot(small_snapshot(patch).dump()), message);
}

TEST(Snapshots, OfManyHugeSegmentsDoNotOverflow) {
  nlohmann::json json = small_snapshot();
  json["segments"][0]["total_size"] = (std::uint64_t{1} << 60) - 1;
  for (int i = 0; i < 20; ++i) json["segments"].push_back(json["segments"][0]);
  EXPECT_EQ(complaint_about_snapshot(json.dump()),
            "segment 4: the segments have more than 4611686018427387904 bytes in all");
}

TEST(Snapshots, ThatAreNoSnapshotsAreRefused) {
  EXPECT_EQ(complaint_about_snapshot(""), "the file is empty");
  EXPECT_EQ(complaint_about_snapshot("a,1,512,0\nf,1\n"),
            "is an allocation trace, not a memory snapshot: `cachalot replay` takes traces");
  EXPECT_EQ(complaint_about_snapshot("hello"), "neither a pickle nor JSON: it begins with 'h'");
  EXPECT_EQ(complaint_about_snapshot("{\"segments\": [1,}"), "byte 17: this is not JSON: '1,}'");
  EXPECT_EQ(complaint_about_snapshot("{\"segments\""), "byte 12: this is not JSON: '\"segments\"'");
  EXPECT_EQ(complaint_about_snapshot(std::string(1'000'000, '[')).rfind("byte ", 0), 0u);
  EXPECT_EQ(complaint_about_snapshot("{}"), "the snapshot: 'segments' is missing");
  EXPECT_EQ(complaint_about_snapshot("\x80\x04K\x05."),
            "the snapshot: it is a number, not a dict or a list of segments");
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

// A thousand times one list of a thousand times one list: a million blocks, of a few thousand bytes.
TEST(Snapshots, ThatNameTheSamePartsAgainAndAgainAreRefused) {
  std::string block = "}(X\x07" + std::string("\0\0\0", 3) + "addressK\x01X\x04" + std::string("\0\0\0", 3) + "sizeK" +
                      '\0' + "X\x05" + std::string("\0\0\0", 3) + "stateX\x08" + std::string("\0\0\0", 3) + "inactiveu";
  std::string blocks = "](" + block + "q\x01";
  for (int i = 0; i < 1000; ++i) blocks += "h\x01";
  const std::string zero = std::string("K") + '\0';
  const std::string segment = "}(" + pickled("device") + zero + pickled("address") + zero + pickled("total_size") +
                              zero + pickled("stream") + zero + pickled("segment_type") + pickled("small") +
                              pickled("blocks") + blocks + "eu";
  std::string pickle = "\x80\x02](" + segment + "q\x02";
  for (int i = 0; i < 1000; ++i) pickle += "h\x02";
  const std::string message = complaint_about_snapshot(pickle + "e.");
  EXPECT_NE(message.find("the file names the same parts again and again"), std::string::npos) << message;
}

// Any of its keys may be asked for as often as the file names the dict.
TEST(Snapshots, OfPartsWithMoreKeysThanAnyHasAreRefused) {
  for (const std::string part : {"/segments/0", "/segments/0/blocks/0", "/device_traces/0/1"}) {
    nlohmann::json json = small_snapshot();
    nlohmann::json& dict = json.at(nlohmann::json::json_pointer(part));
    for (std::size_t i = dict.size(); i < 256; ++i) dict[fmt::format("new{}", i)] = nullptr;
    EXPECT_EQ(complaint_about_snapshot(json.dump()), "") << part;
    dict["one_more"] = nullptr;
    EXPECT_NE(complaint_about_snapshot(json.dump()).find(": it has 257 keys, more than 256"), std::string::npos)
        << part;
  }
  nlohmann::json frame = {{"filename", "a.py"}, {"line", 1}, {"name", "f"}};
  for (int i = 0; i < 254; ++i) frame[fmt::format("new{}", i)] = nullptr;
  EXPECT_EQ(complaint_about_snapshot(
                small_snapshot(replaced("/segments/0/blocks/0/frames", nlohmann::json::array({frame}))).dump()),
            "segment 0, block 0: a frame has 257 keys, more than 256");
}

double cpu_seconds(const std::function<void()>& action) {
  const std::clock_t start = std::clock();
  action();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// 20,000 blocks have one stack of 20,000 calls, none of which is the program's own.
TEST(Snapshots, AreSearchedForAPlaceOnceForEachStack) {
  const auto again = [](const std::string& part) {
    std::string list = "](" + part;
    for (int i = 1; i < 20'000; ++i) list += "h" + part.substr(part.size() - 1);
    return list + "e";
  };
  const std::string zero = std::string("K") + '\0';
  const std::string frame = "}(" + pickled("filename") + pickled(std::string(100, '/') + "torch/nn.py") +
                            pickled("line") + zero + pickled("name") + pickled("forward") + "uq\x01";
  const std::string block = "}(" + pickled("size") + zero + pickled("state") + pickled("active_allocated") +
                            pickled("frames") + again(frame) + "uq\x02";
  const std::string segment = "}(" + pickled("device") + zero + pickled("address") + zero + pickled("total_size") +
                              zero + pickled("stream") + zero + pickled("segment_type") + pickled("small") +
                              pickled("blocks") + again(block) + "u";
  const std::string pickle = "\x80\x02](" + segment + "e.";
  const double seconds = cpu_seconds([&] {
    const nlohmann::json sites = report(read_snapshot_text(pickle))["devices"][0]["sites"];
    ASSERT_EQ(sites.size(), 1u);
    EXPECT_EQ(sites[0]["blocks"], 20'000);
  });
  EXPECT_LT(seconds, 10);
}

// What it takes to report and replay a snapshot of so many devices, each with a segment and a history.
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
  const TorchSnapshot snapshot = read_snapshot_text(text);
  const History history = read_history_text(text);
  return cpu_seconds([&] {
    EXPECT_NE(to_text(snapshot, 10).find(fmt::format("device {}\n", devices - 1)), std::string::npos);
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
  return tools::traces_of(read_history_text(nlohmann::json{{"segments", segments}, {"device_traces", history}}.dump()));
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
  const TorchSnapshot snapshot = read_snapshot_text(text);
  EXPECT_EQ(snapshot.unknown_actions, 1u);
  EXPECT_EQ(tools::traces_of(read_history_text(text)).at(0).event_count, 1u);
  const std::string line = "  left out of the history  1 event of an unknown kind, from a newer PyTorch\n";
  EXPECT_TRUE(to_text(snapshot, 10).ends_with(line)) << to_text(snapshot, 10);
}

TEST(Histories, ThatAreEmptyAreRefused) {
  EXPECT_THROW(traces_of(nlohmann::json::array()), InvalidArgument);
  EXPECT_THROW(traces_of({nlohmann::json::array()}), InvalidArgument);
  EXPECT_THROW(traces_of({{entry("free_completed", 1, 1)}}), InvalidArgument);
}

// The last bytes of the replay are those of the snapshot: nothing was lost on the way.
TEST(Histories, EndWithTheSnapshotsOwnMemory) {
  const TorchSnapshot snapshot = read_layers();
  const Trace trace = tools::traces_of(read_history(kLayers)).at(0);
  std::vector<std::size_t> live(trace.slots);
  for (const TraceEvent& event : trace.events) live[event.slot] = event.bytes;
  std::size_t replayed = 0, held = 0;
  for (const std::size_t bytes : live) replayed += bytes;
  for (const SegmentSnapshot& segment : snapshot.memory.segments) {
    for (const BlockSnapshot& block : segment.blocks) {
      if (block.state == BlockSnapshot::State::active_allocated) held += block.requested_size;
    }
  }
  EXPECT_EQ(replayed, held);
}

}  // namespace
}  // namespace cachalot::tools
