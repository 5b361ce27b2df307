#include "cachalot/gpu_budget.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/json_writer.h"
#include "base/process.h"
#include "diagnostics/background_thread.h"
#include "diagnostics/budget_page.h"
#include "diagnostics/process_publisher.h"

CACHALOT_BEGIN

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kInterval{200};      // between two looks
constexpr seconds kLookAnyway{1};           // at a page without a new generation: a member may have been killed
constexpr milliseconds kLongestRetry{800};  // of memory that could not be given back: a hold may have ended
constexpr seconds kEpisodeEnds{10};         // after the last memory was given back
constexpr std::size_t kNoPart = std::numeric_limits<std::size_t>::max();

using Uuid = std::array<unsigned char, 16>;

// Returns text such as "00112233-4455-6677-8899-aabbccddeeff"; "" for zeros.
std::string text_of(const Uuid& uuid) {
  if (uuid == Uuid{}) return "";
  std::string text;
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    for (const int digit : {uuid[i] >> 4, uuid[i] & 15}) text += "0123456789abcdef"[digit];
  }
  return text;
}

template <std::size_t Size>
std::string text_in(const char (&text)[Size]) {
  return {text, strnlen(text, Size)};
}

bool is_control(char byte) { return static_cast<unsigned char>(byte) < 0x20 || byte == 0x7f; }

void require_name(const std::string& name) {
  constexpr std::size_t kMost = sizeof(BudgetEntry::name) - 1;
  CACHALOT_REQUIRE(name.size() <= kMost, "the name '{:.60}' has {} bytes; it may have {}", name, name.size(), kMost);
  CACHALOT_REQUIRE(name.find_first_not_of("0123456789") != std::string::npos,
                   "the name '{:.60}' is a number, by which processes are named", name);
  CACHALOT_REQUIRE(std::ranges::none_of(name, is_control), "the name of a member has a control character");
}

// Returns "train.py" for the command "python train.py --epochs 3", and "server" for "/usr/bin/server".
std::string name_of_program() {
  const std::string command = process_command();
  std::string_view rest = command;
  const auto next = [&rest] {
    const std::string_view word = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    return word.substr(word.find_last_of('/') + 1);
  };
  std::string_view name = next();
  if (name.starts_with("python")) {
    const std::string_view script = next();
    if (!script.empty() && !script.starts_with('-')) name = script;
    if (script == "-m") name = next();
  }
  std::string result(name.substr(0, sizeof(BudgetEntry::name) - 1));
  const bool is_fit = result.find_first_not_of("0123456789") != std::string::npos;
  return is_fit && std::ranges::none_of(result, is_control) ? result : "program";
}

std::string prefix_of_user() { return formatted("cachalot.budget.{}.", geteuid()); }

}  // namespace

class GpuBudget::Implementation final : public ForkAware {
 public:
  Implementation(CachingAllocator& allocator, int device, const BudgetOptions& options)
      : allocator_(allocator), device_(device), gpu_(allocator.device(device)->properties()), options_(options) {
    if (options_.path.empty()) options_.path = default_budget_path(*allocator.device(device));
    if (options_.name.empty()) options_.name = name_of_program();
    require_name(options_.name);
    join();
    thread_.wake();
  }
  // A page that cannot be changed now has an entry without a lock then, which is free as well.
  ~Implementation() {
    if (is_inherited()) return;
    thread_.stop();
    try {
      page_->update([this](BudgetTable& table) { table.content.entries[index_].is_used = 0; });
    } catch (const std::exception&) {
    }
  }

  const std::string& path() const { return options_.path; }
  std::size_t part_bytes() const { return part_; }

  // The only function that gives memory back for a budget.
  std::size_t give_back(std::size_t bytes) {
    if (is_inherited()) return 0;
    const std::size_t given = allocator_.give_way(bytes, device_);
    given_back_ += given;
    return given;
  }

