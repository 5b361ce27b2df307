#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cachalot/errors.h"
#include "cachalot/options.h"

namespace cachalot {
namespace {

using Slots = std::array<std::size_t, Options::kRoundupSlots>;

Slots slots_of(std::string_view text) { return parse_options(text).roundup_power2_divisions; }

Slots all_slots(std::size_t divisions) {
  Slots slots;
  slots.fill(divisions);
  return slots;
}

// The message of the InvalidArgument that `text` gets, or "" when it is accepted.
std::string refusal(std::string_view text, const Options& base = {}) {
  try {
    parse_options(text, base);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// An Options in which every member differs from its default.
Options unusual() {
  Options options = parse_options(
      "large_segment_size_mb:32,max_split_size_mb:64,max_non_split_rounding_mb:48,garbage_collection_threshold:0.5,"
      "roundup_power2_divisions:8,per_process_memory_fraction:0.25,throw_on_cudamalloc_oom:True,release_lock_on_"
      "cudamalloc:True,"
      "graph_capture_record_stream_reuse:True,pinned_use_background_threads:True,pinned_use_cuda_host_register:True,"
      "pinned_num_register_threads:8,pinned_reserve_segment_size_mb:7,pinned_limit_mb:5");
  return options;
}

TEST(OptionParser, EmptyTextIsTheDefaults) {
  EXPECT_EQ(parse_options(""), Options{});
  Options blank;
  blank.text = " \t\n";
  EXPECT_EQ(parse_options(" \t\n"), blank);
}

TEST(OptionParser, EachKeySetsItsOption) {
  struct Row {
    const char* text;
    std::function<void(Options&)> set;
  };
  const Row rows[] = {
      {"large_segment_size_mb:11", [](Options& o) { o.large_segment_size = o.max_non_split_rounding = 11 * kMiB; }},
      {"large_segment_size_mb:32", [](Options& o) { o.large_segment_size = o.max_non_split_rounding = 32 * kMiB; }},
      {"max_split_size_mb:20", [](Options& o) { o.max_split_size = 20 * kMiB; }},
      {"max_split_size_mb:128", [](Options& o) { o.max_split_size = 128 * kMiB; }},
      {"max_split_size_mb:17592186044415", [](Options& o) { o.max_split_size = 17592186044415 * kMiB; }},
      {"max_non_split_rounding_mb:20", [](Options& o) { o.max_non_split_rounding = 20 * kMiB; }},
      {"max_non_split_rounding_mb:40", [](Options& o) { o.max_non_split_rounding = 40 * kMiB; }},
      {"garbage_collection_threshold:0.8", [](Options& o) { o.garbage_collection_threshold = 0.8; }},
      {"garbage_collection_threshold:.001", [](Options& o) { o.garbage_collection_threshold = 0.001; }},
      {"garbage_collection_threshold:9e-1", [](Options& o) { o.garbage_collection_threshold = 0.9; }},
      {"roundup_power2_divisions:1", [](Options& o) { o.roundup_power2_divisions.fill(1); }},
      {"roundup_power2_divisions:16", [](Options& o) { o.roundup_power2_divisions.fill(16); }},
      {"per_process_memory_fraction:0", [](Options& o) { o.per_process_memory_fraction = 0; }},
      {"per_process_memory_fraction:0.5", [](Options& o) { o.per_process_memory_fraction = 0.5; }},
      {"per_process_memory_fraction:1.0", [](Options&) {}},
      {"throw_on_cudamalloc_oom:True", [](Options& o) { o.throw_on_cudamalloc_oom = true; }},
      {"throw_on_cudamalloc_oom:False", [](Options&) {}},
      {"expandable_segments:True", [](Options& o) { o.expandable_segments = true; }},
      {"expandable_segments:False", [](Options&) {}},
      {"release_lock_on_cudamalloc:True",
       [](Options& o) {
         o.without_effect = {{"release_lock_on_cudamalloc", 1}};
       }},
      {"release_lock_on_cudamalloc:False", [](Options&) {}},
      {"release_lock_on_hipmalloc:True",
       [](Options& o) {
         o.without_effect = {{"release_lock_on_cudamalloc", 1}};
       }},
      {"graph_capture_record_stream_reuse:True",
       [](Options& o) {
         o.without_effect = {{"graph_capture_record_stream_reuse", 1}};
       }},
      {"graph_capture_record_stream_reuse:False", [](Options&) {}},
      {"pinned_use_background_threads:True",
       [](Options& o) {
         o.without_effect = {{"pinned_use_background_threads", 1}};
       }},
      {"pinned_use_background_threads:False", [](Options&) {}},
      {"pinned_use_cuda_host_register:True",
       [](Options& o) {
         o.without_effect = {{"pinned_use_cuda_host_register", 1}};
       }},
      {"pinned_use_cuda_host_register:False", [](Options&) {}},
      {"pinned_use_hip_host_register:True",
       [](Options& o) {
         o.without_effect = {{"pinned_use_cuda_host_register", 1}};
       }},
      {"pinned_num_register_threads:1", [](Options&) {}},
      {"pinned_num_register_threads:128",
       [](Options& o) {
         o.without_effect = {{"pinned_num_register_threads", 128}};
       }},
      {"pinned_reserve_segment_size_mb:1",
       [](Options& o) {
         o.without_effect = {{"pinned_reserve_segment_size_mb", kMiB}};
       }},
      {"pinned_limit_mb:0", [](Options&) {}},
      {"pinned_limit_mb:2", [](Options& o) { o.pinned_limit = 2 * kMiB; }},
      {"backend:native", [](Options&) {}},
      {"heap:segments", [](Options&) {}},
      {"heap:pages", [](Options& o) { o.heap = HeapKind::pages; }},
      {"heap:async", [](Options& o) { o.heap = HeapKind::async; }},
      {"heap:managed", [](Options& o) { o.heap = HeapKind::managed; }},
      {"cross_stream:off", [](Options& o) { o.cross_stream = CrossStream::off; }},
      {"cross_stream:completed", [](Options& o) { o.cross_stream = CrossStream::completed; }},
      {"cross_stream:scarce", [](Options& o) { o.cross_stream = CrossStream::scarce; }},
      {"cross_stream:wait", [](Options& o) { o.cross_stream = CrossStream::wait; }},
      {"oom_wait:never", [](Options& o) { o.oom_wait = OomWait::never; }},
      {"oom_wait:events", [](Options& o) { o.oom_wait = OomWait::events; }},
      {"oom_wait:device", [](Options& o) { o.oom_wait = OomWait::device; }},
      {"remap_slack:0", [](Options& o) { o.remap_slack = 0; }},
      {"remap_slack:0.05", [](Options& o) { o.remap_slack = 0.05; }},
      {"remap_slack:1", [](Options& o) { o.remap_slack = 1; }},
      {"calibrate:True", [](Options&) {}},
      {"calibrate:False", [](Options& o) { o.calibrate = false; }},
      {"page_size_mb:0", [](Options&) {}},
      {"page_size_mb:2", [](Options& o) { o.page_size = 2 * kMiB; }},
      {"page_size_mb:1024", [](Options& o) { o.page_size = 1024 * kMiB; }},
      {"guard:True", [](Options& o) { o.guard = true; }},
      {"guard:False", [](Options& o) { o.guard = false; }},
      {"debug:True", [](Options& o) { o.debug = true; }},
      {"debug:False", [](Options&) {}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.text);
    Options expected;
    row.set(expected);
    expected.text = row.text;
    EXPECT_EQ(parse_options(row.text), expected);
  }
}

TEST(OptionParser, TheGuardIsAsDebugIsUnlessItIsNamed) {
  EXPECT_FALSE(has_guard({}));
  EXPECT_TRUE(has_guard(parse_options("guard:True")));
  EXPECT_TRUE(has_guard(parse_options("debug:True")));
  EXPECT_FALSE(has_guard(parse_options("debug:True,guard:False")));
  EXPECT_TRUE(has_guard(parse_options("page_size_mb:2", parse_options("debug:True"))));
  EXPECT_FALSE(has_guard(amend_options("debug:False", parse_options("debug:True"))));
}

TEST(OptionParser, CachalotDebugIsZeroOrOne) {
  EXPECT_TRUE(parse_debug("1"));
  EXPECT_FALSE(parse_debug("0"));
  EXPECT_FALSE(parse_debug(""));
  for (const char* wrong : {"2", "True", " 1", "on", "-1"}) {
    SCOPED_TRACE(wrong);
    try {
      parse_debug(wrong);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.what(), "'" + std::string(wrong) + "' is not 1, for debug:True, nor 0");
    }
  }
}

TEST(OptionParser, SpacesAreIgnored) {
  const Options options =
      parse_options(" max_split_size_mb : 64 ,\troundup_power2_divisions: [ 64:8 ,\n256 : 4, >:1 ] ");
  EXPECT_EQ(options.max_split_size, 64 * kMiB);
  EXPECT_EQ(options.roundup_power2_divisions, slots_of("roundup_power2_divisions:[64:8,256:4,>:1]"));
}

TEST(OptionParser, TextIsKeptAsGiven) { EXPECT_EQ(parse_options(" heap : segments").text, " heap : segments"); }

TEST(OptionParser, LargeSegmentSizeBoundsTheOthersWhateverItsPlace) {
  EXPECT_EQ(parse_options("max_split_size_mb:32,large_segment_size_mb:32").max_split_size, 32 * kMiB);
  EXPECT_TRUE(
      contains(refusal("max_split_size_mb:31,large_segment_size_mb:32"), "max_split_size_mb too small, must be >= 32"));
  EXPECT_EQ(parse_options("max_split_size_mb:12,large_segment_size_mb:12").max_split_size, 12 * kMiB);
  EXPECT_EQ(parse_options("max_non_split_rounding_mb:40,large_segment_size_mb:32").max_non_split_rounding, 40 * kMiB);
}

TEST(OptionParser, LargeSegmentSizeOfBaseBoundsTheOthersToo) {
  const Options base = parse_options("large_segment_size_mb:32");
  EXPECT_TRUE(contains(refusal("max_split_size_mb:31", base), "must be >= 32"));
  EXPECT_EQ(parse_options("max_split_size_mb:32", base).max_split_size, 32 * kMiB);
}

TEST(OptionParser, WhatPyTorchResetsGoesBackToItsDefaultAndTheRestStays) {
  const Options base = unusual();
  Options expected = base;
  expected.max_split_size = Options::kUnlimited;
  expected.max_non_split_rounding = 32 * kMiB;  // base's large_segment_size
  expected.garbage_collection_threshold = 0;
  expected.roundup_power2_divisions.fill(0);
  expected.text = "";
  EXPECT_EQ(parse_options("", base), expected);

  const auto threads = std::ranges::find(expected.without_effect, "pinned_num_register_threads",
                                         &decltype(expected.without_effect)::value_type::first);
  ASSERT_NE(threads, expected.without_effect.end());
  threads->second = 16;
  expected.text = "pinned_num_register_threads:16";
  EXPECT_EQ(parse_options(expected.text, base), expected);
}

TEST(OptionParser, RoundupListFollowsPyTorchSlotBySlot) {
  struct Row {
    const char* list;
    Slots slots;
  };
  const Row rows[] = {
      // The first interval fills the slots below it; the others only their own.
      {"[256:1]", {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0}},
      {"[256:1,512:2]", {1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 0, 0, 0, 0, 0, 0}},
      {"[256:1,512:2,1024:4,>:8]", {1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8}},
      {"[64:8,256:4,>:1]", {8, 8, 8, 8, 8, 8, 8, 0, 4, 1, 1, 1, 1, 1, 1, 1}},  // slot 7, between, is not filled
      {"[2:8,64:4,256:2,>:1]", {8, 8, 0, 0, 0, 0, 4, 0, 2, 1, 1, 1, 1, 1, 1, 1}},
      {"[1:4]", {4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
      // '>' first: slot 0 stays as it is.
      {"[>:8]", {0, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8}},
      {"[>:8,4:2]", {2, 2, 2, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8}},
      {"[4:2,1:16,>:8]", {16, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8}},
      // 0 switches a slot off; the last slot takes whatever is larger.
      {"[1024:4,512:0]", {4, 4, 4, 4, 4, 4, 4, 4, 4, 0, 4, 0, 0, 0, 0, 0}},
      {"[32768:2,>:4]", {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}},
      {"[1:2,65536:4]", {2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4}},
      {"[1:2,1048576:4]", {2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4}},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(slots_of(std::string("roundup_power2_divisions:") + row.list), row.slots) << row.list;
  }
  EXPECT_EQ(slots_of("roundup_power2_divisions:4"), all_slots(4));
}

TEST(OptionParser, EachBadValueIsRefusedWithKeyValueAndRule) {
  struct Row {
    const char* key;
    const char* value;
    const char* rule;
  };
  const char* const kNotWhole = "is not a whole number from 0 to 18446744073709551615";
  const char* const kTooManyMib = "the number of MiB must be <= 17592186044415";
  const char* const kBool = "Expected 'True' or 'False' but got '";
  const Row rows[] = {
      {"large_segment_size_mb", "10", "CachingAllocator option large_segment_size_mb must be > 10 MB"},
      {"large_segment_size_mb", "0", "must be > 10 MB"},
      {"large_segment_size_mb", "-20", kNotWhole},
      {"large_segment_size_mb", "20.5", kNotWhole},
      {"large_segment_size_mb", "17592186044416", kTooManyMib},
      {"max_split_size_mb", "19", "CachingAllocator option max_split_size_mb too small, must be >= 20"},
      {"max_split_size_mb", "0", "max_split_size_mb too small, must be >= 20"},
      {"max_split_size_mb", "-1", kNotWhole},
      {"max_split_size_mb", "+100", kNotWhole},
      {"max_split_size_mb", "100abc", kNotWhole},
      {"max_split_size_mb", "0x40", kNotWhole},
      {"max_split_size_mb", "1e3", kNotWhole},
      {"max_split_size_mb", "none", kNotWhole},
      {"max_split_size_mb", "17592186044416", kTooManyMib},
      {"max_split_size_mb", "18446744073709551615", kTooManyMib},
      {"max_split_size_mb", "18446744073709551616", kNotWhole},
      {"max_split_size_mb", "99999999999999999999999999", kNotWhole},
      {"max_split_size_mb", "[64:8]", "not a list"},
      {"max_non_split_rounding_mb", "19", "max_non_split_rounding_mb too small, must be >= 20"},
      {"max_non_split_rounding_mb", "x", kNotWhole},
      {"garbage_collection_threshold", "0", "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"},
      {"garbage_collection_threshold", "0.0", "set it in (0.0, 1.0)"},
      {"garbage_collection_threshold", "1", "set it in (0.0, 1.0)"},
      {"garbage_collection_threshold", "1.2", "set it in (0.0, 1.0)"},
      {"garbage_collection_threshold", "-0.5", "set it in (0.0, 1.0)"},
      {"garbage_collection_threshold", "nan", "set it in (0.0, 1.0)"},
      {"garbage_collection_threshold", "inf", "set it in (0.0, 1.0)"},
      {"garbage_collection_threshold", "0.5x", "it is not a number"},
      {"garbage_collection_threshold", "half", "it is not a number"},
      {"garbage_collection_threshold", "1e-999", "it is not a number"},
      {"roundup_power2_divisions", "0", "For roundups, the divisions has to be power of 2"},
      {"roundup_power2_divisions", "3", "For roundups, the divisions has to be power of 2"},
      {"roundup_power2_divisions", "-4", kNotWhole},
      {"roundup_power2_divisions", "[64:3]",
       "For roundups, the divisions has to be power of 2 or 0 to disable roundup"},
      {"roundup_power2_divisions", "[48:4]", "For roundups, the intervals have to be power of 2"},
      {"roundup_power2_divisions", "[0:4]", "For roundups, the intervals have to be power of 2"},
      {"roundup_power2_divisions", "[64:x]", kNotWhole},
      {"roundup_power2_divisions", "[x:4]", kNotWhole},
      {"roundup_power2_divisions", "[>>:4]", kNotWhole},
      {"roundup_power2_divisions", "[<:4]", kNotWhole},
      {"roundup_power2_divisions", "[64:8,256:5]", "got 5"},
      {"per_process_memory_fraction", "-0.1", "per_process_memory_fraction is invalid, set it in [0.0, 1.0]"},
      {"per_process_memory_fraction", "1.1", "per_process_memory_fraction is invalid, set it in [0.0, 1.0]"},
      {"per_process_memory_fraction", "nan", "set it in [0.0, 1.0]"},
      {"per_process_memory_fraction", "all", "it is not a number"},
      {"throw_on_cudamalloc_oom", "maybe", kBool},
      {"expandable_segments", "true", kBool},
      {"expandable_segments", "1", kBool},
      {"release_lock_on_cudamalloc", "none", kBool},
      {"release_lock_on_hipmalloc", "none", kBool},
      {"graph_capture_record_stream_reuse", "yes", kBool},
      {"pinned_use_background_threads", "TRUE", kBool},
      {"pinned_use_cuda_host_register", "none", kBool},
      {"pinned_use_hip_host_register", "none", kBool},
      {"pinned_num_register_threads", "0", "Number of register threads has to be power of 2, got 0"},
      {"pinned_num_register_threads", "3", "Number of register threads has to be power of 2, got 3"},
      {"pinned_num_register_threads", "1024",
       "Number of register threads should be less than or equal to 128, got 1024"},
      {"pinned_num_register_threads", "-1", kNotWhole},
      {"pinned_reserve_segment_size_mb", "0", "Pinned reserve segment size has to be greater than 0"},
      {"pinned_reserve_segment_size_mb", "-5", kNotWhole},
      {"pinned_limit_mb", "1", "it must be at least 2, or 0 for no limit"},
      {"pinned_limit_mb", "-5", kNotWhole},
      {"backend", "cudaMallocAsync", "cachalot is a native backend"},
      {"backend", "async", "Unknown allocator backend, options are native and cudaMallocAsync"},
      {"cross_stream", "on", "options are off, completed, scarce and wait"},
      {"oom_wait", "always", "options are never, events and device"},
      {"remap_slack", "-0.1", "it must be in [0.0, 1.0]"},
      {"remap_slack", "1.5", "it must be in [0.0, 1.0]"},
      {"remap_slack", "nan", "it must be in [0.0, 1.0]"},
      {"remap_slack", "much", "it is not a number"},
      {"calibrate", "1", "Expected 'True' or 'False' but got '1'"},
      {"page_size_mb", "3", "it must be a multiple of 2"},
      {"page_size_mb", "1026", "at most 1024"},
      {"page_size_mb", "-2", kNotWhole},
      {"guard", "yes", "Expected 'True' or 'False' but got 'yes'"},
      {"debug", "1", "Expected 'True' or 'False' but got '1'"},
      {"heap", "Segments", "Unknown heap, options are segments, pages, async and managed"},
      {"foo", "1", "Unrecognized key 'foo' in CUDA allocator config (value '1')"},
      {"max_split_size", "64", "(value '64'); did you mean 'max_split_size_mb'?"},
      {"max_mappings", "1000", "(value '1000'); the option is gone: leave it out"},
      {"guard_quarantine_mb", "1", "(value '1'); the option is gone: leave it out"},
      {"background_thread", "True", "(value 'True'); the option is gone: leave it out"},
      {"Max_split_size_mb", "64", "Unrecognized key 'Max_split_size_mb'"},
  };
  for (const Row& row : rows) {
    const std::string text = std::string(row.key) + ":" + row.value;
    SCOPED_TRACE(text);
    const std::string message = refusal(text);
    EXPECT_TRUE(contains(message, row.key)) << message;
    EXPECT_TRUE(contains(message, "'" + std::string(row.value) + "'")) << message;
    EXPECT_TRUE(contains(message, row.rule)) << message;
  }
}

TEST(OptionParser, MalformedTextIsRefusedAndNamesWhereItBreaks) {
  struct Row {
    const char* text;
    std::vector<const char*> parts;
  };
  const Row rows[] = {
      {"max_split_size_mb", {"max_split_size_mb", "the end", "':'"}},
      {"max_split_size_mb:", {"max_split_size_mb", "''", "the end", "value"}},
      {"max_split_size_mb,100", {"max_split_size_mb", "','", "':'"}},
      {"max_split_size_mb::100", {"max_split_size_mb", "':'", "value"}},
      {"max_split_size_mb:100:200", {"max_split_size_mb", "'100'", "':'", "','"}},
      {"max_split_size_mb:100,", {"max_split_size_mb", "'100'", "the end", "key is expected"}},
      {"max_split_size_mb:100,,", {"max_split_size_mb", "'100'", "','", "key is expected"}},
      {"max_split_size_mb:100,,backend:native", {"max_split_size_mb", "'100'", "','", "key is expected"}},
      {",max_split_size_mb:100", {"','", "start"}},
      {",", {"','", "start"}},
      {",,", {"','"}},
      {":", {"':'"}},
      {":100", {"':'"}},
      {"[", {"'['"}},
      {"]", {"']'"}},
      {"max_split_size_mb:]", {"max_split_size_mb", "']'"}},
      {"max_split_size_mb:100]", {"max_split_size_mb", "'100'", "']'"}},
      {"max_split_size_mb:100 backend:native", {"max_split_size_mb", "'100backend'", "':'"}},
      {"roundup_power2_divisions:[", {"roundup_power2_divisions", "'['", "the end"}},
      {"roundup_power2_divisions:[]", {"roundup_power2_divisions", "'['", "']'"}},
      {"roundup_power2_divisions:[64", {"roundup_power2_divisions", "'[64'", "the end", "':'"}},
      {"roundup_power2_divisions:[64:8", {"roundup_power2_divisions", "'[64:8'", "the end", "']'"}},
      {"roundup_power2_divisions:[64:8,", {"roundup_power2_divisions", "'[64:8,'", "the end"}},
      {"roundup_power2_divisions:[64:8,]", {"roundup_power2_divisions", "'[64:8,'", "']'"}},
      {"roundup_power2_divisions:[64]", {"roundup_power2_divisions", "'[64'", "']'", "':'"}},
      {"roundup_power2_divisions:[64,8]", {"roundup_power2_divisions", "'[64'", "','", "':'"}},
      {"roundup_power2_divisions:[64:]", {"roundup_power2_divisions", "'[64:'", "']'"}},
      {"roundup_power2_divisions:[64:8][", {"roundup_power2_divisions", "'[64:8]'", "'['"}},
      {"roundup_power2_divisions:[64:8]max_split_size_mb:100", {"roundup_power2_divisions", "'max_split_size_mb'"}},
      {"roundup_power2_divisions:[64:8]:4", {"roundup_power2_divisions", "'[64:8]'", "':'"}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.text);
    const std::string message = refusal(row.text);
    EXPECT_NE(message, "");
    for (const char* part : row.parts) EXPECT_TRUE(contains(message, part)) << part << " in: " << message;
  }
}

TEST(OptionParser, AKeyGivenTwiceIsRefused) {
  for (const char* text :
       {"max_split_size_mb:64,max_split_size_mb:64", "max_split_size_mb:32,heap:segments,max_split_size_mb:64"}) {
    EXPECT_TRUE(contains(refusal(text), "option max_split_size_mb: bad value '64'")) << refusal(text);
    EXPECT_TRUE(contains(refusal(text), "given twice")) << refusal(text);
  }
  EXPECT_TRUE(contains(refusal("release_lock_on_cudamalloc:True,release_lock_on_hipmalloc:False"), "given twice"));
}

TEST(OptionParser, ABadTextLeavesBaseAsItWas) {
  const Options base = unusual();
  const Options before = base;
  EXPECT_NE(refusal("max_split_size_mb:100,roundup_power2_divisions:2,garbage_collection_threshold:7", base), "");
  EXPECT_EQ(base, before);
}

TEST(OptionParser, TheWholeTextIsCheckedBeforeAnyOfIt) {
  EXPECT_TRUE(contains(refusal("max_split_size_mb:1,foo:2"), "foo"));         // keys before values
  EXPECT_TRUE(contains(refusal("foo:2,max_split_size_mb:100,"), "the end"));  // grammar before keys
}

// A list has no longest value; a message shows the front of it.
TEST(OptionParser, AMessageShowsOnlyTheFrontOfALongList) {
  std::string list = "[1:1";
  for (int i = 0; i < 100'000; ++i) list += ",1:1";
  list += "]";
  const std::string front = "'" + list.substr(0, 300) + "...'";
  const std::string twice = "roundup_power2_divisions:" + list + ",roundup_power2_divisions:" + list;
  for (const std::string& text : {"foo:" + list, twice, "heap:" + list, "roundup_power2_divisions:" + list + ":"}) {
    const std::string message = refusal(text);
    EXPECT_TRUE(contains(message, front)) << message.substr(0, 1000);
    EXPECT_LT(message.size(), 1000u);
  }
}

TEST(OptionParser, NullBytesAndOtherJunkAreJustBadCharacters) {
  EXPECT_NE(refusal(std::string_view("max_split_size_mb:64\0", 21)), "");
  EXPECT_NE(refusal("max_split_size_mb:64\x80"), "");
  EXPECT_NE(refusal("max_split_size_mb:\xff"), "");
}

}  // namespace
TEST(OptionParser, NamesEachHeapAsItIsSpelled) {
  for (const char* name : {"segments", "pages", "async", "managed"}) {
    EXPECT_STREQ(to_string(parse_options(std::string("heap:") + name).heap), name);
  }
}

TEST(OptionParser, AHeapOfSegmentsThatIsNamedIsMeantWhateverAnEarlierTextSaysOfExpandableSegments) {
  const Options expandable = parse_options("expandable_segments:True");
  EXPECT_FALSE(uses_pages(amend_options("heap:segments", expandable)));
  EXPECT_FALSE(uses_pages(amend_options("page_size_mb:4,heap:segments", expandable)));
  EXPECT_EQ(selected_heap(amend_options("heap:async", expandable)), HeapKind::async);
  EXPECT_EQ(selected_heap(amend_options("heap:managed", expandable)), HeapKind::managed);
  EXPECT_TRUE(uses_pages(amend_options("page_size_mb:4", expandable)));
  EXPECT_TRUE(uses_pages(amend_options("heap:pages", expandable)));
  EXPECT_TRUE(uses_pages(amend_options("heap:segments,expandable_segments:True", expandable)));
}

TEST(AmendedOptions, KeepWhatTheTextDoesNotName) {
  const Options base =
      parse_options("max_split_size_mb:64,roundup_power2_divisions:4,garbage_collection_threshold:0.5");
  const Options amended = amend_options("garbage_collection_threshold:0.25", base);
  EXPECT_EQ(amended.max_split_size, std::size_t{64} << 20);
  EXPECT_EQ(amended.roundup_power2_divisions, base.roundup_power2_divisions);
  EXPECT_EQ(amended.garbage_collection_threshold, 0.25);
  EXPECT_EQ(parse_options("garbage_collection_threshold:0.25", base).max_split_size, Options::kUnlimited);
  EXPECT_THROW(amend_options("no_such_key:1", base), InvalidArgument);
}

TEST(AmendedOptions, KnowTheSegmentSizeOfTheirBase) {
  const Options base = parse_options("large_segment_size_mb:64");
  EXPECT_THROW(amend_options("max_split_size_mb:32", base), InvalidArgument);
  EXPECT_EQ(amend_options("max_split_size_mb:80", base).max_non_split_rounding, std::size_t{64} << 20);
}

TEST(AmendedOptions, KeepARoundingThatWasNamedWhenSegmentsChange) {
  const Options base = parse_options("max_split_size_mb:256,max_non_split_rounding_mb:128");
  const Options amended = amend_options("large_segment_size_mb:64", base);
  EXPECT_EQ(amended.large_segment_size, 64 * kMiB);
  EXPECT_EQ(amended.max_split_size, 256 * kMiB);
  EXPECT_EQ(amended.max_non_split_rounding, 128 * kMiB);
  EXPECT_EQ(amend_options("large_segment_size_mb:64", {}).max_non_split_rounding, 64 * kMiB);  // its default
  EXPECT_EQ(amend_options("large_segment_size_mb:32", amend_options("large_segment_size_mb:64", {})),
            parse_options("large_segment_size_mb:32"));
  EXPECT_EQ(parse_options("large_segment_size_mb:64", base).max_non_split_rounding, 64 * kMiB);  // as in PyTorch
}

TEST(AmendedOptions, AreRefusedWhereNoSingleTextMayHaveThem) {
  const auto refusal_of = [](std::string_view text, std::string_view base) -> std::string {
    try {
      amend_options(text, parse_options(base));
      return "";
    } catch (const InvalidArgument& error) {
      return error.what();
    }
  };
  const std::string base = "max_split_size_mb:24,max_non_split_rounding_mb:48";
  EXPECT_EQ(refusal_of("large_segment_size_mb:64", base),
            "option large_segment_size_mb: bad value '64': max_split_size_mb is 24 already, and must be >= it");
  EXPECT_EQ(refusal_of("large_segment_size_mb:64,max_split_size_mb:64", base),
            "option large_segment_size_mb: bad value '64': max_non_split_rounding_mb is 48 already, and must be >= it");
  EXPECT_EQ(refusal_of("large_segment_size_mb:64,max_split_size_mb:64,max_non_split_rounding_mb:64", base), "");
  EXPECT_EQ(refusal_of("large_segment_size_mb:24", base), "");
}

TEST(AnOptionsKey, IsKnownUnderItsOtherNameToo) {
  EXPECT_TRUE(is_option("max_split_size_mb"));
  EXPECT_TRUE(is_option("release_lock_on_hipmalloc"));
  EXPECT_FALSE(is_option(""));
  EXPECT_FALSE(is_option("max_split_size"));
}

TEST(PytorchsVariable, LosesWhatThisVersionDoesNotKnowWithAWarningEach) {
  const PytorchConf conf = parse_pytorch_conf(
      "max_split_size_mb:64, throw_on_cudamalloc_oom:True, pinned_free_catch_all:True, "
      "roundup_power2_divisions:[256:1,512:2,>:4], "
      "expandable_segments:True, foo:[1:2],");
  EXPECT_EQ(conf.options.max_split_size, std::size_t{64} << 20);
  EXPECT_EQ(conf.options.roundup_power2_divisions.back(), 4u);
  EXPECT_TRUE(uses_pages(conf.options));
  EXPECT_TRUE(conf.options.throw_on_cudamalloc_oom);
  ASSERT_EQ(conf.warnings.size(), 2u);
  EXPECT_THAT(conf.warnings[0], testing::HasSubstr("pinned_free_catch_all:True"));
  EXPECT_THAT(conf.warnings[1], testing::HasSubstr("foo:[1:2]"));
}

TEST(PytorchsVariable, IsNotRepeatedWholeByItsWarnings) {
  const std::string megabyte(1 << 20, 'x');
  for (const std::string& text : {megabyte, "foo:" + megabyte, "foo:[1:" + megabyte + "]"}) {
    const PytorchConf conf = parse_pytorch_conf(text);
    ASSERT_EQ(conf.warnings.size(), 1u);
    EXPECT_LT(conf.warnings[0].size(), 1000u);
    EXPECT_THAT(conf.warnings[0], testing::HasSubstr("'" + text.substr(0, 300) + "...'"));
  }
}

TEST(PytorchsVariable, IsRefusedForABadValue) {
  EXPECT_THROW(parse_pytorch_conf("max_split_size_mb:1"), InvalidArgument);
  EXPECT_THROW(parse_pytorch_conf("expandable_segments:true"), InvalidArgument);
  EXPECT_TRUE(parse_pytorch_conf("").warnings.empty());
}

TEST(OptionParser, OptionsWithoutEffectAreTold) {
  EXPECT_TRUE(options_without_effect({}).empty());
  EXPECT_TRUE(
      options_without_effect(parse_options("pinned_use_background_threads:False,heap:pages,backend:native")).empty());
  const std::vector<std::string> told = options_without_effect(parse_options(
      "pinned_use_background_threads:True,pinned_use_cuda_host_register:True,pinned_num_register_threads:2,"
      "pinned_reserve_segment_size_mb:7,graph_capture_record_stream_reuse:True"));
  ASSERT_EQ(told.size(), 5u);
  EXPECT_TRUE(contains(told[0], "option graph_capture_record_stream_reuse has no effect: memory that a capture"))
      << told[0];
  EXPECT_TRUE(contains(told[4], "option pinned_reserve_segment_size_mb has no effect: PinnedHostAllocator")) << told[4];
}

}  // namespace cachalot
