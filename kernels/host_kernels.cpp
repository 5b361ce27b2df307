#include "cachalot/kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "device/known_stream.h"
#include "kernels/pattern.h"

CACHALOT_BEGIN

namespace {

// `what` begins the name of the memory, which ends with `i`.
void check_memory(const char* what, std::size_t i, Address address, std::size_t bytes) {
  const auto name = [&] { return formatted("{} {}", what, i); };
  CACHALOT_REQUIRE(address != 0, "{} has {} bytes and begins at a null address", name(), bytes);
  CACHALOT_REQUIRE(bytes - 1 <= std::numeric_limits<Address>::max() - address,
                   "{} begins at {:#x} and has {} bytes: more than there are addresses", name(), address, bytes);
}

void check_spans(Span<const PatternSpan> spans) {
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].bytes != 0) check_memory("pattern span", i, spans[i].address, spans[i].bytes);
  }
}

// A source or a destination.
struct End {
  Address first = 0;
  Address last = 0;
  std::size_t move = 0;
  bool is_written = false;
};

std::vector<End> ends_of(Span<const BlockMove> moves) {
  std::vector<End> ends;
  ends.reserve(2 * moves.size());
  for (std::size_t i = 0; i < moves.size(); ++i) {
    const auto& [from, to, bytes] = moves[i];
    if (bytes == 0) continue;
    check_memory("the source of move", i, from, bytes);
    check_memory("the destination of move", i, to, bytes);
    ends.push_back({from, from + (bytes - 1), i, false});
    ends.push_back({to, to + (bytes - 1), i, true});
  }
  return ends;
}

void check_apart(const End& end, const End* earlier) {
  if (earlier == nullptr || end.first > earlier->last) return;
  const End& written = end.is_written ? end : *earlier;
  const End& other = end.is_written ? *earlier : end;
  CACHALOT_REQUIRE(false,
                   "move {} writes to {:#x} and move {} {} {:#x}: no destination may overlap another, or a source",
                   written.move, written.first, other.move, other.is_written ? "to" : "reads", other.first);
}

// Seen in the order of where they begin, an end overlaps one before it if it overlaps the one that reaches furthest.
void check_moves(Span<const BlockMove> moves) {
  std::vector<End> ends = ends_of(moves);
  std::ranges::sort(ends, {}, &End::first);
  const End* furthest_read = nullptr;
  const End* furthest_written = nullptr;
  for (const End& end : ends) {
    check_apart(end, furthest_written);
    if (end.is_written) check_apart(end, furthest_read);
    const End*& furthest = end.is_written ? furthest_written : furthest_read;
    if (furthest == nullptr || end.last > furthest->last) furthest = &end;
  }
}

}  // namespace

void Kernels::fill_pattern(Stream stream, Span<const PatternSpan> spans) {
  check_spans(spans);
  fill(stream, spans);
}

std::vector<PatternMismatch> Kernels::verify_pattern(Stream stream, Span<const PatternSpan> spans) {
  check_spans(spans);
  return verify(stream, spans);
}

std::optional<std::size_t> Kernels::verify_pattern(Stream stream, const PatternSpan& span) {
  const std::vector<PatternMismatch> mismatches = verify_pattern(stream, Span<const PatternSpan>(&span, 1));
  if (mismatches.empty()) return std::nullopt;
  return mismatches.front().offset;
}

void Kernels::move_blocks(Stream stream, Span<const BlockMove> moves) {
  check_moves(moves);
  std::vector<BlockMove> real(moves.begin(), moves.end());
  std::erase_if(real, [](const BlockMove& move) { return move.bytes == 0; });
  if (!real.empty()) move(stream, real);
}

namespace {

static_assert(std::endian::native == std::endian::little, "a pattern's words are copied as they are");

constexpr std::size_t kPartBytes = 128 * kKiB;  // twice this fits into the processor's second cache

// Host memory that holds a part of a span at a time.
using Staging = std::vector<std::byte>;

// The pattern of a part of a span at a time, in whole words.
class StagedPattern {
 public:
  explicit StagedPattern(std::size_t most_bytes) : words_(most_bytes / 8 + 2) {}

