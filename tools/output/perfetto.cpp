// A history for Perfetto and chrome://tracing: Chrome's trace events, as JSON. A process for each device has counters of
// allocated and reserved bytes, the lifetimes of its largest allocations, its failed allocations and its stages.
#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cachalot/version.h"
#include "tools/analysis/sites.h"
#include "tools/analysis/timeline.h"
#include "tools/output/export_formats.h"

namespace cachalot::tools {
namespace {

using Action = HistoryEvent::Action;

// The events of one counter, thinned: of each part of the time the value at its end, and the largest. A value that stays is
// not written again.
class Counter {
 public:
  Counter(const char* name, std::size_t samples, std::size_t most)
      : name_(name), per_part_(std::max<std::size_t>(1, 2 * samples / std::max<std::size_t>(most, 1))) {}

  // Calls write(name, time, value) for each value to show.
  template <typename Write>
  void add(std::int64_t time, std::uint64_t value, const Write& write) {
    if (in_part_ == 0 || value > largest_.second) largest_ = {time, value};
    last_ = {time, value};
    if (++in_part_ == per_part_) finish(write);
  }
  template <typename Write>
  void finish(const Write& write) {
    if (in_part_ > 0) show(largest_, write);
    if (in_part_ > 0) show(last_, write);
    in_part_ = 0;
  }

 private:
  using Sample = std::pair<std::int64_t, std::uint64_t>;

  template <typename Write>
  void show(const Sample& sample, const Write& write) {
    if (has_shown_ && shown_ == sample.second) return;
    write(name_, sample.first, sample.second);
    shown_ = sample.second;
    has_shown_ = true;
  }

  const char* name_;
  std::size_t per_part_;
  std::size_t in_part_ = 0;
  Sample largest_;
  Sample last_;
  std::uint64_t shown_ = 0;
  bool has_shown_ = false;
};

class PerfettoWriter {
 public:
  PerfettoWriter(const History& history, std::size_t most_events, OutputFile& out)
      : history_(history), most_events_(most_events), out_(out), sites_(history) {}

  void write(const std::vector<const DeviceHistory*>& devices) {
    out_.write("{\"traceEvents\":[");
    for (const DeviceHistory* device : devices) write_device(*device);
    out_.print(
        "\n],\"displayTimeUnit\":\"ms\",\"otherData\":{{\"made_by\":\"cachalot "
        "{}\",\"history\":{},\"lifetimes_left_out\":{}}}}}\n",
        CACHALOT_VERSION_STRING, json_string(history_.path), left_out_);
  }

 private:
  void write_device(const DeviceHistory& device) {
    device_ = &device;
    has_times_ = std::ranges::any_of(device.events, [](const HistoryEvent& event) { return event.time_us != 0; });
    const Timeline timeline(history_, device);
    event_is("M", 0);
    out_.print(",\"name\":\"process_name\",\"args\":{{\"name\":\"GPU {}\"}}}}", device.device);
    write_counters(timeline);
    write_lifetimes(timeline.allocations());
    write_failures();
    write_stages();
  }

  // ---- times

  std::int64_t time_of(std::size_t event) const {
    return has_times_ ? device_->events[event].time_us : static_cast<std::int64_t>(event);
  }
  std::int64_t begin_of(const Allocation& allocation) const {
    return allocation.begin == Allocation::kBefore ? first_time() : time_of(allocation.begin);
  }
  std::int64_t end_of(const Allocation& allocation) const {
    return allocation.end == Allocation::kNever ? last_time() : time_of(allocation.end);
  }
  std::int64_t first_time() const { return device_->events.empty() ? 0 : time_of(0); }
  std::int64_t last_time() const { return device_->events.empty() ? 0 : time_of(device_->events.size() - 1); }

  // ---- counters

