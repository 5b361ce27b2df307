#include "tools/live/sample_formats.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "cachalot/version.h"
#include "tools/base/quoted.h"
#include "tools/base/text_layout.h"

namespace cachalot::tools::live {
namespace {

constexpr std::size_t kShownOfACommand = 80;
constexpr std::array kOrders = {"reserved memory", "allocated memory", "allocations per s", "process id"};
constexpr double kOldSeconds = 5;  // of figures that are not refreshed

// ---- the figures

// A figure of a device, a pool or a GPU. JSON, Prometheus and the tables take it from here.
template <typename Owner>
struct SampleFigure {
  std::string_view key;  // of JSON; "": it has none
  Unit unit;
  Json (*value)(const Owner&);  // null where it is not known
  std::string_view help{};      // of Prometheus; "": that does not have it
  std::string_view metric{};    // its name there if that is not the key; "_total" ends those that only grow: counters
  // In the table of devices: the place of its column, from the left, and so on. Pages alone have columns without a title.
  std::size_t place = std::numeric_limits<std::size_t>::max();
  std::string_view title{};
  std::size_t width = 0;
};

using Page = StatisticsPageDevice;

// Returns a member, or what a member function returns.
template <auto Member, typename Owner>
Json of(const Owner& owner) {
  return std::invoke(Member, owner);
}

template <auto Member>
Json of_page(const DeviceSample& device) {
  return device.page.*Member;
}

template <auto Member>
Json rate(const DeviceSample& device) {
  return device.rates ? Json((*device.rates).*Member) : Json(nullptr);
}

constexpr SampleFigure<DeviceSample> kDeviceFigures[] = {
    {"total_bytes", Unit::bytes, of_page<&Page::total_bytes>, "Memory of the device.", "device_total_bytes"},
    {"reserved_bytes", Unit::bytes, of_page<&Page::reserved_bytes>, "Memory held from the device.", "", 1, "reserved",
     10},
    {"allocated_bytes", Unit::bytes, of_page<&Page::allocated_bytes>, "Memory of allocated blocks.", "", 2, "allocated",
     10},
    {"requested_bytes", Unit::bytes, of_page<&Page::requested_bytes>, "Memory that the program asked for."},
    {"active_bytes", Unit::bytes, of_page<&Page::active_bytes>,
     "Memory of blocks that are allocated or wait for other streams."},
    {"peak_reserved_bytes", Unit::bytes, of_page<&Page::peak_reserved_bytes>,
     "Largest reserved memory since the program reset it.", "", 3, "peak", 10},
    {"peak_allocated_bytes", Unit::bytes, of_page<&Page::peak_allocated_bytes>,
     "Largest allocated memory since the program reset it."},
    {"peak_requested_bytes", Unit::bytes, of_page<&Page::peak_requested_bytes>,
     "Largest requested memory since the program reset it."},
    {"peak_active_bytes", Unit::bytes, of_page<&Page::peak_active_bytes>,
     "Largest active memory since the program reset it."},
    {"free_bytes", Unit::bytes, of_page<&Page::free_bytes>, "Cached memory in free blocks."},
    {"free_blocks", Unit::count, of_page<&Page::free_blocks>, "Number of free blocks."},
    {"largest_free_bytes", Unit::bytes, of_page<&Page::largest_free_bytes>, "Size of the largest free block."},
    {"asleep_bytes", Unit::bytes, of_page<&Page::asleep_bytes>, "Memory given back until it is restored.", "", 9,
     "asleep", 11},
    {"blocks", Unit::count, of_page<&Page::blocks>, "Number of allocated blocks."},
    {"segments", Unit::count, of_page<&Page::segments>, "Number of segments held from the device."},
    {"allocations", Unit::count, of_page<&Page::allocations>, "Allocations so far.", "allocations_total"},
    {"frees", Unit::count, of_page<&Page::frees>, "Frees so far.", "frees_total"},
    {"allocated_sum_bytes", Unit::bytes, of_page<&Page::allocated_sum_bytes>, "Bytes of all blocks allocated so far.",
     "allocated_bytes_total"},
    {"freed_sum_bytes", Unit::bytes, of_page<&Page::freed_sum_bytes>, "Bytes of all blocks freed so far.",
     "freed_bytes_total"},
    {"device_allocations", Unit::count, of_page<&Page::device_allocations>, "Driver calls that got memory.",
     "device_allocations_total"},
    {"device_frees", Unit::count, of_page<&Page::device_frees>, "Driver calls that gave memory back.",
     "device_frees_total"},
    {"retries", Unit::count, of_page<&Page::retries>, "Times the device was asked again after the cache went back.",
     "retries_total"},
    {"ooms", Unit::count, of_page<&Page::ooms>, "Requests that failed for want of memory.", "ooms_total"},
    {"oom_rejections", Unit::count, of_page<&Page::oom_rejections>, "Requests that throw_on_cudamalloc_oom refused.",
     "oom_rejections_total"},
    {"stream_waits", Unit::count, of_page<&Page::stream_waits>, "Times all pending events were waited for.",
     "stream_waits_total"},
    {"limit_bytes", Unit::bytes, [](const DeviceSample& device) { return or_null(device.limit_bytes()); },
     "Lowest limit of reserved memory, where there is one."},
    {"soft_limit_bytes", Unit::bytes, [](const DeviceSample& device) { return or_null(device.soft_limit_bytes()); }},
    {"internal_fragmentation", Unit::part, of<&DeviceSample::internal_fragmentation>, "1 - requested / active memory.",
     "internal_fragmentation_ratio"},
    {"external_fragmentation", Unit::part, of<&DeviceSample::external_fragmentation>,
     "1 - largest free block / free memory.", "external_fragmentation_ratio", 5, "external", 8},
    {"", Unit::part, of<&DeviceSample::unused_share>, "", "", 4, "unused", 7},
};

// These figures are "rates" in JSON.
constexpr SampleFigure<DeviceSample> kRateFigures[] = {
    {"allocations_per_s", Unit::count, rate<&Rates::allocations>, "", "", 6, "allocs/s", 9},
    {"frees_per_s", Unit::count, rate<&Rates::frees>},
    {"allocated_bytes_per_s", Unit::bytes, rate<&Rates::allocated_bytes>, "", "", 8, "bytes/s", 11},
    {"driver_calls_per_s", Unit::count, rate<&Rates::driver_calls>, "", "", 7, "calls/s", 7},
};

constexpr SampleFigure<StatisticsPagePool> kPoolFigures[] = {
    {"is_asleep", Unit::text, [](const StatisticsPagePool& pool) -> Json { return pool.is_asleep != 0; },
     "1 while the pool is asleep.", "asleep"},
    {"reserved_bytes", Unit::bytes, of<&StatisticsPagePool::reserved_bytes>,
     "Memory that the pool holds from the device."},
    {"used_bytes", Unit::bytes, of<&StatisticsPagePool::used_bytes>,
     "Reserved memory of the pool that is in no free block."},
    {"free_bytes", Unit::bytes, of<&StatisticsPagePool::free_bytes>, "Cached memory in free blocks of the pool."},
    {"free_blocks", Unit::count, of<&StatisticsPagePool::free_blocks>, "Number of free blocks of the pool."},
    {"largest_free_bytes", Unit::bytes, of<&StatisticsPagePool::largest_free_bytes>,
     "Size of the largest free block of the pool."},
    {"asleep_bytes", Unit::bytes, of<&StatisticsPagePool::asleep_bytes>,
     "Memory of the pool given back until it is restored."},
};

constexpr SampleFigure<GpuSample> kGpuFigures[] = {
    {"total_bytes", Unit::bytes, of<&GpuSample::total_bytes>, "Memory of the GPU, as NVML has it."},
    {"used_bytes", Unit::bytes, of<&GpuSample::used_bytes>, "Memory that all processes use, as NVML has it."},
};

// Six digits behind the point are enough for a time and a ratio, and keep a line short.
Json rounded(const Json& value) {
  return value.is_number_float() ? Json(std::round(value.get<double>() * 1e6) / 1e6) : value;
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

// In ASCII, and not too long.
std::string shown(std::string_view text, std::size_t most = kShownOfACommand) {
  std::string result;
  print_escaped(std::back_inserter(result), text, most, [](unsigned char byte) { return byte >= 0x20 && byte < 0x7f; });
  return result;
}

template <typename Owner>
Column column_of(const SampleFigure<Owner>& figure) {
  std::string title(figure.title.empty() ? figure.key.substr(0, figure.key.rfind("_bytes")) : figure.title);
  std::ranges::replace(title, '_', ' ');
  return {.key = std::string(figure.key),
          .title = std::move(title),
          .unit = figure.unit,
          .width = figure.width,
          .unknown = "-"};
}

// ---- the table of devices

struct DeviceRow {
  const ProcessSample* process;
  const DeviceSample* device;
};

// Returns the devices that are used.
std::vector<DeviceRow> rows_of(const Sample& sample, TopView::Order order = TopView::Order::pid) {
  std::vector<DeviceRow> rows;
  for (const ProcessSample& process : sample.processes) {  // by pid
    for (const DeviceSample& device : process.devices) {
      if (device.is_used()) rows.push_back({&process, &device});
    }
  }
  const auto sort = [&](auto figure_of) { std::ranges::stable_sort(rows, std::greater{}, figure_of); };
  if (order == TopView::Order::reserved) sort([](const DeviceRow& row) { return row.device->page.reserved_bytes; });
  if (order == TopView::Order::allocated) sort([](const DeviceRow& row) { return row.device->page.allocated_bytes; });
  if (order == TopView::Order::rate) {
    sort([](const DeviceRow& row) { return row.device->rates ? row.device->rates->allocations : -1.0; });
  }
  return rows;
}

// Under the columns of reserved and allocated memory.
std::string pool_line(const StatisticsPagePool& pool) {
  constexpr std::size_t kShownOfAName = 40;
  const std::string name = shown(name_of(pool), kShownOfAName);
  if (pool.is_asleep != 0) {
    return fmt::format("{:>23} {:>10}  {}, {} asleep\n", "-", "-", name, format_bytes(pool.asleep_bytes));
  }
  return fmt::format("{:>23} {:>10}  {}, {} free in {} blocks\n", format_bytes(pool.reserved_bytes),
                     format_bytes(pool.used_bytes), name, format_bytes(pool.free_bytes), with_commas(pool.free_blocks));
}

// Returns lines on what happened to a device and on its pools. The default pool alone says what the device's row says.
std::string lines_below(const DeviceSample& device, double age_s, const TopView& view) {
  std::vector<std::string> events;
  if (const std::uint64_t ooms = device.page.ooms + device.page.oom_rejections; ooms != 0) {
    events.push_back(with_commas(ooms) + " out of memory");
  }
  if (device.page.retries != 0)
    events.push_back(with_commas(device.page.retries) + " retries after the cache went back");
  if (const auto limit = device.limit_bytes()) events.push_back("limit " + format_bytes(*limit));
  std::string lines;
  const auto add = [&](std::string_view text) { lines += fmt::format("{:>34}  {}\n", "", text); };
  if (!events.empty()) add(fmt::to_string(fmt::join(events, ", ")));
  if (age_s > kOldSeconds) add(fmt::format("not refreshed for {:.0f} s", age_s));
  for (const StatisticsPagePool& pool : device.pools()) {
    const bool is_shown = pool.tag[0] == '\0' ? view.shows_pools && device.pools().size() > 1 : view.shows_tags;
    if (is_shown && (pool.reserved_bytes != 0 || pool.is_asleep != 0)) lines += pool_line(pool);
  }
  if (view.shows_pools && device.page.pool_count > device.pools().size()) {
    add(fmt::format("{} further pools", with_commas(device.page.pool_count - device.pools().size())));
  }
  return lines;
}

// A rate is shown as a whole number, and no memory that sleeps as nothing.
Cell cell_of(const SampleFigure<DeviceSample>& figure, const DeviceSample& device) {
  Json value = figure.value(device);
  if (value.is_number_float() && figure.unit != Unit::part) {
    const auto rate = value.get<double>();
    value = rate >= 0 && rate < 1e18 ? static_cast<std::uint64_t>(std::llround(rate)) : std::uint64_t{0};
  }
  return figure.key == "asleep_bytes" && value == Json(0) ? Json(nullptr) : value;
}

// The figures wanted most fit into 80 columns.
Table devices_of(const Sample& sample, const TopView& view) {
  std::vector<const SampleFigure<DeviceSample>*> figures;
  for (const auto& figure : kDeviceFigures) figures.push_back(&figure);
  for (const auto& figure : kRateFigures) figures.push_back(&figure);
  std::ranges::stable_sort(figures, {}, [](const auto* figure) { return figure->place; });
  Table table{.title = "Devices of the programs",
              .columns = {{.title = "pid", .width = 8}, {.title = "dev", .width = 3}},
              .indent = 0};
  for (const auto* figure : figures) {
    table.columns.push_back(column_of(*figure));
    table.columns.back().views = figure->title.empty() ? kPageAlone : kForPeople;
  }
  table.columns.push_back({.title = "command"});
  for (const auto& [process, device] : rows_of(sample, view.order)) {
    std::vector<Cell> row = {process->pid, device->page.index};
    for (const auto* figure : figures) row.push_back(cell_of(*figure, *device));
    row.emplace_back(shown(process->command));
    const double age_s = sample.time - process->refreshed;
    for (Cell& cell : row) cell.mood = age_s > kOldSeconds ? Mood::faint : Mood::plain;
    table.rows.push_back(std::move(row));
    table.lines_below.push_back(lines_below(*device, age_s, view));
  }
  return table;
}

// ---- the tree of a sample

Table pools_of(const DeviceSample& device) {
  Table table{.key = "pools",
              .title = "Pools",
              .columns = {{.key = "pool", .title = "pool"}, {.key = "tag"}},
              .views = kNotInText};
  for (const auto& figure : kPoolFigures) table.columns.push_back(column_of(figure));
  for (const StatisticsPagePool& pool : device.pools()) {
    std::vector<Cell> row = {Cell{pool.id, name_of(pool)}, text_or_null(tag_of(pool))};
    for (const auto& figure : kPoolFigures) row.emplace_back(figure.value(pool));
    table.rows.push_back(std::move(row));
  }
  return table;
}

template <typename Figures, typename Owner>
void add_figures(Section& section, const Figures& figures, const Owner& owner) {
  for (const auto& figure : figures) {
    if (!figure.key.empty()) section.add_value(std::string(figure.key), rounded(figure.value(owner)));
  }
}

Section section_of(const ProcessSample& process, const DeviceSample& device) {
  Section section(fmt::format("process {}, device {}", process.pid, device.page.index));
  section.add_value("device", device.page.index);
  section.add_value("name", device.name());
  section.add_value("uuid", text_or_null(device.uuid()));
  add_figures(section, kDeviceFigures, device);
  Section rates;
  add_figures(rates, kRateFigures, device);
  section.add_value("rates", device.rates ? json_of(rates) : Json(nullptr));
  section.add_value("pool_count", device.page.pool_count);
  return section.add(pools_of(device));
}

Section section_of(const ProcessSample& process) {
  Section section;
  section.add_value("pid", process.pid);
  section.add_value("start", process.start);
  section.add_value("page", process.page);
  section.add_value("command", process.command);
  section.add_value("version", process.version);
  section.add_value("published", rounded(process.published));
  section.add_value("refreshed", rounded(process.refreshed));
  section.add_value("elapsed_s", rounded(process.elapsed_s));
  section.add_value("refreshes", process.refreshes);
  section.add_value("cpu_s", rounded(process.cpu_s));
  Section devices = list_of("devices");
  for (const DeviceSample& device : process.devices) devices.add(section_of(process, device));
  return section.add(std::move(devices));
}

// Returns lines for people, too.
Section section_of(const Sample& sample, const GpuSample& gpu) {
  Section section;
  section.add_value("gpu", gpu.index);
  section.add_value("name", gpu.name);
  section.add_value("uuid", text_or_null(gpu.uuid));
  add_figures(section, kGpuFigures, gpu);
  const std::string name = fmt::format("GPU {}  {}", gpu.index, shown(gpu.name));
  section.add(Note{.text = fmt::format("{}  {} of {} in use, {} processes", name, format_bytes(gpu.used_bytes),
                                       format_bytes(gpu.total_bytes), gpu.processes.size()),
                   .is_bold = true,
                   .is_wrapped = false});
  Table table{
      .key = "processes",
      .title = "Processes of " + name,
      .columns = {{.key = "pid", .title = "pid", .width = 10},
                  {.key = "used_bytes", .title = "used", .unit = Unit::bytes, .width = 16, .unknown = "unknown"},
                  {.title = "command"}},
      .has_header = false,
      .indent = 0};
  for (const GpuProcess& each : gpu.processes) {
    const auto known = std::ranges::find(sample.processes, each.pid, &ProcessSample::pid);
    const bool publishes = known != sample.processes.end();
    table.rows.push_back(
        {each.pid, or_null(each.used_bytes), publishes ? shown(known->command) : "publishes no statistics"});
  }
  return section.add(std::move(table));
}

}  // namespace

TopView::Order next_of(TopView::Order order) {
  return static_cast<TopView::Order>((static_cast<std::size_t>(order) + 1) % kOrders.size());
}

std::string to_text(const Sample& sample, const TopView& view, double interval_s, const std::vector<std::string>& notes,
                    const Style& style) {
  Section report;
  if (view.shows_gpus && sample.gpus) {
    for (const GpuSample& gpu : *sample.gpus) report.add(section_of(sample, gpu));
  }
  report.add(devices_of(sample, view));
  const auto add_line = [&](std::string text, Mood mood) {
    report.add(Note{.text = std::move(text), .is_wrapped = false, .mood = mood});
  };
  if (sample.processes.empty()) {
    add_line("No process publishes statistics. Start programs with CACHALOT_PUBLISH=1.", Mood::plain);
  } else if (rows_of(sample).empty()) {
    add_line("No process has used a device so far.", Mood::plain);
  }
  for (const std::string& note : notes) add_line(note, Mood::faint);
  const std::size_t count = sample.processes.size();
  return fmt::format("{}  {}  {} process{}, by {}, every {} s\n{}", style.bold("cachalot top"),
                     text_in(Unit::time, sample.time), count, count == 1 ? "" : "es",
                     kOrders[static_cast<std::size_t>(view.order)], interval_s, text_of(report, style));
}

std::string cut_to_screen(const std::string& text, std::size_t rows, std::size_t columns) {
  std::string result;
  std::size_t row = 0;
  std::size_t column = 0;
  for (std::size_t i = 0; i < text.size() && row < rows; ++i) {
    if (text[i] == '\033') {  // as Style writes it: to the letter m
      const std::size_t end = std::min(text.find('m', i), text.size() - 1);
      result += text.substr(i, end - i + 1);
      i = end;
    } else if (text[i] == '\n') {
      result += '\n';
      ++row;
      column = 0;
    } else if (column++ < columns) {
      result += text[i];
    }
  }
  return result;
}

Section report_of(const Sample& sample) {
  Section report;
  report.add_value("time", rounded(sample.time));
  report.add(devices_of(sample, {}));
  Section processes = list_of("processes");
  for (const ProcessSample& process : sample.processes) processes.add(section_of(process));
  report.add(std::move(processes));
  if (!sample.gpus) return report.add_value("gpus", nullptr);
  Section gpus = list_of("gpus");
  for (const GpuSample& gpu : *sample.gpus) gpus.add(section_of(sample, gpu));
  return report.add(std::move(gpus));
}

// ---- Prometheus

namespace {

// A label's value is UTF-8 with three escapes. Bytes that are not UTF-8 become U+FFFD, and control characters become '?'.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : nlohmann::json::parse(text_of(std::string(text))).get<std::string>()) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      result += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      result += '?';
    } else {
      if (c == '\\' || c == '"') result += '\\';
      result += c;
    }
  }
  return result;
}

