// Histories in other formats: the written files, and their content as the tools' own readers return it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cachalot/errors.h"
#include "tests/analysis/history_builder.h"
#include "tests/exports/same_history.h"
#include "tests/tools/data_files.h"
#include "tests/tools/temporary_file.h"
#include "tools/analysis/recorded_trace.h"
#include "tools/output/export_formats.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::tools {
namespace {

using Action = HistoryEvent::Action;
using testing::ElementsAre;
using testing::HasSubstr;

// Writes the file in the format.
void write(const History& history, std::string_view format, const std::string& path,
           const ExportOptions& options = {}) {
  OutputFile out(path, "-o");
  export_format(format).write(history, options, out);
  out.finish();
}
std::string written(const History& history, std::string_view format, const ExportOptions& options = {}) {
  const TemporaryFile file;
  write(history, format, file.path(), options);
  return read_whole(file.path());
}
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Two allocations from one place, one from another; a failure; a free of an earlier allocation; a segment.
HistoryBuilder small_program() {
  HistoryBuilder builder;
  builder.history().path = "small";
  const StackId inner = builder.stack({{"/app/model.py", "forward", 7}, {"/app/train.py", "<module>", 30}});
  const StackId outer = builder.stack({{"/app/train.py", "main; \"x\"", 12}});
  builder.stage("step 1", true);
  builder.add(Action::segment_alloc, 0x10000, 0x10000);
  builder.alloc(0x10000, 1000, inner);
  builder.alloc(0x10400, 500, outer);
  builder.free(0x18000, 700);
  builder.free(0x10000, 1000);
  builder.add(Action::oom, 4096, 1 << 20, outer);
  builder.alloc(0x10000, 300, inner);
  builder.stage("step 1", false);
  builder.segment(0x10000,
                  {{.bytes = 1024, .requested_bytes = 300, .stack = inner, .state = HistoryBlock::State::allocated},
                   {.bytes = 512, .requested_bytes = 500, .stack = outer, .state = HistoryBlock::State::allocated},
                   {.bytes = 64000, .state = HistoryBlock::State::free}});
  builder.device().events[2].stream = builder.history().streams.add(0x7f0012340000);
  return builder;
}

TEST(Outputs, ThatAreReadAreRefused) {
  const TemporaryFile file;
  write(small_program().history(), "trace", file.path());
  const std::string link = file.path() + ".link";
  std::filesystem::create_symlink(file.path(), link);
  EXPECT_THROW(require_no_input(file.path(), "-o", std::vector{file.path()}), InvalidArgument);
  EXPECT_THROW(require_no_input(file.path(), "-o", std::vector{std::string("other"), link}), InvalidArgument);
  EXPECT_NO_THROW(require_no_input(file.path(), "-o", std::vector{std::string("other")}));
  EXPECT_NO_THROW(require_no_input("", "-o", std::vector{std::string("")}));
  std::filesystem::remove(link);
}

// ---- PyTorch's pickle

TEST(TorchExport, OfARealSnapshotComesBackAsItWas) {
  const History history = read_history(kLayers);
  const TemporaryFile file;
  write(history, "torch", file.path());
  expect_same(read_history(file.path()), history);
}

TEST(TorchExport, KeepsDevicesPoolsStreamsAndStates) {
  HistoryBuilder builder = small_program();
  History& history = builder.history();
  history.settings = "expandable_segments:True";
  const auto pool = history.pools.add({3, 1});
  DeviceHistory second = builder.device();
  second.device = 2;
  second.segments[0].pool = second.events[1].pool = pool;
  second.segments[0].is_expandable = second.segments[0].is_small = true;
  second.segments[0].stream = history.streams.add(~std::uint64_t{0} - 15);  // as large as can be
  second.blocks[1].state = HistoryBlock::State::pending_free;
  history.devices.push_back(second);
  const TemporaryFile file;
  write(history, "torch", file.path());
  expect_same(read_history(file.path()), history);
}

TEST(TorchExport, KeepsWhatIsKnownBesideTheEvents) {
  HistoryBuilder builder = small_program();
  History& history = builder.history();
  const StackId forward = builder.stack({{"/app/block.py", "forward", 3}});
  const FrameId compiled = history.stacks.add_frame(
      {.file = history.texts.add("/app/c.py"), .line = 4, .node = history.texts.add("relu_1")});
  builder.device().events[2].stack = history.stacks.add(std::vector{compiled});
  builder.device().events[1].details = history.details.add({.forward_stack = forward,
                                                            .compile_context = history.texts.add("0/0"),
                                                            .user_metadata = history.texts.add("{\"tag\":\"kv\"}"),
                                                            .internal_metadata = history.texts.add("{\"a\":1}")});
  builder.device().blocks[0].details = history.details.add({.forward_stack = forward});
  builder.device().blocks[1].details = builder.device().events[1].details;
  DeviceFacts& facts = history.facts.emplace_back();
  facts.name = "NVIDIA L4";
  facts.total_bytes = 24 << 20;
  facts.nccl_bytes = 7;
  facts.other_processes.push_back({.id = 77, .bytes = 1 << 20, .name = "python"});
  const TemporaryFile file;
  write(history, "torch", file.path());
  expect_same(read_history(file.path()), history);
}

TEST(Exports, KeepWhatAFailingProcessTold) {
  HistoryBuilder builder = small_program();
  History& history = builder.history();
  builder.device().blocks[0].owner = history.texts.add("GPT.blocks.3");
  builder.device().blocks[0].owner_kind = history.texts.add("parameters");
  builder.device().asleep.push_back({.address = 0x700000, .bytes = 4 << 20, .pool = history.pools.add({2, 2})});
  history.facts.emplace_back().failing = DeviceFacts::Failing{.who = "rank3, process 42, failure 1",
                                                              .segment_bytes = 2 << 20,
                                                              .has_pages = true,
                                                              .is_refused = true,
                                                              .has_nccl = true,
                                                              .knows_owners = false,
                                                              .tags = {{.pool = {2, 2}, .name = "weights"}},
                                                              .libraries = {{.name = "cupy", .bytes = 77}}};
  for (const char* format : {"torch", "json"}) {
    const TemporaryFile file;
    write(history, format, file.path());
    expect_same(read_history(file.path()), history);
  }
}

TEST(TorchExport, WritesManyEventsInBatches) {
  HistoryBuilder builder;
  for (std::uint64_t i = 0; i < 2500; ++i) builder.alloc(0x100000 + 512 * i, 1 + 97 * i * i);
  const TemporaryFile file;
  write(builder.history(), "torch", file.path());
  expect_same(read_history(file.path()), builder.history());
}

TEST(TorchExport, ReplacesWhatIsNotUtf8) {
  HistoryBuilder builder;
  builder.alloc(0x1000, 512, builder.stack({{"/app/\xff.py", "caf\xc3\xa9", 1}}));
  const TemporaryFile file;
  write(builder.history(), "torch", file.path());
  const History read = read_history(file.path());
  const StackFrame& frame = read.stacks.frame(read.stacks[read.devices[0].events[0].stack][0]);
  EXPECT_EQ(read.texts[frame.file], "/app/\xef\xbf\xbd.py");
  EXPECT_EQ(read.texts[frame.function], "caf\xc3\xa9");
}

// ---- RMM and traces

TEST(RmmExport, HasALineForEachCallAndItsFailures) {
  HistoryBuilder builder = small_program();
  EXPECT_THAT(lines_of(written(builder.history(), "rmm")),
              ElementsAre("Thread,Time,Action,Pointer,Size,Stream",                 //
                          "1,00:00:00.000000,allocate,0x18000,700,0",               // from before
                          "1,00:00:00.000001,allocate,0x10000,1000,0",              //
                          "1,00:00:00.000002,allocate,0x10400,500,0x7f0012340000",  //
                          "1,00:00:00.000003,free,0x18000,700,0",                   //
                          "1,00:00:00.000005,free,0x10000,1000,0",                  //
                          "1,00:00:00.000007,allocate failure,(nil),1048576,0",     //
                          "1,00:00:00.000008,allocate,0x10000,300,0"));
}

TEST(TraceExport, IsReadAsTheTraceOfTheHistory) {
  for (const History& history : {read_history(kLayers), small_program().history()}) {
    const TemporaryFile file;
    write(history, "trace", file.path());
    EXPECT_EQ(read_trace(file.path()).events, trace_of(Timeline(history, history.devices[0])).events);
  }
}

TEST(FormatsOfOneDevice, AskWhichOfSeveral) {
  HistoryBuilder builder = small_program();
  builder.history().devices.push_back({.device = 1, .events = builder.device().events, .segments = {}, .blocks = {}});
  for (const char* format : {"rmm", "trace"}) {
    try {
      written(builder.history(), format);
      ADD_FAILURE() << format;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("2 devices")) << format;
    }
    EXPECT_NE(written(builder.history(), format, {.device = 1}), "");
    EXPECT_THROW(written(builder.history(), format, {.device = 7}), InvalidArgument);
  }
}

