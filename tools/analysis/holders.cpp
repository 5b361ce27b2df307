#include "tools/analysis/holders.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "tools/history/address_map.h"

namespace cachalot::tools {

std::vector<BlockOwner> owners_of(const Timeline& timeline) {
  const DeviceHistory& device = timeline.device();
  const std::vector<Allocation>& allocations = timeline.allocations();
  AddressMap blocks;
  for (std::size_t i = 0; i < device.blocks.size(); ++i) {
    if (device.blocks[i].owner != 0) blocks.set(device.blocks[i].address, static_cast<std::uint32_t>(i));
  }
  std::vector<BlockOwner> owners(allocations.size());
  bool is_any_told = false;
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    if (allocations[i].end != Allocation::kNever) continue;
    const std::uint32_t number = blocks.find(allocations[i].address);
    if (number == AddressMap::kNone) continue;
    owners[i] = {.name = device.blocks[number].owner, .kind = device.blocks[number].owner_kind};
    is_any_told = true;
  }
  return is_any_told ? owners : std::vector<BlockOwner>();
}

std::vector<Category> told_categories(const History& history, std::span<const BlockOwner> owners,
                                      std::span<const Category> categories) {
  std::vector<Category> told(categories.begin(), categories.end());
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const std::string_view kind = history.texts[owners[i].kind];
    if (kind == "parameters" || kind == "buffers") told[i] = Category::parameters;
    if (kind == "gradients") told[i] = Category::gradients;
    if (kind == "optimizer state") told[i] = Category::optimizer_state;
  }
  return told;
}

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

constexpr StageId kEarlier = std::numeric_limits<StageId>::max();

}  // namespace

Shares shares_of(const Timeline& timeline, std::span<const Category> categories, const Categorizer& names,
                 const Moment& moment, Sites& sites, Frames frames) {
  const History& history = timeline.history();
  const Stages stages(history, timeline.device(), Stages::Of::user);
  const Stages modules(history, timeline.device(), Stages::Of::modules);
  Sums<Category> by_category;
  Sums<StackId> by_stack;
  Sums<std::uint16_t> by_pool;
  Sums<std::uint16_t> by_stream;
  Sums<StageId> by_stage;
  Sums<StageId> by_module;
  for (const std::uint32_t i : moment.live) {
    const Allocation& one = timeline.allocations()[i];
    by_category.add(categories[i], one.bytes);
    by_stack.add(sites.telling_stack(one.stack, one.details), one.bytes);
    by_pool.add(one.pool, one.bytes);
    by_stream.add(one.stream, one.bytes);
    const bool is_earlier = one.begin == Allocation::kBefore;
    by_stage.add(!is_earlier ? stages.at(one.begin) : stages.size() > 1 ? kEarlier : 0, one.bytes);
    by_module.add(is_earlier ? 0 : modules.at(one.begin), one.bytes);
  }
  Shares shares;
  shares.categories =
      by_category.largest_first([&](Category category) { return std::string(names.name_of(category)); });
  shares.modules = modules.size() > 1 ? by_module.largest_first([&](StageId module) { return modules.name(module); })
                                      : by_stack.largest_first([&](StackId stack) { return sites.module_of(stack); });
  shares.lines = by_stack.largest_first(
      [&](StackId stack) { return stack == 0 ? std::string() : sites.text_of(sites.place_of(stack, frames)); });
  shares.pools = by_pool.largest_first([&](std::uint16_t pool) { return pool_text(history.pools[pool]); });
  shares.streams =
      by_stream.largest_first([&](std::uint16_t stream) { return fmt::format("{:#x}", history.streams[stream]); });
  shares.stages = by_stage.largest_first(
      [&](StageId stage) { return stage == kEarlier ? std::string("(before the history)") : stages.name(stage); });
  return shares;
}

constexpr std::uint64_t kFewestTemporaries = 10;

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

std::vector<TreeLine> tree_of(const Timeline& timeline, const Moment& moment, Sites& sites, Frames frames) {
  constexpr std::uint64_t kSmallestPart = 50;  // of all: 2 %
  StackTree tree(timeline.history(), sites, frames);
  for (const std::uint32_t i : moment.live) {
    const Allocation& one = timeline.allocations()[i];
    tree.add(sites.telling_stack(one.stack, one.details), one.bytes);
  }
  const auto children = tree.children();
  std::vector<TreeLine> lines;
  std::vector<std::pair<std::uint32_t, std::size_t>> open = {{0, 0}};
  while (!open.empty()) {
    const auto [node, depth] = open.back();
    open.pop_back();
    const StackTree::Node& one = tree.nodes()[node];
    if (node != 0)
      lines.push_back({.depth = depth - 1, .bytes = one.bytes, .count = one.count, .at = sites.text_of(one.frame)});
    for (auto child = children[node].rbegin(); child != children[node].rend(); ++child) {
      if (tree.nodes()[*child].bytes * kSmallestPart >= tree.nodes()[0].bytes) open.emplace_back(*child, depth + 1);
    }
  }
  return lines;
}

}  // namespace cachalot::tools
