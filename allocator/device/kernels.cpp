#include "cachalot/kernels.h"

#include <limits>

#include "base/check.h"

namespace cachalot {

namespace {

void check_spans(std::span<const PatternSpan> spans) {
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const PatternSpan& span = spans[i];
    if (span.bytes == 0) continue;
    CACHALOT_REQUIRE(span.address != 0, "span {} of a pattern has {} bytes and begins at a null address", i,
                     span.bytes);
    CACHALOT_REQUIRE(span.bytes - 1 <= std::numeric_limits<Address>::max() - span.address,
                     "span {} of a pattern begins at {:#x} and has {} bytes: more than there are addresses", i,
                     span.address, span.bytes);
  }
}

}  // namespace

void Kernels::fill_pattern(Stream stream, std::span<const PatternSpan> spans) {
  check_spans(spans);
  fill(stream, spans);
}

std::vector<PatternMismatch> Kernels::verify_pattern(Stream stream, std::span<const PatternSpan> spans) {
  check_spans(spans);
  return verify(stream, spans);
}

std::optional<std::size_t> Kernels::verify_pattern(Stream stream, const PatternSpan& span) {
  const std::vector<PatternMismatch> mismatches = verify_pattern(stream, std::span(&span, 1));
  if (mismatches.empty()) return std::nullopt;
  return mismatches.front().offset;
}

}  // namespace cachalot
