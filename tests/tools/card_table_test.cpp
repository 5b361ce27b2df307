// Tests of the cards that a program fits on, by the trace of one run.
#include "tools/simulation/card_table.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/bytes.h"
#include "tests/tools/temporary_file.h"
#include "tests/tools/trace_with_holes.h"

namespace cachalot::tools {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

Card card(const std::string& key, std::size_t mib) {
  return {.key = key, .model = key, .product = key, .capability = "8.6", .memory_bytes = mib * kMiB};
}

Card make_large() { return card("large", 1000); }

CardRun run_on(const Card& card, std::size_t reserved_mib) {
  return {.device = 0,
          .card = card,
          .heap = Policy::Heap::segments,
          .architectures = {},
          .reserved_bytes = reserved_mib * kMiB,
          .other_bytes = 0};
}

using Answers = std::array<bool, kHeapCount>;

Answers answers_for(const CardTable& table, const std::string& key) {
  for (const CardTable::Row& row : table.rows) {
    if (row.card.key == key) return row.fits;
  }
  ADD_FAILURE() << "no row of " << key;
  return {};
}

std::string lines_of(const CardTable& table, bool verbose) {
  Section section("", 13);
  add_to(section, table, verbose);
  return text_of(section, Style());
}

TEST(MemoryNeed, NeedsWhatLivesAtOnceAndAtMostWhatIsHeldWithoutALimit) {
  MemoryNeed need(trace_with_holes());
  EXPECT_EQ(need.live_bytes(), 192 * kMiB);
  EXPECT_EQ(need.held_bytes({}), 336 * kMiB);
  EXPECT_LT(need.held_bytes({.heap = Policy::Heap::pages}), 200 * kMiB);
  for (const Policy::Heap heap : kHeaps) {
    EXPECT_FALSE(need.fits({.heap = heap}, need.live_bytes() - 1)) << name_of(heap);
    EXPECT_TRUE(need.fits({.heap = heap}, need.held_bytes({.heap = heap}))) << name_of(heap);
  }
  EXPECT_FALSE(need.fits({}, 300 * kMiB));
  EXPECT_TRUE(need.fits({.heap = Policy::Heap::pages}, 300 * kMiB));
}

TEST(MemoryNeed, KnowsThatPyTorchGivesItsCacheBackBeforeItFails) {
  const TemporaryFile file;
  std::ofstream(file.path()) << "a,0,104857600,0\nf,0\na,1,125829120,0\n";
  MemoryNeed need(read_trace(file.path()));
  EXPECT_EQ(need.held_bytes({}), 220 * kMiB);
  EXPECT_TRUE(need.fits({}, 120 * kMiB));
}

TEST(ACardTable, SaysForEachCardWithWhichPolicyTheProgramFits) {
  const Card large = card("large", 1000);
  const CardTable table =
      make_card_table(trace_with_holes(), run_on(large, 336), {large, card("small", 100), card("middle", 300)});
  EXPECT_TRUE(table.is_exact);
  EXPECT_EQ(answers_for(table, "small"), (Answers{false, false, false}));
  EXPECT_EQ(answers_for(table, "middle"), (Answers{false, true, true}));
  EXPECT_EQ(answers_for(table, "large"), (Answers{true, true, true}));
  EXPECT_EQ(table.rows.front().card.key, "small");
}

TEST(ACardTable, LeavesOutMemoryThatTheAllocatorDoesNotOwn) {
  const Card large = card("large", 1000);
  CardRun run = run_on(large, 336);
  const std::vector<Card> cards = {card("middle", 340)};
  EXPECT_EQ(answers_for(make_card_table(trace_with_holes(), run, cards), "middle"), (Answers{true, true, true}));
  run.other_bytes = 40 * kMiB;
  EXPECT_EQ(answers_for(make_card_table(trace_with_holes(), run, cards), "middle"), (Answers{false, true, true}));
}

TEST(ACardTable, BelievesTheRunAndSaysWhereAReplayDiffersFromIt) {
  const Card middle = card("middle", 300);
  const CardTable table = make_card_table(trace_with_holes(), run_on(middle, 280), {card("larger", 310)});
  EXPECT_FALSE(table.is_exact);
  EXPECT_EQ(answers_for(table, "middle"), (Answers{true, true, true}));
  EXPECT_EQ(answers_for(table, "larger"), (Answers{true, true, true}));
  EXPECT_THAT(lines_of(table, /*verbose=*/false), HasSubstr("approximate: "));
}

TEST(ACardTable, LeavesOutCardsForWhichPyTorchHasNoKernels) {
  Card one = {.key = "card", .model = "card", .product = "card", .capability = "8.9", .memory_bytes = kMiB};
  EXPECT_TRUE(has_kernels(one, {}));
  EXPECT_TRUE(has_kernels(one, {"sm_75", "sm_86"})) << "binary code of an older minor version";
  EXPECT_FALSE(has_kernels(one, {"sm_75", "sm_90"}));
  EXPECT_TRUE(has_kernels(one, {"sm_90", "compute_75"})) << "PTX";
  EXPECT_FALSE(has_kernels(one, {"compute_90"}));
  one.capability = "12.0";
  EXPECT_TRUE(has_kernels(one, {"sm_120"}));
  EXPECT_FALSE(has_kernels(one, {"sm_100"}));
  EXPECT_TRUE(has_kernels(Card(), {"sm_100"})) << "of an unknown version";

  const Card large = make_large();
  CardRun run = run_on(large, 336);
  run.architectures = {"sm_80"};
  one.key = "newer";
  const CardTable table = make_card_table(trace_with_holes(), run, {large, one});
  EXPECT_EQ(table.rows.size(), 1);
  EXPECT_THAT(lines_of(table, /*verbose=*/false), HasSubstr("has no kernels for newer\n"));
  EXPECT_EQ(json_of(table).at("left_out"), Json::array({"newer"}));
  EXPECT_TRUE(make_card_table(trace_with_holes(), run, {one}).rows.size() == 1);
  run.card = one;
  EXPECT_TRUE(make_card_table(trace_with_holes(), run, {one}).rows.empty()) << "as little as the card that ran";
}

// A question for the free memory, and a torch report whose row of equal blocks began a microsecond later.
std::optional<SizedMemory> sized_of(std::size_t free_mib, std::size_t block_mib, std::int64_t asked_us = 9) {
  const nlohmann::json device = {{"total_bytes", 1000 * kMiB},
                                 {"memory_info", {{{"time_us", asked_us}, {"free_bytes", free_mib * kMiB}}}}};
  const nlohmann::json torch = {
      {"rows",
       {{{"at", "serve.py:7"}, {"times_us", {10, 11}}, {"block_bytes", block_mib * kMiB}, {"allocations", {2, 3}}}}}};
  return sized_memory(device, torch, /*went_on=*/false);
}

TEST(SizedMemory, IsHalfOfWhatWasFreeAndAskedForLater) {
  EXPECT_EQ(sized_of(800, 350)->bytes, 700 * kMiB);
  EXPECT_FALSE(sized_of(800, 199)) << "of the free memory";
  EXPECT_FALSE(sized_of(200, 124)) << "of the device";
  EXPECT_FALSE(sized_of(800, 350, 11)) << "asked later";
  EXPECT_FALSE(sized_memory({{"memory_info", Json::array()}}, {{"rows", Json::array()}}, false));
}

// Rows of two layers with a window and one without, behind a row of weights and before one of other work.
TEST(SizedMemory, HasBlocksOfFewSizesThatFollowAQuestion) {
  nlohmann::json rows = Json::array();
  std::size_t number = 0;
  const auto add = [&](std::size_t mib, std::size_t count) {
    nlohmann::json row = {{"at", fmt::format("serve.py:{}", mib)}, {"block_bytes", mib * kMiB}};
    for (std::size_t i = 0; i < count; ++i, ++number) {
      row["allocations"].push_back(number);
      row["times_us"].push_back(number);
    }
    rows.push_back(std::move(row));
  };
  add(20, 3);
  for (int i = 0; i < 4; ++i) {
    add(50, 2);
    add(100, 1);
  }
  add(6, 1);
  const auto found = [&](const nlohmann::json& memory_info, const nlohmann::json& totals) {
    return sized_memory({{"total_bytes", 1000 * kMiB}, {"memory_info", memory_info}},
                        {{"rows", rows}, {"size_questions", totals}}, false);
  };
  const auto sized = found({{{"time_us", 3}, {"free_bytes", 900 * kMiB}}}, Json::array());
  ASSERT_TRUE(sized);
  EXPECT_EQ(sized->bytes, 800 * kMiB);
  EXPECT_EQ(sized->block_bytes, (std::vector<std::size_t>{50 * kMiB, 100 * kMiB}));
  EXPECT_EQ(sized->allocations.front(), 3);
  EXPECT_EQ(sized->allocations.size(), 12);
  EXPECT_EQ(sized->at, "serve.py:100");
  const auto by_total = found(Json::array(), {3});
  ASSERT_TRUE(by_total);
  EXPECT_EQ(by_total->by, SizedMemory::By::total);
  EXPECT_EQ(by_total->told_bytes, 1000 * kMiB);
  EXPECT_FALSE(found(Json::array(), {12})) << "of all but three blocks";
}

TEST(SizedMemory, IsAQuarterOfADeviceThatOtherProcessesUse) {
  nlohmann::json device = {{"total_bytes", 1000 * kMiB},
                           {"common_peak_bytes", 900 * kMiB},
                           {"peak_with_context_bytes", 900 * kMiB},
                           {"memory_info", {{{"time_us", 9}, {"free_bytes", 1000 * kMiB}}}}};
  const nlohmann::json torch = {
      {"rows", {{{"at", "serve.py:7"}, {"times_us", {10}}, {"block_bytes", 300 * kMiB}, {"allocations", {2}}}}}};
  EXPECT_FALSE(sized_memory(device, torch, false));
  device["peak_with_context_bytes"] = 500 * kMiB;
  EXPECT_TRUE(sized_memory(device, torch, false));
}

TEST(SizedMemory, IsAnyPartThatIsTheCacheOfAnEngine) {
  const nlohmann::json device = {{"total_bytes", 1000 * kMiB},
                                 {"memory_info", {{{"time_us", 9}, {"free_bytes", 900 * kMiB}}}}};
  const auto sized = [&](std::size_t mib, bool is_cache) {
    const nlohmann::json row = {{"at", "serve.py:7"},
                                {"times_us", {10}},
                                {"block_bytes", mib * kMiB},
                                {"is_cache", is_cache},
                                {"allocations", {2}}};
    return sized_memory(device, {{"rows", {row}}}, false).has_value();
  };
  EXPECT_TRUE(sized(300, true));
  EXPECT_FALSE(sized(300, false));
  EXPECT_FALSE(sized(30, true)) << "too little to tell";
}

TEST(SizedMemory, IsOfTheLineThatRanOutWhereTheProgramWentOn) {
  const nlohmann::json device = {{"total_bytes", 1000 * kMiB}, {"memory_info", Json::array()}};
  nlohmann::json torch = {
      {"rows", {{{"at", "serve.py:7"}, {"times_us", {10, 11}}, {"block_bytes", 300 * kMiB}, {"allocations", {2, 3}}}}},
      {"last_oom", {{"at", "serve.py:7"}, {"bytes", 300 * kMiB}}}};
  EXPECT_EQ(sized_memory(device, torch, true)->bytes, 600 * kMiB);
  EXPECT_FALSE(sized_memory(device, torch, false));
  torch["last_oom"]["at"] = "serve.py:8";
  EXPECT_FALSE(sized_memory(device, torch, true));
}

TEST(SizedMemory, IsLeftOutWithItsFreesAndNothingElse) {
  const TemporaryFile file;
  std::ofstream(file.path())
      << "a,0,1,0\nf,0\na,1,367001600,0\na,2,367001600,0\na,3,367001600,0\nf,2\na,4,4,0\nf,3\nf,4\n"
         "a,5,367001600,0\n";  // a later one of the same size
  const TemporaryFile expected;
  std::ofstream(expected.path()) << "a,0,1,0\nf,0\na,1,367001600,0\na,4,4,0\nf,4\n";
  const Trace trace = without(read_trace(file.path()), *sized_of(800, 350));
  const Trace wanted = read_trace(expected.path());
  ASSERT_EQ(trace.event_count, wanted.event_count);
  EXPECT_EQ(trace.allocation_count, wanted.allocation_count);
  for (std::size_t i = 0; i < trace.event_count; ++i) {
    EXPECT_EQ(trace.events[i].bytes, wanted.events[i].bytes) << i;
    EXPECT_EQ(trace.events[i].is_free(), wanted.events[i].is_free()) << i;
  }
}

TEST(ACardTable, SaysWhatEachCardLeavesForMemoryThatFollowsFromIt) {
  const TemporaryFile file;  // 100 MiB that stay, 300 for a while, then two blocks of 350
  std::ofstream(file.path()) << "a,0,104857600,0\na,1,314572800,0\nf,1\na,2,367001600,0\na,3,367001600,0\n";
  CardRun run = run_on(card("large", 1400), 1100);
  run.sized = sized_of(800, 350);
  const CardTable table =
      make_card_table(read_trace(file.path()), run, {card("tiny", 401), card("small", 700), card("larger", 2800)});
  EXPECT_NEAR(table.part, 1100.0 / 1400, 1e-9);
  EXPECT_EQ(answers_for(table, "tiny"), (Answers{false, false, false})) << "nothing is left";
  EXPECT_EQ(answers_for(table, "small"), (Answers{true, true, true}));
  EXPECT_EQ(table.rows[1].sized_bytes, 150 * kMiB);
  EXPECT_EQ(table.rows[2].sized_bytes, 700 * kMiB) << "the run's own card";
  EXPECT_THAT(lines_of(table, /*verbose=*/false), HasSubstr("700.00 MiB in blocks of 350.00 MiB at serve.py:7"));
  const auto json = json_of(table);
  EXPECT_EQ(json.at("sized").at("blocks"), 2);
  EXPECT_EQ(json.at("cards").at(3).at("sized_bytes"), 1800 * kMiB);
}

TEST(ACardTable, IsShortInTextAndHasEachCardIfVerbose) {
  const Card large = card("large", 1000);
  const std::vector<Card> cards = {card("tiny", 50),    card("small", 100), card("less", 150),
                                   card("middle", 300), card("more", 2000), large,
                                   card("most", 3000)};
  const CardTable table = make_card_table(trace_with_holes(), run_on(large, 336), cards);
  const std::string text = lines_of(table, /*verbose=*/false);
  EXPECT_THAT(text, HasSubstr("                tiny to less (3 cards)  50.00 MiB to 150.00 MiB       no"));
  EXPECT_THAT(text, HasSubstr("                middle                               300.00 MiB       no "));
  EXPECT_THAT(text, HasSubstr("yes  this run\n                more, most "));
  EXPECT_THAT(text, HasSubstr("expandable segments: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"));
  EXPECT_THAT(text, HasSubstr("page heap: python -m cachalot run --config heap:pages\n"));
  EXPECT_THAT(text, Not(HasSubstr("approximate")));
  EXPECT_THAT(lines_of(table, /*verbose=*/true), HasSubstr("                small "));
}

TEST(ACardTable, LeavesRoomForTheContextOfEachCard) {
  Card large = card("large", 1000);
  large.context_bytes = 500 * kMiB;
  std::vector<Card> cards = {card("little", 400), card("much", 400)};
  cards.front().context_bytes = 50 * kMiB;
  cards.back().context_bytes = 100 * kMiB;
  const CardTable table = make_card_table(trace_with_holes(), run_on(large, 336), cards);
  EXPECT_EQ(answers_for(table, "little"), (Answers{true, true, true}));
  EXPECT_EQ(answers_for(table, "much"), (Answers{false, true, true})) << "PyTorch needs 336 MiB";
  EXPECT_EQ(json_of(table).at("cards").at(0).at("context_bytes"), 50 * kMiB);
}

TEST(ACardTable, MarksAnswersThatChangeWithinTheSpreadOfEstimates) {
  Card large = card("large", 1000);
  large.more_bytes = 700 * kMiB;
  std::vector<Card> cards = {card("no", 330), card("perhaps", 330), card("sure", 340), card("yes", 340)};
  cards[1].context_bytes = 10 * kMiB;
  cards[1].less_bytes = 16 * kMiB;
  cards[3].more_bytes = 5 * kMiB;
  const CardTable table = make_card_table(trace_with_holes(), run_on(large, 336), cards);
  const auto json = json_of(table).at("cards");
  EXPECT_EQ(json.at(0).at("unsure"), Json::array());
  EXPECT_EQ(json.at(0).at("pytorch"), false);
  EXPECT_EQ(json.at(1).at("unsure"), Json::array()) << "less than nothing it cannot take";
  EXPECT_EQ(json.at(2).at("unsure"), Json::array());
  EXPECT_EQ(json.at(3).at("unsure"), Json::array({"pytorch"}));
  EXPECT_EQ(json.at(3).at("pytorch"), true) << "what fits is said as before";
  EXPECT_EQ(json.at(4).at("unsure"), Json::array({"pytorch"})) << "the run itself: 300 MiB would be left";
  const std::string text = lines_of(table, /*verbose=*/false);
  EXPECT_THAT(text, HasSubstr("     yes?  "));
  EXPECT_THAT(text, EndsWith("                ?: may change: the context and NCCL are estimates (--context SIZE sets "
                             "the context)\n"));

  cards = {card("middle", 345)};
  cards[0].context_bytes = 20 * kMiB;
  cards[0].less_bytes = 16 * kMiB;
  const CardTable other = make_card_table(trace_with_holes(), run_on(card("large", 1000), 336), cards);
  EXPECT_EQ(json_of(other).at("cards").at(0).at("unsure"), Json::array({"pytorch"}));
  EXPECT_THAT(lines_of(other, /*verbose=*/false), HasSubstr("     no?  "));
}

TEST(ACardTable, HasEveryCardInJson) {
  const Card large = card("large", 1000);
  Card other = card("middle", 300);
  other.capability = "7.5";
  const auto json = json_of(make_card_table(trace_with_holes(), run_on(large, 336), {large, other}));
  EXPECT_EQ(json.at("live_bytes"), 192 * kMiB);
  EXPECT_EQ(json.at("held_bytes").at("pytorch"), 336 * kMiB);
  const Json middle = {
      {"gpu", "middle"},         {"name", "middle"},           {"memory_bytes", 300 * kMiB},
      {"context_bytes", 0},      {"same_architecture", false}, {"spread", {{"less_bytes", 0}, {"more_bytes", 0}}},
      {"unsure", Json::array()}, {"pytorch", false},           {"expandable_segments", true},
      {"page_heap", true}};
  EXPECT_EQ(nlohmann::json(json.at("cards").at(0)), nlohmann::json(middle));
  EXPECT_EQ(json.at("cards").at(1).at("same_architecture"), true);
}

}  // namespace
}  // namespace cachalot::tools
