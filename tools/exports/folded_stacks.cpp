// What is live at a moment as folded call stacks, for flamegraph.pl and speedscope: "outermost;…;newest bytes" in each line.
#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "tools/analysis/asked_peak.h"
#include "tools/exports/export_parts.h"
#include "tools/exports/exports.h"
#include "tools/history/allocations.h"

namespace cachalot::tools {
namespace {

// A semicolon would divide the frame, a newline the line, and a space at the end the bytes.
std::string frame_text(const History& history, FrameId id) {
  const StackFrame& frame = history.stacks.frame(id);
  std::string text = utf8_of(history.texts[frame.function]);
  if (frame.file != 0) text += fmt::format(" ({}:{})", utf8_of(history.texts[frame.file]), frame.line);
  std::ranges::replace(text, ';', ',');
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return text;
}

void write_stack(const History& history, StackId stack, std::uint64_t bytes, OutputFile& out) {
  if (stack == 0) out.write("(no call stack was recorded)");
  std::string_view separator;
  const std::span<const FrameId> calls = history.stacks[stack];
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
    out.print("{}{}", separator, frame_text(history, *call));
    separator = ";";
  }
  out.print(" {}\n", bytes);
}

}  // namespace

void write_folded_stacks(const History& history, const ExportOptions& options, OutputFile& out) {
  const std::vector<const DeviceHistory*> devices = devices_of(history, options);
  for (const DeviceHistory* device : devices) {
    const std::vector<Allocation> allocations = allocations_of(*device);
    std::map<StackId, std::uint64_t> bytes;
    for (const std::uint32_t live : asked_peak(history.path, *device, allocations, options.at).live) {
      bytes[allocations[live].stack] += allocations[live].bytes;
    }
    for (const auto& [stack, sum] : bytes) {
      if (devices.size() > 1) out.print("GPU {};", device->device);
      write_stack(history, stack, sum, out);
    }
  }
}

}  // namespace cachalot::tools