// ---- JSON

TEST(JsonExport, HasEveryPartOfTheHistory) {
  const History history = small_program().history();
  const auto json = nlohmann::json::parse(written(history, "json"));
  EXPECT_EQ(json["format"], "cachalot history");
  EXPECT_EQ(json["version"], 1);
  const auto& device = json["devices"][0];
  ASSERT_EQ(device["events"].size(), history.devices[0].events.size());
  EXPECT_EQ(device["events"][2]["address"], 0x10400);
  EXPECT_EQ(json["streams"][device["events"][2]["stream"].get<std::size_t>()], 0x7f0012340000);
  EXPECT_EQ(device["events"][7]["action"], "oom");
  EXPECT_EQ(device["events"][7]["device_free_bytes"], 4096);
  const auto& frames = json["stacks"][device["events"][1]["stack"].get<std::size_t>()];
  EXPECT_EQ(json["frames"][frames[0].get<std::size_t>()],
            (nlohmann::json{{"file", "/app/model.py"}, {"line", 7}, {"function", "forward"}, {"node", ""}}));
  EXPECT_EQ(device["segments"][0]["blocks"].size(), 3);
  EXPECT_EQ(device["segments"][0]["blocks"][1]["state"], "allocated");
  EXPECT_EQ(json["stages"][0]["name"], "step 1");
}

