// Snapshots that two versions of PyTorch wrote of programs of all kinds (data/snapshots), against what plain Python finds in
// each, and against what PyTorch itself counted.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/exports/same_history.h"
#include "tests/tools/recorded_figures.h"
#include "tests/tools/temporary_file.h"
#include "tools/analysis/checks.h"
#include "tools/analysis/explanation.h"
#include "tools/analysis/program_settings.h"
#include "tools/analysis/recorded_trace.h"
#include "tools/history/history.h"
#include "tools/output/export_formats.h"
#include "tools/output/snapshot_report.h"
#include "tools/replay/policies.h"
#include "tools/simulation/recorded_programs.h"

namespace cachalot::tools {
namespace {

using Json = nlohmann::json;

struct Recorded {
  std::string name;  // of the program
  std::string path;
  Json contents;  // of contents.json
};

// Calls `test` for each snapshot of each version.
void for_each_snapshot(const std::function<void(const Recorded&)>& test) {
  for (const std::string version : {"2.11", "2.15"}) {
    const std::string folder = CACHALOT_DATA_DIR "/snapshots/torch-" + version;
    const Json contents = Json::parse(read_whole(folder + "/contents.json"));
    ASSERT_GE(contents["snapshots"].size(), 10u);
    for (const auto& [name, of_snapshot] : contents["snapshots"].items()) {
      SCOPED_TRACE(fmt::format("{} of PyTorch {}", name, version));
      test({name, fmt::format("{}/{}.pickle.gz", folder, name), of_snapshot});
    }
  }
}

std::uint32_t crc32_of(const std::vector<std::string>& lines) {
  const std::string text = fmt::format("{}", fmt::join(lines, "\n"));
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const unsigned char*>(text.data()), static_cast<unsigned>(text.size())));
}

Json counts_of(const DeviceHistory& device) {
  constexpr std::array kStates = {"active_allocated", "active_pending_free", "inactive"};
  Json counts = {{"events", Json::object()}, {"blocks", Json::object()}, {"segments", device.segments.size()}};
  const auto count = [](Json& one) { one = one.is_null() ? 1 : one.get<int>() + 1; };
  std::uint64_t segment_bytes = 0;
  std::uint64_t block_bytes = 0;
  for (const HistoryEvent& event : device.events) count(counts["events"][name_of(event.action)]);
  for (const HistorySegment& segment : device.segments) segment_bytes += segment.bytes;
  for (const HistoryBlock& block : device.blocks) {
    count(counts["blocks"][kStates.at(static_cast<std::size_t>(block.state))]);
    block_bytes += block.bytes;
  }
  counts["segment_bytes"] = segment_bytes;
  counts["block_bytes"] = block_bytes;
  return counts;
}

void expect_contents(const History& history, const char* what, const DeviceHistory& device, const Json& contents) {
  const Json counts = counts_of(device);
  for (const auto& [key, counted] : counts.items()) EXPECT_EQ(counted, contents[key]) << key;
  EXPECT_EQ(crc32_of(PlainHistory(history).lines_of(what, device)), contents["crc32"]) << "a field differs";
}

TEST(RecordedSnapshots, AreReadWithEveryFieldOfEveryEventSegmentAndBlock) {
  for_each_snapshot([](const Recorded& recorded) {
    const History history = read_history(recorded.path);
    const Json& contents = recorded.contents;
    EXPECT_EQ(history.unknown_actions, 0u);
    EXPECT_EQ(history.settings, contents["settings"]);
    EXPECT_EQ(history.stages.size(), contents["stages"]);
    ASSERT_EQ(history.devices.size(), contents["devices"].size());
    for (std::size_t i = 0; i < history.devices.size(); ++i) {
      EXPECT_EQ(history.devices[i].device, contents["devices"][i]["number"]);
      expect_contents(history, "device", history.devices[i], contents["devices"][i]);
    }
    ASSERT_EQ(history.host.size(), contents["host"].is_null() ? 0u : 1u);
    if (!history.host.empty()) expect_contents(history, "host", history.host[0], contents["host"]);
  });
}

TEST(RecordedSnapshots, ComeBackAsTheyWereFromPyTorchsFormatAndFromJson) {
  for_each_snapshot([](const Recorded& recorded) {
    const History history = read_history(recorded.path);
    for (const char* name : {"torch", "json"}) {
      const TemporaryFile file;
      OutputFile out(file.path(), "-o");
      export_format(name).write(history, {}, out);
      out.finish();
      expect_same(read_history(file.path()), history);
    }
  });
}

TEST(RecordedSnapshots, AreWrittenInEachFormat) {
  for_each_snapshot([](const Recorded& recorded) {
    const History history = read_history(recorded.path);
    for (const char* name : {"perfetto", "json", "rmm", "trace"}) {
      const TemporaryFile file;
      OutputFile out(file.path(), "-o");
      EXPECT_NO_THROW(export_format(name).write(history, {.device = history.devices[0].device}, out)) << name;
      out.finish();
      EXPECT_FALSE(read_whole(file.path()).empty()) << name;
    }
  });
}

