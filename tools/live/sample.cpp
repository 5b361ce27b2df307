#include "tools/live/sample.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <tuple>

#include "base/process.h"
#include "cachalot/errors.h"
#include "tools/base/descriptor.h"
#include "tools/base/quoted.h"

namespace cachalot::tools::live {
namespace {

double share_beside(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return 0;
  return std::clamp(1 - static_cast<double>(part) / static_cast<double>(whole), 0.0, 1.0);
}

template <std::size_t Size>
std::string fixed_text(const char (&text)[Size]) {
  return {text, strnlen(text, Size)};
}

std::optional<std::uint64_t> limit_of(std::uint64_t bytes) {
  return bytes == kStatisticsPageNoLimit ? std::nullopt : std::optional(bytes);
}

}  // namespace

std::string tag_of(const StatisticsPagePool& pool) { return fixed_text(pool.tag); }

std::string name_of(const StatisticsPagePool& pool) {
  if (pool.tag[0] != '\0') return "tag " + tag_of(pool);
  if (pool.id[0] == 0 && pool.id[1] == 0) return "default";
  return fmt::format("pool {}.{}", pool.id[0], pool.id[1]);
}

std::string DeviceSample::name() const { return fixed_text(page.name); }

// "00112233-4455-6677-8899-aabbccddeeff"
std::string DeviceSample::uuid() const {
  std::string text;
  for (std::size_t i = 0; page.has_uuid != 0 && i < std::size(page.uuid); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", page.uuid[i]);
  }
  return text;
}

std::optional<std::uint64_t> DeviceSample::limit_bytes() const { return limit_of(page.limit_bytes); }
std::optional<std::uint64_t> DeviceSample::soft_limit_bytes() const { return limit_of(page.soft_limit_bytes); }
std::span<const StatisticsPagePool> DeviceSample::pools() const {
  return std::span(page.pools).first(page.listed_pools);
}

double DeviceSample::internal_fragmentation() const { return share_beside(page.requested_bytes, page.active_bytes); }
double DeviceSample::external_fragmentation() const { return share_beside(page.largest_free_bytes, page.free_bytes); }
double DeviceSample::unused_share() const {
  const std::uint64_t whole = page.reserved_bytes + page.asleep_bytes;  // memory that is asleep counts as requested
  return whole < page.reserved_bytes ? 0 : share_beside(page.requested_bytes, whole);
}

namespace {

// Returns nothing if the program has reset its sums between the samples.
std::optional<Rates> rates_between(const StatisticsPageDevice& before, const StatisticsPageDevice& now,
                                   double seconds) {
  const bool was_reset = now.allocations < before.allocations || now.frees < before.frees ||
                         now.allocated_sum_bytes < before.allocated_sum_bytes ||
                         now.device_allocations < before.device_allocations || now.device_frees < before.device_frees;
  if (was_reset || seconds <= 0) return std::nullopt;
  const auto rate = [&](std::uint64_t from, std::uint64_t to) { return static_cast<double>(to - from) / seconds; };
  return Rates{.allocations = rate(before.allocations, now.allocations),
               .frees = rate(before.frees, now.frees),
               .allocated_bytes = rate(before.allocated_sum_bytes, now.allocated_sum_bytes),
               .driver_calls = rate(before.device_allocations, now.device_allocations) +
                               rate(before.device_frees, now.device_frees)};
}

void measure(const ProcessSample& before, ProcessSample& now) {
  const double seconds = now.elapsed_s - before.elapsed_s;
  for (DeviceSample& device : now.devices) {
    const auto found =
        std::ranges::find(before.devices, device.page.index, [](const DeviceSample& each) { return each.page.index; });
    if (found == before.devices.end()) continue;
    device.rates = now.refreshes == before.refreshes ? found->rates : rates_between(found->page, device.page, seconds);
  }
}

}  // namespace

void RateMeter::measure(Sample& sample) {
  std::map<Key, ProcessSample> seen;
  for (ProcessSample& process : sample.processes) {
    const Key key(process.start, process.page);
    if (const auto found = last_.find(key); found != last_.end()) live::measure(found->second, process);
    seen.emplace(key, process);
  }
  last_ = std::move(seen);
}

namespace {

constexpr std::size_t kMostPages = 4096;  // read from one folder
constexpr int kTries = 50;                // to read a page that is being written
constexpr std::string_view kPrefix = "cachalot.";

// The greatest age of a page whose process is in another namespace, so that nothing shows whether it lives.
constexpr std::int64_t kFreshNs = 10'000'000'000;

// Thrown for a page that is not shown.
struct Refused {
  std::string reason;
};
// Thrown if the page was removed meanwhile, because its process ended.
struct Gone {};

bool is_page_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return false;
  const std::string_view numbers = name.substr(kPrefix.size());
  const auto dot = numbers.find('.');
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.size() <= 10 && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return dot != std::string_view::npos && is_number(numbers.substr(0, dot)) && is_number(numbers.substr(dot + 1));
}

std::vector<std::string> page_names(const std::string& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(directory.c_str()), closedir);
  if (folder == nullptr) {
    throw InvalidArgument(
        fmt::format("cannot read the folder {} of statistics pages: {}", Printable{directory}, std::strerror(errno)));
  }
  std::vector<std::string> names;
  while (const dirent* const entry = readdir(folder.get())) {
    if (is_page_name(entry->d_name) && names.size() < kMostPages) names.emplace_back(entry->d_name);
  }
  std::ranges::sort(names);
  return names;
}