  void write_counters(const Timeline& timeline) {
    HeldCursor cursor(timeline);
    Counter allocated("allocated", device_->events.size(), most_events_ / 4);
    Counter reserved("reserved", device_->events.size(), most_events_ / 4);
    const auto write = [&](const char* name, std::int64_t time, std::uint64_t bytes) {
      event_is("C", time);
      out_.print(R"(,"name":"{}","args":{{"bytes":{}}}}})", name, bytes);
    };
    const auto add = [&](std::int64_t time) {
      allocated.add(time, cursor.held().requested, write);
      reserved.add(time, cursor.held().reserved, write);
    };
    add(first_time());
    while (!cursor.is_at_end()) {
      cursor.advance();
      add(time_of(cursor.event() - 1));
    }
    allocated.finish(write);
    reserved.finish(write);
  }

  // ---- lifetimes, the largest allocations first

  void write_lifetimes(const std::vector<Allocation>& allocations) {
    const std::vector<std::size_t> shown = largest_of(allocations, most_events_ / 4);
    left_out_ += allocations.size() - shown.size();
    for (const std::size_t i : shown) {
      const Allocation& allocation = allocations[i];
      const std::string name = json_string(place_text(sites_, allocation.stack));
      async_is("b", "allocation", begin_of(allocation), i, name);
      const PoolId pool = history_.pools[allocation.pool];
      out_.print(R"json(,"args":{{"bytes":{},"address":"0x{:x}","stream":"0x{:x}","pool":"({}, {})"}}}})json",
                 allocation.bytes, allocation.address, history_.streams[allocation.stream], pool.first, pool.second);
      async_is("e", "allocation", std::max(begin_of(allocation), end_of(allocation)), i, name);
      out_.write("}");
    }
  }

  // ---- failures and stages

  void write_failures() {
    for (std::size_t i = 0; i < device_->events.size(); ++i) {
      const HistoryEvent& event = device_->events[i];
      if (event.action != Action::oom) continue;
      event_is("i", time_of(i));
      out_.print(
          ",\"name\":\"out of memory\",\"s\":\"p\",\"args\":{{\"bytes\":{},\"device_free_bytes\":{},\"at\":{}}}}}",
          event.bytes, event.address, json_string(place_text(sites_, event.stack)));
    }
  }

  void write_stages() {
    std::map<TextId, std::vector<std::size_t>> open;  // numbers of stages, by name
    for (std::size_t i = 0; i < history_.stages.size(); ++i) {
      const StageMark& mark = history_.stages[i];
      if (mark.device != device_->device) continue;
      std::vector<std::size_t>& of_name = open[mark.name];
      if (mark.begins) {
        of_name.push_back(i);
        write_stage("b", mark.time_us, i, mark.name);
      } else if (!of_name.empty()) {
        write_stage("e", mark.time_us, of_name.back(), mark.name);
        of_name.pop_back();
      }
    }
    for (const auto& [name, numbers] : open) {
      for (const std::size_t number : numbers) {
        write_stage("e", std::max(last_time(), history_.stages[number].time_us), number, name);
      }
    }
  }
  void write_stage(const char* phase, std::int64_t time, std::size_t number, TextId name) {
    async_is(phase, "stage", time, number, json_string(history_.texts[name]));
    out_.write("}");
  }

  // ---- one event each, which the caller closes

  void event_is(const char* phase, std::int64_t time) {
    out_.print("{}\n{{\"ph\":\"{}\",\"pid\":{},\"tid\":0,\"ts\":{}", is_first_ ? "" : ",", phase, device_->device,
               time);
    is_first_ = false;
  }
  void async_is(const char* phase, const char* category, std::int64_t time, std::size_t id, const std::string& name) {
    event_is(phase, time);
    out_.print(R"(,"cat":"{}","id2":{{"local":"0x{:x}"}},"name":{})", category, id, name);
  }

  const History& history_;
  const std::size_t most_events_;
  OutputFile& out_;
  Sites sites_;
  const DeviceHistory* device_ = nullptr;
  bool has_times_ = false;  // else the number of the event is its time
  bool is_first_ = true;
  std::size_t left_out_ = 0;
};

}  // namespace

void write_perfetto(const History& history, const ExportOptions& options, OutputFile& out) {
  const std::vector<const DeviceHistory*> devices = devices_of(history, options);
  const std::size_t each = std::max<std::size_t>(options.most_events / std::max<std::size_t>(devices.size(), 1), 4);
  PerfettoWriter(history, each, out).write(devices);
}

}  // namespace cachalot::tools
