// Host memory of the allocator's own tables: a table for blocks of one size, and one for the shipped traces.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/workloads.h"
#include "tools/replay/replay.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::bench {
namespace {

void print_row(const std::string& name, std::size_t blocks, const CachingAllocator& allocator) {
  const auto metadata = static_cast<double>(allocator.metadata_bytes());
  const auto reserved = static_cast<double>(allocator.memory_reserved());
  fmt::print("{:<20} {:>9} {:>14.1f} {:>13.2f} {:>14.1f} {:>12.4f}\n", name, blocks, reserved / kMiB, metadata / kMiB,
             blocks == 0 ? 0 : metadata / static_cast<double>(blocks), 100 * metadata / reserved);
}

void print_size(std::size_t bytes, std::size_t blocks) {
  const auto allocator = make_allocator();
  for (std::size_t i = 0; i < blocks; ++i) allocator->allocate(bytes);
  print_row(fmt::format("{} B", bytes), blocks, *allocator);
}

// Prints the tables of a trace: the blocks that live when the most memory is reserved. Tables never shrink, so they are
// as they were then.
void print_trace(const std::filesystem::path& path) {
  const tools::Trace trace = tools::read_trace(path.string());
  tools::ReplayWorld world(trace, {});
  for (const tools::TraceEvent& event : trace.events) world.play(event);
  print_row(path.stem().stem().string(), trace.slots, world.allocator());
}

void print_tables() {
  fmt::print("{:<20} {:>9} {:>14} {:>13} {:>14} {:>12}\n", "live blocks of", "blocks", "reserved MiB", "metadata MiB",
             "bytes a block", "% of device");
  for (const std::size_t bytes : {kKiB / 2, kKiB, 4 * kKiB, 16 * kKiB, 64 * kKiB, 256 * kKiB, kMiB}) {
    print_size(bytes, std::min<std::size_t>(1000000, 256 * kGiB / bytes));
  }
  for (const std::size_t bytes : {2 * kMiB, 20 * kMiB, 256 * kMiB}) print_size(bytes, 512 * kGiB / bytes);

  fmt::print("\n{:<20} {:>9} {:>14} {:>13} {:>14} {:>12}\n", "trace", "most live", "reserved MiB", "metadata MiB",
             "bytes a block", "% of device");
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(CACHALOT_DATA_DIR "/traces")) {
    if (entry.path().extension() == ".gz") paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  for (const auto& path : paths) print_trace(path);
}

}  // namespace
}  // namespace cachalot::bench

int main() { cachalot::bench::print_tables(); }
