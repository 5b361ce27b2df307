#include "tools/pages/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tools/analysis/categories.h"
#include "tools/history/allocations.h"
#include "tools/pages/layout.h"
#include "tools/pages/page_data.h"
#include "tools/pages/run_stacks.h"

namespace cachalot::tools {
namespace {

using Json = nlohmann::ordered_json;
using Numbers = std::vector<std::uint64_t>;

constexpr std::size_t kMostTimes = std::size_t{1} << 20;
constexpr std::size_t kMostRestPoints = std::size_t{1} << 16;

// Begins and ends as a page has them: 0 is "before" or "never".
std::uint64_t page_event(std::uint32_t event) { return event == Allocation::kBefore ? 0 : std::uint64_t{event} + 1; }

// Collects what a page has of one run.
class RunData {
 public:
  RunData(const PageRun& run, const CategoryRules& rules, std::string prefix, ColumnWriter& columns, TextTable& texts)
      : history_(*run.history),
        device_(*run.device),
        name_(run.name),
        is_host_(run.is_host),
        rules_(rules),
        prefix_(std::move(prefix)),
        columns_(columns),
        texts_(texts),
        allocations_(allocations_of(device_)) {}

  Json make() {
    choose();
    add_times();
    add_allocations();
    add_rest();
    Json layouts = Json::array();
    for (const Layout& layout : layouts_of()) {
      add_layout(layout, fmt::format("{}{}.", prefix_, layouts.size()));
      layouts.push_back(layout.name);
    }
    Json result = description();
    result["layouts"] = std::move(layouts);
    return result;
  }

 private:
  // The largest allocations are on the page, so many as it takes.
  void choose() {
    is_shown_.assign(allocations_.size(), true);
    if (allocations_.size() <= kMostPageAllocations) return;
    std::vector<std::size_t> by_size(allocations_.size());
    for (std::size_t i = 0; i < by_size.size(); ++i) by_size[i] = i;
    const auto first_left_out = by_size.begin() + static_cast<std::ptrdiff_t>(kMostPageAllocations);
    std::ranges::nth_element(by_size, first_left_out, [this](std::size_t a, std::size_t b) {
      return allocations_[a].bytes > allocations_[b].bytes;
    });
    for (auto left_out = first_left_out; left_out != by_size.end(); ++left_out) is_shown_[*left_out] = false;
    left_out_ = allocations_.size() - kMostPageAllocations;
  }

  // Every so many events: a page interpolates.
  void add_times() {
    time_step_ = std::max<std::size_t>(1, (device_.events.size() + kMostTimes - 1) / kMostTimes);
    Numbers times;
    for (std::size_t i = 0; i < device_.events.size(); i += time_step_) {
      times.push_back(static_cast<std::uint64_t>(device_.events[i].time_us));
    }
    if (!device_.events.empty()) times.push_back(static_cast<std::uint64_t>(device_.events.back().time_us));
    columns_.add_deltas(prefix_ + "times", times);
  }

  template <typename Field>
  Numbers shown(Field field) const {
    Numbers values;
    for (std::size_t i = 0; i < allocations_.size(); ++i) {
      if (is_shown_[i]) values.push_back(field(i));
    }
    return values;
  }

  void add_allocations() {
    RunStacks stacks(history_);
    const std::vector<Category> categories = Categorizer(history_, rules_).categories_of(device_, allocations_);
    columns_.add_deltas(prefix_ + "begin", shown([&](std::size_t i) { return page_event(allocations_[i].begin); }));
    columns_.add_plain(prefix_ + "length", shown([&](std::size_t i) -> std::uint64_t {
                         const Allocation& allocation = allocations_[i];
                         if (allocation.end == Allocation::kNever) return 0;
                         return page_event(allocation.end) - page_event(allocation.begin);
                       }));
    columns_.add_ranked(prefix_ + "bytes", shown([&](std::size_t i) { return allocations_[i].bytes; }));
    columns_.add_ranked(prefix_ + "stack", shown([&](std::size_t i) {
                          return stacks.add(allocations_[i].stack, allocations_[i].details);
                        }));
    columns_.add_plain(prefix_ + "category",
                       shown([&](std::size_t i) { return static_cast<std::uint64_t>(categories[i]); }));
    columns_.add_plain(prefix_ + "stream",
                       shown([&](std::size_t i) -> std::uint64_t { return allocations_[i].stream; }));
    columns_.add_plain(prefix_ + "pool", shown([&](std::size_t i) -> std::uint64_t { return allocations_[i].pool; }));
    stacks.write(prefix_, columns_, texts_);
  }