std::string complaint_about_json(const std::string& text) {
  const TemporaryFile file(text);
  try {
    read_history(file.path());
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(JsonExport, IsReadAgain) {
  const History history = small_program().history();
  const std::string text = written(history, "json");
  const TemporaryFile file(text);
  History again = read_history(file.path());
  expect_same(again, history);
  again.path = history.path;
  EXPECT_EQ(written(again, "json"), text);
  EXPECT_EQ(complaint_about_json(nlohmann::ordered_json::parse(text).dump(4)), "");
}

TEST(JsonExport, ErrorsNameTheByteAndTheRule) {
  const std::string text = written(small_program().history(), "json");
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return complaint_about_json(changed.replace(at, from.size(), to));
  };
  EXPECT_THAT(with("\"version\":1", "\"version\":2"),
              HasSubstr("a history of version 2; this cachalot reads version 1"));
  EXPECT_THAT(with("\"stack\":1,", "\"stack\":99,"), HasSubstr("place 99 of 'stacks', which has 3"));
  EXPECT_THAT(with("\"bytes\":1000", "\"bytes\":-1"), HasSubstr("'-1' is no whole number of at most"));
  EXPECT_THAT(with("\"action\":\"alloc\"", "\"action\":\"mend\""), HasSubstr("no action is 'mend'"));
  EXPECT_THAT(with("\"state\":\"allocated\"", "\"state\":\"lent\""), HasSubstr("no state is"));
  EXPECT_THAT(with("\"bytes\":1000,", ""), HasSubstr("bytes"));
  EXPECT_THAT(complaint_about_json(text.substr(0, text.size() / 2)), HasSubstr("byte "));
  EXPECT_THAT(complaint_about_json(R"({"format":"cachalot history","stacks":[[]],"devices":[[[{}]]]})"),
              HasSubstr("is no object"));
  EXPECT_THAT(complaint_about_json(nlohmann::json::parse(text).dump()), HasSubstr("tables must come before"));
}

// Whatever a digit, a bracket or a name becomes, the file is read or refused.
TEST(JsonExport, NoChangedByteIsACrash) {
  const std::string text = written(small_program().history(), "json");
  for (std::size_t at = text.find("version"); at < text.size(); at += 3) {
    for (const char byte : {'9', '-', '"', ']'}) {
      std::string changed = text;
      changed[at] = byte;
      complaint_about_json(changed);
    }
  }
}

// ---- Perfetto

nlohmann::json trace_events(const History& history, const ExportOptions& options = {}) {
  return nlohmann::json::parse(written(history, "perfetto", options))["traceEvents"];
}
std::vector<nlohmann::json> events_named(const nlohmann::json& events, const std::string& key,
                                         const std::string& value) {
  std::vector<nlohmann::json> found;
  for (const auto& event : events) {
    if (event.value(key, "") == value) found.push_back(event);
  }
  return found;
}

TEST(Perfetto, CountsAndShowsLifetimesFailuresAndStages) {
  const auto events = trace_events(small_program().history());
  std::vector<std::uint64_t> allocated;
  for (const auto& event : events_named(events, "name", "allocated")) allocated.push_back(event["args"]["bytes"]);
  EXPECT_THAT(allocated, ElementsAre(700, 1700, 2200, 1500, 500, 800));
  EXPECT_EQ(events_named(events, "name", "reserved").back()["args"]["bytes"], 0x10000);
  const auto failures = events_named(events, "ph", "i");
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0]["args"]["bytes"], 1 << 20);
  EXPECT_EQ(events_named(events, "cat", "stage").size(), 2u);
  EXPECT_EQ(events_named(events, "cat", "allocation").size(), 8u);
}