  // Returns the pattern that belongs at `address`; valid until the next call.
  const std::byte* at(Address address, std::size_t bytes, std::uint64_t seed) {
    const std::size_t place = address % 8;
    const std::size_t count = (place + bytes + 7) / 8;
    for (std::size_t i = 0; i < count; ++i) words_[i] = pattern_word(address / 8 + i, seed);
    return reinterpret_cast<const std::byte*>(words_.data()) + place;
  }

 private:
  std::vector<std::uint64_t> words_;
};

// Calls visit(offset, bytes) for each part of `kPartBytes`, until it returns false.
template <typename Visit>
void for_each_part(std::size_t bytes, Visit&& visit) {
  for (std::size_t offset = 0; offset < bytes; offset += kPartBytes) {
    if (!visit(offset, std::min(kPartBytes, bytes - offset))) return;
  }
}

void fill_span(Device& device, const PatternSpan& span) {
  StagedPattern pattern(std::min(span.bytes, kPartBytes));
  for_each_part(span.bytes, [&](std::size_t offset, std::size_t bytes) {
    device.copy_from_host(span.address + offset, pattern.at(span.address + offset, bytes, span.seed), bytes);
    return true;
  });
}

std::optional<std::size_t> first_difference(Device& device, const PatternSpan& span) {
  StagedPattern pattern(std::min(span.bytes, kPartBytes));
  Staging held(std::min(span.bytes, kPartBytes));
  std::optional<std::size_t> found;
  for_each_part(span.bytes, [&](std::size_t offset, std::size_t bytes) {
    const std::byte* const expected = pattern.at(span.address + offset, bytes, span.seed);
    device.copy_to_host(held.data(), span.address + offset, bytes);
    if (std::memcmp(held.data(), expected, bytes) == 0) return true;
    const std::byte* const differs = std::mismatch(held.data(), held.data() + bytes, expected).first;
    found = offset + static_cast<std::size_t>(differs - held.data());
    return false;
  });
  return found;
}

void copy_block(Device& device, const BlockMove& move, Staging& buffer) {
  for_each_part(move.bytes, [&](std::size_t offset, std::size_t bytes) {
    device.copy_to_host(buffer.data(), move.from + offset, bytes);
    device.copy_from_host(move.to + offset, buffer.data(), bytes);
    return true;
  });
}

}  // namespace

// The host twin: patterns and moves by copies, on any Device. Memory of any size goes through buffers of
// `kPartBytes`.
class HostKernels final : public Kernels {
 public:
  explicit HostKernels(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  bool copies_through_host() const override { return true; }

 private:
  void fill(Stream stream, Span<const PatternSpan> spans) override {
    wait_for(*device_, stream);
    for (const PatternSpan& span : spans) fill_span(*device_, span);
  }
  std::vector<PatternMismatch> verify(Stream stream, Span<const PatternSpan> spans) override {
    wait_for(*device_, stream);
    std::vector<PatternMismatch> mismatches;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      if (const auto offset = first_difference(*device_, spans[i])) mismatches.push_back({i, *offset});
    }
    return mismatches;
  }
  void move(Stream stream, Span<const BlockMove> moves) override {
    Staging buffer(std::min(std::ranges::max(moves, {}, &BlockMove::bytes).bytes, kPartBytes));
    wait_for(*device_, stream);
    for (const BlockMove& move : moves) copy_block(*device_, move, buffer);
  }

  const std::shared_ptr<Device> device_;
};

std::unique_ptr<Kernels> host_kernels(std::shared_ptr<Device> device) {
  CACHALOT_REQUIRE(device != nullptr, "host_kernels needs a device, not null");
  return std::make_unique<HostKernels>(std::move(device));
}

CACHALOT_END
