#include "cachalot/leak_detector.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <new>
#include <optional>
#include <random>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "base/json_writer.h"
#include "base/locks.h"
#include "base/process.h"
#include "cachalot/events.h"
#include "diagnostics/trend.h"

CACHALOT_BEGIN

namespace {

// Sites without live blocks stay until the iteration ends, in which they may be used again; where no iteration ever ends
// there may be this many beyond the live blocks.
constexpr std::size_t kSpareSites = 4096;

// Samples, oldest first, of which the last `window` are kept.
using Samples = std::vector<std::size_t>;

void append(Samples& samples, std::size_t value, std::size_t window) {
  if (samples.size() == window) samples.erase(samples.begin());
  samples.push_back(value);
}

// Keeps every second one, among them the newest.
void thin_out(Samples& samples) {
  std::size_t kept = 0;
  for (std::size_t i = (samples.size() + 1) % 2; i < samples.size(); i += 2) samples[kept++] = samples[i];
  samples.resize(kept);
}

}  // namespace

// The moments of samples: at the ends of the newest iterations; at the ends of some, over the whole run; and between
// allocations, which are judged where iterations are too few, or the program has gone on for long after the last.
enum Moments : std::size_t { kIterations, kWholeRun, kAllocations };
template <typename Value>
using ByMoments = std::array<Value, 3>;

// Sums over all devices. In step with the allocator's own where all Changes are seen: with the guard on only those of
// blocks are.
struct MemorySums {
  std::size_t reserved = 0;
  std::size_t allocated = 0;

  void add(const Change& change) {
    using Action = Change::Action;
    const auto is = [&](Action action) { return change.action == action; };
    if (is(Action::alloc)) allocated += change.block_bytes;
    if (is(Action::free_requested)) allocated -= std::min(allocated, change.block_bytes);
    if (is(Action::segment_alloc) || is(Action::segment_map)) reserved += change.bytes;
    if (is(Action::segment_free) || is(Action::segment_unmap)) reserved -= std::min(reserved, change.bytes);
  }
  std::size_t idle() const { return reserved - std::min(reserved, allocated); }
};

// The moments of samples that are counted in allocations, or in iterations of the whole run. Distances vary at random: those of a constant one, in step with a loop, would show a phase of the loop as growth. Not thread-safe.
class SampleClock {
 public:
  // Counts one. Returns true if it is the moment of a sample.
  bool tick() {
    ++ticks_;
    if (--left_ > 0) return false;
    left_ = 1 + random_() % (2 * distance_ - 1);
    return true;
  }
  void double_distance() { distance_ *= 2; }
  void restart(std::size_t distance) {
    distance_ = distance;
    left_ = 1;
    ticks_ = 0;
  }
  std::size_t distance() const { return distance_; }  // mean
  void count_from_now_on() { ticks_ = 0; }
  std::size_t ticks() const { return ticks_; }  // since it was last told to count, or restarted

 private:
  std::size_t distance_ = 1;
  std::size_t left_ = 1;
  std::size_t ticks_ = 0;
  std::minstd_rand random_;
};

// The live blocks that were allocated during a watch, by their call sites.
// Invariant: a site's live bytes and blocks are the sums over its blocks. Not thread-safe.
class SiteTable {
 public:
  struct Site {
    CallStack stack;
    std::size_t live_bytes = 0;
    std::size_t live_blocks = 0;
    std::uint64_t allocated_blocks = 0;
    ByMoments<Samples> samples;                  // of live bytes
    ByMoments<std::size_t> sampled_blocks = {};  // live at the last sample
  };

  void allocated(const Change& change, const CallStack& stack) {
    freed(change);  // a free that was not reported: the address now belongs to another block
    Site& site = sites_.try_emplace(stack).first->second;
    site.stack = stack;
    blocks_.emplace(Key{change.device, change.address}, Block{&site, change.block_bytes, iterations_, Clock::now()});
    site.live_bytes += change.block_bytes;
    ++site.live_blocks;
    ++site.allocated_blocks;
    live_bytes_ += change.block_bytes;
    if (sites_.size() > 2 * blocks_.size() + kSpareSites) forget_empty_sites();
  }
  // The block's bytes; nullopt when it was allocated before the watch.
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

