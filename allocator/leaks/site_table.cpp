#include "leaks/site_table.h"

#include <algorithm>
#include <utility>

CACHALOT_BEGIN

namespace {

// Sites without live blocks stay until the iteration ends, in which they may be used again; where no iteration ever ends
// there may be this many beyond the live blocks.
constexpr std::size_t kSpareSites = 4096;

}  // namespace

void SiteTable::allocated(const Change& change, const CallStack& stack) {
  freed(change);  // a free that nobody told of: whoever has the address now is another block
  Site& site = sites_.try_emplace(stack).first->second;
  site.stack = stack;
  blocks_.emplace(Key{change.device, change.address}, Block{&site, change.block_bytes, iterations_, Clock::now()});
  site.live_bytes += change.block_bytes;
  ++site.live_blocks;
  ++site.allocated_blocks;
  live_bytes_ += change.block_bytes;
  if (sites_.size() > 2 * blocks_.size() + kSpareSites) forget_empty_sites();
}

std::optional<std::size_t> SiteTable::freed(const Change& change) {
  const auto found = blocks_.find({change.device, change.address});
  if (found == blocks_.end()) return std::nullopt;
  const Block block = found->second;
  blocks_.erase(found);
  block.site->live_bytes -= block.bytes;
  --block.site->live_blocks;
  live_bytes_ -= block.bytes;
  return block.bytes;
}

void SiteTable::end_iteration(bool note, std::size_t window) {
  ++iterations_;
  forget_empty_sites();
  if (!note) return;
  for (auto& [stack, site] : sites_) {
    if (site.notes.size() == window) site.notes.erase(site.notes.begin());
    site.notes.push_back(site.live_bytes);
  }
}

void SiteTable::forget_empty_sites() {
  std::erase_if(sites_, [](const auto& entry) { return entry.second.live_blocks == 0; });
}

std::size_t SiteTable::site_count() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(sites_, [](const auto& entry) { return entry.second.live_blocks > 0; }));
}

void SiteTable::for_each(const std::function<void(const Site&)>& visit) const {
  for (const auto& [stack, site] : sites_) visit(site);
}

std::vector<AllocationSite> SiteTable::sites(const std::function<bool(const Site&)>& wanted) const {
  const Clock::time_point now = Clock::now();
  struct Gathered {
    AllocationSite site;
    std::vector<std::pair<Clock::time_point, Address>> blocks;
  };
  std::unordered_map<const Site*, Gathered> gathered;
  for (const auto& [stack, site] : sites_) {
    if (site.live_blocks > 0 && wanted(site)) {
      gathered[&site].site = {site.stack, site.live_bytes, site.live_blocks, site.allocated_blocks, 0, 0, {}};
    }
  }
  for (const auto& [key, block] : blocks_) {
    const auto found = gathered.find(block.site);
    if (found == gathered.end()) continue;
    auto& [site, blocks] = found->second;
    site.oldest_iterations = std::max(site.oldest_iterations, iterations_ - block.iteration);
    site.oldest_seconds = std::max(site.oldest_seconds, std::chrono::duration<double>(now - block.since).count());
    blocks.emplace_back(block.since, key.address);
  }
  std::vector<AllocationSite> sites;
  for (auto& [key, entry] : gathered) {
    std::ranges::sort(entry.blocks, std::greater<>());
    if (entry.blocks.size() > AllocationSite::kSomeAddresses) entry.blocks.resize(AllocationSite::kSomeAddresses);
    for (const auto& [since, address] : entry.blocks) entry.site.some_addresses.push_back(address);
    sites.push_back(std::move(entry.site));
  }
  return sites;
}

std::vector<AllocationSite> SiteTable::largest(std::size_t most) const {
  std::vector<const Site*> order;
  for (const auto& [stack, site] : sites_) {
    if (site.live_blocks > 0) order.push_back(&site);
  }
  const auto larger = [](const Site* a, const Site* b) { return a->live_bytes > b->live_bytes; };
  const auto end = order.begin() + static_cast<std::ptrdiff_t>(std::min(most, order.size()));
  std::ranges::partial_sort(order, end, larger);
  order.erase(end, order.end());
  std::vector<AllocationSite> found =
      sites([&](const Site& site) { return std::ranges::find(order, &site) != order.end(); });
  std::ranges::sort(found, std::greater<>(), &AllocationSite::live_bytes);
  return found;
}

CACHALOT_END