 private:
  struct Memory {
    std::size_t held = 0;
    std::size_t live = 0;
    std::size_t part = 0;
    std::size_t lacking = 0;  // of the memory that is to stay free
    bool operator==(const Memory&) const = default;

    std::size_t excess() const { return std::max(held > part ? held - part : 0, std::min(held, lacking)); }
  };

  // Opens the page and takes an entry of it; nothing has changed if it throws.
  void join() {
    auto page = std::make_unique<BudgetPage>(options_.path, BudgetPage::Missing::is_made);
    std::optional<std::size_t> index;
    const BudgetTable joined = page->update([&](BudgetTable& table) {
      put_gpu(table);
      table.require_share(options_.share);
      table.require_floor(options_.floor_bytes, kBudgetEntries);
      index = page->take_entry(table);
      CACHALOT_REQUIRE(index, "the budget {:.300} has {} members, as many as it has room for", options_.path,
                       kBudgetEntries);
      table.content.entries[*index] = new_entry();
      page->write_figures(*index, table.content.entries[*index]);
    });
    page_ = std::move(page);
    index_ = *index;
    is_lost_ = false;
    note(joined);
  }

  void put_gpu(BudgetTable& table) const {
    BudgetHeader& header = table.content.header;
    const Uuid uuid = std::to_array(header.uuid);
    CACHALOT_REQUIRE(uuid == Uuid{} || gpu_.uuid == Uuid{} || uuid == gpu_.uuid,
                     "the budget {:.300} is that of GPU {}, and device {} is GPU {}", options_.path, text_of(uuid),
                     device_, text_of(gpu_.uuid));
    if (uuid == Uuid{}) std::ranges::copy(gpu_.uuid, header.uuid);
    if (header.gpu[0] == '\0') header.gpu[gpu_.name.copy(header.gpu, sizeof(header.gpu) - 1)] = '\0';
    if (header.total_bytes == 0) header.total_bytes = gpu_.total_bytes;
  }

  BudgetEntry new_entry() const {
    BudgetEntry entry{};
    entry.is_used = 1;
    entry.process_id = static_cast<std::uint64_t>(getpid());
    entry.process_start = process_start(getpid()).value_or(0);
    entry.share = options_.share;
    entry.floor_bytes = options_.floor_bytes;
    entry.name[options_.name.copy(entry.name, sizeof(entry.name) - 1)] = '\0';
    put_figures(entry, memory());
    return entry;
  }

  void put_figures(BudgetEntry& entry, const Memory& memory) const {
    entry.held_bytes = memory.held;
    entry.live_bytes = memory.live;
    entry.given_back_bytes = given_back_;
    entry.written_ns = now_ns(CLOCK_REALTIME);
    entry.cpu_ns = cpu_ns_;
  }

  // The device is not asked before the member has memory of it: that would make a context.
  Memory memory() const {
    Memory memory{allocator_.memory_reserved(device_), allocator_.memory_allocated(device_), part_, 0};
    if (options_.keep_free_bytes == 0 || memory.held == 0) return memory;
    const std::size_t free = allocator_.device(device_)->memory_info().free_bytes;
    memory.lacking = options_.keep_free_bytes - std::min(options_.keep_free_bytes, free);
    return memory;
  }

  // Takes this member's part and settings from a page.
  void note(const BudgetTable& table) {
    const BudgetEntry& entry = table.content.entries[index_];
    const auto process = static_cast<std::uint64_t>(getpid());
    CACHALOT_REQUIRE(entry.is_used != 0 && entry.process_id == process, "entry {} is another member's", index_);
    options_.share = entry.share;
    options_.floor_bytes = entry.floor_bytes;
    part_ = table.parts()[index_];
    generation_ = table.content.header.generation;
  }

  // A failure, such as that of the driver, does not end the membership.
  std::optional<std::chrono::microseconds> step() {
    try {
      look_and_give_back();
    } catch (const std::exception&) {
    }
    return kInterval;
  }

