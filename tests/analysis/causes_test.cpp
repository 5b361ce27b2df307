// Why memory ran out: messages of PyTorch, the layout of memory at the failure, causes, and remedies by replay.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/analysis/history_builder.h"
#include "tests/tools/complaint.h"
#include "tools/analysis/explanation_report.h"
#include "tools/analysis/oom_message.h"
#include "tools/analysis/program_settings.h"
#include "tools/analysis/recorded_trace.h"
#include "tools/history/history.h"
#include "tools/replay/policies.h"

namespace cachalot::tools {
namespace {

using Action = HistoryEvent::Action;

constexpr std::uint64_t kMebi = std::uint64_t{1} << 20;
constexpr Address kFirst = 0x10000000;

const std::string kMessage =
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 MiB. GPU 1 has a total capacity of 1.00 GiB "
    "of "
    "which 114.00 MiB is free. Including non-PyTorch memory, this process has 240.00 MiB memory in use. Process 19120 "
    "has "
    "670.00 MiB memory in use. 409.60 MiB allowed; Of the allocated memory 120.50 MiB is allocated by PyTorch, with "
    "20.00 MiB "
    "allocated in private pools (e.g., CUDA Graphs), and 5.00 MiB is reserved by PyTorch but unallocated. If reserved";

// A program that keeps 2 MiB of every segment of 40 MiB, until 300 MiB are asked for with `free` left on the device.
HistoryBuilder fragmented(std::uint64_t free) {
  HistoryBuilder program;
  const StackId keep = program.stack({{"/app/answers.py", "summary", 14}});
  const StackId answer = program.stack({{"/app/answers.py", "answer", 9}});
  for (Address i = 0; i < 10; ++i) {
    const Address at = kFirst + i * 64 * kMebi;
    const std::uint64_t bytes = (40 + 2 * i) * kMebi;
    program.add(Action::segment_alloc, at, bytes);
    program.alloc(at, bytes, answer);
    program.free(at, bytes);
    program.alloc(at, bytes - 2 * kMebi, answer);
    program.alloc(at + bytes - 2 * kMebi, 2 * kMebi, keep);
    program.free(at, bytes - 2 * kMebi);
  }
  program.add(Action::oom, free, 300 * kMebi, answer);
  for (Address i = 0; i < 10; ++i) {
    const std::uint64_t bytes = (40 + 2 * i) * kMebi;
    program.segment(kFirst + i * 64 * kMebi,
                    {{.bytes = bytes - 2 * kMebi},
                     {.bytes = 2 * kMebi, .requested_bytes = 2 * kMebi, .state = HistoryBlock::State::allocated}});
  }
  return program;
}

Explanation explained(HistoryBuilder& program, const ExplainOptions& options = {}) {
  static const CategoryRules rules = built_in_rules();
  return explain(Timeline(program.history(), program.device()), rules, options);
}

TEST(Explanation, PinnedHostMemoryHasNoCauseAndNoRemedy) {
  HistoryBuilder program = fragmented(100 * kMebi);
  ExplainOptions options;
  options.is_host = true;
  const Explanation host = explained(program, options);
  EXPECT_EQ(name_of(host), "pinned host memory");
  EXPECT_EQ(host.cause, Cause::none);
  EXPECT_TRUE(host.remedies.best.empty());
  ASSERT_FALSE(host.shares.lines.empty());
  EXPECT_EQ(host.shares.lines.front().name, "app/answers.py:14 in summary");
  EXPECT_EQ(json_of(report_of(host, 5))["lines"][0]["bytes"], 20 * kMebi);
}

std::vector<std::string> keys(const Explanation& explanation) {
  std::vector<std::string> keys;
  for (const Remedy& remedy : explanation.remedies.best) keys.push_back(remedy.key);
  return keys;
}

TEST(OomMessage, TellsWhatItSays) {
  const OomMessage message = read_oom_messages("a log\n" + kMessage, "log").front();
  EXPECT_EQ(message.requested_bytes, 200 * kMebi);
  EXPECT_EQ(message.device, 1);
  EXPECT_EQ(message.total_bytes, 1024 * kMebi);
  EXPECT_EQ(message.free_bytes, 114 * kMebi);
  EXPECT_EQ(message.process_bytes, 240 * kMebi);
  EXPECT_EQ(message.allowed_bytes, static_cast<std::uint64_t>(409.6 * 1048576));
  EXPECT_EQ(message.allocated_bytes, 120 * kMebi + kMebi / 2);
  EXPECT_EQ(message.private_bytes, 20 * kMebi);
  EXPECT_EQ(message.unallocated_bytes, 5 * kMebi);
  ASSERT_EQ(message.other_processes.size(), 1);
  EXPECT_EQ(message.other_processes.front().id, 19120);
  EXPECT_EQ(message.other_processes.front().bytes, 670 * kMebi);
}

TEST(OomMessage, PinnedMemoryAndNcclHaveMessagesOfTheirOwn) {
  EXPECT_EQ(
      read_oom_messages("rows = x.pin_memory()\ntorch.AcceleratorError: CUDA error: out of memory", "log").front().says,
      OomMessage::Says::pinned);
  EXPECT_EQ(
      read_oom_messages("NCCL error: unhandled cuda error\nFailed to CUDA calloc 6291456 bytes", "log").front().says,
      OomMessage::Says::nccl);
}

TEST(Explain, AMessageAloneIsEnoughForACause) {
  const Explanation one = explain_message(read_oom_messages(kMessage, "log").front(), std::nullopt);
  EXPECT_EQ(one.cause, Cause::other_process);
  EXPECT_EQ(one.text, "200.00 MiB was asked for: other processes held 670.00 MiB of the device");
}

TEST(Explain, WordsOfAMessageAreTheCauseWhereAHistoryHasNoFailure) {
  HistoryBuilder program = fragmented(50 * kMebi);
  program.device().events.pop_back();  // the failure
  ExplainOptions options;
  options.message = read_oom_messages("RuntimeError: CUDA error: out of memory", "log").front();
  EXPECT_EQ(explained(program, options).cause, Cause::outside);
  options.message = read_oom_messages("RESOURCE_EXHAUSTED: Out of memory allocating 1000 bytes.", "log").front();
  EXPECT_EQ(explained(program, options).cause, Cause::none);
}

TEST(Explain, FragmentationNamesTheBlocksThatPinSegments) {
  HistoryBuilder program = fragmented(50 * kMebi);
  const Explanation one = explained(program);
  EXPECT_EQ(one.cause, Cause::fragmentation);
  EXPECT_EQ(one.evidence.of(Cause::fragmentation).bytes, (10 * 40 + 90 - 20) * kMebi);
  EXPECT_EQ(one.evidence.of(Cause::fragmentation).largest_bytes, 56 * kMebi);
  ASSERT_FALSE(one.pins.empty());
  EXPECT_EQ(one.pins.front().at, "app/answers.py:14 in summary");
  EXPECT_EQ(one.pins.front().blocks, 10);
  EXPECT_EQ(keys(one), (std::vector<std::string>{"page_heap", "expandable_segments"}));
  EXPECT_EQ(one.remedies.of_bytes, (490 + 300) * kMebi);
  EXPECT_LT(one.remedies.best.front().reserved_bytes, 400 * kMebi);
}

TEST(Explain, WhatIsFreedBehindTheFailureDoesNotChangeTheAnswer) {
  HistoryBuilder program = fragmented(50 * kMebi);
  for (HistoryBlock& block : program.device().blocks) block.state = HistoryBlock::State::free;
  for (Address i = 0; i < 10; ++i) program.free(kFirst + i * 64 * kMebi + (38 + 2 * i) * kMebi, 2 * kMebi);
  const Explanation one = explained(program);
  EXPECT_EQ(one.cause, Cause::fragmentation);
  EXPECT_EQ(one.pins.front().blocks, 10);
}

TEST(Explain, TheHistoryIsAsBeforeAfterTheReplays) {
  HistoryBuilder program = fragmented(50 * kMebi);
  const std::vector<HistoryEvent> before = program.device().events;
  explained(program);
  ASSERT_EQ(program.device().events.size(), before.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(program.device().events[i].action, before[i].action);
    EXPECT_EQ(program.device().events[i].address, before[i].address);
  }
}

TEST(Explain, AReplayThatIsNotExactIsSaidToBe) {
  HistoryBuilder program = fragmented(50 * kMebi);
  program.device().events.pop_back();  // the failure
  EXPECT_EQ(explained(program).remedies.of_bytes, 490 * kMebi);
  EXPECT_EQ(explained(program).remedies.recorded_bytes, std::nullopt);
  const Address another = kFirst + 4096 * kMebi;  // a segment that no request of the history asks for
  program.add(Action::segment_alloc, another, 100 * kMebi);
  program.segment(another, {{.bytes = 100 * kMebi}});
  const Explanation one = explained(program);
  EXPECT_EQ(one.remedies.of_bytes, 490 * kMebi);
  EXPECT_EQ(one.remedies.recorded_bytes, 590 * kMebi);
  EXPECT_NE(text_of(report_of(one, 5), {}).find("(it held 590.00 MiB: the replay is not exact"), std::string::npos);
}

TEST(Explain, ARequestThatTheMessageAloneTellsIsReplayedToo) {
  HistoryBuilder program = fragmented(50 * kMebi);
  program.device().events.pop_back();  // the failure
  const std::size_t events = program.device().events.size();
  OomMessage message;
  message.requested_bytes = 4096 * kMebi;
  message.free_bytes = 10 * kMebi;
  ExplainOptions options;
  options.message = message;
  const Explanation one = explained(program, options);
  EXPECT_EQ(program.device().events.size(), events);
  EXPECT_GT(one.remedies.of_bytes, 4096 * kMebi);
  for (const Remedy& remedy : one.remedies.best) EXPECT_FALSE(remedy.serves) << remedy.key;
}

TEST(Explain, MemoryOfOtherStreamsIsNamed) {
  HistoryBuilder program = fragmented(50 * kMebi);
  const std::uint16_t other = program.history().streams.add(0x7);
  for (HistoryEvent& event : program.device().events) {
    if (event.action != Action::oom) event.stream = other;
  }
  for (HistorySegment& segment : program.device().segments) segment.stream = other;
  EXPECT_EQ(explained(program).cause, Cause::other_stream);
}

TEST(Explain, PoolsOfSegmentsTellThoseOfEvents) {
  for (const bool is_graph : {false, true}) {
    HistoryBuilder program = fragmented(50 * kMebi);
    const std::uint16_t pool = program.history().pools.add(is_graph ? PoolId{3, 0} : PoolId{0, 3});
    for (HistorySegment& segment : program.device().segments) segment.pool = pool;
    complete_pools(program.device());
    const Explanation one = explained(program);
    EXPECT_EQ(one.cause, is_graph ? Cause::graph_pools : Cause::private_pool);
    EXPECT_EQ(one.shares.pools.front().name, is_graph ? "(3, 0)" : "(0, 3)");
  }
}

TEST(Explain, AnIdleSegmentOfARequestsOwnPoolIsNoFragmentation) {
  HistoryBuilder program;
  const std::uint16_t pool = program.history().pools.add(PoolId{0, 3});
  program.add(Action::segment_alloc, kFirst, 60 * kMebi);
  program.alloc(kFirst, 60 * kMebi);
  program.free(kFirst, 60 * kMebi);
  program.add(Action::oom, 20 * kMebi, 70 * kMebi);
  program.segment(kFirst, {{.bytes = 60 * kMebi}});
  for (HistoryEvent& event : program.device().events) event.pool = pool;
  program.device().segments.front().pool = pool;
  const Explanation one = explained(program);
  EXPECT_EQ(one.cause, Cause::private_pool);
  EXPECT_NE(one.text.find("60.00 MiB in 1 piece of at most 60.00 MiB is free"), std::string::npos) << one.text;
}

// Two free blocks of 60 MiB: the driver gave the second segment the lower address, and there 80 MiB come together.
TEST(Replay, TakesTheBlockThatLayLowestInTheRecordedProgram) {
  for (const bool falls : {false, true}) {
    HistoryBuilder program;
    const Address first = falls ? 2 * kFirst : kFirst;
    const Address second = falls ? kFirst : 2 * kFirst;
    for (const Address segment : {first, second}) {
      program.add(Action::segment_alloc, segment, 100 * kMebi);
      program.alloc(segment, 60 * kMebi);
      program.alloc(segment + 60 * kMebi, 40 * kMebi);
    }
    program.free(first, 60 * kMebi);
    program.free(second, 60 * kMebi);
    program.alloc(second, 20 * kMebi);
    program.free(second + 60 * kMebi, 40 * kMebi);
    program.alloc(second + 20 * kMebi, 80 * kMebi);
    program.alloc(first, 60 * kMebi);
    const Trace trace = trace_of(Timeline(program.history(), program.device()));
    EXPECT_EQ(figures_of(trace, {}, std::size_t{1} << 40)->peak_held_bytes, (falls ? 200 : 260) * kMebi);
  }
}

TEST(Explain, ALimitIsTheCauseWhereTheDeviceHadTheMemory) {
  HistoryBuilder program;
  program.add(Action::segment_alloc, kFirst, 100 * kMebi);
  program.alloc(kFirst, 100 * kMebi);
  program.segment(kFirst,
                  {{.bytes = 100 * kMebi, .requested_bytes = 100 * kMebi, .state = HistoryBlock::State::allocated}});
  program.add(Action::oom, 500 * kMebi, 200 * kMebi);
  const Explanation one = explained(program);
  EXPECT_EQ(one.cause, Cause::limit);
  EXPECT_EQ(keys(one), std::vector<std::string>{"raise_limit"});
}

// PyTorch's message has "allowed" where a limit is set.
TEST(Explain, TheDriverIsTheCauseWhereAMessageSaysThatNoLimitIsSet) {
  HistoryBuilder program;
  program.add(Action::segment_alloc, kFirst, 100 * kMebi);
  program.alloc(kFirst, 100 * kMebi);
  program.segment(kFirst,
                  {{.bytes = 100 * kMebi, .requested_bytes = 100 * kMebi, .state = HistoryBlock::State::allocated}});
  program.add(Action::oom, 500 * kMebi, 200 * kMebi);
  ExplainOptions options;
  options.message = read_oom_messages(
                        "CUDA out of memory. Tried to allocate 200.00 MiB (GPU 0; 1.00 GiB total capacity; 100.00 MiB "
                        "already allocated; 500.00 MiB "
                        "free; 100.00 MiB reserved in total by PyTorch)",
                        "log")
                        .front();
  const Explanation one = explained(program, options);
  EXPECT_EQ(one.cause, Cause::driver);
  EXPECT_EQ(one.text,
            "200.00 MiB was asked for: the driver refused it although 500.00 MiB were free on the device, and no limit "
            "was set");
}

// Fragmentation is not the cause where all free memory together would not have served the request, whatever the device had.
TEST(Explain, ALimitIsTheCauseWhereFreeMemoryBelowItIsTooLittle) {
  for (const std::uint64_t requested : {400 * kMebi, 480 * kMebi}) {  // 470 MiB are free in segments
    HistoryBuilder program = fragmented(4096 * kMebi);
    program.device().events.back().bytes = requested;
    const Explanation one = explained(program);
    EXPECT_EQ(one.cause, requested == 400 * kMebi ? Cause::fragmentation : Cause::limit);
    for (const Remedy& remedy : one.remedies.best)
      EXPECT_TRUE(remedy.key == "raise_limit" || remedy.reserved_bytes <= one.peak_reserved_bytes) << remedy.key;
  }
}

TEST(Explain, WhatIsLeftOfAKnownDeviceIsSomebodyElses) {
  HistoryBuilder program;
  program.add(Action::segment_alloc, kFirst, 100 * kMebi);
  program.alloc(kFirst, 100 * kMebi);
  program.segment(kFirst,
                  {{.bytes = 100 * kMebi, .requested_bytes = 100 * kMebi, .state = HistoryBlock::State::allocated}});
  program.add(Action::oom, 50 * kMebi, 200 * kMebi);
  EXPECT_EQ(explained(program).cause, Cause::too_large);
  ExplainOptions options;
  options.total_bytes = 1024 * kMebi;
  EXPECT_EQ(explained(program, options).cause, Cause::other_process);
}

TEST(Explain, RoundingIsTheCauseWhereItTookWhatLacks) {
  HistoryBuilder program;
  program.history().settings = "roundup_power2_divisions:2,garbage_collection_threshold:0.8";
  for (Address i = 0; i < 10; ++i) {
    program.add(Action::segment_alloc, kFirst + i * 32 * kMebi, 24 * kMebi);
    program.alloc(kFirst + i * 32 * kMebi, 17 * kMebi);
    program.segment(kFirst + i * 32 * kMebi,
                    {{.bytes = 24 * kMebi, .requested_bytes = 17 * kMebi, .state = HistoryBlock::State::allocated}});
  }
  program.add(Action::oom, 2 * kMebi, 17 * kMebi);
  const Explanation one = explained(program);
  EXPECT_EQ(one.cause, Cause::cached_by_rounding);
  const std::vector<std::string> found = keys(one);
  EXPECT_NE(std::ranges::find(found, "no_rounding"), found.end());
}

TEST(Explain, ALoopThatNeverFreesLeaks) {
  HistoryBuilder program;
  const StackId batch = program.stack({{"/app/serve.py", "load", 3}});
  const StackId keep = program.stack({{"/app/serve.py", "answer", 8}});
  for (Address i = 0; i < 20; ++i) {
    const Address at = kFirst + i * 64 * kMebi;
    program.add(Action::segment_alloc, at, 40 * kMebi);
    program.alloc(at, 40 * kMebi, keep);
    if (i == 0) program.add(Action::segment_alloc, kFirst + (Address{1} << 32), 20 * kMebi);
    program.alloc(kFirst + (Address{1} << 32), 20 * kMebi, batch);
    program.free(kFirst + (Address{1} << 32), 20 * kMebi);
    program.segment(at,
                    {{.bytes = 40 * kMebi, .requested_bytes = 40 * kMebi, .state = HistoryBlock::State::allocated}});
  }
  program.segment(kFirst + (Address{1} << 32), {{.bytes = 20 * kMebi}});
  program.add(Action::oom, 10 * kMebi, 40 * kMebi, keep);
  const Explanation one = explained(program);
  EXPECT_EQ(one.cause, Cause::leak);
  EXPECT_EQ(one.growths.front().at, "app/serve.py:8 in answer");
  EXPECT_EQ(one.growths.front().allocations.size(), 20);
  EXPECT_EQ(keys(one).front(), "free_leak");
}

TEST(PolicySettings, AreThoseThatAReplayKnows) {
  EXPECT_EQ(segment_config("expandable_segments:False,max_split_size_mb:32,roundup_power2_divisions:[256:1,>:2]"),
            "heap:segments,max_split_size_mb:32,roundup_power2_divisions:[256:1,>:2]");
  EXPECT_EQ(segment_config("max_split_size_mb:32,roundup_power2_divisions:2", "max_split_size_mb"),
            "heap:segments,roundup_power2_divisions:2");
  EXPECT_EQ(segment_config("max_split_size_mb:nonsense,,x[:]"), "heap:segments");
  EXPECT_TRUE(is_expandable("max_split_size_mb:32, expandable_segments:True"));
  EXPECT_FALSE(is_expandable("expandable_segments:False"));
}

}  // namespace
}  // namespace cachalot::tools
