#include "tools/analysis/difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "tools/analysis/categories.h"
#include "tools/analysis/difference_time.h"
#include "tools/analysis/frame_matching.h"
#include "tools/analysis/sites.h"
#include "tools/analysis/timeline.h"

namespace cachalot::tools {
namespace {

constexpr const char* kNoStack = "(no call stack was recorded)";
constexpr std::array kLists = {"category", "line", "module", "pool", "stage"};

// What one device of one run has at the compared moment.
struct Side {
  Side(const History& of_history, const DeviceHistory* of_device, const CategoryRules& rules,
       const DifferenceOptions& options)
      : history(of_history), device(of_device), sites(of_history), categorizer(of_history, rules) {
    if (device == nullptr) return;
    allocations = allocations_of(*device);
    categories = categorizer.categories_of(*device, allocations);
    stages.emplace(history, *device);
    peak = asked_peak(history.path, *device, allocations, options.at);
  }

  ComparedRun run() const { return {&history, device, allocations}; }

  DifferenceMoment moment() const {
    return {.event = peak.event,
            .events = device == nullptr ? 0 : device->events.size(),
            .requested_bytes = peak.held.requested,
            .allocated_bytes = peak.held.allocated,
            .reserved_bytes = peak.held.reserved};
  }

  // The frames by which rows are named: places, and calls of forward.
  std::vector<FrameId> naming_frames(Frames frames) {
    std::set<FrameId> found;
    for (const std::uint32_t live : peak.live) {
      const StackId stack = stack_of(allocations[live]);
      if (stack == 0) continue;
      found.insert(sites.place_of(stack, frames));
      for (const FrameId frame : history.stacks[stack]) {
        if (is_forward(frame)) found.insert(frame);
      }
    }
    return {found.begin(), found.end()};
  }

  StackId stack_of(const Allocation& allocation) { return sites.telling_stack(allocation.stack, allocation.details); }
  bool is_forward(FrameId frame) const { return history.texts[history.stacks.frame(frame).function] == "forward"; }

  const History& history;
  const DeviceHistory* device;
  Sites sites;
  Categorizer categorizer;
  std::vector<Allocation> allocations;
  std::vector<Category> categories;
  std::optional<Stages> stages;
  Peak peak;
};

// ---- names of rows, which are the same on both sides for what belongs together

// Calls in the second run's words.
class Namer {
 public:
  Namer(Side& a, Side& b, Frames frames)
      : a_(a),
        b_(b),
        frames_(frames),
        matching_(a.history, a.naming_frames(frames), b.history, b.naming_frames(frames)) {}

  std::string line_of(Side& side, const Allocation& allocation) {
    const StackId stack = side.stack_of(allocation);
    if (stack == 0) return kNoStack;
    return text_of(side, side.sites.place_of(stack, frames_));
  }
  // As its own run calls it.
  std::string own_line_of(Side& side, const Allocation& allocation) {
    const StackId stack = side.stack_of(allocation);
    return stack == 0 ? kNoStack : side.sites.text_of(side.sites.place_of(stack, frames_));
  }
  // Returns the calls of forward, the outermost first.
  std::string module_of(Side& side, const Allocation& allocation) {
    constexpr std::size_t kLongest = 400;
    std::string module;
    for (const FrameId frame : side.history.stacks[side.stack_of(allocation)]) {
      if (!side.is_forward(frame) || module.size() > kLongest) continue;
      module.insert(0, text_of(side, frame) + (module.empty() ? "" : " > "));
    }
    return module.empty() ? "(outside of modules)" : module;
  }
  static std::string pool_of(Side& side, const Allocation& allocation) {
    const PoolId pool = side.history.pools[allocation.pool];
    return pool.is_default() ? "default" : fmt::format("({}, {})", pool.first, pool.second);
  }
  static std::string stage_of(Side& side, const Allocation& allocation) {
    if (allocation.begin == Allocation::kBefore) return "(before the history)";
    const std::string name = without_numbers(side.stages->name(side.stages->at(allocation.begin)));
    return name.empty() ? "(outside of stages)" : name;
  }