  // A site that gave everything back does not leak from iteration to iteration. Its samples between allocations stay if
  // `keeps_all`.
  void end_iteration(bool keeps_all) {
    ++iterations_;
    if (!keeps_all) forget_empty_sites();
    for (auto& [stack, site] : sites_) {
      if (site.live_blocks > 0) continue;
      site.samples[kIterations].clear();
      site.samples[kWholeRun].clear();
    }
  }
  void take_samples(Moments moments, std::size_t window) {
    for (auto& [stack, site] : sites_) {
      if (moments != kAllocations && site.live_blocks == 0) continue;
      append(site.samples[moments], site.live_bytes, window);
      site.sampled_blocks[moments] = site.live_blocks;
    }
  }
  void change_samples(Moments moments, void (*change)(Samples&)) {
    for (auto& [stack, site] : sites_) change(site.samples[moments]);
  }

  std::uint64_t iterations() const { return iterations_; }
  std::size_t live_bytes() const { return live_bytes_; }
  std::size_t live_blocks() const { return blocks_.size(); }
  // With live blocks.
  std::size_t site_count() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(sites_, [](const auto& entry) { return entry.second.live_blocks > 0; }));
  }

  // Returns the sites with live blocks that `wanted` picks, in no order. One pass over all live blocks.
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
  Watch(const LeakDetectorOptions& options, const MemorySums& sums) : options_(options), sums_(sums) {}

  void on_change(const Change& change, const CallStack& stack) noexcept override {
    using Action = Change::Action;
    const Lock lock(mutex_);
    try {
      // Sampled before: memory needed for a moment only is free again before the next allocation.
      if (change.action == Action::alloc && clock_.tick()) {
        take_spread_samples(kAllocations, clock_);
        if (options_.on_sample) options_.on_sample();
      }
      if (change.action == Action::alloc) table_.allocated(change, stack);
      if (change.action == Action::free_requested) table_.freed(change);
      sums_.add(change);
    } catch (const std::bad_alloc&) {  // the host has no memory: a block more that is unknown
    }
  }

  void step(const MemorySums& sums) {
    require_own_process(kName);
    const Lock lock(mutex_);
    sums_ = sums;
    allocations_ += clock_.ticks();
    const bool is_warm = table_.iterations() >= options_.warm_up;
    table_.end_iteration(!has_iterations());
    if (is_warm) take_samples(kIterations);
    if (is_warm && run_clock_.tick()) take_spread_samples(kWholeRun, run_clock_);
    if (!has_iterations()) {
      clock_.count_from_now_on();
      return;
    }
    // From now on those between allocations are for what comes after the last iteration.
    change_samples(kAllocations, [](Samples& samples) { samples.clear(); });
    clock_.restart(1 + allocations_of_iteration() / kFewestSamples);
  }

  // The steepest `most`, and how many there are.
  std::vector<Leak> leaks(std::size_t most, std::size_t& count) const {
    require_own_process(kName);
    const Lock lock(mutex_);
    std::vector<Growing> growing;
    table_.for_each([&](const SiteTable::Site& site) CACHALOT_REQUIRES(mutex_) {
      if (const auto growth = growing_site(site)) growing.push_back(*growth);
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
    report.sample_allocations = sample_allocations();
    if (reserved_[judged()].empty()) return report;
    report.reserved_bytes = reserved_[judged()].back();
    report.idle_bytes = idle_[judged()].back();
    const auto idle = growth(idle_, judged());
    const auto reserved = growth(reserved_, judged());
    // Idle memory of segments is a finding of its own only if live memory does not grow more.
    if (idle && reserved && 2 * idle->slope > reserved->slope) report.idle_bytes_per_iteration = idle->slope;
    return report;
  }

 private:
  static constexpr const char* kName = "the leak detector";

  bool has_iterations() const CACHALOT_REQUIRES(mutex_) { return reserved_[kIterations].size() >= kFewestSamples; }
  std::size_t allocations_of_iteration() const CACHALOT_REQUIRES(mutex_) {  // mean
    return allocations_ / std::max<std::uint64_t>(1, table_.iterations());
  }
  // A program may go on for long after its last iteration: it trains, and then it serves.
  Moments judged() const CACHALOT_REQUIRES(mutex_) {
    constexpr std::size_t kManyIterations = 4;
    const bool has_gone_on = clock_.ticks() > kManyIterations * (1 + allocations_of_iteration());
    return has_iterations() && !has_gone_on ? kIterations : kAllocations;
  }
  std::optional<Trend> growth(const ByMoments<Samples>& samples, Moments moments) const CACHALOT_REQUIRES(mutex_) {
    // The first iterations allocate what stays: that must be a small part.
    const bool has_few = moments == kAllocations && table_.iterations() > 0;
    if (samples[moments].size() < (has_few ? 3 * kFewestSamples : kFewestSamples)) return std::nullopt;
    return growth_of(samples[moments], options_.min_confidence);
  }
  // Growth too slow for the newest iterations, that of a list for each epoch say; nullopt while these are all there are.
  // It must last until the end: a cache that was full before then is not growth.
  std::optional<Trend> growth_over_run(const ByMoments<Samples>& samples) const CACHALOT_REQUIRES(mutex_) {
    const std::size_t distance = run_clock_.distance();
    auto trend = distance > 1 ? growth(samples, kWholeRun) : std::nullopt;
    if (!trend) return std::nullopt;
    const std::span<const std::size_t> all(samples[kWholeRun]);
    const auto last = all.last(all.size() / 6);
    if (std::ranges::max(last) <= std::ranges::max(all.first(all.size() - last.size()))) return std::nullopt;
    trend->slope /= static_cast<double>(distance);
    return trend;
  }
  std::size_t sample_allocations() const CACHALOT_REQUIRES(mutex_) {
    return judged() == kAllocations ? clock_.distance() : 0;
  }

  void take_samples(Moments moments) CACHALOT_REQUIRES(mutex_) {
    table_.take_samples(moments, options_.window);
    append(reserved_[moments], sums_.reserved, options_.window);
    append(idle_[moments], sums_.idle(), options_.window);
  }
  void change_samples(Moments moments, void (*change)(Samples&)) CACHALOT_REQUIRES(mutex_) {
    table_.change_samples(moments, change);
    change(reserved_[moments]);
    change(idle_[moments]);
  }
  // They cover all since the clock began: of a full window every second one goes, and then the distances are twice as long.
  void take_spread_samples(Moments moments, SampleClock& clock) CACHALOT_REQUIRES(mutex_) {
    if (reserved_[moments].size() == options_.window) {
      change_samples(moments, thin_out);
      clock.double_distance();
    }
    take_samples(moments);
  }

  struct Growing {
    const SiteTable::Site* site;
    Trend trend;
    Moments moments;  // kIterations or kAllocations
  };

  // A site that grew from iteration to iteration is reported, no matter how long the program has gone on since.
  std::optional<Growing> growing_site(const SiteTable::Site& site) const CACHALOT_REQUIRES(mutex_) {
    if (has_iterations()) {
      if (const auto trend = growth(site.samples, kIterations)) return Growing{&site, *trend, kIterations};
      if (const auto trend = growth_over_run(site.samples)) return Growing{&site, *trend, kIterations};
    }
    const auto trend = judged() == kAllocations ? growth(site.samples, kAllocations) : std::nullopt;
    return trend ? std::optional(Growing{&site, *trend, kAllocations}) : std::nullopt;
  }

  std::vector<Leak> described(const std::vector<Growing>& growing) const CACHALOT_REQUIRES(mutex_) {
    const std::vector<AllocationSite> sites = table_.sites([&](const SiteTable::Site& site) {
      return std::ranges::find(growing, &site, &Growing::site) != growing.end();
    });
    std::vector<Leak> leaks;
    for (const auto& [site, trend, moments] : growing) {
      const auto found = std::ranges::find(sites, site->stack, &AllocationSite::stack);
      const AllocationSite freed{site->stack, 0, 0, site->allocated_blocks, 0, 0, {}};
      leaks.push_back({.site = found != sites.end() ? *found : freed,
                       .bytes_per_iteration = trend.slope,
                       .confidence = trend.confidence,
                       .iterations = site->samples[moments].size(),
                       .sample_allocations = moments == kAllocations ? clock_.distance() : 0,
                       .highest_bytes = std::max(site->live_bytes, site->samples[moments].back()),
                       .highest_blocks = std::max(site->live_blocks, site->sampled_blocks[moments])});
    }
    return leaks;
  }

  const LeakDetectorOptions options_;
  mutable SleepingMutex mutex_;  // taken under the devices' locks; nothing is called under it
  SiteTable table_ CACHALOT_GUARDED_BY(mutex_);
  SampleClock clock_ CACHALOT_GUARDED_BY(mutex_);      // of allocations
  SampleClock run_clock_ CACHALOT_GUARDED_BY(mutex_);  // of iterations
  MemorySums sums_ CACHALOT_GUARDED_BY(mutex_);
  std::uint64_t allocations_ CACHALOT_GUARDED_BY(mutex_) = 0;  // until the last step
  ByMoments<Samples> reserved_ CACHALOT_GUARDED_BY(mutex_);    // taken with those of the sites
  ByMoments<Samples> idle_ CACHALOT_GUARDED_BY(mutex_);
};

namespace {

MemorySums sums_of(const CachingAllocator& allocator) {
  MemorySums sums;
  for (int device = 0; device < allocator.device_count(); ++device) {
    sums.reserved += allocator.memory_reserved(device);
    sums.allocated += allocator.memory_allocated(device);
  }
  return sums;
}

}  // namespace

LeakDetector::LeakDetector(CachingAllocator& allocator, const LeakDetectorOptions& options)
    : allocator_(allocator), allocator_life_(allocator.life()) {
  CACHALOT_REQUIRE(options.window >= kFewestSamples, "window is {}; a leak detector needs at least {} iterations",
                   options.window, kFewestSamples);
  CACHALOT_REQUIRE(options.min_confidence >= 0.5 && options.min_confidence < 1,
                   "min_confidence is {}; it must be at least 0.5 and less than 1", options.min_confidence);
  watch_ = std::make_shared<Watch>(options, sums_of(allocator));
  allocator_.add_watcher(watch_);
}

LeakDetector::~LeakDetector() {
  if (!allocator_life_.expired()) allocator_.remove_watcher(watch_.get());
}

void LeakDetector::step() { watch_->step(allocator_life_.expired() ? MemorySums() : sums_of(allocator_)); }

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
    // Freed memory from before the watch makes room: it may be more than the allocated memory.
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

// The reports of LeakDetector and AllocationTrack, as text and as JSON.

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

std::string every(std::size_t allocations) {
  return allocations == 1 ? "each allocation" : formatted("every {} allocations", allocations);
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
  json.member("iterations", leak.iterations).member("sample_allocations", leak.sample_allocations);
  json.member("highest_bytes", leak.highest_bytes).member("highest_blocks", leak.highest_blocks).end_object();
}

}  // namespace