DeviceSample sample_of(const StatisticsPageDevice& device) {
  if (device.index < 0 || device.index >= static_cast<int>(kStatisticsPageDevices) ||
      device.listed_pools > kStatisticsPagePools || device.listed_pools > device.pool_count) {
    throw Refused{
        fmt::format("it has a device {} with {} of {} pools", device.index, device.listed_pools, device.pool_count)};
  }
  return {.page = device, .rates = std::nullopt};
}

double seconds(std::int64_t ns) { return static_cast<double>(ns) / 1e9; }

// An open file with a statistics page.
class OpenPage {
 public:
  explicit OpenPage(const std::string& path) {
    struct stat status {};
    if (lstat(path.c_str(), &status) != 0) {
      if (errno == ENOENT) throw Gone{};
      throw Refused{std::strerror(errno)};
    }
    if (!S_ISREG(status.st_mode)) throw Refused{"it is no regular file"};
    constexpr int kFlags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    file_ = Descriptor(open(path.c_str(), O_RDWR | kFlags));
    may_write_ = static_cast<bool>(file_);
    if (!file_) file_ = Descriptor(open(path.c_str(), O_RDONLY | kFlags));
    if (!file_ || fstat(file_.number(), &status) != 0) throw Refused{std::strerror(errno)};
    if (!S_ISREG(status.st_mode) || status.st_nlink != 1) throw Refused{"it is no regular file with one name"};
    owner_ = status.st_uid;
    read(&header_, sizeof(header_), 0);
    require_layout(static_cast<std::uint64_t>(status.st_size));
  }

  const StatisticsPageHeader& header() const { return header_; }
  uid_t owner() const { return owner_; }

