#include "pool_figures.h"

#include "base/format.h"

CACHALOT_BEGIN

void PoolFigures::add(const ThreadSum::Gathered& news) {
  stats_.acquires += static_cast<std::uint64_t>(news.added);
  const std::int64_t highest = std::min(live_ + news.highest, as_signed(stats_.slots));
  stats_.peak_live = std::max(stats_.peak_live, static_cast<std::size_t>(std::max<std::int64_t>(highest, 0)));
  live_ += news.change;
}

PoolStats PoolFigures::stats() const {
  PoolStats stats = stats_;
  stats.hits = stats.acquires - std::min(stats.acquires, first_uses_);
  stats.live = static_cast<std::size_t>(std::max<std::int64_t>(live_, 0));
  return stats;
}

std::string PoolFigures::first_broken_rule() const {
  if (live_ < 0 || live_ > as_signed(stats_.slots))
    return formatted("{} tensors are live in {} slots", live_, stats_.slots);
  if (as_signed(stats_.peak_live) < live_)
    return formatted("at most {} tensors were live, and {} are", stats_.peak_live, live_);
  if (stats_.peak_bytes < stats_.bytes)
    return formatted("the peak is {} bytes, and there are {}", stats_.peak_bytes, stats_.bytes);
  if (stats_.acquires < first_uses_)
    return formatted("{} slots were used first in {} acquires", first_uses_, stats_.acquires);
  return "";
}

CACHALOT_END
