#include "device/host_kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "base/bytes.h"
#include "base/check.h"
#include "device/pattern.h"
#include "device/wait_for.h"

CACHALOT_BEGIN

namespace {

static_assert(std::endian::native == std::endian::little, "a pattern's words are copied as they are");

constexpr std::size_t kPartBytes = kMiB;

// Host memory that holds a part of a span at a time.
using Buffer = std::vector<std::byte>;

// The pattern that belongs at `address`, of a whole buffer.
void write_pattern(std::span<std::byte> to, Address address, std::uint64_t seed) {
  for (std::size_t i = 0; i < to.size();) {
    const std::uint64_t word = pattern_word((address + i) / 8, seed);
    const std::size_t place = (address + i) % 8;
    const std::size_t count = std::min(8 - place, to.size() - i);
    std::memcpy(to.data() + i, reinterpret_cast<const std::byte*>(&word) + place, count);
    i += count;
  }
}

// Calls visit(offset, bytes) for each part of so many bytes, until it returns false.
template <typename Visit>
void for_each_part(std::size_t bytes, Visit&& visit) {
  for (std::size_t offset = 0; offset < bytes; offset += kPartBytes) {
    if (!visit(offset, std::min(kPartBytes, bytes - offset))) return;
  }
}

void fill_span(Device& device, const PatternSpan& span) {
  Buffer pattern(std::min(span.bytes, kPartBytes));
  for_each_part(span.bytes, [&](std::size_t offset, std::size_t bytes) {
    write_pattern({pattern.data(), bytes}, span.address + offset, span.seed);
    device.copy_from_host(span.address + offset, pattern.data(), bytes);
    return true;
  });
}

std::optional<std::size_t> first_difference(Device& device, const PatternSpan& span) {
  Buffer pattern(std::min(span.bytes, kPartBytes));
  Buffer held(pattern.size());
  std::optional<std::size_t> found;
  for_each_part(span.bytes, [&](std::size_t offset, std::size_t bytes) {
    write_pattern({pattern.data(), bytes}, span.address + offset, span.seed);
    device.copy_to_host(held.data(), span.address + offset, bytes);
    const auto end = held.begin() + static_cast<std::ptrdiff_t>(bytes);
    const auto differs = std::mismatch(held.begin(), end, pattern.begin()).first;
    if (differs != end) found = offset + static_cast<std::size_t>(differs - held.begin());
    return !found;
  });
  return found;
}

void copy_block(Device& device, const BlockMove& move, Buffer& buffer) {
  for_each_part(move.bytes, [&](std::size_t offset, std::size_t bytes) {
    device.copy_to_host(buffer.data(), move.from + offset, bytes);
    device.copy_from_host(move.to + offset, buffer.data(), bytes);
    return true;
  });
}

}  // namespace

void HostKernels::fill(Stream stream, Span<const PatternSpan> spans) {
  wait_for(*device_, stream);
  for (const PatternSpan& span : spans) fill_span(*device_, span);
}

std::vector<PatternMismatch> HostKernels::verify(Stream stream, Span<const PatternSpan> spans) {
  wait_for(*device_, stream);
  std::vector<PatternMismatch> mismatches;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (const auto offset = first_difference(*device_, spans[i])) mismatches.push_back({i, *offset});
  }
  return mismatches;
}

void HostKernels::move(Stream stream, Span<const BlockMove> moves) {
  Buffer buffer(std::min(std::ranges::max(moves, {}, &BlockMove::bytes).bytes, kPartBytes));
  wait_for(*device_, stream);
  for (const BlockMove& move : moves) copy_block(*device_, move, buffer);
}

std::unique_ptr<Kernels> host_kernels(std::shared_ptr<Device> device) {
  CACHALOT_REQUIRE(device != nullptr, "host_kernels needs a device, not null");
  return std::make_unique<HostKernels>(std::move(device));
}

CACHALOT_END