// Every end belongs to a begin before it, of the same name.
TEST(Perfetto, LifetimesAreNested) {
  std::map<std::string, nlohmann::json> open;
  for (const auto& event : trace_events(read_history(kLayers))) {
    if (event["ph"] != "b" && event["ph"] != "e") continue;
    const std::string id = event["cat"].get<std::string>() + event["id2"]["local"].get<std::string>();
    if (event["ph"] == "b") {
      EXPECT_TRUE(open.emplace(id, event).second) << id;
      continue;
    }
    ASSERT_TRUE(open.contains(id)) << id;
    EXPECT_EQ(open[id]["name"], event["name"]);
    EXPECT_LE(open[id]["ts"].get<std::int64_t>(), event["ts"].get<std::int64_t>());
    open.erase(id);
  }
  EXPECT_TRUE(open.empty());
}

TEST(Perfetto, KeepsThePeakAndTheLargestWhenItIsThinned) {
  HistoryBuilder builder;
  for (std::uint64_t i = 0; i < 4000; ++i) {
    const std::uint64_t bytes = i == 1234 ? 1 << 20 : 512;
    builder.alloc(0x1000, bytes);
    builder.free(0x1000, bytes);
  }
  const auto events = trace_events(builder.history(), {.most_events = 200});
  EXPECT_LE(events.size(), 200u + 50u);
  std::uint64_t most = 0;
  for (const auto& event : events_named(events, "name", "allocated")) {
    most = std::max<std::uint64_t>(most, event["args"]["bytes"]);
  }
  EXPECT_EQ(most, 1u << 20);
  const auto lifetimes = events_named(events, "ph", "b");
  EXPECT_TRUE(std::ranges::any_of(lifetimes, [](const auto& event) { return event["args"]["bytes"] == 1 << 20; }));
}

// ---- the file

TEST(OutputFiles, AppearWholeOrNotAtAll) {
  const TemporaryFile file("before");
  {
    OutputFile out(file.path(), "-o");
    out.write(std::string(1 << 18, 'x'));
    EXPECT_EQ(read_whole(file.path()), "before");
  }
  EXPECT_EQ(read_whole(file.path()), "before");
  OutputFile out(file.path(), "-o");
  out.write("after");
  out.finish();
  EXPECT_EQ(read_whole(file.path()), "after");
  const auto folder = std::filesystem::path(file.path()).parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_FALSE(entry.path().string().starts_with(file.path() + ".")) << entry.path();
  }
}

TEST(OutputFiles, AreNotWrittenThroughALinkBesideThem) {
  const TemporaryFile file("before");
  const TemporaryFile victim("kept");
  const std::string guessed = fmt::format("{}.{}.part", file.path(), getpid());
  std::filesystem::create_symlink(victim.path(), guessed);
  OutputFile out(file.path(), "-o");
  out.write("whole");
  out.finish();
  EXPECT_EQ(read_whole(victim.path()), "kept");
  EXPECT_EQ(read_whole(file.path()), "whole");
  EXPECT_FALSE(std::filesystem::is_symlink(file.path()));
}

TEST(OutputFiles, SayWhyTheyCannotBeWritten) {
  EXPECT_THROW(OutputFile("/nowhere/out.json", "-o"), InvalidArgument);
  OutputFile full("/dev/full", "-o");
  full.write("text");
  EXPECT_THROW(full.finish(), InvalidArgument);
}

TEST(Formats, AreKnownByTheEndingsOfFiles) {
  const auto name_for = [](std::string_view path) { return std::string(export_format_of_file(path).name); };
  EXPECT_EQ(name_for("a.pickle"), "torch");
  EXPECT_EQ(name_for("a.json"), "json");
  EXPECT_EQ(name_for("a.perfetto.json.gz"), "perfetto");
  EXPECT_EQ(name_for("a.rmm.csv"), "rmm");
  EXPECT_EQ(name_for("a.trace.csv.gz"), "trace");
  EXPECT_THROW(export_format_of_file("a.gz"), InvalidArgument);
  EXPECT_THROW(export_format_of_file("a.csv"), InvalidArgument);
  EXPECT_THROW(export_format("perfeto"), InvalidArgument);
}

}  // namespace
}  // namespace cachalot::tools