 private:
  std::string text_of(Side& side, FrameId frame) {
    const std::optional<FrameId> in_b = &side == &a_ ? matching_.in_b(frame) : std::nullopt;
    return in_b ? b_.sites.text_of(*in_b) : side.sites.text_of(frame);
  }

  Side& a_;
  Side& b_;
  Frames frames_;
  FrameMatching matching_;
};

// ---- rows

class ListMaker {
 public:
  void add(const std::string& name, bool is_b, std::uint64_t bytes, const std::string& was = "") {
    DifferenceRow& row = rows_[name];
    row.name = name;
    if (!was.empty() && was != name) row.was = was;
    (is_b ? row.bytes.b : row.bytes.a) += bytes;
    ++(is_b ? row.count.b : row.count.a);
  }

  std::vector<DifferenceRow> rows() const {
    std::vector<DifferenceRow> rows;
    for (const auto& [name, row] : rows_) rows.push_back(row);
    std::ranges::stable_sort(rows, std::ranges::greater{}, [](const DifferenceRow& row) { return row.bytes.growth(); });
    return rows;
  }

 private:
  std::map<std::string, DifferenceRow> rows_;
};

std::vector<DifferenceList> lists_of(Side& a, Side& b, Frames frames) {
  Namer namer(a, b, frames);
  std::array<ListMaker, kLists.size()> makers;
  for (Side* side : {&a, &b}) {
    const bool is_b = side == &b;
    for (const std::uint32_t live : side->peak.live) {
      const Allocation& allocation = side->allocations[live];
      const std::string was = is_b ? "" : namer.own_line_of(*side, allocation);
      makers[0].add(std::string(side->categorizer.name_of(side->categories[live])), is_b, allocation.bytes);
      makers[1].add(namer.line_of(*side, allocation), is_b, allocation.bytes, was);
      makers[2].add(namer.module_of(*side, allocation), is_b, allocation.bytes);
      makers[3].add(Namer::pool_of(*side, allocation), is_b, allocation.bytes);
      makers[4].add(Namer::stage_of(*side, allocation), is_b, allocation.bytes);
    }
  }
  std::vector<DifferenceList> lists;
  for (std::size_t i = 0; i < makers.size(); ++i) lists.push_back({kLists[i], makers[i].rows()});
  return lists;
}

// ---- devices

using DevicePair = std::pair<const DeviceHistory*, const DeviceHistory*>;

std::vector<DevicePair> device_pairs(const History& a, const History& b) {
  for (const History* history : {&a, &b}) {
    CACHALOT_REQUIRE(!history->devices.empty(), "{}: the file has no memory of a device", history->path);
  }
  // A rank's file has the device of that rank.
  if (a.devices.size() == 1 && b.devices.size() == 1) return {{&a.devices.front(), &b.devices.front()}};
  std::map<int, DevicePair> pairs;
  for (const DeviceHistory& device : a.devices) pairs[device.device].first = &device;
  for (const DeviceHistory& device : b.devices) pairs[device.device].second = &device;
  std::vector<DevicePair> in_order;
  in_order.reserve(pairs.size());
  for (const auto& [number, pair] : pairs) in_order.push_back(pair);
  return in_order;
}

std::optional<int> number_of(const DeviceHistory* device) {
  if (device == nullptr) return std::nullopt;
  return device->device;
}

}  // namespace

const char* DifferenceRow::change() const {
  if (count.a == 0) return "new";
  if (count.b == 0) return "gone";
  if (bytes.growth() == 0) return "same";
  return bytes.growth() > 0 ? "grown" : "shrunk";
}

Difference difference_of(const History& a, const History& b, const CategoryRules& rules,
                         const DifferenceOptions& options) {
  Difference difference{.paths = {a.path, b.path}, .at = options.at, .devices = {}};
  for (const auto& [device_a, device_b] : device_pairs(a, b)) {
    Side side_a(a, device_a, rules, options);
    Side side_b(b, device_b, rules, options);
    DeviceDifference device;
    device.device = {number_of(device_a), number_of(device_b)};
    device.moment = {side_a.moment(), side_b.moment()};
    device.lists = lists_of(side_a, side_b, options.frames);
    compare_in_time(side_a.run(), side_b.run(), options.parts, device);
    difference.devices.push_back(std::move(device));
  }
  return difference;
}

}  // namespace cachalot::tools