// ---- PyTorch's counts

// Returns the most that the replay under the program's own settings held, on the memory that the program had.
std::size_t replayed_bytes(const RecordedProgram& recorded, const std::string& settings) {
  const Policy policy = is_expandable(settings) ? Policy{.heap = Policy::Heap::expandable_segments}
                                                : Policy{.options = segment_config(settings)};
  return figures_of(*recorded.program.trace, policy, recorded.usable_bytes.value_or(kEnoughBytes))->peak_held_bytes;
}

TEST(RecordedSnapshots, HaveThePeaksThatPyTorchCounted) {
  for_each_snapshot([](const Recorded& recorded) {
    if (!recorded.contents["is_whole"]) return;
    const History history = read_history(recorded.path);
    for (std::size_t i = 0; i < history.devices.size(); ++i) {
      const DeviceHistory& device = history.devices[i];
      const Json& peaks = recorded.contents["devices"][i]["peaks"];
      RecordedFigures held = figures_before(device);
      RecordedFigures most = held;
      for (const HistoryEvent& event : device.events) {
        held.add(event);
        most.reserved_bytes = std::max(most.reserved_bytes, held.reserved_bytes);
        most.active_bytes = std::max(most.active_bytes, held.active_bytes);
      }
      EXPECT_EQ(most.reserved_bytes, peaks["reserved_bytes"]);
      EXPECT_EQ(most.active_bytes, peaks["requested_bytes"]);  // until frees are completed
      EXPECT_EQ(recorded_reserved_bytes(device), peaks["reserved_bytes"]);
    }
  });
}

TEST(RecordedSnapshots, AreReplayedToThePeakThatPyTorchReserved) {
  for_each_snapshot([](const Recorded& recorded) {
    if (!recorded.contents["is_whole"]) return;
    const std::vector<RecordedProgram> programs = recorded_programs(InputFile(recorded.path, "history"));
    ASSERT_EQ(programs.size(), recorded.contents["devices"].size());
    for (std::size_t i = 0; i < programs.size(); ++i) {
      const std::size_t replayed = replayed_bytes(programs[i], recorded.contents["settings"]);
      const auto reserved = recorded.contents["devices"][i]["peaks"]["reserved_bytes"].get<std::size_t>();
      if (recorded.contents["empties_cache"]) {  // with memory pools, of which a replay does not know it
        EXPECT_GE(replayed, reserved);
      } else {
        EXPECT_EQ(replayed, reserved);
      }
    }
  });
}

// ---- The analyses

// The cause, and the remedies that serve the request: with each of them the program itself has memory enough.
using Answer = std::pair<std::string_view, std::vector<std::string>>;

const std::map<std::string, Answer> kAnswers = {
    {"fragmented", {"fragmentation", {"page_heap", "expandable_segments"}}},
    {"limited", {"limit", {"raise_limit"}}},
    {"rounded", {"cached_by_rounding", {"expandable_segments", "no_rounding"}}},
    {"oversize", {"oversize_blocks", {"expandable_segments", "page_heap", "no_max_split_size"}}},
    {"private_pool", {"private_pool", {"no_private_pool"}}},
    {"other_stream", {"other_stream", {"page_heap", "expandable_segments", "one_stream"}}},
    {"graph_pools", {"graph_pools", {"one_graph_pool"}}},
    {"leak", {"leak", {"free_leak"}}}};

TEST(RecordedSnapshots, AreExplainedWithTheRequestThatFailedItsCauseAndRemedies) {
  for_each_snapshot([&](const Recorded& recorded) {
    const Timelines timelines(read_history(recorded.path));
    const Json& failed = recorded.contents["failed_bytes"];
    for (const Timeline& timeline : timelines.devices()) {
      const Explanation explanation = explain(timeline, built_in_rules(), ExplainOptions());
      ASSERT_EQ(explanation.evidence.failure.has_value(), !failed.is_null());
      if (failed.is_null()) {
        EXPECT_EQ(explanation.cause, Cause::none);
        continue;
      }
      EXPECT_EQ(explanation.evidence.failure->requested_bytes, failed);
      const auto& [cause, remedies] = kAnswers.at(recorded.name);
      EXPECT_EQ(key_of(explanation.cause), cause);
      std::vector<std::string> serving;
      for (const Remedy& remedy : explanation.remedies.best)
        if (remedy.serves) serving.push_back(remedy.key);
      EXPECT_EQ(serving, remedies);
    }
  });
}

TEST(RecordedSnapshots, AreChecked) {
  for_each_snapshot([](const Recorded& recorded) {
    const History history = read_history(recorded.path);
    const Check check = check_history(Timelines(history), {.no_oom = true}, {});
    EXPECT_EQ(check.holds(), recorded.contents["failed_bytes"].is_null());
  });
}

TEST(RecordedSnapshots, AreShown) {
  for_each_snapshot([](const Recorded& recorded) {
    EXPECT_FALSE(json_of(report_of(Timelines(read_history(recorded.path)), 5))["devices"].empty());
  });
}

}  // namespace
}  // namespace cachalot::tools