class Metrics {
 public:
  // Begins a metric; without a value, none of it is written.
  void begin(std::string_view name, std::string_view help) {
    name_ = name;
    head_ = fmt::format("# HELP cachalot_{0} {1}\n# TYPE cachalot_{0} {2}\n", name, help,
                        name.ends_with("_total") ? "counter" : "gauge");
  }
  void value(std::string_view labels, const Json& number) {
    if (number.is_null()) return;
    const std::string text = number.is_boolean()        ? fmt::to_string(number.get<int>())
                             : number.is_number_float() ? fmt::to_string(number.get<double>())
                                                        : number.dump();
    text_ += std::exchange(head_, "") + fmt::format("cachalot_{}{} {}\n", name_, labels, text);
  }
  // Adds the figures of all owners, each of which has its labels.
  template <typename Owner, std::size_t Count>
  void values(std::string_view prefix, const SampleFigure<Owner> (&figures)[Count],
              const std::vector<std::pair<std::string, const Owner*>>& owners) {
    for (const SampleFigure<Owner>& figure : figures) {
      if (figure.help.empty()) continue;
      begin(fmt::format("{}{}", prefix, figure.metric.empty() ? figure.key : figure.metric), figure.help);
      for (const auto& [labels, owner] : owners) value(fmt::format("{{{}}}", labels), figure.value(*owner));
    }
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  std::string name_;
  std::string head_;
};

}  // namespace

