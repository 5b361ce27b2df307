#include "tools/steps_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "cachalot/options.h"
#include "device/addresses.h"

namespace cachalot::tools {
namespace {

constexpr std::size_t kWriteBytes = 1 << 16;

// The file itself where `path` is a link, so that the link is not what gets replaced.
std::string resolved(const std::string& path) {
  std::error_code error;
  const auto target = std::filesystem::canonical(path, error);
  return error ? path : target.string();
}

// A pipe, a terminal, or a file in use under a descriptor's name (/dev/stdout): nothing can take its place.
bool must_be_written_in_place(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  const bool is_descriptor = path.starts_with("/dev/") || path.starts_with("/proc/");
  return is_descriptor || (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status));
}

}  // namespace

StepsWriter::StepsWriter(const std::string& path, CachingAllocator& allocator)
    : allocator_(allocator),
      path_(path),
      final_path_(must_be_written_in_place(path) ? path : resolved(path)),
      written_path_(must_be_written_in_place(path) ? path : fmt::format("{}.{}.part", final_path_, getpid())) {
  CACHALOT_REQUIRE(
      !uses_pages(allocator.options()),
      "--steps {}: steps number segments, and the page heap (heap:pages, expandable_segments:True) has none", path_);
  file_ = std::fopen(written_path_.c_str(), "w");
  CACHALOT_REQUIRE(file_ != nullptr, "--steps {}: cannot write the file: {}", path_, std::strerror(errno));
  std::setvbuf(file_, nullptr, _IONBF, 0);  // buffer_ is the buffer
  allocator.add_change_tracker([this](const Change& change) { follow(change); });
}

StepsWriter::~StepsWriter() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  if (written_path_ != final_path_) std::remove(written_path_.c_str());
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
  fmt::format_to(std::back_inserter(buffer_), "{} {} {}", event, ordinal, address - base);
  append_figures();
}

void StepsWriter::out_of_memory(std::size_t event) { fmt::format_to(std::back_inserter(buffer_), "{} oom\n", event); }

void StepsWriter::freed(std::size_t event) {
  fmt::format_to(std::back_inserter(buffer_), "{} - -", event);
  append_figures();
}

void StepsWriter::append_figures() {
  const DeviceStats stats = allocator_.memory_stats();
  fmt::format_to(std::back_inserter(buffer_), " {} {} {} {}\n", stats.reserved_bytes.all.current,
                 stats.allocated_bytes.all.current, stats.active_bytes.all.current,
                 stats.inactive_split_bytes.all.current);
  if (buffer_.size() >= kWriteBytes) write_buffer();
}

void StepsWriter::write_buffer() {
  if (std::fwrite(buffer_.data(), 1, buffer_.size(), file_) != buffer_.size()) fail();
  buffer_.clear();
}

void StepsWriter::finish() {
  write_buffer();
  if (std::fclose(std::exchange(file_, nullptr)) != 0) fail();
  if (written_path_ != final_path_ && std::rename(written_path_.c_str(), final_path_.c_str()) != 0) fail();
}

void StepsWriter::fail() {
  const std::string reason = std::strerror(errno);
  if (written_path_ != final_path_) std::remove(written_path_.c_str());
  throw InvalidArgument(fmt::format("--steps {}: cannot write the file: {}", path_, reason));
}

}  // namespace cachalot::tools
