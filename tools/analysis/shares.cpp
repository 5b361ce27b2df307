#include "tools/analysis/shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

namespace cachalot::tools {
namespace {

// Sums by a number, which has its name only once.
template <typename Key>
class Sums {
 public:
  void add(Key key, std::uint64_t bytes) {
    Share& share = sums_[key];
    share.bytes += bytes;
    ++share.count;
  }

  template <typename NameOf>
  std::vector<Share> largest_first(NameOf name_of) {
    std::map<std::string, Share> by_name;
    for (const auto& [key, share] : sums_) {
      Share& named = by_name[name_of(key)];
      named.bytes += share.bytes;
      named.count += share.count;
    }
    std::vector<Share> shares;
    shares.reserve(by_name.size());
    for (auto& [name, share] : by_name) shares.push_back({.name = name, .bytes = share.bytes, .count = share.count});
    std::ranges::stable_sort(shares, std::greater<>{}, &Share::bytes);
    return shares;
  }

 private:
  std::map<Key, Share> sums_;
};

std::string pool_text(PoolId pool) {
  return pool == PoolId{} ? "default" : fmt::format("({}, {})", pool.first, pool.second);
}

}  // namespace

Shares shares_of(const History& history, std::span<const Allocation> allocations, std::span<const Category> categories,
                 const Categorizer& names, const Peak& peak, const Stages& stages, Sites& sites, Frames frames) {
  Sums<Category> by_category;
  Sums<StackId> by_stack;
  Sums<std::uint16_t> by_pool;
  Sums<std::uint16_t> by_stream;
  Sums<StageId> by_stage;
  for (const std::uint32_t i : peak.live) {
    const Allocation& one = allocations[i];
    by_category.add(categories[i], one.bytes);
    by_stack.add(sites.telling_stack(one.stack, one.details), one.bytes);
    by_pool.add(one.pool, one.bytes);
    by_stream.add(one.stream, one.bytes);
    by_stage.add(one.begin == Allocation::kBefore ? 0 : stages.at(one.begin), one.bytes);
  }
  Shares shares;
  shares.categories =
      by_category.largest_first([&](Category category) { return std::string(names.name_of(category)); });
  shares.modules = by_stack.largest_first([&](StackId stack) { return sites.module_of(stack); });
  shares.lines = by_stack.largest_first(
      [&](StackId stack) { return stack == 0 ? std::string() : sites.text_of(sites.place_of(stack, frames)); });
  shares.pools = by_pool.largest_first([&](std::uint16_t pool) { return pool_text(history.pools[pool]); });
  shares.streams =
      by_stream.largest_first([&](std::uint16_t stream) { return fmt::format("{:#x}", history.streams[stream]); });
  shares.stages = by_stage.largest_first([&](StageId stage) { return stages.name(stage); });
  return shares;
}

std::vector<Temporary> temporaries_of(std::span<const Allocation> allocations, Sites& sites, std::size_t most) {
  constexpr std::uint32_t kShort = 16;  // events from its begin to its end: freed before the next few
  struct Found {
    std::uint64_t count = 0;
    std::uint64_t live = 0;
    std::uint64_t most_live = 0;
    std::map<std::uint32_t, std::uint64_t> ends;  // of the live ones
  };
  std::map<std::tuple<StackId, std::uint64_t>, Found> found;  // by stack and bytes
  for (const Allocation& one : allocations) {
    const bool is_short =
        one.begin != Allocation::kBefore && one.end != Allocation::kNever && one.end - one.begin <= kShort;
    if (!is_short || one.stack == 0) continue;
    Found& site = found[{one.stack, one.bytes}];
    while (!site.ends.empty() && site.ends.begin()->first < one.begin) {
      site.live -= site.ends.begin()->second;
      site.ends.erase(site.ends.begin());
    }
    ++site.ends[one.end];
    ++site.count;
    site.most_live = std::max(site.most_live, ++site.live);
  }
  std::map<std::tuple<FrameId, std::uint64_t>, Temporary> by_place;
  for (const auto& [key, site] : found) {
    const auto& [stack, bytes] = key;
    const FrameId place = sites.place_of(stack);
    Temporary& one = by_place[{place, bytes}];
    one.bytes = bytes;
    one.count += site.count;
    one.most_live = std::max(one.most_live, site.most_live);
    if (one.at.empty()) one.at = sites.text_of(place);
  }
  std::vector<Temporary> temporaries;
  for (auto& [key, one] : by_place) {
    if (one.count >= kFewestTemporaries && one.bytes > 0) temporaries.push_back(std::move(one));
  }
  std::ranges::stable_sort(temporaries, std::greater<>{}, [](const Temporary& one) { return one.bytes * one.count; });
  if (temporaries.size() > most) temporaries.resize(most);
  return temporaries;
}

}  // namespace cachalot::tools
