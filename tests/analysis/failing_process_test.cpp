// The explanation of a file that a process on cachalot wrote as its memory ran out, on a modelled device of 8 GiB.
#include "tools/analysis/failing_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/tools/temporary_file.h"
#include "tools/analysis/explanation_report.h"

namespace cachalot::tools {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::uint64_t kGibi = std::uint64_t{1} << 30;

struct Place {  // of a segment
  std::uint64_t stream = 0;
  std::vector<int> pool = {0, 0};
};

// A file with segments of blocks, each of a state and bytes, and the request that failed: 4 GiB, where 1 GiB is free.
class FailedProcess {
 public:
  FailedProcess() {
    facts_ = {{"device", 0}, {"total_bytes", 8 * kGibi}, {"free_bytes", kGibi}, {"process_bytes", 2 * kGibi}};
    facts_["processes"] = {{{"pid", 1}, {"bytes", 0}}};
    facts_["failing"] = {{"who", "rank3, process 42, failure 1"}, {"segment_bytes", 4 * kGibi}};
    failure_ = {{"action", "oom"}, {"device_free", kGibi}, {"size", 4 * kGibi}, {"stream", 0}, {"time_us", 0}};
  }

  Json& segment(const std::vector<std::pair<std::string, std::uint64_t>>& blocks, const Place& place = {}) {
    std::uint64_t at = next_;
    Json made = Json::array();
    for (const auto& [state, bytes] : blocks) {
      made.push_back({{"address", at}, {"size", bytes}, {"requested_size", bytes}, {"state", state}});
      at += bytes;
    }
    segments_.push_back({{"device", 0},
                         {"address", next_},
                         {"total_size", at - next_},
                         {"stream", place.stream},
                         {"segment_type", "large"},
                         {"segment_pool_id", place.pool},
                         {"is_expandable", false},
                         {"blocks", std::move(made)}});
    next_ += std::uint64_t{1} << 36;
    return segments_.back();
  }
  void live(std::uint64_t bytes) { segment({{"active_allocated", bytes}}); }

  void set_free(std::uint64_t bytes) { facts_["free_bytes"] = failure_["device_free"] = bytes; }
  Json& facts() { return facts_; }
  Json& failing() { return facts_["failing"]; }
  Json& failure() { return failure_; }

  std::string text() const {
    return Json{{"segments", segments_}, {"device_traces", {{failure_}}}, {"cachalot", {{"facts", {facts_}}}}}.dump();
  }
  Explanation explained() const {
    const TemporaryFile file(text());
    History history = read_history(file.path());
    return explain(Timeline(history, history.devices.at(0)), built_in_rules(), {});
  }