std::string to_string(const AllocationSite& site) { return headline(site) + "\n" + lines(site.stack, "  "); }

std::string to_json(const AllocationSite& site) {
  JsonWriter json;
  write_site(json, site);
  return json.take();
}

namespace {

std::string per(std::size_t sample_allocations) {
  return sample_allocations == 0 ? "an iteration" : every(sample_allocations);
}

}  // namespace

std::string to_string(const Leak& leak) {
  const bool was_higher = leak.highest_bytes > leak.site.live_bytes;
  return formatted(
      "+{} {} (confidence {:.4f}): {}{}\n{}", format_bytes(static_cast<std::size_t>(leak.bytes_per_iteration)),
      per(leak.sample_allocations), std::min(leak.confidence, 0.9999),  // it is a test: never certain
      was_higher ? held(leak.highest_bytes, leak.highest_blocks) + " when the last iteration ended; now " : "",
      headline(leak.site), lines(leak.site.stack, "  "));
}

std::string to_string(const LeakReport& report) {
  const bool is_one = report.leak_count == 1;
  std::string text =
      formatted("{} of {} grow{} after {}; {} live\n", format_count(report.leak_count, "site"),
                std::max(report.site_count, report.leak_count), is_one ? "s" : "",
                format_count(report.iterations, "iteration"), held(report.live_bytes, report.live_blocks));
  for (const Leak& leak : report.leaks) text += to_string(leak);
  if (report.leak_count > report.leaks.size()) {
    text += formatted("and {} more\n", report.leak_count - report.leaks.size());
  }
  if (report.idle_bytes_per_iteration > 0) {
    text +=
        formatted("+{} {} of reserved memory that lies idle: {} of {}\n",
                  format_bytes(static_cast<std::size_t>(report.idle_bytes_per_iteration)),
                  per(report.sample_allocations), format_bytes(report.idle_bytes), format_bytes(report.reserved_bytes));
  }
  return text;
}

std::string to_json(const LeakReport& report) {
  JsonWriter json;
  json.begin_object().member("iterations", report.iterations).member("live_bytes", report.live_bytes);
  json.member("live_blocks", report.live_blocks).member("site_count", report.site_count);
  json.member("leak_count", report.leak_count).member("sample_allocations", report.sample_allocations);
  json.member("reserved_bytes", report.reserved_bytes);
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