  void look_and_give_back() {
    const Clock::time_point now = Clock::now();
    const std::optional<std::uint32_t> generation = page_->generation();
    const bool is_due = now >= look_at_;
    if (is_due || (generation != generation_ && !is_lost_)) {
      look_at_ = now + kLookAnyway;
      look(generation.has_value());
    }
    Memory figures = memory();
    if (come_to_part(figures, now)) figures = memory();
    if (!is_lost_ && (is_due || figures != written_)) write_figures(figures);
  }

  // Takes the member's part from the page. A member without a sound page has none, until the path leads to one or to no file.
  void look(bool has_page) {
    try {
      if (has_page && !is_lost_) return note(page_->read());
    } catch (const BudgetIsLocked&) {
      return;
    } catch (const InvalidArgument&) {
    }
    is_lost_ = true;
    try {
      join();
    } catch (const InvalidArgument&) {
      part_ = kNoPart;
    }
  }

  // Returns whether it gave memory back.
  //
  // Memory that could not be given back is tried again when any figure has changed, and otherwise after pauses that become longer:
  // other streams may have worked on it.
  bool come_to_part(const Memory& before, Clock::time_point now) {
    if (before.excess() == 0) return false;
    const bool is_tried = before == tried_;
    if (is_tried && now < retry_at_) return false;
    retry_pause_ = is_tried ? std::min(2 * retry_pause_, kLongestRetry) : kInterval;
    retry_at_ = now + retry_pause_;
    std::size_t given = 0;
    try {
      given = give_back(before.excess());
    } catch (const std::exception&) {  // of a broken context, as in the program's own calls, or of its guard's handler
    }
    tried_ = memory();
    if (given == 0) return false;
    if (options_.tells && now >= quiet_until_) {
      const std::string lack =
          before.lacking == 0 ? "" : formatted("; {} more are to stay free", format_bytes(before.lacking));
      print_error("cachalot: gave {} of GPU {} back: '{}' held {}, and its part of the budget is {}{}\n",
                  format_bytes(given), device_, options_.name, format_bytes(before.held), format_bytes(before.part),
                  lack);
    }
    quiet_until_ = now + kEpisodeEnds;
    return true;
  }

  void write_figures(const Memory& figures) {
    cpu_ns_ = now_ns(CLOCK_THREAD_CPUTIME_ID);
    BudgetEntry entry{};
    put_figures(entry, figures);
    try {
      page_->write_figures(index_, entry);
    } catch (const InvalidArgument&) {  // the figures stay old, and their time says so
    }
    written_ = figures;
  }

  CachingAllocator& allocator_;
  const int device_;
  const DeviceProperties gpu_;
  BudgetOptions options_;  // the share and the floor as they are now
  std::unique_ptr<BudgetPage> page_;
  std::size_t index_ = 0;  // of the entry
  std::uint32_t generation_ = 0;
  bool is_lost_ = false;
  std::atomic<std::size_t> part_ = kNoPart;
  std::atomic<std::size_t> given_back_ = 0;
  std::int64_t cpu_ns_ = 0;
  Clock::time_point look_at_;
  Clock::time_point retry_at_;
  milliseconds retry_pause_ = kInterval;
  Clock::time_point quiet_until_;
  Memory tried_;                                        // after the last attempt to give memory back
  Memory written_;                                      // on the page
  BackgroundThread thread_{[this] { return step(); }};  // alone uses what stands above, from its first step on
};

GpuBudget::GpuBudget(CachingAllocator& allocator, int device, const BudgetOptions& options)
    : implementation_(std::make_unique<Implementation>(allocator, device, options)) {}

GpuBudget::~GpuBudget() = default;

const std::string& GpuBudget::path() const { return implementation_->path(); }
std::size_t GpuBudget::part_bytes() const { return implementation_->part_bytes(); }
std::size_t GpuBudget::give_back(std::size_t bytes) { return implementation_->give_back(bytes); }