  // Reads under the sequence lock.
  std::vector<StatisticsPageDevice> devices() {
    std::vector<StatisticsPageDevice> devices(header_.device_count);
    for (int i = 0; i < kTries; ++i) {
      read(&header_, sizeof(header_), 0);
      if (header_.sequence % 2 == 0 && header_.device_count == devices.size()) {
        read(devices.data(), devices.size() * sizeof(StatisticsPageDevice), sizeof(StatisticsPageHeader));
        StatisticsPageHeader again;
        read(&again, sizeof(again), 0);
        if (again.sequence == header_.sequence) return devices;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    throw Refused{"it does not come to rest: its process stopped while it wrote"};
  }

  // Tells the publisher that its page has a reader.
  void show_interest() const {
    const std::uint64_t interest = header_.interest + 1;
    if (!may_write_) return;
    const ssize_t written =
        pwrite(file_.number(), &interest, sizeof(interest), offsetof(StatisticsPageHeader, interest));
    static_cast<void>(written);  // if it fails, the page is refreshed less often
  }

 private:
  void read(void* into, std::size_t count, std::size_t offset) const {
    const ssize_t got = pread(file_.number(), into, count, static_cast<off_t>(offset));
    if (got != static_cast<ssize_t>(count)) throw Refused{"it is too short"};
  }

  void require_layout(std::uint64_t size) const {
    if (!std::ranges::equal(header_.magic, kStatisticsPageMagic)) throw Refused{"it is no statistics page"};
    if (header_.layout_version != kStatisticsPageVersion) {
      throw Refused{fmt::format("its layout has version {}, and this command knows {}", header_.layout_version,
                                kStatisticsPageVersion)};
    }
    const bool fits = header_.header_bytes == sizeof(StatisticsPageHeader) &&
                      header_.device_bytes == sizeof(StatisticsPageDevice) &&
                      header_.device_count <= kStatisticsPageDevices && header_.page_bytes == size &&
                      size == sizeof(StatisticsPageHeader) + header_.device_count * sizeof(StatisticsPageDevice);
    if (!fits) throw Refused{"its sizes are not those of its layout"};
  }

  Descriptor file_;
  bool may_write_ = false;
  uid_t owner_ = 0;
  StatisticsPageHeader header_{};
};

// Returns whether this process can see the process of a page by its number.
bool is_of_this_namespace(const StatisticsPageHeader& header) {
  return header.pid_namespace == 0 || header.pid_namespace == pid_namespace();
}

std::int64_t unix_time_ns() {
  return std::chrono::nanoseconds{std::chrono::system_clock::now().time_since_epoch()}.count();
}

bool is_alive(const StatisticsPageHeader& header) {
  const auto start = process_start(static_cast<pid_t>(header.process_id));
  return start && (header.process_start == 0 || *start == header.process_start);
}

// Refuses a page of one user that names the process of another: it is forged. Where /proc hides the owner, it says root.
void require_owner(const OpenPage& page) {
  struct stat process {};
  const std::string folder = fmt::format("/proc/{}", page.header().process_id);
  if (stat(folder.c_str(), &process) != 0 || process.st_uid == page.owner() || process.st_uid == 0) return;
  throw Refused{
      fmt::format("user {} owns it, and user {} process {}", page.owner(), process.st_uid, page.header().process_id)};
}

ProcessSample sample_of(OpenPage& page, const std::string& name) {
  ProcessSample sample;
  for (const StatisticsPageDevice& device : page.devices()) sample.devices.push_back(sample_of(device));
  const StatisticsPageHeader& header = page.header();
  sample.pid = header.process_id;
  sample.start = header.process_start;
  sample.page = name;
  sample.command = fixed_text(header.command);
  sample.version = fixed_text(header.library_version);
  sample.published = seconds(header.published_ns);
  sample.refreshed = seconds(header.refreshed_ns);
  sample.elapsed_s = seconds(header.elapsed_ns);
  sample.refreshes = header.refreshes;
  sample.cpu_s = seconds(header.cpu_ns);
  return sample;
}

// Reads a page into `processes`. Returns false if its process is dead: then the page is removed.
bool read_page(const std::string& path, const std::string& name, std::vector<ProcessSample>& processes) {
  OpenPage page(path);
  if (page.header().process_id > 0x7fffffff)
    throw Refused{fmt::format("it names process {}", page.header().process_id)};
  if (is_of_this_namespace(page.header())) {
    if (!is_alive(page.header())) {
      const bool is_ours = page.owner() == geteuid() || geteuid() == 0;
      if (is_ours && unlink(path.c_str()) == 0) return false;
      throw Refused{fmt::format("process {} is no more", page.header().process_id)};
    }
    require_owner(page);
  } else if (unix_time_ns() - page.header().refreshed_ns > kFreshNs) {
    throw Refused{"its process is in another namespace, and has not refreshed it for 10 s"};
  }
  processes.push_back(sample_of(page, name));
  page.show_interest();
  return true;
}

}  // namespace

ReadPages read_pages(const std::string& directory) {
  ReadPages result;
  for (const std::string& name : page_names(directory)) {
    const std::string path = fmt::format("{}/{}", directory, name);
    try {
      if (!read_page(path, name, result.processes)) result.removed.push_back(path);
    } catch (const Gone&) {
    } catch (const Refused& refused) {
      result.refused.push_back(fmt::format("{}: {}", Printable{path}, refused.reason));
    }
  }
  std::ranges::sort(result.processes, {}, [](const ProcessSample& each) { return std::tie(each.pid, each.page); });
  return result;
}

}  // namespace cachalot::tools::live
