// The oracle's own test: the reference heap reproduces what PyTorch 2.11 decided, event by event (data/golden).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstddef>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cachalot/options.h"
#include "tests/reference/reference_heap.h"
#include "tools/replay/trace_reader.h"

namespace cachalot {
namespace {

struct GoldenCase {
  const char* name;  // <trace>.<case>
  std::size_t device_mib;
  const char* options;
  double memory_fraction;
};

// data/golden/README.md
constexpr GoldenCase kCases[] = {
    {"frag_toy.cap3300", 3300, "", 1},
    {"frag_toy.default", 200000, "", 1},
    {"frag_toy.nonsplit40", 3400, "max_split_size_mb:24,max_non_split_rounding_mb:40", 1},
    {"frag_toy.roundlist", 200000, "roundup_power2_divisions:[64:8,256:4,>:1]", 1},
    {"frag_toy.segment32", 200000, "large_segment_size_mb:32", 1},
    {"frag_toy.split32", 200000, "max_split_size_mb:32", 1},
    {"frag_toy.split32cap3300", 3300, "max_split_size_mb:32", 1},
    {"gpt2_varlen.cap10400", 10400, "", 1},
    {"gpt2_varlen.default", 200000, "", 1},
    {"gpt2_varlen.gc", 16000, "garbage_collection_threshold:0.6", 0.7},
    {"gpt2_varlen.roundlist", 200000, "roundup_power2_divisions:[2:8,64:4,256:2,>:1]", 1},
    {"lsm.default", 200000, "", 1},
    {"moe.cap12000", 12000, "", 1},
    {"moe.cap13500", 13500, "", 1},
    {"moe.default", 200000, "", 1},
    {"moe.gc", 20000, "garbage_collection_threshold:0.8,max_split_size_mb:64", 0.8},
    {"moe.limit13000", 26000, "", 0.5},
    {"moe.round4", 200000, "roundup_power2_divisions:4", 1},
    {"resnet_multires.default", 200000, "", 1},
    {"streams.cap2400", 2400, "", 1},
    {"streams.default", 200000, "", 1},
    {"streams.split32cap2600", 2600, "max_split_size_mb:32", 1},
};

std::vector<std::string> gzip_lines(const std::string& path) {
  std::vector<std::string> lines;
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return lines;
  char line[256];
  while (gzgets(file, line, sizeof line) != nullptr) {
    lines.emplace_back(line);
    lines.back().pop_back();  // the newline
  }
  gzclose(file);
  return lines;
}

class ReferenceHeapIsPyTorch : public testing::TestWithParam<GoldenCase> {};

TEST_P(ReferenceHeapIsPyTorch, AtEveryEvent) {
  const std::string name = GetParam().name;
  const tools::Trace trace =
      tools::read_trace(fmt::format("{}/traces/{}.csv.gz", CACHALOT_DATA_DIR, name.substr(0, name.find('.'))));
  const std::vector<std::string> golden = gzip_lines(fmt::format("{}/golden/{}.txt.gz", CACHALOT_DATA_DIR, name));
  ASSERT_EQ(golden.size(), trace.events.size());

  ReferenceHeap heap(GetParam().device_mib * kMiB, parse_options(GetParam().options));
  if (GetParam().memory_fraction < 1) heap.set_memory_fraction(GetParam().memory_fraction);
  std::vector<std::size_t> names(trace.slots);  // of the allocation in each slot: its event's number
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const tools::TraceEvent& event = trace.events[i];
    std::string line = fmt::format("{} - -", i);
    bool failed = false;
    if (event.is_free()) {
      if (heap.is_live(names[event.slot])) heap.deallocate(names[event.slot]);
    } else {
      names[event.slot] = i;
      const auto place = heap.allocate(i, event.bytes, trace.streams[event.stream]);
      if (place) line = fmt::format("{} {} {}", i, place->segment, place->offset);
      failed = !place;
    }
    const DeviceStats& stats = heap.stats();
    line += fmt::format(" {} {} {} {}", stats.reserved_bytes.all.current, stats.allocated_bytes.all.current,
                        stats.active_bytes.all.current, stats.inactive_split_bytes.all.current);
    if (failed) line = fmt::format("{} oom", i);
    ASSERT_EQ(line, golden[i]) << name << ", event " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, ReferenceHeapIsPyTorch, testing::ValuesIn(kCases), [](const auto& golden) {
  std::string name = golden.param.name;
  name[name.find('.')] = '_';
  return name;
});

TEST(GoldenCases, AreAllOfTheFiles) {
  std::set<std::string> listed;
  for (const GoldenCase& each : kCases) listed.insert(std::string(each.name) + ".txt.gz");
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(CACHALOT_DATA_DIR) + "/golden")) {
    if (entry.path().extension() == ".gz") files.insert(entry.path().filename());
  }
  EXPECT_EQ(listed, files);
}

}  // namespace
}  // namespace cachalot
