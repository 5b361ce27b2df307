#include "cachalot/leak_detector.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <new>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "base/json_writer.h"
#include "base/locks.h"
#include "base/process.h"
#include "cachalot/allocation_track.h"
#include "cachalot/change.h"
#include "leaks/trend.h"

CACHALOT_BEGIN

namespace {

// Sites without live blocks stay until the iteration ends, in which they may be used again; where no iteration ever ends
// there may be this many beyond the live blocks.
constexpr std::size_t kSpareSites = 4096;

}  // namespace

// The live blocks that were allocated while somebody watched, by where they came from.
// Invariant: a site's live bytes and blocks are the sums over its blocks. Not thread-safe.
class SiteTable {
 public:
  struct Site {
    CallStack stack;
    std::size_t live_bytes = 0;
    std::size_t live_blocks = 0;
    std::uint64_t allocated_blocks = 0;
    std::vector<std::size_t> notes;  // live bytes at the ends of iterations, oldest first
    std::size_t noted_blocks = 0;    // live at the last note
  };

  void allocated(const Change& change, const CallStack& stack) {
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
  // The block's bytes; nullopt when it was allocated before anybody watched.
  std::optional<std::size_t> freed(const Change& change) {
    const auto found = blocks_.find({change.device, change.address});
    if (found == blocks_.end()) return std::nullopt;
    const Block block = found->second;
    blocks_.erase(found);
    block.site->live_bytes -= block.bytes;
    --block.site->live_blocks;
    live_bytes_ -= block.bytes;
    return block.bytes;
  }

  // The end of an iteration: each site's live bytes are noted, if asked for, and of the notes the last `window` are kept.
  // Sites without live blocks are forgotten: what gave everything back is no leak.
  void end_iteration(bool note, std::size_t window) {
    ++iterations_;
    forget_empty_sites();
    if (!note) return;
    for (auto& [stack, site] : sites_) {
      if (site.notes.size() == window) site.notes.erase(site.notes.begin());
      site.notes.push_back(site.live_bytes);
      site.noted_blocks = site.live_blocks;
    }
  }

  std::uint64_t iterations() const { return iterations_; }
  std::size_t live_bytes() const { return live_bytes_; }
  std::size_t live_blocks() const { return blocks_.size(); }
  // With live blocks.
  std::size_t site_count() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(sites_, [](const auto& entry) { return entry.second.live_blocks > 0; }));
  }

  // Those with live blocks that `wanted` picks, in no order. One pass over all live blocks.
  std::vector<AllocationSite> sites(const std::function<bool(const Site&)>& wanted) const {
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
  // The `most` with the most live bytes, first things first.
  std::vector<AllocationSite> largest(std::size_t most) const {
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
  void for_each(const std::function<void(const Site&)>& visit) const {
    for (const auto& [stack, site] : sites_) visit(site);
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Key {
    int device;
    Address address;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept {
      return std::hash<Address>()(key.address ^ (static_cast<Address>(key.device) << 56));
    }
  };
  struct Block {
    Site* site;
    std::size_t bytes;
    std::uint64_t iteration;
    Clock::time_point since;
  };

  void forget_empty_sites() {
    std::erase_if(sites_, [](const auto& entry) { return entry.second.live_blocks == 0; });
  }

  std::unordered_map<CallStack, Site> sites_;  // addresses of sites are stable
  std::unordered_map<Key, Block, Hash> blocks_;
  std::uint64_t iterations_ = 0;
  std::size_t live_bytes_ = 0;
};

class LeakDetector::Watch final : public Watcher, public ForkAware {
 public:
  explicit Watch(const LeakDetectorOptions& options) : options_(options) {}

  void on_change(const Change& change, const CallStack& stack) noexcept override {
    const bool is_alloc = change.action == Change::Action::alloc;
    if (!is_alloc && change.action != Change::Action::free_requested) return;
    const Lock lock(mutex_);
    try {
      is_alloc ? table_.allocated(change, stack) : (void)table_.freed(change);
    } catch (const std::bad_alloc&) {  // the host has no memory: a block more that is unknown
    }
  }

  void step(std::size_t reserved_bytes, std::size_t idle_bytes) {
    require_own_process(kName);
    const Lock lock(mutex_);
    const bool note = table_.iterations() >= options_.warm_up;
    table_.end_iteration(note, options_.window);
    if (!note) return;
    for (auto* notes : {&reserved_, &idle_}) {
      if (notes->size() == options_.window) notes->erase(notes->begin());
    }
    reserved_.push_back(reserved_bytes);
    idle_.push_back(idle_bytes);
  }

  // The steepest `most`, and how many there are.
  std::vector<Leak> leaks(std::size_t most, std::size_t& count) const {
    require_own_process(kName);
    const Lock lock(mutex_);
    std::vector<Growing> growing;
    table_.for_each([&](const SiteTable::Site& site) {
      if (const auto trend = growth_of(site.notes, options_.min_confidence)) growing.push_back({&site, *trend});
    });
    count = growing.size();
    std::ranges::sort(growing, std::greater<>(), [](const Growing& leak) { return leak.trend.slope; });
    if (growing.size() > most) growing.resize(most);
    return described(growing);
  }

  LeakReport report(std::size_t most) const {
    LeakReport report;
    report.leaks = leaks(most, report.leak_count);
    const Lock lock(mutex_);
    report.iterations = table_.iterations();
    report.live_bytes = table_.live_bytes();
    report.live_blocks = table_.live_blocks();
    report.site_count = table_.site_count();
    report.sites = table_.largest(most);
    if (reserved_.empty()) return report;
    report.reserved_bytes = reserved_.back();
    report.idle_bytes = idle_.back();
    const auto idle = growth_of(idle_, options_.min_confidence);
    if (idle && growth_of(reserved_, options_.min_confidence)) report.idle_bytes_per_iteration = idle->slope;
    return report;
  }

 private:
  static constexpr const char* kName = "the leak detector";
  struct Growing {
    const SiteTable::Site* site;
    Trend trend;
  };

  std::vector<Leak> described(const std::vector<Growing>& growing) const CACHALOT_REQUIRES(mutex_) {
    const std::vector<AllocationSite> sites = table_.sites([&](const SiteTable::Site& site) {
      return std::ranges::find(growing, &site, &Growing::site) != growing.end();
    });
    std::vector<Leak> leaks;
    for (const auto& [site, trend] : growing) {
      const auto found = std::ranges::find(sites, site->stack, &AllocationSite::stack);
      const AllocationSite freed{site->stack, 0, 0, site->allocated_blocks, 0, 0, {}};
      leaks.push_back({.site = found != sites.end() ? *found : freed,
                       .bytes_per_iteration = trend.slope,
                       .confidence = trend.confidence,
                       .iterations = site->notes.size(),
                       .highest_bytes = std::max(site->live_bytes, site->notes.back()),
                       .highest_blocks = std::max(site->live_blocks, site->noted_blocks)});
    }
    return leaks;
  }

  const LeakDetectorOptions options_;
  mutable SleepingMutex mutex_;  // taken under the devices' locks; nothing is called under it
  SiteTable table_ CACHALOT_GUARDED_BY(mutex_);
  std::vector<std::size_t> reserved_ CACHALOT_GUARDED_BY(mutex_);  // at the ends of iterations, as the sites' notes
  std::vector<std::size_t> idle_ CACHALOT_GUARDED_BY(mutex_);
};

LeakDetector::LeakDetector(CachingAllocator& allocator, const LeakDetectorOptions& options)
    : allocator_(allocator), allocator_life_(allocator.life()) {
  CACHALOT_REQUIRE(options.window >= kFewestSamples, "window is {}; a leak detector needs at least {} iterations",
                   options.window, kFewestSamples);
  CACHALOT_REQUIRE(options.min_confidence >= 0.5 && options.min_confidence < 1,
                   "min_confidence is {}; it must be at least 0.5 and less than 1", options.min_confidence);
  watch_ = std::make_shared<Watch>(options);
  allocator_.add_watcher(watch_);
}

LeakDetector::~LeakDetector() {
  if (!allocator_life_.expired()) allocator_.remove_watcher(watch_.get());
}

void LeakDetector::step() {
  std::size_t reserved = 0;
  std::size_t allocated = 0;
  for (int device = 0; !allocator_life_.expired() && device < allocator_.device_count(); ++device) {
    reserved += allocator_.memory_reserved(device);
    allocated += allocator_.memory_allocated(device);
  }
  watch_->step(reserved, reserved - std::min(reserved, allocated));
}

std::vector<Leak> LeakDetector::leaks(std::size_t most) const {
  std::size_t count = 0;
  std::vector<Leak> leaks = watch_->leaks(most, count);
  std::erase_if(leaks, [](const Leak& leak) { return leak.site.live_blocks == 0; });
  return leaks;
}

LeakReport LeakDetector::report(std::size_t most) const { return watch_->report(most); }

class AllocationTrack::Watch final : public Watcher, public ForkAware {
 public:
  void on_change(const Change& change, const CallStack& stack) noexcept override {
    const Lock lock(mutex_);
    if (change.action == Change::Action::alloc) count_allocation(change, stack);
    if (change.action == Change::Action::free_requested) count_free(change);
  }

  TrackReport report(std::size_t most) const {
    require_own_process("the track");
    const Lock lock(mutex_);
    TrackReport report = totals_;
    report.left_blocks = table_.live_blocks();
    report.left_bytes = table_.live_bytes();
    report.site_count = table_.site_count();
    report.sites = table_.largest(most);
    return report;
  }

 private:
  void count_allocation(const Change& change, const CallStack& stack) CACHALOT_REQUIRES(mutex_) {
    try {
      table_.allocated(change, stack);
    } catch (const std::bad_alloc&) {  // the host has no memory: its free counts as one of an earlier block
    }
    ++totals_.allocated_blocks;
    totals_.allocated_bytes += change.block_bytes;
    // What there was before and is freed makes room: it may be more than what is allocated.
    if (totals_.allocated_bytes > totals_.freed_bytes) {
      totals_.peak_bytes = std::max(totals_.peak_bytes, totals_.allocated_bytes - totals_.freed_bytes);
    }
  }

  void count_free(const Change& change) CACHALOT_REQUIRES(mutex_) {
    const auto known = table_.freed(change);
    ++totals_.freed_blocks;
    totals_.freed_bytes += change.block_bytes;
    if (known) return;
    ++totals_.freed_earlier_blocks;
    totals_.freed_earlier_bytes += change.block_bytes;
  }

  mutable SleepingMutex mutex_;  // taken under the devices' locks; nothing is called under it
  SiteTable table_ CACHALOT_GUARDED_BY(mutex_);
  TrackReport totals_ CACHALOT_GUARDED_BY(mutex_);
};

AllocationTrack::AllocationTrack(CachingAllocator& allocator)
    : watch_(std::make_shared<Watch>()), allocator_(allocator), allocator_life_(allocator.life()) {
  allocator_.add_watcher(watch_);
}

AllocationTrack::~AllocationTrack() { stop(); }

void AllocationTrack::stop() {
  if (!allocator_life_.expired()) allocator_.remove_watcher(watch_.get());
}

TrackReport AllocationTrack::report(std::size_t most) const { return watch_->report(most); }

// What LeakDetector and AllocationTrack say, as text and as JSON.

namespace {

constexpr std::size_t kFramesInText = 12;

std::string held(std::size_t bytes, std::uint64_t blocks) {
  return formatted("{} in {}", format_bytes(bytes), format_count(blocks, "block"));
}

std::string lines(const CallStack& stack, std::string_view indentation) {
  if (stack.empty()) return formatted("{}(no call stack)\n", indentation);
  const std::vector<CallFrame> frames = stack.frames();
  std::string text;
  for (std::size_t i = 0; i < frames.size() && i < kFramesInText; ++i) {
    text += formatted("{}#{} {}\n", indentation, i, to_string(frames[i]));
  }
  if (frames.size() > kFramesInText) text += formatted("{}… {} more\n", indentation, frames.size() - kFramesInText);
  return text;
}

std::string headline(const AllocationSite& site) {
  return formatted("{}, the oldest {} ({:.1f} s) old", held(site.live_bytes, site.live_blocks),
                   format_count(site.oldest_iterations, "iteration"), site.oldest_seconds);
}

void write_frame(JsonWriter& json, const CallFrame& frame) {
  json.begin_object().member("function", frame.function).member("file", frame.file).member("line", frame.line);
  json.member("is_script", frame.is_script).end_object();
}

void write_members(JsonWriter& json, const AllocationSite& site) {
  json.member("live_bytes", site.live_bytes).member("live_blocks", site.live_blocks);
  json.member("allocated_blocks", site.allocated_blocks).member("oldest_iterations", site.oldest_iterations);
  json.member("oldest_seconds", site.oldest_seconds);
  json.key("stack").list(site.stack.frames(), write_frame);
  json.key("some_addresses").list(site.some_addresses);
}

void write_site(JsonWriter& json, const AllocationSite& site) {
  json.begin_object();
  write_members(json, site);
  json.end_object();
}

void write_leak(JsonWriter& json, const Leak& leak) {
  json.begin_object();
  write_members(json, leak.site);
  json.member("bytes_per_iteration", leak.bytes_per_iteration).member("confidence", leak.confidence);
  json.member("iterations", leak.iterations).member("highest_bytes", leak.highest_bytes);
  json.member("highest_blocks", leak.highest_blocks).end_object();
}

}  // namespace

std::string to_string(const AllocationSite& site) { return headline(site) + "\n" + lines(site.stack, "  "); }

std::string to_json(const AllocationSite& site) {
  JsonWriter json;
  write_site(json, site);
  return json.take();
}

std::string to_string(const Leak& leak) {
  const bool was_higher = leak.highest_bytes > leak.site.live_bytes;
  return formatted(
      "+{} an iteration (confidence {:.4f}): {}{}\n{}",
      format_bytes(static_cast<std::size_t>(leak.bytes_per_iteration)),
      std::min(leak.confidence, 0.9999),  // it is a test: never certain
      was_higher ? held(leak.highest_bytes, leak.highest_blocks) + " when the last iteration ended; now " : "",
      headline(leak.site), lines(leak.site.stack, "  "));
}

std::string to_string(const LeakReport& report) {
  const bool is_one = report.leak_count == 1;
  std::string text = formatted("{} of {} grow{} after {}; {} live\n", format_count(report.leak_count, "site"),
                               report.site_count, is_one ? "s" : "", format_count(report.iterations, "iteration"),
                               held(report.live_bytes, report.live_blocks));
  for (const Leak& leak : report.leaks) text += to_string(leak);
  if (report.leak_count > report.leaks.size()) {
    text += formatted("and {} more\n", report.leak_count - report.leaks.size());
  }
  if (report.idle_bytes_per_iteration > 0) {
    text += formatted("+{} an iteration of reserved memory that lies idle: {} of {}\n",
                      format_bytes(static_cast<std::size_t>(report.idle_bytes_per_iteration)),
                      format_bytes(report.idle_bytes), format_bytes(report.reserved_bytes));
  }
  return text;
}

std::string to_json(const LeakReport& report) {
  JsonWriter json;
  json.begin_object().member("iterations", report.iterations).member("live_bytes", report.live_bytes);
  json.member("live_blocks", report.live_blocks).member("site_count", report.site_count);
  json.member("leak_count", report.leak_count).member("reserved_bytes", report.reserved_bytes);
  json.member("idle_bytes", report.idle_bytes).member("idle_bytes_per_iteration", report.idle_bytes_per_iteration);
  json.key("leaks").list(report.leaks, write_leak);
  json.key("sites").list(report.sites, write_site);
  return json.end_object().take();
}

std::string to_string(const TrackReport& report) {
  std::string text =
      formatted("allocated {}, freed {} (of those {} from before), left {}, peak {}\n",
                held(report.allocated_bytes, report.allocated_blocks), held(report.freed_bytes, report.freed_blocks),
                held(report.freed_earlier_bytes, report.freed_earlier_blocks),
                held(report.left_bytes, report.left_blocks), format_bytes(report.peak_bytes));
  for (const AllocationSite& site : report.sites) text += to_string(site);
  if (report.site_count > report.sites.size()) {
    text += formatted("and {} more\n", format_count(report.site_count - report.sites.size(), "site"));
  }
  return text;
}

std::string to_json(const TrackReport& report) {
  JsonWriter json;
  json.begin_object().member("allocated_blocks", report.allocated_blocks);
  json.member("allocated_bytes", report.allocated_bytes).member("freed_blocks", report.freed_blocks);
  json.member("freed_bytes", report.freed_bytes).member("freed_earlier_blocks", report.freed_earlier_blocks);
  json.member("freed_earlier_bytes", report.freed_earlier_bytes).member("left_blocks", report.left_blocks);
  json.member("left_bytes", report.left_bytes).member("peak_bytes", report.peak_bytes);
  json.member("site_count", report.site_count);
  json.key("sites").list(report.sites, write_site);
  return json.end_object().take();
}

CACHALOT_END