  // The bytes of what is left out, the most of each of as many stretches of the history.
  void add_rest() {
    Numbers events;
    Numbers bytes;
    if (left_out_ != 0) {
      std::vector<std::int64_t> changes(device_.events.size() + 1);
      for (std::size_t i = 0; i < allocations_.size(); ++i) {
        if (is_shown_[i]) continue;
        const auto size = static_cast<std::int64_t>(allocations_[i].bytes);
        changes[page_event(allocations_[i].begin)] += size;
        if (allocations_[i].end != Allocation::kNever) changes[page_event(allocations_[i].end)] -= size;
      }
      const std::size_t step = (changes.size() + kMostRestPoints - 1) / kMostRestPoints;
      std::int64_t now = 0;
      for (std::size_t i = 0; i < changes.size(); ++i) {
        now += changes[i];
        if (i % step == 0) {
          events.push_back(i);
          bytes.push_back(0);
        }
        bytes.back() = std::max(bytes.back(), static_cast<std::uint64_t>(now));
      }
    }
    columns_.add_deltas(prefix_ + "rest_event", events);
    columns_.add_deltas(prefix_ + "rest_bytes", bytes);
  }

  std::vector<Layout> layouts_of() const {
    if (allocations_.empty() || is_host_) return {recorded_layout(device_, allocations_)};  // policies are of GPUs
    const Trace trace = trace_of(history_, device_);
    std::vector<Layout> layouts;
    layouts.push_back(recorded_layout(device_, allocations_));
    // A trace without segments: PyTorch's policy stands for what was not recorded.
    if (layouts.back().ranges.empty()) layouts.back() = replayed_layout(trace, allocations_, "PyTorch's policy", "");
    layouts.push_back(replayed_layout(trace, allocations_, "page heap", "heap:pages"));
    return layouts;
  }

  void add_layout(const Layout& layout, const std::string& prefix) {
    columns_.add_ranked(prefix + "address", shown([&](std::size_t i) { return layout.addresses[i]; }));
    columns_.add_ranked(prefix + "block", shown([&](std::size_t i) { return layout.block_bytes[i]; }));
    Numbers begins;
    Numbers ends;
    Numbers addresses;
    Numbers bytes;
    for (const MemoryRange& range : layout.ranges) {
      begins.push_back(page_event(range.begin));
      ends.push_back(page_event(range.end));
      addresses.push_back(range.address);
      bytes.push_back(range.bytes);
    }
    columns_.add_deltas(prefix + "range_begin", begins);
    columns_.add_plain(prefix + "range_end", ends);
    columns_.add_deltas(prefix + "range_address", addresses);
    columns_.add_ranked(prefix + "range_bytes", bytes);
    Numbers events;
    Numbers held;
    for (const Layout::Held& change : layout.held) {
      events.push_back(page_event(change.event));
      held.push_back(change.bytes);
    }
    columns_.add_deltas(prefix + "held_event", events);
    columns_.add_deltas(prefix + "held_bytes", held);
  }

  Json description() const {
    Json result = {{"name", name_},
                   {"prefix", prefix_},
                   {"device", device_.device},
                   {"events", device_.events.size()},
                   {"time_step", time_step_},
                   {"left_out", left_out_},
                   {"gpu", ""},
                   {"total_bytes", nullptr},
                   {"ooms", Json::array()},
                   {"stages", Json::array()},
                   {"categories", rules_.names},
                   {"streams", Json::array()},
                   {"pools", Json::array()}};
    for (const DeviceFacts& facts : history_.facts) {
      if (is_host_ || facts.device != device_.device) continue;
      result["gpu"] = facts.name;
      if (facts.total_bytes) result["total_bytes"] = *facts.total_bytes;
    }
    for (std::size_t i = 0; i < device_.events.size(); ++i) {
      const HistoryEvent& event = device_.events[i];
      if (event.action == HistoryEvent::Action::oom) result["ooms"].push_back({i + 1, event.bytes});
    }
    for (const StageMark& mark : history_.stages) {
      if (mark.device == device_.device) {
        result["stages"].push_back({std::string(history_.texts[mark.name]), mark.time_us, mark.begins});
      }
    }
    for (std::size_t i = 0; i < history_.streams.size(); ++i) {
      result["streams"].push_back(fmt::format("{:#x}", history_.streams[i]));
    }
    for (std::size_t i = 0; i < history_.pools.size(); ++i) {
      result["pools"].push_back(fmt::format("({}, {})", history_.pools[i].first, history_.pools[i].second));
    }
    return result;
  }

  const History& history_;
  const DeviceHistory& device_;
  std::string name_;
  bool is_host_;
  const CategoryRules& rules_;
  std::string prefix_;
  ColumnWriter& columns_;
  TextTable& texts_;
  std::vector<Allocation> allocations_;
  std::vector<bool> is_shown_;
  std::size_t left_out_ = 0;
  std::size_t time_step_ = 1;
};

}  // namespace

nlohmann::ordered_json add_run(const PageRun& run, const CategoryRules& rules, const std::string& prefix,
                               ColumnWriter& columns, TextTable& texts) {
  return RunData(run, rules, prefix, columns, texts).make();
}

}  // namespace cachalot::tools
