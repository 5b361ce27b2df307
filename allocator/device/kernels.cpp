#include "cachalot/kernels.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/format.h"

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

CACHALOT_END
