#include "tools/replay/expandable_segments.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/bytes.h"
#include "tests/tools/temporary_file.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::tools {
namespace {

constexpr std::size_t kPlenty = 200 * kGiB;

ExpandableFigures play_lines(const std::string& lines, std::size_t device_bytes = kPlenty) {
  const TemporaryFile file(lines);
  return play_on_expandable_segments(read_trace(file.path()), device_bytes);
}

// Peaks, the memory held at the end, maps, unmaps and failures are all as PyTorch 2.11's allocator has them, on devices
// of plenty and on ones where it must unmap and fail.
TEST(ExpandableSegments, HoldWhatPyTorchHoldsOnTheRecordedTraces) {
  const std::string folder = std::string(CACHALOT_DATA_DIR) + "/traces/";
  const nlohmann::json recorded = nlohmann::json::parse(std::ifstream(folder + "expandable.json"));
  std::map<std::string, Trace> traces;
  for (const nlohmann::json& figures : recorded.at("figures")) {
    const auto name = figures.at("trace").get<std::string>();
    if (!traces.contains(name)) traces.emplace(name, read_trace(folder + name + ".csv.gz"));
    const std::size_t device_mib = figures.at("device_mib");
    const ExpandableFigures played = play_on_expandable_segments(traces.at(name), device_mib * kMiB);
    SCOPED_TRACE(name + " on " + std::to_string(device_mib) + " MiB");
    EXPECT_EQ(played.peak_reserved_bytes, figures.at("peak_reserved_bytes"));
    EXPECT_EQ(played.reserved_bytes, figures.at("reserved_bytes"));
    EXPECT_EQ(played.maps, figures.at("maps"));
    EXPECT_EQ(played.unmaps, figures.at("unmaps"));
    EXPECT_EQ(played.ooms, figures.at("ooms"));
  }
  EXPECT_EQ(traces.size(), 9u);
}

TEST(ExpandableSegments, MapPagesOf2MiBForSmallAndOf20MiBForLargeRequests) {
  EXPECT_EQ(play_lines("a,1,1,0\n").reserved_bytes, 2 * kMiB);
  EXPECT_EQ(play_lines("a,1,1048576,0\n").reserved_bytes, 2 * kMiB);
  EXPECT_EQ(play_lines("a,1,1048577,0\n").reserved_bytes, 20 * kMiB);
  EXPECT_EQ(play_lines("a,1,20971521,0\n").reserved_bytes, 40 * kMiB);
  EXPECT_EQ(play_lines("a,1,0,0\n").reserved_bytes, 0u);
}

TEST(ExpandableSegments, GrowAFreeBlockAtTheEndInPlaceOfMappingAllAnew) {
  const ExpandableFigures grown = play_lines("a,1,20971520,0\nf,1\na,2,31457280,0\n");
  EXPECT_EQ(grown.reserved_bytes, 40 * kMiB);
  EXPECT_EQ(grown.maps, 2u);
}

TEST(ExpandableSegments, CreateAHandleForEachPageAndGiveAccessOnceForEachRange) {
  ExpandableFigures figures;
  figures.handles = 3;
  figures.maps = 2;
  EXPECT_DOUBLE_EQ(driver_us_of_growth(figures), 3 * (29 + 2) + 2 * 38);
}

TEST(ExpandableSegments, AreOfOneStreamEach) {
  EXPECT_EQ(play_lines("a,1,20971520,0\nf,1\na,2,20971520,7\n").reserved_bytes, 40 * kMiB);
}

// 3, 30 and 7 MiB lie on two pages of 20 MiB; the freed 30 MiB have no whole page to themselves.
TEST(ExpandableSegments, KeepPagesThatAreUsedInPart) {
  const ExpandableFigures figures =
      play_lines("a,1,3145728,0\na,2,31457280,0\na,3,7340032,0\nf,2\na,4,20971520,1\n", 40 * kMiB);
  EXPECT_EQ(figures.ooms, 1u);
  EXPECT_EQ(figures.reserved_bytes, 40 * kMiB);
  EXPECT_EQ(figures.unmaps, 0u);
}

TEST(ExpandableSegments, UnmapWholeFreePagesWhenTheDeviceIsFull) {
  const ExpandableFigures figures = play_lines("a,1,41943040,0\nf,1\na,2,41943040,1\n", 40 * kMiB);
  EXPECT_EQ(figures.ooms, 0u);
  EXPECT_EQ(figures.unmaps, 1u);
  EXPECT_EQ(figures.reserved_bytes, 40 * kMiB);
}

TEST(ExpandableSegments, PlayOnAfterAFailure) {
  const ExpandableFigures figures = play_lines("a,1,41943040,0\nf,1\na,2,2000000,0\nf,2\n", 20 * kMiB);
  EXPECT_EQ(figures.ooms, 1u);
  EXPECT_EQ(figures.peak_reserved_bytes, 20 * kMiB);
}

}  // namespace
}  // namespace cachalot::tools