// --- Budgets from outside -----------------------------------------------------------------------------------------

std::string default_budget_path(const Device& device) {
  const std::string uuid = text_of(device.properties().uuid);
  const std::string gpu = uuid.empty() ? formatted("device{}", device.index()) : uuid;
  return formatted("{}/{}{}", publish_directory(""), prefix_of_user(), gpu);
}

std::vector<std::string> default_budget_paths() {
  const std::string directory = publish_directory("");
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(directory.c_str()), closedir);
  CACHALOT_REQUIRE(folder != nullptr, "cannot read the folder {:.300} of budgets: {}", directory, std::strerror(errno));
  std::vector<std::string> paths;
  while (const dirent* const entry = readdir(folder.get())) {
    if (std::string_view(entry->d_name).starts_with(prefix_of_user()))
      paths.push_back(formatted("{}/{}", directory, entry->d_name));
  }
  std::ranges::sort(paths);
  return paths;
}

BudgetFigures read_budget(const std::string& path) {
  const BudgetContent content = BudgetPage(path, BudgetPage::Missing::is_refused).read().content;
  BudgetFigures figures;
  figures.path = path;
  figures.gpu = text_in(content.header.gpu);
  figures.uuid = text_of(std::to_array(content.header.uuid));
  figures.total_bytes = content.header.total_bytes;
  const std::vector<std::size_t> parts = BudgetTable{content}.parts();
  for (std::size_t i = 0; i < kBudgetEntries; ++i) {
    const BudgetEntry& entry = content.entries[i];
    if (entry.is_used == 0) continue;
    figures.members.push_back({.name = text_in(entry.name),
                               .process_id = entry.process_id,
                               .share = entry.share,
                               .floor_bytes = entry.floor_bytes,
                               .part_bytes = parts[i],
                               .held_bytes = entry.held_bytes,
                               .live_bytes = entry.live_bytes,
                               .given_back_bytes = entry.given_back_bytes,
                               .written_ns = entry.written_ns,
                               .cpu_ns = entry.cpu_ns});
  }
  return figures;
}

void set_budget(const std::string& path, const std::string& member, std::optional<double> share,
                std::optional<std::size_t> floor_bytes) {
  BudgetPage(path, BudgetPage::Missing::is_refused).update([&](BudgetTable& table) {
    const std::size_t index = table.find(member);
    if (share) table.require_share(*share);
    if (floor_bytes) table.require_floor(*floor_bytes, index);
    BudgetEntry& entry = table.content.entries[index];
    entry.share = share.value_or(entry.share);
    entry.floor_bytes = floor_bytes.value_or(entry.floor_bytes);
  });
}

void set_budget_total(const std::string& path, std::size_t total_bytes) {
  BudgetTable().require_total(total_bytes);  // before a file is made for it
  BudgetPage(path, BudgetPage::Missing::is_made).update([&](BudgetTable& table) {
    table.require_total(total_bytes);
    table.content.header.total_bytes = total_bytes;
  });
}

std::string to_json(const BudgetFigures& figures) {
  JsonWriter json;
  json.begin_object()
      .member("path", figures.path)
      .member("gpu", figures.gpu)
      .member("uuid", figures.uuid)
      .member("total_bytes", figures.total_bytes)
      .key("members")
      .list(figures.members,
            [](JsonWriter& out, const BudgetMember& member) {
              out.begin_object()
                  .member("name", member.name)
                  .member("process_id", member.process_id)
                  .member("share", member.share)
                  .member("floor_bytes", member.floor_bytes)
                  .member("part_bytes", member.part_bytes)
                  .member("held_bytes", member.held_bytes)
                  .member("live_bytes", member.live_bytes)
                  .member("given_back_bytes", member.given_back_bytes)
                  .member("written_ns", member.written_ns)
                  .member("cpu_ns", member.cpu_ns)
                  .end_object();
            })
      .end_object();
  return json.take();
}

CACHALOT_END
