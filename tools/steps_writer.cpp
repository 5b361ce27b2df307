#include "tools/steps_writer.h"

#include <iterator>

#include "base/check.h"
#include "cachalot/options.h"
#include "device/addresses.h"

namespace cachalot::tools {
namespace {

const std::string& of_segments(const std::string& path, const CachingAllocator& allocator) {
  CACHALOT_REQUIRE(
      !uses_pages(allocator.options()),
      "--steps {}: steps number segments, and the page heap (heap:pages, expandable_segments:True) has none", path);
  return path;
}

}  // namespace

StepsWriter::StepsWriter(const std::string& path, CachingAllocator& allocator)
    : allocator_(allocator), file_(of_segments(path, allocator), "--steps") {
  allocator.add_change_tracker([this](const Change& change) { follow(change); });
}

void StepsWriter::follow(const Change& change) {
  if (change.action == Change::Action::segment_alloc) ordinals_[change.address] = segments_created_++;
  if (change.action == Change::Action::segment_free) ordinals_.erase(change.address);
}

void StepsWriter::allocated(std::size_t event, const void* pointer) {
  if (pointer == nullptr) return freed(event);
  const Address address = as_address(pointer);
  const auto next = ordinals_.upper_bound(address);
  CACHALOT_ASSERT(next != ordinals_.begin());  // follow() has seen every segment
  const auto [base, ordinal] = *std::prev(next);
  file_.print("{} {} {}", event, ordinal, address - base);
  print_figures();
}

void StepsWriter::out_of_memory(std::size_t event) { file_.print("{} oom\n", event); }

void StepsWriter::freed(std::size_t event) {
  file_.print("{} - -", event);
  print_figures();
}

void StepsWriter::print_figures() {
  const DeviceStats stats = allocator_.memory_stats();
  file_.print(" {} {} {} {}\n", stats.reserved_bytes.all.current, stats.allocated_bytes.all.current,
              stats.active_bytes.all.current, stats.inactive_split_bytes.all.current);
}

}  // namespace cachalot::tools