std::string to_prometheus(const Sample& sample) {
  std::vector<std::pair<std::string, const DeviceSample*>> devices;
  std::vector<std::pair<std::string, const StatisticsPagePool*>> pools;
  std::vector<std::pair<std::string, const GpuSample*>> gpus;
  for (const auto& [process, device] : rows_of(sample)) {
    devices.emplace_back(fmt::format("pid=\"{}\",page=\"{}\",command=\"{}\",device=\"{}\",name=\"{}\",uuid=\"{}\"",
                                     process->pid, escaped(process->page), escaped(process->command),
                                     device->page.index, escaped(device->name()), escaped(device->uuid())),
                         device);
    for (const StatisticsPagePool& pool : device->pools()) {
      pools.emplace_back(fmt::format("{},pool=\"{}.{}\",tag=\"{}\"", devices.back().first, pool.id[0], pool.id[1],
                                     escaped(tag_of(pool))),
                         &pool);
    }
  }
  if (sample.gpus) {
    for (const GpuSample& gpu : *sample.gpus) {
      gpus.emplace_back(
          fmt::format("gpu=\"{}\",name=\"{}\",uuid=\"{}\"", gpu.index, escaped(gpu.name), escaped(gpu.uuid)), &gpu);
    }
  }
  Metrics metrics;
  metrics.begin("exporter_info", "Version of the command that wrote this.");
  metrics.value("{version=\"" CACHALOT_VERSION_STRING "\"}", 1);
  metrics.begin("sample_time_seconds", "When the figures were read, in Unix time.");
  metrics.value("", sample.time);
  metrics.begin("processes", "Processes that publish statistics.");
  metrics.value("", sample.processes.size());
  metrics.values("", kDeviceFigures, devices);
  metrics.values("pool_", kPoolFigures, pools);
  metrics.values("gpu_", kGpuFigures, gpus);
  return metrics.take();
}

}  // namespace cachalot::tools::live