 private:
  Json segments_ = Json::array();
  Json facts_;
  Json failure_;
  std::uint64_t next_ = std::uint64_t{1} << 40;
};

TEST(FailingProcess, MemoryThatWaitsForOtherStreamsIsNamed) {
  FailedProcess process;
  process.live(2 * kGibi);
  process.segment({{"active_pending_free", 5 * kGibi}});
  const Explanation one = process.explained();
  EXPECT_EQ(key_of(one.cause), "waiting");
  EXPECT_THAT(one.text, HasSubstr("5.00 GiB is freed but waits for work on other streams"));
  EXPECT_THAT(one.recommendation, HasSubstr("synchronize the streams of record_stream()"));
  EXPECT_EQ(one.evidence.of(Cause::fragmentation).bytes, 0) << "it is not free";
}

TEST(FailingProcess, NcclAndOtherProcessesAreToldApartByTheirMemory) {
  FailedProcess process;
  process.live(2 * kGibi);
  process.failing()["has_nccl"] = true;
  process.facts()["process_bytes"] = 6 * kGibi;
  process.facts()["processes"] = {{{"pid", 77}, {"bytes", kGibi}}};
  const Explanation nccl = process.explained();
  EXPECT_EQ(nccl.cause, Cause::nccl);
  EXPECT_THAT(nccl.text, HasSubstr("held 4.00 GiB"));
  EXPECT_THAT(nccl.recommendation, HasSubstr("NCCL_BUFFSIZE"));

  process.facts()["process_bytes"] = 3 * kGibi;
  process.facts()["processes"] = {{{"pid", 77}, {"bytes", 4 * kGibi}}};
  const Explanation other = process.explained();
  EXPECT_EQ(other.cause, Cause::other_process);
  EXPECT_THAT(other.text, HasSubstr("process 77 (4.00 GiB)"));
  EXPECT_THAT(other.recommendation, HasSubstr("end the other process 77"));

  process.failing()["has_nccl"] = false;  // a usual context is not to blame
  process.facts()["process_bytes"] = 2 * kGibi + kGibi / 2;
  process.facts()["processes"] = {{{"pid", 77}, {"bytes", kGibi}}};
  EXPECT_EQ(process.explained().cause, Cause::too_large);
}

TEST(FailingProcess, MemoryThatTheDriverDoesNotDivideIsOfNobodyByName) {
  FailedProcess process;
  process.live(2 * kGibi);
  process.facts().erase("process_bytes");
  process.facts().erase("processes");
  const Explanation unknown = process.explained();
  EXPECT_EQ(unknown.cause, Cause::other_process);
  EXPECT_THAT(unknown.text, HasSubstr("5.00 GiB of the device was held outside of this allocator"));
  EXPECT_THAT(unknown.recommendation, HasSubstr("nvidia-smi"));
  EXPECT_THAT(text_of(report_of(unknown, 10), Style()), HasSubstr("held outside"));

  process.facts()["process_bytes"] = 2 * kGibi + kGibi / 2;  // processes of another container are not listed
  const Explanation hidden = process.explained();
  EXPECT_EQ(hidden.cause, Cause::other_process);
  EXPECT_THAT(hidden.text, HasSubstr("other processes held 4.50 GiB of the device"));
}

TEST(FailingProcess, CachedMemoryOutsideOfTheRequestsPoolIsNamed) {
  FailedProcess of_default;
  of_default.segment({{"inactive", 4 * kGibi}});
  of_default.failure()["pool_id"] = {0, 3};
  EXPECT_EQ(of_default.explained().cause, Cause::private_pool);
  EXPECT_THAT(of_default.explained().text, HasSubstr("in the default pool: the request is for a private pool"));
  EXPECT_THAT(of_default.explained().recommendation, HasSubstr("torch.cuda.empty_cache()"));

  FailedProcess of_graph;
  of_graph.segment({{"inactive", 4 * kGibi}}, {.pool = {2, 0}});
  EXPECT_EQ(of_graph.explained().cause, Cause::graph_pools);
  EXPECT_THAT(of_graph.explained().recommendation, HasSubstr("share one pool among graphs"));

  FailedProcess of_tag;
  of_tag.segment({{"inactive", 4 * kGibi}}, {.pool = {2, 2}});
  of_tag.failing()["tags"] = {{{"pool_id", {2, 2}}, {"name", "kv"}}};
  EXPECT_EQ(of_tag.explained().cause, Cause::private_pool);
  EXPECT_THAT(of_tag.explained().text, HasSubstr("in tag 'kv': serves only allocations within its region"));
  EXPECT_THAT(of_tag.explained().recommendation, HasSubstr("cachalot.release_physical for tag 'kv'"));

  FailedProcess idle;
  idle.segment({{"inactive", 4 * kGibi}}, {.pool = {0, 3}});
  idle.failure()["pool_id"] = {0, 3};
  idle.failure()["size"] = 5 * kGibi;
  EXPECT_EQ(idle.explained().cause, Cause::private_pool);
  EXPECT_THAT(idle.explained().text, HasSubstr("in MemPool (0, 3): nothing is live there"));
  EXPECT_THAT(idle.explained().recommendation, HasSubstr("heap:pages"));
}

TEST(FailingProcess, TheCacheOfAnotherStreamIsNamed) {
  FailedProcess process;
  process.segment({{"inactive", 4 * kGibi}, {"active_allocated", kGibi}}, {.stream = 0x1f40});
  const Explanation one = process.explained();
  EXPECT_EQ(one.cause, Cause::other_stream);
  EXPECT_THAT(one.text, HasSubstr("cached for stream 0x1f40"));
  EXPECT_THAT(one.recommendation, HasSubstr("CACHALOT_CONF=heap:pages"));
  process.failing()["has_pages"] = true;
  EXPECT_THAT(process.explained().recommendation, HasSubstr("cross_stream:scarce"));
}

TEST(FailingProcess, ALimitIsNotBlamedForWhatDoesNotFitTheDeviceEither) {
  FailedProcess process;
  process.live(2 * kGibi);
  process.set_free(5 * kGibi);
  process.facts()["limit_bytes"] = 3 * kGibi;
  const Explanation limited = process.explained();
  EXPECT_EQ(limited.cause, Cause::limit);
  EXPECT_THAT(limited.text,
              HasSubstr("this process may hold 3.00 GiB and held 2.00 GiB, while the device had 5.00 GiB"));
  EXPECT_THAT(limited.recommendation, HasSubstr("to 6.00 GiB or more"));
  process.set_free(3 * kGibi);
  EXPECT_EQ(process.explained().cause, Cause::too_large);
}

TEST(FailingProcess, ARefusalByAnOptionComesBeforeTheCache) {
  FailedProcess process;
  process.segment({{"inactive", 6 * kGibi}}, {.stream = 7});
  process.failing()["is_refused"] = true;
  EXPECT_EQ(process.explained().cause, Cause::limit);
  EXPECT_THAT(process.explained().recommendation, StartsWith("remove throw_on_cudamalloc_oom"));
}

TEST(FailingProcess, WhatSleepsIsNotOnTheDevice) {
  FailedProcess process;
  process.live(3 * kGibi);
  process.segment({{"active_allocated", 3 * kGibi}}, {.pool = {2, 2}});
  process.segment({{"active_allocated", 3 * kGibi}}, {.pool = {1, 1}})["asleep_size"] = 3 * kGibi;
  process.failing()["has_pages"] = true;
  process.failing()["tags"] = {{{"pool_id", {1, 1}}, {"name", "weights"}}, {{"pool_id", {2, 2}}, {"name", "kv"}}};
  const Explanation other = process.explained();
  EXPECT_EQ(other.cause, Cause::too_large);
  EXPECT_EQ(other.evidence.reserved_bytes, 6 * kGibi);
  EXPECT_THAT(other.recommendation, HasSubstr("put the tag 'kv' (3.00 GiB) to sleep"));
  ASSERT_EQ(other.process->tags.size(), 2);
  EXPECT_EQ(other.process->tags[0].reserved_bytes, 3 * kGibi);
  EXPECT_EQ(other.process->tags[1].name, "weights");
  EXPECT_EQ(other.process->tags[1].asleep_bytes, 3 * kGibi);

  process.failure()["pool_id"] = {1, 1};  // it is to wake
  process.failure()["size"] = 3 * kGibi;
  const Explanation waking = process.explained();
  EXPECT_EQ(key_of(waking.cause), "asleep");
  EXPECT_THAT(waking.text, HasSubstr("tag 'weights' is asleep"));
  EXPECT_EQ(waking.recommendation,
            "free 2.00 GiB of other memory before restore_physical, or put another tag to sleep first: 'kv' (3.00 GiB) "
            "is awake");
}

TEST(FailingProcess, AHistoryThatEndsAsleepHasNothingLiveThere) {
  FailedProcess process;
  process.live(3 * kGibi);
  Json& asleep = process.segment({{"active_allocated", 3 * kGibi}}, {.pool = {1, 1}});
  asleep["asleep_size"] = 3 * kGibi;
  Json file = Json::parse(process.text());
  const Json made = {
      {"action", "alloc"}, {"addr", asleep["address"]}, {"size", 3 * kGibi}, {"stream", 0}, {"time_us", 0}};
  file["device_traces"][0].insert(file["device_traces"][0].begin(), made);
  History history = read_history(TemporaryFile(file.dump()).path());
  const Explanation one = explain(Timeline(history, history.devices.at(0)), built_in_rules(), {});
  EXPECT_EQ(one.peak.held.requested, 3 * kGibi);
  EXPECT_EQ(one.process->asleep_bytes, 3 * kGibi);
}

TEST(FailingProcess, LiveMemoryIsListedByOwnerKindAndLibrary) {
  FailedProcess process;
  Json& blocks = process.segment(
      {{"active_allocated", kGibi}, {"active_allocated", 2 * kGibi}, {"active_allocated", kGibi / 2}})["blocks"];
  blocks[0]["owner"] = blocks[1]["owner"] = "GPT.blocks.3";
  blocks[0]["owner_kind"] = "parameters";
  blocks[1]["owner_kind"] = "optimizer state";
  process.failing()["libraries"] = {{{"name", "torch"}, {"bytes", 3 * kGibi}}, {{"name", "cupy"}, {"bytes", 5}}};
  const Explanation one = process.explained();
  const std::string text = text_of(report_of(one, 10), Style());
  EXPECT_THAT(text, HasSubstr("GPT.blocks.3: optimizer state 2.00 GiB, parameters 1024.00 MiB"));
  EXPECT_THAT(text, HasSubstr("no owner found"));
  EXPECT_EQ(one.shares.categories.at(0).name, "optimizer state");
  const Json device = json_of(report_of(one, 10));
  EXPECT_EQ(device["owners"][0]["name"], "GPT.blocks.3");
  EXPECT_EQ(device["owners"][0]["kinds"][1]["name"], "parameters");
  EXPECT_EQ(device["owners"][1]["bytes"], kGibi / 2);
  EXPECT_EQ(device["libraries"][0]["name"], "torch");
  EXPECT_EQ(device["verdict"]["recommendation"], one.recommendation);
  process.failing()["knows_owners"] = false;
  EXPECT_THAT(text_of(report_of(process.explained(), 10), Style()), HasSubstr("the search took too long"));
}

TEST(FailingProcess, PinsAreNamedByTheirOwnersWhereNoStackIsRecorded) {
  FailedProcess process;
  Json& blocks = process.segment({{"inactive", 3 * kGibi}, {"active_allocated", kGibi}, {"inactive", kGibi}})["blocks"];
  blocks[1]["owner"] = "GPT.head";
  const Explanation one = process.explained();
  EXPECT_EQ(one.cause, Cause::fragmentation);
  ASSERT_EQ(one.pins.size(), 1);
  EXPECT_EQ(one.pins[0].at, "GPT.head");
  EXPECT_EQ(one.evidence.of(Cause::fragmentation).largest_bytes, 3 * kGibi);
}

std::string served(const Explanation& one, const std::string& key) {
  for (const WouldServe& offer : one.process->offers) {
    if (offer.key == key) return (offer.serves ? "yes " : "no ") + std::to_string(offer.bytes / kGibi);
  }
  return "not offered";
}

TEST(FailingProcess, SettingsThatWouldHaveServedAreTold) {
  FailedProcess process;
  process.segment({{"inactive", 2 * kGibi}, {"active_allocated", kGibi / 2}, {"inactive", kGibi}});
  process.segment({{"inactive", kGibi}}, {.pool = {0, 4}});
  process.facts()["limit_bytes"] = 5 * kGibi;
  process.failure()["size"] = 3 * kGibi;
  const Explanation one = process.explained();
  EXPECT_EQ(served(one, "page_heap"), "yes 3") << "of the default pool, and what the limit leaves";
  EXPECT_EQ(served(one, "no_limit"), "no 1");
  EXPECT_EQ(served(one, "use_on_oom"), "no 1");
  EXPECT_EQ(served(one, "smaller_request"), "yes 2");
  EXPECT_EQ(served(one, "release_physical"), "not offered");
}

TEST(FailingProcess, ADamagedFileIsRefusedByName) {
  const auto complaint = [](const FailedProcess& process) {
    try {
      process.explained();
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  FailedProcess tags;
  tags.failing()["tags"] = {{{"name", "kv"}}};
  EXPECT_THAT(complaint(tags), HasSubstr("facts 0: a tag has no 'pool_id'"));
  FailedProcess list;
  list.failing()["libraries"] = 7;
  EXPECT_THAT(complaint(list), HasSubstr("'libraries' is not a list"));
  FailedProcess other;
  other.facts()["failing"] = 7;
  EXPECT_THAT(complaint(other), HasSubstr("'failing' is not a dict"));
  FailedProcess asleep;
  asleep.segment({{"inactive", kGibi}})["asleep_size"] = 2 * kGibi;
  EXPECT_THAT(complaint(asleep), HasSubstr("'asleep_size' is 2147483648, more than 1073741824"));
  FailedProcess owner;
  owner.segment({{"inactive", kGibi}})["blocks"][0]["owner"] = 7;
  EXPECT_THAT(complaint(owner), HasSubstr("'owner' is"));
}

}  // namespace
}  // namespace cachalot::tools
